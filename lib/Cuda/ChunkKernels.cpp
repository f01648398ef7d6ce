// The entry points of a rule that take chunks on any chip's matrix units.
#include "lib/Algebra/Rewriting.h"
#include "lib/Cuda/GatherEmitter.h"
#include "lib/Cuda/KernelBuilder.h"
#include "lib/Cuda/SolvedEmitter.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

// Whether a program's outputs take iterations, beside which its states cost next to nothing.
static bool iterates(chunk::ProgramOp program) {
  auto found = [](chunk::ConjugateGradientsOp) { return WalkResult::interrupt(); };
  return program.getBody().walk(found).wasInterrupted();
}

// The same program without outputs, beside it.
static chunk::ProgramOp statesOf(chunk::ProgramOp program) {
  OpBuilder b(program);
  auto states = cast<chunk::ProgramOp>(b.clone(*program));
  Operation *yield = states.getBody().front().getTerminator();
  yield->setOperands(yield->getOperands().take_front(states.argumentsOf(ArgKind::State).size()));
  eraseDead(states.getBody().front());
  return states;
}

// The kernel for all chips, with chunks as long as fit into shared memory. Where outputs take long, one for
// the states first, so that those of all chunks are made side by side.
void KernelBuilder::addPortable(DeriveFunction derive) {
  SharedOut part = shareOut(128, Rest::Fewer);
  chunk::ProgramOp program = derive(part.rule(), /*ofMicroStep=*/false);
  if (!program)
    return;
  ArrayRef<TensorArgument> tensors = part.tensors;
  if (std::optional<std::string> reason = ChunkEmitter::refusal(program, tensors)) {
    refused["chunk"] = *reason;
    return;
  }
  auto solved = options.chip.hasWarpgroups() ? SolvedPlan::find(program, tensors) : std::nullopt;
  if (solved && !module->lookupSymbol(tilesSymbol))
    makeShared(tilesSymbol, 1024);
  // Blocks of few tokens rather take more memory than wait, where there is more.
  SmallVector<std::pair<int64_t, bool>> sizes{{64, true}, {32, true}};
  if (std::optional<int64_t> block = program.getBlock()) {
    int64_t tokens = llvm::PowerOf2Ceil(padded(*block)); // products go by 16, 32 or 64
    sizes = {{tokens, false}, {tokens, true}};
  }
  for (auto [tokens, savesMemory] : sizes) {
    ChunkShape shape{tokens, ChunkEmitter::countWarps(program), ChunkEmitter::findPrecision(program, tensors),
                     savesMemory};
    auto add = [&](chunk::ProgramOp program, ChunkTask task) {
      Entry entry;
      entry.name = options.symbol + (task == ChunkTask::States ? "_states" : "_chunked");
      entry.form = Form::Chunk;
      entry.packed = true;
      entry.leastTokens = tokensWorthChunk;
      entry.shards = part.shards;
      entry.continues = task == ChunkTask::States;
      if (task == ChunkTask::Outputs) {
        entry.cut = Entry::Spread;
        entry.overlaps = solved.has_value();
        entry.mostBlocks = options.chip.processors * (solved ? 2 : 1);
      }
      LLVM::LLVMFuncOp function = makeFunction(entry, tensors.size());
      refused.erase("chunk");
      bool isSolved = solved && task == ChunkTask::Outputs;
      auto images = solved ? solved->images() : SmallVector<unsigned>();
      SmallVector<GatheredState> gathered;
      if (!isSolved && part.shards == 1)
        gathered = findGathered(program, images, tensors);
      if (isSolved)
        function->setAttr(NVVM::NVVMDialect::getMinctasmAttrName(), b.getI32IntegerAttr(2));
      if (auto reason = isSolved ? emitSolved(function, program, tensors, *solved, part.slab, entry)
                        : !gathered.empty()
                            ? emitGathered(function, program, tensors, gathered, entry)
                            : emitChunked(function, program, tensors, shape, part.slab, task, entry, images))
        refused["chunk"] = *reason;
      else if (entry.sharedBytes > options.chip.sharedBytes)
        refused["chunk"] = llvm::formatv("a chunk takes {0} bytes of shared memory, and there are {1}",
                                         entry.sharedBytes, options.chip.sharedBytes);
      if (refused.contains("chunk")) {
        function.erase();
        return false;
      }
      function->setAttr(NVVM::NVVMDialect::getMaxntidAttrName(),
                        b.getDenseI32ArrayAttr({int32_t(entry.threads), 1, 1}));
      entries.push_back(entry);
      return true;
    };
    auto addApart = [&] {
      size_t before = entries.size();
      chunk::ProgramOp states = statesOf(program);
      bool areApart = add(states, ChunkTask::States) && add(program, ChunkTask::Outputs);
      states.erase();
      if (!areApart) {
        eraseCode(ArrayRef(entries).drop_front(before));
        entries.truncate(before);
      }
      return areApart;
    };
    if (solved && addApart())
      return;
    solved.reset();
    if (iterates(program) && addApart())
      return;
    if (add(program, ChunkTask::All))
      return;
  }
}
