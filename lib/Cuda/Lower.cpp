// From the ops of a kernel to those of llvm and nvvm.
#include "lib/Cuda/Cuda.h"
#include "lib/Cuda/Sequential.h"
#include "mlir/Conversion/ArithToLLVM/ArithToLLVM.h"
#include "mlir/Conversion/ControlFlowToLLVM/ControlFlowToLLVM.h"
#include "mlir/Conversion/MathToLLVM/MathToLLVM.h"
#include "mlir/Conversion/NVVMToLLVM/NVVMToLLVM.h"
#include "mlir/Conversion/ReconcileUnrealizedCasts/ReconcileUnrealizedCasts.h"
#include "mlir/Conversion/SCFToControlFlow/SCFToControlFlow.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Math/Transforms/Passes.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;
using namespace recur;

namespace {
// One instruction of the special function unit, for an f32.
Value onUnit(ImplicitLocOpBuilder &b, StringRef name, Value x) {
  return LLVM::InlineAsmOp::create(b, b.getF32Type(), x, (name + " $0, $1;").str(), "=f,f",
                                   /*has_side_effects=*/false, /*is_align_stack=*/false,
                                   LLVM::TailCallKind::None, LLVM::AsmDialectAttr(), ArrayAttr())
      .getResult(0);
}

Value number(ImplicitLocOpBuilder &b, double x) {
  return arith::ConstantOp::create(b, b.getF32FloatAttr(float(x)));
}

using llvm::numbers::ln2, llvm::numbers::log2e;

// exp2 of x*log2(e) by the special function unit, corrected for the rounding of the product unless any
// approximation will do. Exact at -inf and inf.
struct ExpOnUnit : OpRewritePattern<math::ExpOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(math::ExpOp op, PatternRewriter &rewriter) const override {
    if (!op.getType().isF32())
      return failure();
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    auto number = [&](double x) { return ::number(b, x); };
    constexpr float high = float(log2e), low = float(log2e - high);
    if (bitEnumContainsAll(op.getFastmath(), arith::FastMathFlags::afn)) {
      Value exponent;
      // Of a product the side that others share, or that no round of the loop changes, takes the factor.
      if (auto product = op.getOperand().getDefiningOp<arith::MulFOp>()) {
        auto loop = op->getParentOfType<scf::ForOp>();
        auto rank = [&](Value side) {
          return loop && loop.isDefinedOutsideOfLoop(side) ? 2 : side.hasOneUse() ? 0 : 1;
        };
        bool isLeft = rank(product.getLhs()) > rank(product.getRhs());
        Value own = product->getOperand(isLeft ? 0 : 1), other = product->getOperand(isLeft ? 1 : 0);
        if (rank(own))
          exponent = arith::MulFOp::create(b, arith::MulFOp::create(b, own, number(high)), other);
      }
      if (!exponent)
        exponent = arith::MulFOp::create(b, op.getOperand(), number(high));
      rewriter.replaceOp(op, onUnit(b, "ex2.approx.ftz.f32", exponent));
      return success();
    }
    // Past these the result is 0 or inf anyhow.
    Value x = arith::MinimumFOp::create(b, arith::MaximumFOp::create(b, op.getOperand(), number(-150)),
                                        number(150));
    Value exponent = arith::MulFOp::create(b, x, number(high));
    Value error = math::FmaOp::create(b, x, number(high), arith::NegFOp::create(b, exponent));
    error = math::FmaOp::create(b, x, number(low), error);
    Value power = onUnit(b, "ex2.approx.f32", exponent);
    Value correction = arith::MulFOp::create(b, error, number(ln2));
    // Infinite results have no correction: inf * 0 would be none.
    Value scaled = arith::MulFOp::create(b, power, correction);
    Value isFinite = arith::CmpFOp::create(b, arith::CmpFPredicate::ONE, power,
                                           number(std::numeric_limits<float>::infinity()));
    scaled = arith::SelectOp::create(b, isFinite, scaled, number(0));
    rewriter.replaceOp(op, arith::AddFOp::create(b, power, scaled));
    return success();
  }
};

// Functions of which about 16 bits will do.
template <typename Op>
struct OnUnit : OpRewritePattern<Op> {
  using Body = Value (*)(ImplicitLocOpBuilder &, Value);
  OnUnit(MLIRContext *context, Body body) : OpRewritePattern<Op>(context, /*benefit=*/2), body(body) {}
  LogicalResult matchAndRewrite(Op op, PatternRewriter &rewriter) const override {
    if (!op.getType().isF32() || !bitEnumContainsAll(op.getFastmath(), arith::FastMathFlags::afn))
      return failure();
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    rewriter.replaceOp(op, body(b, op.getOperand()));
    return success();
  }
  Body body;
};

Value logOnUnit(ImplicitLocOpBuilder &b, Value x) {
  return arith::MulFOp::create(b, onUnit(b, "lg2.approx.ftz.f32", x), number(b, ln2));
}

// Beside 0 by its first terms, as 1 + x would lose digits of x.
Value log1pOnUnit(ImplicitLocOpBuilder &b, Value x) {
  Value far = logOnUnit(b, arith::AddFOp::create(b, x, number(b, 1)));
  Value near = number(b, -0.25);
  for (double factor : {1.0 / 3, -0.5, 1.0})
    near = math::FmaOp::create(b, near, x, number(b, factor));
  Value isNear =
      arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, math::AbsFOp::create(b, x), number(b, 1.0 / 64));
  return arith::SelectOp::create(b, isNear, arith::MulFOp::create(b, near, x), far);
}

// 1 - 2 / (1 + exp(2x)), and beside 0 by its first terms.
Value tanhOnUnit(ImplicitLocOpBuilder &b, Value x) {
  Value power = onUnit(b, "ex2.approx.ftz.f32", arith::MulFOp::create(b, x, number(b, 2 * log2e)));
  Value inverse = onUnit(b, "rcp.approx.ftz.f32", arith::AddFOp::create(b, power, number(b, 1)));
  Value far = math::FmaOp::create(b, inverse, number(b, -2), number(b, 1));
  Value square = arith::MulFOp::create(b, x, x);
  Value near = math::FmaOp::create(b, square, number(b, 2.0 / 15), number(b, -1.0 / 3));
  near = math::FmaOp::create(b, near, square, number(b, 1));
  Value isNear =
      arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, math::AbsFOp::create(b, x), number(b, 1.0 / 8));
  return arith::SelectOp::create(b, isNear, arith::MulFOp::create(b, near, x), far);
}

struct ReciprocalOnUnit : OpRewritePattern<arith::DivFOp> {
  using OpRewritePattern::OpRewritePattern;
  LogicalResult matchAndRewrite(arith::DivFOp op, PatternRewriter &rewriter) const override {
    if (!cuda::isReciprocalOnUnit(op))
      return failure();
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    rewriter.replaceOp(op, onUnit(b, "rcp.approx.ftz.f32", op.getRhs()));
    return success();
  }
};

struct ApproximateMath : PassWrapper<ApproximateMath, OperationPass<LLVM::LLVMFuncOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(ApproximateMath)
  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    patterns.add<ExpOnUnit, ReciprocalOnUnit>(&getContext(), /*benefit=*/2);
    patterns.add<OnUnit<math::LogOp>>(&getContext(), logOnUnit);
    patterns.add<OnUnit<math::Log1pOp>>(&getContext(), log1pOnUnit);
    patterns.add<OnUnit<math::TanhOp>>(&getContext(), tanhOnUnit);
    // Of angles, which are within a turn.
    patterns.add<OnUnit<math::SinOp>>(
        &getContext(), [](ImplicitLocOpBuilder &b, Value x) { return onUnit(b, "sin.approx.ftz.f32", x); });
    patterns.add<OnUnit<math::CosOp>>(
        &getContext(), [](ImplicitLocOpBuilder &b, Value x) { return onUnit(b, "cos.approx.ftz.f32", x); });
    math::populateExpansionPatterns(patterns, {"powf"});
    populateMathPolynomialApproximationPatterns(patterns, [](StringRef name) {
      return llvm::is_contained(
          {"math.log", "math.log2", "math.log1p", "math.tanh", "math.erf", "math.sin", "math.cos"}, name);
    });
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};
} // namespace

LogicalResult cuda::lowerToLlvm(ModuleOp module) {
  PassManager modules(module.getContext());
  // Each kernel by itself, on all processors.
  OpPassManager &manager = modules.nest<LLVM::LLVMFuncOp>();
  // This one folds and drops what is dead, too. The canonicaliser would compare all values that a loop
  // carries with one another, and kernels carry hundreds.
  manager.addPass(std::make_unique<ApproximateMath>());
  manager.addPass(createCSEPass());
  manager.addPass(createSCFToControlFlowPass());
  manager.addPass(createConvertMathToLLVMPass());
  manager.addPass(createConvertNVVMToLLVMPass());
  manager.addPass(createArithToLLVMConversionPass());
  modules.addPass(createConvertControlFlowToLLVMPass());
  modules.addPass(createReconcileUnrealizedCastsPass());
  return modules.run(module);
}
