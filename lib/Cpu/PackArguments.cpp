// Gives a function the calling convention of kernels: void (void *const *views, const recur_span *span, void
// *scratch).
#include "lib/Cpu/Passes.h"

namespace recur::cpu {
#define GEN_PASS_DEF_PACKARGUMENTS
#include "lib/Cpu/Passes.h.inc"
} // namespace recur::cpu

using namespace mlir;
using namespace recur::cpu;

namespace {

// The descriptor by which lowering to LLVM represents a memref.
LLVM::LLVMStructType descriptorType(MemRefType type) {
  MLIRContext *context = type.getContext();
  Type pointer = LLVM::LLVMPointerType::get(context), i64 = IntegerType::get(context, 64);
  SmallVector<Type> fields = {pointer, pointer, i64};
  if (type.getRank() > 0)
    fields.append(2, LLVM::LLVMArrayType::get(i64, type.getRank()));
  return LLVM::LLVMStructType::getLiteral(context, fields);
}

struct PackArguments : recur::cpu::impl::PackArgumentsBase<PackArguments> {
  void runOnOperation() override {
    func::FuncOp function = getOperation();
    Block &entry = function.getBody().front();
    Location loc = function.getLoc();
    OpBuilder b = OpBuilder::atBlockBegin(&entry);
    Type pointer = LLVM::LLVMPointerType::get(&getContext()), i64 = b.getI64Type();
    unsigned count = entry.getNumArguments();
    SmallVector<Value> packed;
    for (int i = 0; i < 3; ++i)
      packed.push_back(entry.addArgument(pointer, loc));
    unsigned views = 0, fields = 0;
    auto at = [&](Value base, Type type, unsigned i) -> Value {
      return LLVM::GEPOp::create(b, loc, pointer, type, base,
                                 ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(i)});
    };
    auto asMemref = [&](MemRefType type, Value descriptor) {
      return UnrealizedConversionCastOp::create(b, loc, type, descriptor).getResult(0);
    };
    for (BlockArgument argument : entry.getArguments().take_front(count)) {
      Value value;
      if (argument.getArgNumber() == count - 1) {
        auto type = cast<MemRefType>(argument.getType());
        Value descriptor = LLVM::PoisonOp::create(b, loc, descriptorType(type));
        Value zero = LLVM::ConstantOp::create(b, loc, i64, 0), one = LLVM::ConstantOp::create(b, loc, i64, 1);
        auto set = [&](Value field, ArrayRef<int64_t> position) {
          descriptor = LLVM::InsertValueOp::create(b, loc, descriptor, field, position);
        };
        set(packed[2], {0}), set(packed[2], {1}), set(zero, {2}), set(zero, {3, 0}), set(one, {4, 0});
        value = asMemref(type, descriptor);
      } else if (auto type = dyn_cast<MemRefType>(argument.getType())) {
        Value view = LLVM::LoadOp::create(b, loc, pointer, at(packed[0], pointer, views++));
        value = asMemref(type, LLVM::LoadOp::create(b, loc, descriptorType(type), view));
      } else {
        Value field = LLVM::LoadOp::create(b, loc, i64, at(packed[1], i64, fields++));
        value = arith::IndexCastOp::create(b, loc, argument.getType(), field);
      }
      argument.replaceAllUsesWith(value);
    }
    entry.eraseArguments(0, count);
    function.setType(b.getFunctionType(TypeRange(entry.getArguments()), {}));
    for (unsigned i = 0; i < 3; ++i)
      function.setArgAttr(i, LLVM::LLVMDialect::getNoAliasAttrName(), b.getUnitAttr());
    function.setArgAttr(2, LLVM::LLVMDialect::getAlignAttrName(), b.getI64IntegerAttr(64));
  }
};

} // namespace
