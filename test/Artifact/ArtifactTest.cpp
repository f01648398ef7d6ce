//===- ArtifactTest.cpp - header, metadata and object of a rule with kernels in LLVM IR
//--------------------===//
#include "lib/Artifact/Descriptor.h"
#include "lib/Artifact/Header.h"
#include "lib/Artifact/Json.h"
#include "lib/Artifact/Object.h"

#include "llvm/AsmParser/Parser.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/Object/ObjectFile.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/SourceMgr.h"

#include <gtest/gtest.h>

using namespace llvm;
using namespace recur;

namespace {

/// s = s + x; o = s, on scalars: x and o are memrefs of one dimension, the states of none. `helper` has the
/// same name in every variant.
constexpr StringLiteral kernelText = R"(
define float @helper(float %a, float %b) noinline {
  %sum = fadd float %a, %b
  ret float %sum
}
define void @KERNEL(ptr %views, ptr %span, ptr %scratch) {
entry:
  %initial_slot = getelementptr ptr, ptr %views, i64 1
  %o_slot = getelementptr ptr, ptr %views, i64 2
  %final_slot = getelementptr ptr, ptr %views, i64 3
  %x = load ptr, ptr %views
  %initial = load ptr, ptr %initial_slot
  %o = load ptr, ptr %o_slot
  %final = load ptr, ptr %final_slot
  %x_field = getelementptr i8, ptr %x, i64 8
  %x_data = load ptr, ptr %x_field
  %x_stride_field = getelementptr i8, ptr %x, i64 32
  %x_stride = load i64, ptr %x_stride_field
  %o_field = getelementptr i8, ptr %o, i64 8
  %o_data = load ptr, ptr %o_field
  %o_stride_field = getelementptr i8, ptr %o, i64 32
  %o_stride = load i64, ptr %o_stride_field
  %initial_field = getelementptr i8, ptr %initial, i64 8
  %initial_data = load ptr, ptr %initial_field
  %final_field = getelementptr i8, ptr %final, i64 8
  %final_data = load ptr, ptr %final_field
  %tokens = load i64, ptr %span
  %absent = icmp eq ptr %initial_data, null
  br i1 %absent, label %begin, label %read
read:
  %given = load float, ptr %initial_data
  br label %begin
begin:
  %s0 = phi float [ 0.0, %entry ], [ %given, %read ]
  br label %head
head:
  %t = phi i64 [ 0, %begin ], [ %t1, %body ]
  %s = phi float [ %s0, %begin ], [ %s1, %body ]
  %more = icmp slt i64 %t, %tokens
  br i1 %more, label %body, label %done
body:
  %x_offset = mul i64 %t, %x_stride
  %x_at = getelementptr float, ptr %x_data, i64 %x_offset
  %xt = load float, ptr %x_at
  %s1 = call float @helper(float %s, float %xt)
  %o_offset = mul i64 %t, %o_stride
  %o_at = getelementptr float, ptr %o_data, i64 %o_offset
  store float %s1, ptr %o_at
  %t1 = add i64 %t, 1
  br label %head
done:
  %wanted = icmp ne ptr %final_data, null
  br i1 %wanted, label %write, label %exit
write:
  store float %s, ptr %final_data
  br label %exit
exit:
  ret void
}
)";

Target target(StringRef name) { return cantFail(lookupTarget(name)); }

ModelInfo makeInfo() {
  ModelInfo info;
  info.name = "sum";
  info.spec = "# running sum /* of x */\ns = s + x; o = s\n";
  info.ruleClass = "elementwise affine";
  info.form = "sequential";
  info.precision = "float32";
  info.compiler = "recurc 0.1.0";
  info.tensors = {
      {"x", Role::Input, {}, "scalar"}, {"s", Role::State, {}, "scalar"}, {"o", Role::Output, {}, ""}};
  const std::vector<DType> types(3, DType::F32);
  info.variants = {{target("x86-64"), {}, types, 0, 1, "kernel_0"},
                   {target("x86-64-v2"), {}, types, 100, 1, "kernel_1"}};
  return info;
}

/// The module of all variants, ready to be optimised.
std::unique_ptr<Module> makeModule(LLVMContext &context, const ModelInfo &info) {
  std::unique_ptr<Module> all;
  for (const VariantInfo &variant : info.variants) {
    std::string text = kernelText.str();
    text.replace(text.find("KERNEL"), 6, variant.kernel);
    SMDiagnostic diagnostic;
    std::unique_ptr<Module> one = parseAssemblyString(text, diagnostic, context);
    EXPECT_TRUE(one) << diagnostic.getMessage().str();
    cantFail(prepareModule(*one, variant.target, {variant.kernel}));
    if (all)
      cantFail(linkModules(*all, std::move(one)));
    else
      all = std::move(one);
  }
  cantFail(emitDescriptor(*all, info));
  return all;
}

SmallString<0> makeCode(const ModelInfo &info, CodeKind kind = CodeKind::Object, unsigned level = 2) {
  LLVMContext context;
  std::unique_ptr<Module> module = makeModule(context, info);
  cantFail(optimizeModule(*module, level));
  return cantFail(emitCode(*module, kind, level));
}

/// A directory of one test; RECUR_KEEP_FILES in the environment keeps it.
struct Folder {
  Folder() { EXPECT_FALSE(sys::fs::createUniqueDirectory("recur-artifact", path)); }
  ~Folder() {
    if (!std::getenv("RECUR_KEEP_FILES"))
      sys::fs::remove_directories(path);
  }
  void write(StringRef name, StringRef text) const {
    std::error_code code;
    raw_fd_ostream os((path + "/" + name).str(), code);
    EXPECT_FALSE(code);
    os << text;
  }
  /// Exit code of a shell command in the folder.
  int run(const Twine &command) const { return std::system(("cd " + path + " && " + command).str().c_str()); }
  SmallString<64> path;
};

constexpr StringLiteral program = R"(
#include "sum.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static DLTensor tensor(float *data, int32_t ndim, int64_t *shape) {
  DLTensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.device.device_type = kDLCPU;
  t.ndim = ndim;
  t.dtype.code = kDLFloat;
  t.dtype.bits = 32;
  t.dtype.lanes = 1;
  t.shape = shape;
  return t;
}

int main(void) {
  float x[] = {1, 2, 3, 10, 20, 30}, o[6], s[] = {100, 200};
  int64_t tokens[] = {2, 3, 1}, states[] = {2, 1}, one[] = {2, 1, 1};
  DLTensor tx = tensor(x, 3, tokens), to = tensor(o, 3, tokens), ts = tensor(s, 2, states);
  sum_forward_args args;
  sum_step_args step;
  memset(&args, 0, sizeof args);
  memset(&step, 0, sizeof step);
  args.x = &tx;
  args.o = &to;
  args.initial_s = args.final_s = &ts;
  int64_t size = sum_forward_workspace(&args);
  if (size < 0)
    return 1;
  void *workspace = malloc((size_t)size);
  if (sum_forward(&args, workspace, NULL)) {
    puts(recur_last_error());
    return 2;
  }
  if (o[2] != 106 || o[5] != 260 || s[0] != 106 || s[1] != 260)
    return 3;
  tx.shape = to.shape = one;
  step.x = &tx;
  step.o = &to;
  step.s = &ts;
  if (sum_step_workspace(&step) < 0 || sum_step(&step, workspace, NULL))
    return 4;
  if (o[0] != 107 || s[1] != 262)
    return 5;
  step.x = NULL;
  if (sum_step(&step, workspace, NULL) != RECUR_ERROR_NULL ||
      strcmp(recur_last_error(), "sum_step: 'x' is NULL, but it must be given") != 0)
    return 6;
  const recur_metadata *metadata = sum_metadata();
  if (strcmp(metadata->name, "sum") || metadata->abi_version != RECUR_ABI_VERSION || !metadata->model ||
      strlen(metadata->spec_sha256) != 64 || metadata->json[0] != '{')
    return 7;
  free(workspace);
  return 0;
}
)";

TEST(Artifact, ProgramsRun) {
  ModelInfo info = makeInfo();
  cantFail(finalize(info));
  const Folder folder;
  folder.write("sum.h", emitHeader(info));
  folder.write("main.c", program);
  folder.write("main.cpp", program);
  for (const unsigned level : {0u, 1u, 2u, 3u}) {
    folder.write("sum.o", makeCode(info, CodeKind::Object, level));
    const std::string tail = std::string(" sum.o " RECUR_TEST_RT " -lpthread -lm -o program && ./program");
    EXPECT_EQ(folder.run(RECUR_TEST_CC " -std=c11 -Wall -Wextra -Wpedantic -Werror " RECUR_TEST_FLAGS
                                       " main.c" +
                         tail),
              0);
  }
  EXPECT_EQ(folder.run(RECUR_TEST_CXX " -std=c++17 -Wall -Wextra -Wpedantic -Werror " RECUR_TEST_FLAGS
                                      " main.cpp sum.o " RECUR_TEST_RT
                                      " -lpthread -lm -o program && ./program"),
            0);
}

TEST(Artifact, OnlyTheFiveSymbolsAreDefined) {
  ModelInfo info = makeInfo();
  cantFail(finalize(info));
  const SmallString<0> bytes = makeCode(info);
  auto object = cantFail(object::ObjectFile::createObjectFile(MemoryBufferRef(bytes, "sum.o")));
  std::vector<std::string> defined, undefined;
  for (const object::SymbolRef symbol : object->symbols()) {
    const uint32_t flags = cantFail(symbol.getFlags());
    if (flags & object::SymbolRef::SF_FormatSpecific)
      continue; // the null symbol, sections and the file's name
    if (flags & object::SymbolRef::SF_Undefined)
      undefined.push_back(cantFail(symbol.getName()).str());
    else if (!(flags & object::SymbolRef::SF_Global))
      EXPECT_TRUE(cantFail(symbol.getName()).starts_with("sum"));
    else
      defined.push_back(cantFail(symbol.getName()).str());
  }
  std::vector<std::string> wanted = publicSymbols(info);
  llvm::sort(defined);
  llvm::sort(wanted);
  llvm::sort(undefined);
  EXPECT_EQ(defined, wanted);
  EXPECT_EQ(undefined, (std::vector<std::string>{"recur_rt_forward", "recur_rt_forward_workspace",
                                                 "recur_rt_step", "recur_rt_step_workspace"}));
  for (const object::SectionRef section : object->sections()) {
    const StringRef name = cantFail(section.getName());
    EXPECT_FALSE(name.starts_with(".init_array") || name.starts_with(".ctors")) << name.str();
  }
}

TEST(Artifact, EqualInputGivesEqualBytes) {
  ModelInfo info = makeInfo(), again = makeInfo();
  cantFail(finalize(info));
  cantFail(finalize(again));
  EXPECT_EQ(makeCode(info), makeCode(again));
  EXPECT_EQ(emitHeader(info), emitHeader(again));
  EXPECT_EQ(emitJson(info), emitJson(again));
}

TEST(Artifact, VariantsKeepTheirTargets) {
  ModelInfo info = makeInfo();
  info.variants[1].target = target("x86-64-v3");
  cantFail(finalize(info));
  EXPECT_EQ(info.variants[0].target.name, "x86-64-v3");
  const SmallString<0> code = makeCode(info, CodeKind::Assembly);
  const StringRef text = code;
  EXPECT_TRUE(text.contains("vaddss"));
  EXPECT_TRUE(text.contains("\taddss"));
}

TEST(Artifact, Metadata) {
  ModelInfo info = makeInfo();
  info.dims = {"dk"};
  info.tensors[0].shape = {"dk", "4"};
  for (VariantInfo &variant : info.variants)
    variant.dims = {64};
  cantFail(finalize(info));
  EXPECT_EQ(allDims(info), (std::vector<std::string>{"dk", "4"}));
  const json::Value value = cantFail(json::parse(emitJson(info)));
  const json::Object &root = *value.getAsObject();
  EXPECT_EQ(root.getString("name"), "sum");
  EXPECT_EQ(root.getString("spec"), info.spec);
  EXPECT_EQ(root.getString("spec_sha256"),
            "1238605c12ab9acaeefed352466d83b84c892788219ac7f7e7f075781a17bc90");
  const json::Object &x = *(*root.getArray("tensors"))[0].getAsObject();
  EXPECT_EQ(*x.getArray("shape"), (json::Array{"batch", "token", "head", "dk", 4}));
  const json::Object &variant = *(*root.getArray("variants"))[0].getAsObject();
  EXPECT_EQ(variant.getString("target"), "x86-64-v2");
  EXPECT_EQ(*variant.getObject("dims"), (json::Object{{"dk", 64}}));
  EXPECT_EQ(root.getArray("functions")->size(), 5u);
}

TEST(Artifact, Header) {
  ModelInfo info = makeInfo();
  info.tensors[0].name = "double";
  info.tensors.insert(info.tensors.begin() + 1, {"positions", Role::Param, {}, "scalar in [0, 1]"});
  for (VariantInfo &variant : info.variants)
    variant.dtypes.push_back(DType::F32);
  info.variants[0].dtypes[0] = DType::BF16;
  cantFail(finalize(info));
  const std::string text = emitHeader(info);
  const auto expectLine = [&](StringRef line) { EXPECT_TRUE(StringRef(text).contains(line)) << text; };
  expectLine("  /** [batch, token, head], float32 or bfloat16: scalar */\n  const DLTensor *double_;\n");
  expectLine("  /** [head], float32: scalar in [0, 1] */\n  const DLTensor *positions;\n");
  expectLine("  const DLTensor *positions_;\n");
  expectLine(" *   # running sum / * of x * /\n");
  const Folder folder;
  folder.write("sum.h", text);
  folder.write("main.c", "#include \"sum.h\"\nint main(void) { return 0; }\n");
  EXPECT_EQ(
      folder.run(RECUR_TEST_CC " -std=c11 -Wall -Wextra -Wpedantic -Werror " RECUR_TEST_FLAGS " main.c"), 0);
}

TEST(Artifact, Errors) {
  ModelInfo info = makeInfo();
  info.name = "two words";
  EXPECT_EQ(toString(finalize(info)), "'two words' cannot prefix C functions: letters, digits and '_' only");
  info = makeInfo();
  info.tensors[0].shape = {"2", "2", "2", "2"};
  EXPECT_EQ(toString(finalize(info)), "'x' has 4 dimensions of its own, more than 3");
  info = makeInfo();
  info.tensors.pop_back();
  for (VariantInfo &variant : info.variants)
    variant.dtypes.pop_back();
  EXPECT_EQ(toString(finalize(info)), "rule 'sum' has no output");
  info = makeInfo();
  cantFail(finalize(info));
  LLVMContext context;
  std::unique_ptr<Module> module = makeModule(context, info);
  info.variants[0].kernel = "lost";
  EXPECT_EQ(toString(emitDescriptor(*module, info)),
            "no kernel 'lost' of type void(ptr, ptr, ptr) in the module");
  EXPECT_EQ(toString(parseDType("f64").takeError()), "unknown type 'f64', known are f32, bf16, f16");
}

} // namespace
