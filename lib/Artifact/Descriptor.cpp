#include "lib/Artifact/Descriptor.h"

#include "lib/Artifact/Json.h"
#include "recur/abi.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/IRBuilder.h"

using namespace llvm;

namespace recur {
namespace {

/// Builds the constants that recur/abi.h declares, field by field in its order.
class Descriptor {
public:
  Descriptor(Module &module, const ModelInfo &info)
      : module(module), context(module.getContext()), info(info), dims(allDims(info)),
        pointer(PointerType::get(context, 0)), null(ConstantPointerNull::get(pointer)) {}

  Error emit();

private:
  Constant *i32(int64_t value) { return ConstantInt::getSigned(Type::getInt32Ty(context), value); }
  Constant *i64(int64_t value) { return ConstantInt::getSigned(Type::getInt64Ty(context), value); }

  /// A hidden constant; the name is for readers of the IR.
  GlobalVariable *global(Constant *value, const Twine &name) {
    auto *variable = new GlobalVariable(module, value->getType(), /*isConstant=*/true,
                                        GlobalValue::PrivateLinkage, value, name);
    variable->setUnnamedAddr(GlobalValue::UnnamedAddr::Global);
    return variable;
  }
  Constant *string(StringRef text) {
    return global(ConstantDataArray::getString(context, text), "recur.text");
  }
  /// A pointer to an array in memory; NULL for an empty one.
  Constant *array(ArrayRef<Constant *> items, const Twine &name) {
    if (items.empty())
      return null;
    return global(ConstantArray::get(ArrayType::get(items[0]->getType(), items.size()), items), name);
  }
  /// A structure of C with the fields' natural alignment; `size` is what C says.
  Constant *structure(ArrayRef<Constant *> fields, size_t size) {
    Constant *value = ConstantStruct::getAnon(context, fields);
    assert(module.getDataLayout().getTypeAllocSize(value->getType()) == size &&
           "not the layout of recur/abi.h");
    (void)size;
    return value;
  }

  void hideAll();
  Constant *tensor(const TensorInfo &tensor);
  Constant *dtype(DType type);
  Constant *gpuCode(const GpuCode &code);
  Expected<Constant *> hostKernel(StringRef name);
  Constant *numbers(ArrayRef<int32_t> values);
  Expected<Constant *> segments(const SegmentsInfo &info);
  Expected<Constant *> variant(const VariantInfo &variant);
  Constant *metadata();
  void entry(StringRef name, bool workspace, Constant *model);
  void metadataEntry(Constant *metadata);
  Function *publicFunction(StringRef name, Type *result, unsigned arguments);

  Module &module;
  LLVMContext &context;
  const ModelInfo &info;
  const std::vector<std::string> dims;
  PointerType *pointer;
  Constant *null;
};

Constant *Descriptor::tensor(const TensorInfo &tensor) {
  SmallVector<Constant *> indices;
  for (const std::string &dim : tensor.shape)
    indices.push_back(i32(find(dims, dim) - dims.begin()));
  return structure({string(tensor.name), i32(int(tensor.role)), i32(int64_t(indices.size())),
                    array(indices, "recur.dims." + tensor.name)},
                   sizeof(recur_tensor));
}

Constant *Descriptor::dtype(DType type) {
  Type *i8 = Type::getInt8Ty(context);
  return structure({ConstantInt::get(i8, type == DType::BF16 ? kDLBfloat : kDLFloat),
                    ConstantInt::get(i8, dtypeSize(type) * 8),
                    ConstantInt::get(Type::getInt16Ty(context), 1)},
                   sizeof(DLDataType));
}

Constant *Descriptor::gpuCode(const GpuCode &code) {
  SmallVector<Constant *> cubins, entries;
  for (const std::string &cubin : code.cubins) {
    GlobalVariable *bytes =
        global(ConstantDataArray::getString(context, cubin, /*AddNull=*/false), "recur.cubin");
    bytes->setAlignment(Align(64));
    cubins.push_back(bytes);
  }
  for (const GpuEntry &entry : code.entries) {
    entries.push_back(structure(
        {string(entry.name), cubins[entry.cubin], i32(entry.threads), i32(entry.shards), i64(entry.shared),
         i64(entry.scratch), i64(entry.flags | (entry.packed ? RECUR_CUDA_PACKED : 0)),
         i64(entry.leastTokens), numbers(entry.maps), i32(int64_t(entry.maps.size())), i32(entry.mostBlocks),
         numbers(entry.tensors), i64(int64_t(entry.tensors.size())), i64(entry.record)},
        sizeof(recur_cuda_entry)));
  }
  SmallVector<Constant *> temporaries;
  for (const GpuTemporary &one : code.temporaries)
    temporaries.push_back(
        structure({i64(one.rows), i64(one.entries), i64(one.bits)}, sizeof(recur_cuda_temporary)));
  return global(structure({code.ptx.empty() ? null : string(code.ptx), i32(code.capability), i32(code.exact),
                           i32(int64_t(entries.size())), i32(int64_t(temporaries.size())),
                           array(entries, "recur.entries"), array(temporaries, "recur.temporaries")},
                          sizeof(recur_cuda_kernel)),
                "recur.gpu");
}

Expected<Constant *> Descriptor::hostKernel(StringRef name) {
  Function *kernel = module.getFunction(name);
  const auto *type =
      FunctionType::get(Type::getVoidTy(context), {pointer, pointer, pointer}, /*isVarArg=*/false);
  if (!kernel || kernel->isDeclaration() || kernel->getFunctionType() != type)
    return createStringError("no kernel '" + name + "' of type void(ptr, ptr, ptr) in the module");
  return kernel;
}

Constant *Descriptor::numbers(ArrayRef<int32_t> values) {
  SmallVector<Constant *> items;
  for (const int32_t value : values)
    items.push_back(i32(value));
  return array(items, "recur.numbers");
}

Expected<Constant *> Descriptor::segments(const SegmentsInfo &info) {
  SmallVector<Constant *> arrays, rounds;
  for (const std::vector<int64_t> &sizes : info.arrays) {
    auto size = [&](size_t axis) { return i64(axis < sizes.size() ? sizes[axis] : 1); };
    arrays.push_back(structure({i64(int64_t(sizes.size())), size(0), size(1)}, sizeof(recur_array)));
  }
  for (const SegmentsInfo::Round &round : info.rounds) {
    SmallVector<Constant *> gathers;
    for (const SegmentsInfo::Gather &gather : round.gathers) {
      Expected<Constant *> kernel = hostKernel(gather.kernel);
      if (!kernel)
        return kernel.takeError();
      gathers.push_back(structure({*kernel, numbers(gather.states), i64(int64_t(gather.states.size()))},
                                  sizeof(recur_gather)));
    }
    Expected<Constant *> stitch = hostKernel(round.stitch);
    if (!stitch)
      return stitch.takeError();
    rounds.push_back(structure({array(gathers, "recur.gathers"), *stitch, numbers(round.inputs),
                                numbers(round.states), i32(int64_t(gathers.size())),
                                i32(int64_t(round.inputs.size())), i32(int64_t(round.states.size())), i32(0)},
                               sizeof(recur_round)));
  }
  return global(
      structure({array(arrays, "recur.arrays"), array(rounds, "recur.rounds"), i32(int64_t(arrays.size())),
                 i32(int64_t(rounds.size())), i64(info.scratch), i64(info.cost)},
                sizeof(recur_segments)),
      "recur.segments");
}

Expected<Constant *> Descriptor::variant(const VariantInfo &variant) {
  Constant *kernel = null, *cut = null;
  if (!variant.gpu) {
    Expected<Constant *> found = hostKernel(variant.kernel);
    if (!found)
      return found.takeError();
    kernel = *found;
  }
  if (variant.segments) {
    Expected<Constant *> made = segments(*variant.segments);
    if (!made)
      return made.takeError();
    cut = *made;
  }
  SmallVector<Constant *> sizes, types;
  for (const int64_t size : variant.dims)
    sizes.push_back(i64(size));
  for (const std::string &number : drop_begin(dims, info.dims.size()))
    sizes.push_back(i64(std::stoll(number)));
  for (const DType type : variant.dtypes)
    types.push_back(dtype(type));
  return structure({i64(int64_t(variant.target.required)), string(variant.target.name),
                    array(sizes, "recur.sizes"), array(types, "recur.types"), i64(variant.scratch), kernel,
                    variant.gpu ? gpuCode(*variant.gpu) : null, i64(variant.parts), cut},
                   sizeof(recur_variant));
}

Constant *Descriptor::metadata() {
  return structure({i32(RECUR_ABI_VERSION), string(info.name), string(info.spec), string(info.specHash),
                    string(info.ruleClass), string(info.form), string(info.precision), string(info.compiler),
                    string(emitJson(info, /*indent=*/0)), null},
                   sizeof(recur_metadata));
}

Function *Descriptor::publicFunction(StringRef name, Type *result, unsigned arguments) {
  const SmallVector<Type *> types(arguments, pointer);
  auto *function = Function::Create(FunctionType::get(result, types, /*isVarArg=*/false),
                                    GlobalValue::ExternalLinkage, name, module);
  function->addFnAttr(Attribute::NoUnwind);
  function->setUWTableKind(UWTableKind::Default);
  return function;
}

/// NAME_forward and its like: calls recur_rt_forward with the model before its own arguments.
void Descriptor::entry(StringRef name, bool workspace, Constant *model) {
  Type *result = workspace ? Type::getInt64Ty(context) : Type::getInt32Ty(context);
  const unsigned arguments = workspace ? 1 : 3;
  Function *function = publicFunction((info.name + "_" + name).str(), result, arguments);
  const SmallVector<Type *> types(arguments + 1, pointer);
  const FunctionCallee callee = module.getOrInsertFunction(
      ("recur_rt_" + name).str(), FunctionType::get(result, types, /*isVarArg=*/false));
  IRBuilder<> builder(BasicBlock::Create(context, "", function));
  SmallVector<Value *> values = {model};
  for (Argument &argument : function->args())
    values.push_back(&argument);
  CallInst *call = builder.CreateCall(callee, values);
  call->setTailCall();
  builder.CreateRet(call);
}

void Descriptor::metadataEntry(Constant *metadata) {
  IRBuilder<> builder(BasicBlock::Create(context, "", publicFunction(info.name + "_metadata", pointer, 0)));
  builder.CreateRet(metadata);
}

/// Nobody outside may see, or bind to, what is in the module by now; local symbols get the rule's prefix,
/// too.
void Descriptor::hideAll() {
  for (GlobalValue &value : module.global_values()) {
    if (value.isDeclaration())
      continue;
    if (!value.hasPrivateLinkage()) {
      value.setLinkage(GlobalValue::InternalLinkage);
      value.setName(info.name + "." + value.getName());
    }
    value.setVisibility(GlobalValue::DefaultVisibility);
    value.setDSOLocal(true);
  }
}

Error Descriptor::emit() {
  module.setModuleIdentifier(info.name);
  module.setSourceFileName(info.name);
  SmallVector<Constant *> names, tensors, variants;
  for (const std::string &dim : dims)
    names.push_back(string(dim));
  for (const TensorInfo &info : info.tensors)
    tensors.push_back(tensor(info));
  for (const VariantInfo &info : info.variants) {
    Expected<Constant *> constant = variant(info);
    if (!constant)
      return constant.takeError();
    variants.push_back(*constant);
  }
  hideAll();
  // The model and its metadata point at each other: the value of the second is completed when both exist.
  GlobalVariable *about = global(metadata(), "recur.metadata");
  GlobalVariable *model = global(
      structure({i32(RECUR_MAGIC), i32(RECUR_ABI_VERSION), string(info.name), about,
                 i32((info.usesPosition ? RECUR_USES_POSITION : 0) | (info.hasStep ? 0 : RECUR_NO_STEP)),
                 i32(int64_t(tensors.size())), array(tensors, "recur.tensors"), i32(int64_t(names.size())),
                 i32(int64_t(variants.size())), array(names, "recur.dimnames"),
                 array(variants, "recur.variants")},
                sizeof(recur_model)),
      "recur.model");
  auto *fields = cast<ConstantStruct>(about->getInitializer());
  SmallVector<Constant *> complete(
      map_range(fields->operands(), [](Use &use) { return cast<Constant>(use); }));
  complete.back() = model;
  about->setInitializer(ConstantStruct::getAnon(context, complete));
  entry("forward", false, model);
  entry("forward_workspace", true, model);
  entry("step", false, model);
  entry("step_workspace", true, model);
  metadataEntry(about);
  return Error::success();
}

} // namespace

std::vector<std::string> publicSymbols(const ModelInfo &info) {
  std::vector<std::string> symbols;
  for (const StringRef suffix : {"_forward", "_forward_workspace", "_step", "_step_workspace", "_metadata"})
    symbols.push_back((info.name + suffix).str());
  return symbols;
}

Error emitDescriptor(Module &module, const ModelInfo &info) { return Descriptor(module, info).emit(); }

} // namespace recur
