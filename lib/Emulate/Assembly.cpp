#include "lib/Emulate/Assembly.h"
#include "lib/Emulate/Machine.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSwitch.h"

using namespace llvm;
using namespace recur::emulate;

namespace {
class Parser {
public:
  Expected<std::unique_ptr<Program>> run(StringRef text, StringRef constraints);

private:
  void readConstraints(StringRef constraints);
  Error readStatement(StringRef text);
  Error readGroup(StringRef text, OperandGroup &group);
  Error readOperand(StringRef text, Operand &operand);
  int64_t slotOf(StringRef name) { return names.try_emplace(name, program->slots++).first->second; }

  std::unique_ptr<Program> program = std::make_unique<Program>();
  StringMap<int64_t> names;
  bool waits = false;
};
} // namespace

// Splits at a character outside of brackets and braces.
static SmallVector<StringRef> splitOutside(StringRef text, char separator) {
  SmallVector<StringRef> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    depth += StringRef("{[").contains(text[i]) - StringRef("}]").contains(text[i]);
    if (text[i] == separator && depth == 0) {
      parts.push_back(text.slice(begin, i).trim());
      begin = i + 1;
    }
  }
  parts.push_back(text.substr(begin).trim());
  return parts;
}

void Parser::readConstraints(StringRef constraints) {
  SmallVector<StringRef> parts;
  constraints.split(parts, ',', -1, /*KeepEmpty=*/false);
  for (StringRef part : parts) {
    if (part.starts_with("~"))
      continue;
    unsigned output;
    if (!part.getAsInteger(10, output))
      program->tied.push_back({program->slots, output});
    program->outputs += part.starts_with("=");
    ++program->slots;
  }
}

Error Parser::readOperand(StringRef text, Operand &operand) {
  text = text.trim();
  if (text.consume_front("$")) {
    unsigned slot;
    if (text.getAsInteger(10, slot))
      return createStringError("no operand '$" + text + "'");
    operand = {Operand::Slot, slot};
    return Error::success();
  }
  if (text == "_") {
    operand = {};
    return Error::success();
  }
  if (text.starts_with("%")) {
    int64_t special = StringSwitch<int64_t>(text)
                          .Case("%tid.x", ThreadIndex)
                          .Case("%ctaid.x", BlockIndex)
                          .Case("%ntid.x", BlockSize)
                          .Case("%nctaid.x", GridSize)
                          .Case("%laneid", LaneIndex)
                          .Case("%cluster_ctarank", ClusterRank)
                          .Case("%shared", SharedBase)
                          .Default(-1);
    if (special < 0)
      return createStringError("unknown register '" + text + "'");
    operand = {Operand::Special, special};
    return Error::success();
  }
  int64_t number;
  StringRef digits = text;
  if (digits.consume_front("0f") ? !digits.getAsInteger(16, number) : !text.getAsInteger(0, number)) {
    operand = {Operand::Number, number};
    return Error::success();
  }
  auto name = names.find(text);
  if (name == names.end())
    return createStringError("unknown register '" + text + "'");
  operand = {Operand::Slot, name->second};
  return Error::success();
}

Error Parser::readGroup(StringRef text, OperandGroup &group) {
  bool address = text.consume_front("[");
  if (address)
    text.consume_back("]");
  else if (text.consume_front("{"))
    text.consume_back("}");
  for (StringRef part : splitOutside(text, ',')) {
    if (part.consume_front("{")) {
      part.consume_back("}");
      OperandGroup inner;
      if (Error error = readGroup(("{" + part + "}").str(), inner))
        return error;
      group.items.append(inner.items);
      continue;
    }
    if (address)
      if (auto [base, offset] = part.split('+'); !offset.empty()) {
        if (offset.trim().getAsInteger(0, group.offset))
          return createStringError("no offset '" + offset + "'");
        part = base;
      }
    Operand operand;
    if (Error error = readOperand(part, operand))
      return error;
    group.items.push_back(operand);
  }
  return Error::success();
}

Error Parser::readStatement(StringRef text) {
  auto isName = [](char c) { return isAlnum(c) || c == '_'; };
  for (bool again = true; again;) {
    text = text.trim();
    again = text.consume_front("{") || text.consume_front("}");
    StringRef label = text.take_while(isName);
    if (!label.empty() && text.substr(label.size()).starts_with(":")) {
      text = text.substr(label.size() + 1);
      again = true;
    }
  }
  if (text.empty())
    return Error::success();
  if (text.consume_front(".reg")) {
    for (StringRef name : splitOutside(text.trim().split(' ').second, ','))
      slotOf(name);
    return Error::success();
  }
  Statement &statement = program->statements.emplace_back();
  statement.text = text.str();
  text = statement.text;
  if (text.consume_front("@")) {
    statement.negated = text.consume_front("!");
    StringRef name = text.take_while(isName);
    if (!names.count(name))
      return createStringError("unknown register '" + name + "'");
    statement.predicate = names.lookup(name);
    text = text.substr(name.size()).trim();
  }
  auto [mnemonic, operands] = text.split(' ');
  mnemonic.split(statement.words, '.');
  // A loop around an attempt to wait: the attempt itself waits here. What else is read again would never
  // change, as launches and blocks run one after the other.
  if (waits && statement.words.front() == "bra") {
    program->statements.pop_back();
    return Error::success();
  }
  if (statement.words.front() == "bra") {
    statement.run = [](Thread &thread, const Statement &, Slots) {
      thread.fail("waits for what nobody has written");
    };
    return Error::success();
  }
  operands = operands.trim();
  if (!operands.empty())
    for (StringRef part : splitOutside(operands, ',')) {
      statement.operands.emplace_back();
      // "d|p" has two results.
      for (StringRef side : splitOutside(part, '|'))
        if (Error error = readGroup(side, statement.operands.back()))
          return error;
    }
  statement.outputs = program->outputs;
  constexpr bool (*decoders[])(Statement &) = {decodeScalar, decodeMemory, decodeBarrier,
                                               decodeCopy,   decodeLanes,  decodeProduct};
  if (none_of(decoders, [&](auto *decode) { return decode(statement); }))
    return createStringError("the emulator does not know '" + statement.text + "'");
  return Error::success();
}

Expected<std::unique_ptr<Program>> Parser::run(StringRef text, StringRef constraints) {
  readConstraints(constraints);
  waits = text.contains("mbarrier.try_wait") || text.contains("mbarrier.test_wait");
  SmallVector<StringRef> parts;
  text.split(parts, ';');
  program->statements.reserve(parts.size()); // a statement refers to its own text
  for (StringRef part : parts)
    if (Error error = readStatement(part))
      return std::move(error);
  return std::move(program);
}

Expected<std::unique_ptr<Program>> recur::emulate::parseAssembly(StringRef text, StringRef constraints) {
  return Parser().run(text, constraints);
}
