#include "lib/Driver/MathMl.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSwitch.h"

#include <vector>

using namespace recur;
using llvm::StringRef;

std::string recur::escapeHtml(StringRef text) {
  std::string result;
  for (char c : text)
    switch (c) {
    case '<':
      result += "&lt;";
      break;
    case '>':
      result += "&gt;";
      break;
    case '&':
      result += "&amp;";
      break;
    case '"':
      result += "&quot;";
      break;
    default:
      result += c;
    }
  return result;
}

namespace {
std::string element(StringRef name, const std::string &content) {
  return ("<" + name + ">" + content + "</" + name + ">").str();
}
std::string row(const std::string &content) { return element("mrow", content); }

// Reads a line from left to right; what it does not know becomes an operator of its own, so that nothing is
// lost.
class Converter {
public:
  Converter(StringRef line, const llvm::StringSet<> &names) : rest(line), names(names) {}

  std::string run() { return items(""); }

private:
  // One item with its scripts. `bare` is the content without the brackets around it.
  struct Item {
    std::string whole, bare;
  };

  bool take(StringRef text) { return rest.consume_front(text); }
  static bool isLetter(char c) { return llvm::isAlpha(c); }

  // The character at the front, all bytes of it.
  StringRef character() {
    size_t size = 1;
    while (size < rest.size() && (static_cast<unsigned char>(rest[size]) & 0xc0) == 0x80)
      ++size;
    StringRef result = rest.take_front(size);
    rest = rest.drop_front(size);
    return result;
  }

  // Items up to a closing bracket, which is left.
  std::string items(StringRef close) {
    std::vector<std::string> result;
    while (!rest.empty() && (close.empty() || !rest.starts_with(close))) {
      if (take(" "))
        continue;
      if (!result.empty() && rest.starts_with("/") && !rest.starts_with("//")) {
        take("/");
        Item over = lastItem, under = item();
        result.back() = element("mfrac", row(over.bare) + row(under.bare));
        lastItem = {result.back(), result.back()};
        continue;
      }
      lastItem = item();
      result.push_back(lastItem.whole);
    }
    return llvm::join(result, "");
  }

  Item item() {
    std::vector<std::string> below, above;
    std::string base, bare;
    if (rest.empty())
      return {"", ""};
    if (llvm::isDigit(rest[0])) {
      StringRef number = takeNumber();
      std::string text = number.str();
      if (rest.size() > 2 && rest[0] == 'E' && (llvm::isDigit(rest[1]) || rest[1] == '-')) {
        StringRef power = rest.drop_front(1).take_while([](char c) { return llvm::isDigit(c) || c == '-'; });
        rest = rest.drop_front(1 + power.size());
        base = row(element("mn", text) + "<mo>&#xd7;</mo>" +
                   element("msup", element("mn", "10") + element("mn", power.str())));
      } else {
        base = element("mn", text);
      }
    } else if (isLetter(rest[0])) {
      base = word(below, above);
      if (base.empty())
        return text();
    } else if (rest[0] == '(' || rest[0] == '[') {
      bool round = rest[0] == '(';
      rest = rest.drop_front();
      bare = items(round ? ")" : "]");
      take(round ? ")" : "]");
      base = row(element("mo", round ? "(" : "[") + bare + element("mo", round ? ")" : "]"));
    } else {
      StringRef symbol = sign();
      bool greek = symbol == "Γ" || symbol == "Φ";
      base = element(greek ? "mi" : "mo", escapeHtml(symbol));
      if (symbol == "Σ" && take("_"))
        return same(element("munder", element("mo", "∑") + script()));
      if (!greek)
        return same(base);
      digits(below);
    }
    scripts(below, above);
    bool plain = below.empty() && above.empty();
    std::string whole = base, sub = row(llvm::join(below, "<mo>,</mo>")), sup = row(llvm::join(above, ""));
    if (!below.empty() && !above.empty())
      whole = element("msubsup", base + sub + sup);
    else if (!plain)
      whole = below.empty() ? element("msup", base + sup) : element("msub", base + sub);
    return {whole, plain && !bare.empty() ? bare : whole};
  }

  static Item same(const std::string &text) { return {text, text}; }

  // Operators in the language's spelling.
  StringRef sign() {
    if (take(".."))
      return "…";
    if (take(".*"))
      return "⊙";
    if (take("./"))
      return "⊘";
    if (take("*"))
      return "⋅";
    if (take("-"))
      return "−";
    return character();
  }

  void digits(std::vector<std::string> &below) {
    StringRef number = rest.take_while([](char c) { return llvm::isDigit(c); });
    rest = rest.drop_front(number.size());
    if (!number.empty())
      below.push_back(element("mn", number.str()));
  }

  // A name, with its number as an index and a transposition that is part of it. Empty for a word of a
  // sentence, which stays.
  std::string word(std::vector<std::string> &below, std::vector<std::string> &above) {
    StringRef run = rest.take_while([](char c) { return llvm::isAlnum(c); });
    if (rest.drop_front(run.size()).starts_with("(") && isLetter(run.back()) &&
        llvm::any_of(run, llvm::isDigit)) {
      rest = rest.drop_front(run.size()); // a function such as l2norm
      return element("mi", run.str()) + "<mo>&#x2061;</mo>";
    }
    StringRef name = rest.take_while([](char c) { return isLetter(c); }),
              after = rest.drop_front(name.size());
    bool known = names.contains(name), call = after.starts_with("(");
    if (!known && name.size() > 1 && name.ends_with("T") && names.contains(name.drop_back())) {
      rest = after;
      above.push_back(element("mo", "⊤"));
      return element("mi", name.drop_back().str());
    }
    bool numbered = !after.empty() && llvm::isDigit(after[0]);
    if (!known && name.size() > 1 && !call && !numbered)
      return "";
    rest = after;
    if (call && !known && name.size() > 1) {
      if (name == "sqrt" && take("(")) {
        std::string inner = items(")");
        take(")");
        return element("msqrt", inner);
      }
      return element("mi", name.str()) + "<mo>&#x2061;</mo>";
    }
    if (known && name.size() == 2 && name[0] == 'd') // a dimension
      return element("msub", element("mi", "d") + element("mi", name.drop_front().str()));
    digits(below);
    if (numbered && take("x")) // up to the token before
      above.push_back(element("mo", "−"));
    return element("mi", name.str());
  }

  // Words of a sentence, up to the next that is none.
  Item text() {
    std::string sentence;
    while (!rest.empty() && (isLetter(rest[0]) || rest[0] == ' ')) {
      if (isLetter(rest[0])) {
        StringRef name = rest.take_while([](char c) { return isLetter(c); }),
                  after = rest.drop_front(name.size());
        if (name.size() == 1 || names.contains(name) || after.starts_with("(") ||
            (!after.empty() && llvm::isDigit(after[0])))
          break;
        sentence += name;
        rest = after;
      } else {
        sentence += " ";
        rest = rest.drop_front();
      }
    }
    return same(element("mtext", "&#xa0;" + StringRef(sentence).rtrim().str() + "&#xa0;"));
  }

  // What stands after _ or ^: a bracket without its brackets, or one token. An exponent keeps its own
  // scripts.
  std::string script(bool isExponent = false) {
    std::string minus = take("-") ? element("mo", "−") : "";
    if (take("(")) {
      std::string inner = items(")");
      take(")");
      return row(minus + inner);
    }
    bool isName = !rest.empty() && isLetter(rest[0]);
    return row(minus + (isExponent && isName ? item().whole : token()));
  }

  // A letter or a number without scripts.
  std::string token() {
    if (rest.empty())
      return "";
    if (!llvm::isDigit(rest[0]))
      return element("mi", escapeHtml(character()));
    return element("mn", takeNumber().str());
  }

  // Digits, and a point if digits follow it.
  StringRef takeNumber() {
    size_t size = 0;
    while (size < rest.size() && (llvm::isDigit(rest[size]) || (rest[size] == '.' && size + 1 < rest.size() &&
                                                                llvm::isDigit(rest[size + 1]))))
      ++size;
    StringRef number = rest.take_front(size);
    rest = rest.drop_front(size);
    return number;
  }

  void scripts(std::vector<std::string> &below, std::vector<std::string> &above) {
    while (true) {
      if (take("_"))
        below.push_back(script());
      else if (take("^"))
        above.push_back(script(/*isExponent=*/true));
      else if (take("'"))
        above.push_back(element("mo", "′"));
      else if (take("ᵀ") || take(".T"))
        above.push_back(element("mo", "⊤"));
      else if (take("⁻"))
        above.push_back(element("mo", "−"));
      else if (rest.starts_with("[")) {
        take("[");
        below.push_back(row(items("]")));
        take("]");
      } else
        return;
    }
  }

  StringRef rest;
  const llvm::StringSet<> &names;
  Item lastItem;
};
} // namespace

std::string recur::toMathMl(StringRef line, const llvm::StringSet<> &names) {
  return Converter(line, names).run();
}
