#include "lib/Artifact/Header.h"

#include "recur/abi.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/raw_ostream.h"

using namespace llvm;

namespace recur {
namespace {

/// Words of C11 and C++17, and macros of the headers that recur.h includes, that cannot name a field.
bool isKeyword(StringRef word) {
  static const StringSet<> words = {
      "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "break", "case",
      "catch", "char", "char16_t", "char32_t", "class", "compl", "const", "const_cast", "constexpr",
      "continue", "decltype", "default", "delete", "do", "double", "dynamic_cast", "else", "enum", "explicit",
      "export", "extern", "false", "float", "for", "friend", "goto", "if", "inline", "int", "long", "mutable",
      "namespace", "new", "noexcept", "not", "not_eq", "nullptr", "operator", "or", "or_eq", "private",
      "protected", "public", "register", "reinterpret_cast", "restrict", "return", "short", "signed",
      "sizeof", "static", "static_assert", "static_cast", "struct", "switch", "template", "this",
      "thread_local", "throw", "true", "try", "typedef", "typeid", "typename", "union", "unsigned", "using",
      "virtual", "void", "volatile", "wchar_t", "while", "xor", "xor_eq", "NULL", "offsetof",
      // The type of the fields.
      "DLTensor"};
  return words.contains(word);
}

/// Writes a comment of whole words, at most 100 columns wide.
void writeComment(raw_ostream &os, StringRef indent, StringRef text) {
  SmallVector<StringRef> words;
  text.split(words, ' ', /*MaxSplit=*/-1, /*KeepEmpty=*/false);
  os << indent << "/**";
  size_t column = indent.size() + 3;
  for (const StringRef word : words) {
    if (column + 1 + word.size() > 97) {
      os << '\n' << indent << " *";
      column = indent.size() + 2;
    }
    os << ' ' << word;
    column += 1 + word.size();
  }
  os << " */\n";
}

/// Writes the fields of one argument structure.
class Fields {
public:
  explicit Fields(raw_ostream &os) : os(os) {}

  /// A field; a name that is taken or a keyword gets a '_'.
  void add(std::string name, const Twine &comment) {
    while (isKeyword(name) || !taken.insert(name).second)
      name += '_';
    writeComment(os, "  ", comment.str());
    os << "  const DLTensor *" << name << ";\n";
  }

private:
  raw_ostream &os;
  StringSet<> taken;
};

/// "float32 or bfloat16": the types of a tensor over all variants.
std::string dtypesOf(const ModelInfo &info, size_t index) {
  SmallVector<StringRef> names;
  for (const VariantInfo &variant : info.variants)
    if (!is_contained(names, dtypeLongName(variant.dtypes[index])))
      names.push_back(dtypeLongName(variant.dtypes[index]));
  return join(names, " or ");
}

/// Text that cannot end the comment it stands in.
std::string commentText(StringRef text) {
  std::string safe;
  for (const char c : text) {
    const char before = safe.empty() ? ' ' : safe.back();
    if ((before == '*' && c == '/') || (before == '/' && c == '*'))
      safe += ' ';
    safe += c;
  }
  return safe;
}

/// "[batch, token, head, dk], float32: unit vector".
std::string describe(const ModelInfo &info, size_t index, ArrayRef<StringRef> leading,
                     StringRef remark = "") {
  const TensorInfo &tensor = info.tensors[index];
  SmallVector<StringRef> dims(leading);
  dims.append(tensor.shape.begin(), tensor.shape.end());
  std::string text = "[" + join(dims, ", ") + "], " + dtypesOf(info, index);
  if (!tensor.doc.empty())
    text += ": " + commentText(tensor.doc);
  return text + remark.str();
}

void addRole(Fields &fields, const ModelInfo &info, Role role, ArrayRef<StringRef> leading,
             StringRef prefix = "", StringRef remark = "") {
  for (const auto &[index, tensor] : enumerate(info.tensors))
    if (tensor.role == role)
      fields.add((prefix + tensor.name).str(), describe(info, index, leading, remark));
}

constexpr StringLiteral indexComment =
    "[sequence], int32 or int64: the slot of each sequence where states are pools [slot, head, ..], or NULL; "
    "a slot "
    "that is not there is an error on the CPU, and on a GPU leaves its sequence alone";
constexpr StringLiteral positionsComment = "[sequence], int32 or int64: index of each sequence's first token";

void writeForwardArgs(raw_ostream &os, const ModelInfo &info) {
  writeComment(os, "",
               "Arguments of " + info.name +
                   "_forward. The memory of outputs and final states is written; it must "
                   "overlap nothing but the initial state of the same name.");
  os << "typedef struct " << info.name << "_forward_args {\n";
  Fields fields(os);
  addRole(fields, info, Role::Input, leadingDims(Role::Input));
  addRole(fields, info, Role::Param, leadingDims(Role::Param));
  addRole(fields, info, Role::State, leadingDims(Role::State), "initial_",
          "; at the start, or NULL: the rule's own initial value");
  fields.add("cu_seqlens",
             "[sequences + 1], int32 or int64: first tokens of sequences packed into a batch of 1, "
             "then the number of tokens, or NULL: each batch entry is a sequence");
  fields.add("state_index", indexComment);
  fields.add("positions", positionsComment + ", or NULL: 0");
  addRole(fields, info, Role::Output, leadingDims(Role::Output), "", "; written");
  addRole(fields, info, Role::State, leadingDims(Role::State), "final_",
          "; written at the end, or NULL: not wanted");
  os << "} " << info.name << "_forward_args;\n\n";
}

void writeStepArgs(raw_ostream &os, const ModelInfo &info) {
  static constexpr StringRef token[] = {"sequence", "1", "head"};
  writeComment(os, "",
               "Arguments of " + info.name + "_step: one token of each sequence." +
                   (info.hasStep ? ""
                                 : " To call it is an error: a step does not have the state of "
                                   "the start of its block of tokens."));
  os << "typedef struct " << info.name << "_step_args {\n";
  Fields fields(os);
  addRole(fields, info, Role::Input, token);
  addRole(fields, info, Role::Param, leadingDims(Role::Param));
  fields.add("state_index", indexComment);
  fields.add("positions", positionsComment + (info.usesPosition ? "" : "; unused by this rule, may be NULL"));
  addRole(fields, info, Role::Output, token, "", "; written");
  addRole(fields, info, Role::State, leadingDims(Role::State), "", "; updated in place");
  os << "} " << info.name << "_step_args;\n\n";
}

/// NAME_forward or NAME_step, and its query.
void writeFunction(raw_ostream &os, const std::string &function, StringRef doc) {
  writeComment(os, "", doc);
  os << "RECUR_API int32_t " << function << "(const " << function << "_args *args, void *workspace,\n"
     << std::string(19 + function.size(), ' ') << "const recur_stream *where);\n\n";
  writeComment(os, "",
               "Bytes of workspace that " + function +
                   " needs for these arguments, or a negative recur_error. "
                   "Looks at shapes, strides and types only: data pointers may be NULL.");
  os << "RECUR_API int64_t " << function << "_workspace(const " << function << "_args *args);\n\n";
}

void writeFunctions(raw_ostream &os, const ModelInfo &info) {
  const std::string forward = info.name + "_forward";
  writeFunction(os, forward,
                "Runs the rule over sequences. `workspace` has as many bytes as " + forward +
                    "_workspace says, and may be NULL where that is 0. `where` may be NULL: the process's "
                    "parallel loop. "
                    "Nothing is kept after the return. Returns 0, or a negative recur_error with its text in "
                    "recur_last_error(); then nothing was written.");
  writeFunction(os, info.name + "_step",
                "Runs one token of each sequence and updates the states in place; otherwise as " + forward +
                    ".");
  writeComment(os, "", "What is known about the rule, as constants.");
  os << "RECUR_API const recur_metadata *" << info.name << "_metadata(void);\n\n";
}

void writeVariants(raw_ostream &os, const ModelInfo &info) {
  os << " * Compiled for:\n";
  for (const VariantInfo &variant : info.variants) {
    os << " *   " << variant.target.name;
    for (const auto &[dim, size] : zip_equal(info.dims, variant.dims))
      os << ' ' << dim << '=' << size;
    SmallVector<StringRef> types;
    for (const auto &[tensor, type] : zip_equal(info.tensors, variant.dtypes))
      if (tensor.role != Role::State && !is_contained(types, dtypeLongName(type)))
        types.push_back(dtypeLongName(type));
    os << ' ' << join(types, "/") << '\n';
  }
}

} // namespace

std::string emitHeader(const ModelInfo &info) {
  std::string text;
  raw_string_ostream os(text);
  const std::string guard = "RECUR_RULE_" + StringRef(info.name).upper() + "_H_";
  os << "/* " << info.name << ".h: written by " << commentText(info.compiler) << ".\n *\n";
  for (StringRef rest = StringRef(info.spec).trim("\n"); !rest.empty();) {
    const auto [line, after] = rest.split('\n');
    os << (" *   " + StringRef(commentText(line)).rtrim().str() + "\n");
    rest = after;
  }
  os << " *\n";
  writeVariants(os, info);
  os << " *\n * Inputs and params may have fewer heads than the outputs when the counts divide: they are "
        "shared in groups.\n"
     << " * Any strides will do; sizes that stand as names are free or those compiled for. */\n"
     << "#ifndef " << guard << "\n#define " << guard << "\n\n#include <recur/recur.h>\n\n"
     << "#if RECUR_ABI_VERSION != " << RECUR_ABI_VERSION << "\n#error \"" << info.name << ".h needs version "
     << RECUR_ABI_VERSION << " of recur's binary interface\"\n#endif\n\n"
     << "#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n";
  writeForwardArgs(os, info);
  writeStepArgs(os, info);
  writeFunctions(os, info);
  os << "#ifdef __cplusplus\n}\n#endif\n\n#endif /* " << guard << " */\n";
  return text;
}

} // namespace recur
