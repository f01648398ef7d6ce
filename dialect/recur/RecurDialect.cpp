// Dialect, types and attributes.
#include "dialect/recur/Recur.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"

#include <cmath>

using namespace mlir;
using namespace recur;

#include "dialect/recur/RecurDialect.cpp.inc"
#include "dialect/recur/RecurEnums.cpp.inc"
#include "dialect/recur/RecurInterfaces.cpp.inc"

// The `unit` flag of an argument prints as the bare keyword.
static ParseResult parseUnitFlag(AsmParser &, bool &unit) {
  unit = true;
  return success();
}
static void printUnitFlag(AsmPrinter &, bool) {}

#define GET_TYPEDEF_CLASSES
#include "dialect/recur/RecurTypes.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "dialect/recur/RecurAttrs.cpp.inc"

void RecurDialect::initialize() {
  addTypes<
#define GET_TYPEDEF_LIST
#include "dialect/recur/RecurTypes.cpp.inc"
      >();
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialect/recur/RecurAttrs.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "dialect/recur/RecurOps.cpp.inc"
      >();
}

Operation *RecurDialect::materializeConstant(OpBuilder &builder, Attribute value, Type type, Location loc) {
  if (auto number = dyn_cast<FloatAttr>(value))
    return ConstantOp::create(builder, loc, type, number);
  return nullptr;
}

//===----------------------------------------------------------------------===//
// Dimensions
//===----------------------------------------------------------------------===//

bool recur::isOne(Attribute dim) {
  auto number = dyn_cast<IntegerAttr>(dim);
  return number && number.getInt() == 1;
}

std::string recur::dimText(Attribute dim) {
  if (auto symbol = dyn_cast<StringAttr>(dim))
    return symbol.str();
  return std::to_string(cast<IntegerAttr>(dim).getInt());
}

ParseResult recur::parseDim(AsmParser &parser, Attribute &dim) {
  int64_t number;
  OptionalParseResult integer = parser.parseOptionalInteger(number);
  Builder &builder = parser.getBuilder();
  if (integer.has_value()) {
    dim = builder.getI64IntegerAttr(number);
    return *integer;
  }
  std::string symbol;
  if (parser.parseKeywordOrString(&symbol))
    return failure();
  dim = builder.getStringAttr(symbol);
  return success();
}

void recur::printDim(AsmPrinter &printer, Attribute dim) {
  if (auto symbol = dyn_cast<StringAttr>(dim))
    printer.printKeywordOrString(symbol);
  else
    printer << cast<IntegerAttr>(dim).getInt();
}

static LogicalResult verifyDim(function_ref<InFlightDiagnostic()> emitError, Attribute dim) {
  if (auto symbol = dyn_cast<StringAttr>(dim)) {
    if (symbol.empty())
      return emitError() << "a symbolic dimension needs a name";
    return success();
  }
  auto number = dyn_cast<IntegerAttr>(dim);
  if (!number || !number.getType().isInteger(64))
    return emitError() << "a dimension must be an integer or a name, got: " << dim;
  if (number.getInt() < 1)
    return emitError() << "a dimension must be at least 1, got: " << number.getInt();
  return success();
}

//===----------------------------------------------------------------------===//
// Types
//===----------------------------------------------------------------------===//

MatType MatType::get(MLIRContext *context, int64_t rows, int64_t cols) {
  Builder builder(context);
  return get(context, builder.getI64IntegerAttr(rows), builder.getI64IntegerAttr(cols));
}

MatType MatType::scalar(MLIRContext *context) { return get(context, 1, 1); }
bool MatType::isScalar() const { return isOne(getRows()) && isOne(getCols()); }
bool MatType::isVector() const { return !isOne(getRows()) && isOne(getCols()); }
bool MatType::isBound() const { return isa<IntegerAttr>(getRows()) && isa<IntegerAttr>(getCols()); }
int64_t MatType::numRows() const { return cast<IntegerAttr>(getRows()).getInt(); }
int64_t MatType::numCols() const { return cast<IntegerAttr>(getCols()).getInt(); }
MatType MatType::transposed() const { return get(getContext(), getCols(), getRows()); }

LogicalResult MatType::verify(function_ref<InFlightDiagnostic()> emitError, Attribute rows, Attribute cols) {
  return success(succeeded(verifyDim(emitError, rows)) && succeeded(verifyDim(emitError, cols)));
}

static ParseResult parseProduct(AsmParser &parser, Attribute &rows, Attribute &cols) {
  return failure(parseDim(parser, rows) || parser.parseKeyword("x") || parseDim(parser, cols));
}

Type MatType::parse(AsmParser &parser) {
  Attribute rows, cols;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess() || parseProduct(parser, rows, cols) || parser.parseGreater())
    return {};
  return getChecked([&] { return parser.emitError(loc); }, parser.getContext(), rows, cols);
}

void MatType::print(AsmPrinter &printer) const {
  printer << "<";
  printDim(printer, getRows());
  printer << " x ";
  printDim(printer, getCols());
  printer << ">";
}

LogicalResult StepsType::verify(function_ref<InFlightDiagnostic()> emitError, Attribute count, MatType,
                                bool) {
  return verifyDim(emitError, count);
}

Type StepsType::parse(AsmParser &parser) {
  Attribute count, rows, cols;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess() || parseDim(parser, count) || parser.parseKeyword("x") ||
      parseProduct(parser, rows, cols))
    return {};
  bool columns = succeeded(parser.parseOptionalComma());
  if ((columns && parser.parseKeyword("columns")) || parser.parseGreater())
    return {};
  auto emitError = [&] { return parser.emitError(loc); };
  auto step = MatType::getChecked(emitError, parser.getContext(), rows, cols);
  return step ? getChecked(emitError, parser.getContext(), count, step, columns) : Type();
}

void StepsType::print(AsmPrinter &printer) const {
  printer << "<";
  printDim(printer, getCount());
  printer << " x ";
  printDim(printer, getStep().getRows());
  printer << " x ";
  printDim(printer, getStep().getCols());
  printer << (getColumns() ? ", columns>" : ">");
}

MatType recur::broadcastTypes(MatType lhs, MatType rhs) {
  auto join = [](Attribute a, Attribute b) { return a == b || isOne(b) ? a : isOne(a) ? b : Attribute(); };
  Attribute rows = join(lhs.getRows(), rhs.getRows()), cols = join(lhs.getCols(), rhs.getCols());
  return rows && cols ? MatType::get(lhs.getContext(), rows, cols) : MatType();
}

//===----------------------------------------------------------------------===//
// Ranges
//===----------------------------------------------------------------------===//

static constexpr double infinity = std::numeric_limits<double>::infinity();

static FloatAttr float64(MLIRContext *context, double value) {
  return FloatAttr::get(Float64Type::get(context), value);
}

RangeAttr RangeAttr::get(MLIRContext *context, double lo, double hi, bool loOpen, bool hiOpen) {
  return get(context, float64(context, lo), float64(context, hi), loOpen, hiOpen);
}
RangeAttr RangeAttr::all(MLIRContext *context) { return get(context, -infinity, infinity, false, false); }
RangeAttr RangeAttr::closed(MLIRContext *context, double lo, double hi) {
  return get(context, lo, hi, false, false);
}

bool RangeAttr::contains(double x) const {
  return (getLoOpen() ? x > getLo() : x >= getLo()) && (getHiOpen() ? x < getHi() : x <= getHi());
}

bool RangeAttr::contains(RangeAttr other) const {
  bool lo = getLo() < other.getLo() || (getLo() == other.getLo() && (!getLoOpen() || other.getLoOpen()));
  bool hi = getHi() > other.getHi() || (getHi() == other.getHi() && (!getHiOpen() || other.getHiOpen()));
  return lo && hi;
}

bool RangeAttr::disjoint(RangeAttr other) const {
  auto before = [](RangeAttr a, RangeAttr b) {
    return a.getHi() < b.getLo() || (a.getHi() == b.getLo() && (a.getHiOpen() || b.getLoOpen()));
  };
  return before(*this, other) || before(other, *this);
}

RangeAttr RangeAttr::intersection(RangeAttr other) const {
  if (disjoint(other))
    return {};
  // The narrower end of the two; at equal ends the open one.
  bool lo = getLo() > other.getLo() || (getLo() == other.getLo() && getLoOpen());
  bool hi = getHi() < other.getHi() || (getHi() == other.getHi() && getHiOpen());
  return get(getContext(), lo ? getLo() : other.getLo(), hi ? getHi() : other.getHi(),
             lo ? getLoOpen() : other.getLoOpen(), hi ? getHiOpen() : other.getHiOpen());
}

static std::string numberText(double x) {
  if (std::isinf(x))
    return x < 0 ? "-inf" : "inf";
  // The shortest decimal that reads back as the same number.
  for (unsigned precision = 1; precision < 17; ++precision) {
    std::string text = llvm::formatv("{0}", llvm::format("%.*g", precision, x)).str();
    if (std::strtod(text.c_str(), nullptr) == x)
      return text;
  }
  return llvm::formatv("{0}", llvm::format("%.17g", x)).str();
}

std::string RangeAttr::str() const {
  return (getLoOpen() ? "(" : "[") + numberText(getLo()) + ", " + numberText(getHi()) +
         (getHiOpen() ? ")" : "]");
}

LogicalResult RangeAttr::verify(function_ref<InFlightDiagnostic()> emitError, FloatAttr lower,
                                FloatAttr upper, bool loOpen, bool hiOpen) {
  double lo = lower.getValueAsDouble(), hi = upper.getValueAsDouble();
  if (lo < hi || (lo == hi && !loOpen && !hiOpen))
    return success();
  return emitError() << "an interval needs its lower end below its upper end, got: " << numberText(lo)
                     << " and " << numberText(hi);
}

// One end of an interval, such as "-inf" or "0.5".
static bool readEnd(StringRef text, double &value) {
  text = text.trim();
  bool negative = text.consume_front("-");
  if (text == "inf")
    value = infinity;
  else if (text.getAsDouble(value))
    return false;
  value = negative ? -value : value;
  return true;
}

// Intervals stand in quotes, as MLIR wants brackets balanced.
Attribute RangeAttr::parse(AsmParser &parser, Type) {
  std::string quoted;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess() || parser.parseString(&quoted) || parser.parseGreater())
    return {};
  StringRef text = quoted;
  bool loOpen = text.consume_front("("), hiOpen = text.consume_back(")");
  auto [lower, upper] = text.split(',');
  double lo, hi;
  if ((!loOpen && !lower.consume_front("[")) || (!hiOpen && !upper.consume_back("]")) ||
      !readEnd(lower, lo) || !readEnd(upper, hi)) {
    parser.emitError(loc) << "an interval is written like \"(-inf, 0]\", got: \"" << quoted << "\"";
    return {};
  }
  return getChecked([&] { return parser.emitError(loc); }, parser.getContext(),
                    float64(parser.getContext(), lo), float64(parser.getContext(), hi), loOpen, hiOpen);
}

void RangeAttr::print(AsmPrinter &printer) const { printer << "<\"" << str() << "\">"; }
