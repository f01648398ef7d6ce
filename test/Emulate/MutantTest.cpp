// A real kernel with one thing changed at a time: the emulator, or the numbers, must tell.
// usage: recur_mutant_tests SPEC
#include "lib/Driver/Compile.h"
#include "lib/Driver/Problem.h"
#include "lib/Driver/Register.h"
#include "lib/Emulate/Host.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "gtest/gtest.h"

using namespace mlir;
using namespace recur;

static const char *spec;

namespace {
// What a changed kernel computes.
struct Outcome {
  std::string error;
  Array output;
};

class Mutants : public testing::Test {
protected:
  // Six chunks, so that the ring is used again; the last one shorter, or whole.
  static constexpr int64_t lengths[] = {350, 384};
  using Change = std::function<void(ModuleOp)>;

  // Of two heads on one processor none is cut into segments.
  static Outcome run(int64_t tokens, Change change, int64_t heads = 2, int64_t processors = 1) {
    DialectRegistry registry;
    registerAll(registry);
    MLIRContext context(registry, MLIRContext::Threading::DISABLED);
    context.loadAllAvailableDialects();
    Options options;
    options.specs = {spec};
    options.bindings = {{"dk", 64}, {"dv", 64}};
    options.dtypes = {"bf16"};
    options.targets = "sm_90a";
    options.emulate = true;
    options.processors = processors;
    Session session(options, context);
    Outcome outcome{"did not compile", {}};
    if (failed(session.load(spec)))
      return outcome;
    llvm::StringMap<int64_t> sizes = session.sizes();
    FailureOr<OwningOpRef<ModuleOp>> bound = oracleModule(session, sizes);
    Problem problem;
    problem.tokens = tokens;
    problem.heads = heads;
    emulate::changeKernelsWith(std::move(change));
    FailureOr<std::unique_ptr<LoadedRule>> rule = compileAndLoad(session, sizes, "auto");
    emulate::changeKernelsWith(nullptr);
    if (failed(bound) || failed(rule) || failed(drawProblem(*(*bound)->getOps<RuleOp>().begin(), 1, problem)))
      return outcome;
    Call call(**rule, problem);
    // The run-time library knows loaded code by its address, which must not be used again.
    static std::vector<std::unique_ptr<LoadedRule>> kept;
    kept.push_back(std::move(*rule));
    outcome.error = call.forward() == RECUR_OK ? "" : recur_last_error();
    call.store(problem);
    outcome.output = problem.outputs.begin()->second;
    return outcome;
  }

  // The assembly of the kernel in roles that has a word in it.
  static SmallVector<LLVM::InlineAsmOp> find(ModuleOp module, StringRef word) {
    SmallVector<LLVM::InlineAsmOp> found;
    module.walk([&](LLVM::InlineAsmOp op) {
      if (op->getParentOfType<LLVM::LLVMFuncOp>().getSymName().ends_with("_roles") &&
          op.getAsmString().contains(word))
        found.push_back(op);
    });
    return found;
  }

  // Makes a change at each place in turn, and expects it to be told at one of the lengths; not in `spare`
  // places, which others make up for.
  static void expectAllTold(StringRef word, function_ref<void(LLVM::InlineAsmOp)> change, size_t least,
                            size_t spare = 0) {
    size_t count = 0;
    std::string untold;
    std::vector<Outcome> right;
    for (int64_t tokens : lengths) {
      right.push_back(run(tokens, [&](ModuleOp module) { count = find(module, word).size(); }));
      ASSERT_EQ(right.back().error, "");
    }
    ASSERT_GE(count, least);
    for (size_t i = 0; i < count; ++i) {
      bool told = false;
      std::string text;
      for (size_t length = 0; length < right.size() && !told; ++length) {
        Outcome wrong = run(lengths[length], [&](ModuleOp module) {
          LLVM::InlineAsmOp op = find(module, word)[i];
          text = std::to_string(i) + " of " + std::to_string(count) + ": " + op.getAsmString().str();
          change(op);
        });
        told = !wrong.error.empty() || !(relativeError(wrong.output, right[length].output) < 1e-2);
      }
      untold += told ? "" : text + "\n";
    }
    EXPECT_LE(StringRef(untold).count('\n'), spare) << untold;
  }
};
} // namespace

TEST_F(Mutants, awaitedBarriersLeftOut) {
  // What warps of numbers wait for, one other wait of theirs implies.
  expectAllTold("mbarrier.try_wait", [](LLVM::InlineAsmOp op) { op.erase(); }, 6, /*spare=*/1);
}

TEST_F(Mutants, arrivalsLeftOut) {
  expectAllTold("mbarrier.arrive", [](LLVM::InlineAsmOp op) { op.erase(); }, 5);
}

TEST_F(Mutants, wrongPhases) {
  expectAllTold(
      "mbarrier.try_wait",
      [](LLVM::InlineAsmOp op) {
        OpBuilder b(op);
        Value phase = op.getOperand(1),
              one = LLVM::ConstantOp::create(b, op.getLoc(), phase.getType(), b.getI32IntegerAttr(1));
        op.setOperand(1, LLVM::XOrOp::create(b, op.getLoc(), phase, one));
      },
      6);
}

TEST_F(Mutants, fencesLeftOut) {
  // The first one is made up for by those that the scores' warps pass before what was cleared is read, and
  // one of the scores' by the next. Two are those of states that are passed on.
  expectAllTold("fence.proxy", [](LLVM::InlineAsmOp op) { op.erase(); }, 3, /*spare=*/4);
}

TEST_F(Mutants, warpgroupsMeetingsLeftOut) {
  // One is before a state is passed on.
  expectAllTold("bar.sync", [](LLVM::InlineAsmOp op) { op.erase(); }, 2, /*spare=*/1);
}

TEST_F(Mutants, statesNotPassedOn) {
  constexpr int64_t tokens = 700, heads = 3, processors = 2;
  size_t marks = 0;
  auto change = [&](bool leaveOut) {
    return run(
        tokens,
        [&](ModuleOp module) {
          SmallVector<LLVM::InlineAsmOp> found = find(module, "st.release");
          marks = found.size();
          if (leaveOut)
            found.front().erase();
        },
        heads, processors);
  };
  EXPECT_EQ(change(false).error, "");
  EXPECT_EQ(marks, 1u);
  EXPECT_NE(change(true).error, "");
}

TEST_F(Mutants, productsNotAwaited) {
  expectAllTold(
      "wgmma.wait_group", [](LLVM::InlineAsmOp op) { op.setAsmString("wgmma.wait_group.sync.aligned 7;"); },
      3);
}

TEST_F(Mutants, moreRegistersThanThereAre) {
  expectAllTold(
      "setmaxnreg", [](LLVM::InlineAsmOp op) { op.setAsmString("setmaxnreg.inc.sync.aligned.u32 256;"); }, 3);
}

TEST_F(Mutants, tilesOneRowOff) {
  // A swizzle goes by the row's number.
  expectAllTold(
      "cp.async.bulk.tensor.5d.shared",
      [](LLVM::InlineAsmOp op) {
        OpBuilder b(op);
        Value to = op.getOperand(0),
              row = LLVM::ConstantOp::create(b, op.getLoc(), to.getType(), b.getI32IntegerAttr(128));
        op.setOperand(0, LLVM::AddOp::create(b, op.getLoc(), to, row));
      },
      3);
}

int main(int argc, char **argv) {
  testing::InitGoogleTest(&argc, argv);
  spec = argc > 1 ? argv[1] : "";
  return RUN_ALL_TESTS();
}
