#include "lib/Artifact/ModelInfo.h"

#include "recur/abi.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/SHA256.h"

#include <numeric>

using namespace llvm;

namespace recur {

static_assert(int(Role::Input) == RECUR_INPUT && int(Role::Param) == RECUR_PARAM &&
              int(Role::State) == RECUR_STATE && int(Role::Output) == RECUR_OUTPUT);

StringRef dtypeLongName(DType type) {
  static constexpr StringLiteral names[] = {"float32", "bfloat16", "float16"};
  return names[unsigned(type)];
}

StringRef roleName(Role role) {
  static constexpr StringLiteral names[] = {"input", "param", "state", "output"};
  return names[unsigned(role)];
}

std::vector<StringRef> VariantInfo::kernels() const {
  std::vector<StringRef> names = {kernel};
  if (segments)
    for (const SegmentsInfo::Round &round : segments->rounds) {
      for (const SegmentsInfo::Gather &gather : round.gathers)
        names.push_back(gather.kernel);
      names.push_back(round.stitch);
    }
  return names;
}

ArrayRef<StringRef> leadingDims(Role role) {
  static constexpr StringRef token[] = {"batch", "token", "head"}, param[] = {"head"},
                             state[] = {"sequence", "head"};
  if (role == Role::Param)
    return param;
  if (role == Role::State)
    return state;
  return token;
}

static bool isNumber(StringRef dim) { return !dim.empty() && all_of(dim, isDigit); }

std::vector<std::string> allDims(const ModelInfo &info) {
  std::vector<std::string> dims = info.dims;
  for (const TensorInfo &tensor : info.tensors)
    for (const std::string &dim : tensor.shape)
      if (isNumber(dim) && !is_contained(dims, dim))
        dims.push_back(dim);
  return dims;
}

static Error checkTensors(const ModelInfo &info) {
  size_t operands = 0, outputs = 0;
  Role last = Role::Input;
  for (const TensorInfo &tensor : info.tensors) {
    assert(tensor.role >= last && "tensors are grouped by role");
    last = tensor.role;
    operands += tensor.role == Role::State ? 2 : 1;
    outputs += tensor.role == Role::Output;
    if (tensor.shape.size() > RECUR_MAX_RANK)
      return createStringError("'" + tensor.name + "' has " + Twine(tensor.shape.size()) +
                               " dimensions of its own, more than " + Twine(int(RECUR_MAX_RANK)));
    for (const std::string &dim : tensor.shape)
      assert((isNumber(dim) || is_contained(info.dims, dim)) &&
             "shapes are made of numbers and of the model's symbols");
  }
  if (!outputs)
    return createStringError("rule '" + info.name + "' has no output");
  if (operands > RECUR_MAX_TENSORS)
    return createStringError("rule '" + info.name + "' has " + Twine(operands) +
                             " tensors, counting each state twice, more than " +
                             Twine(int(RECUR_MAX_TENSORS)));
  if (allDims(info).size() > RECUR_MAX_DIMS)
    return createStringError("rule '" + info.name + "' has " + Twine(allDims(info).size()) +
                             " dimensions, more than " + Twine(int(RECUR_MAX_DIMS)));
  return Error::success();
}

/// Better targets first, else as given: at run time the first variant that fits is taken.
static void sortVariants(std::vector<VariantInfo> &variants) {
  std::vector<unsigned> order(variants.size());
  std::iota(order.begin(), order.end(), 0);
  llvm::sort(order, [&](unsigned a, unsigned b) {
    const unsigned rankA = variants[a].target.rank, rankB = variants[b].target.rank;
    return rankA != rankB ? rankA > rankB : a < b;
  });
  std::vector<VariantInfo> sorted;
  for (const unsigned index : order)
    sorted.push_back(std::move(variants[index]));
  variants = std::move(sorted);
}

static bool isIdentifier(StringRef name) {
  return !name.empty() && !isDigit(name[0]) && all_of(name, [](char c) { return isAlnum(c) || c == '_'; });
}

Error finalize(ModelInfo &info) {
  if (!isIdentifier(info.name))
    return createStringError("'" + info.name + "' cannot prefix C functions: letters, digits and '_' only");
  info.specHash = toHex(SHA256::hash(arrayRefFromStringRef(info.spec)), /*LowerCase=*/true);
  sortVariants(info.variants);
  assert(all_of(info.variants, [&](const VariantInfo &variant) {
    return variant.dims.size() == info.dims.size() && variant.dtypes.size() == info.tensors.size();
  }));
  return checkTensors(info);
}

} // namespace recur
