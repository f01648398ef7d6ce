// The tensors of a kernel in device memory, as the run-time library hands them over.
#pragma once
#include "dialect/chunk/Chunk.h"
#include "lib/Cuda/Cuda.h"
#include "lib/Cuda/Threads.h"

namespace recur::cuda {

/// One tensor of a kernel. They come in the order inputs, params, initial states, outputs, final states.
/// Behind initial states are others that are part of an input; then those that are part of a state, each
/// before and after all tokens.
struct TensorArgument {
  /// The value that the tensor is loaded into or stored from; null for outputs and final states.
  mlir::BlockArgument argument;
  /// Its type, dimensions bound, that of the block's part where the block has only a part.
  mlir::Type type;
  mlir::FloatType element;
  bool hasToken = false;
  /// One stage hands it over to another, in f32.
  bool isTemporary = false;
  /// Whether the caller's tensor has a dimension for micro-steps, rows and columns.
  bool own[3] = {false, false, false};
  /// Micro-steps come last: they are the columns of a matrix.
  bool stepsLast = false;
  /// 0 or 1 if blocks share out the rows or columns.
  int shardedDim = -1;
  /// Rows and columns in memory, where the type, or those of all blocks' parts together, reaches further;
  /// else 0. What is not there is zero.
  int64_t inMemory[2] = {0, 0};
  /// Of a state, or an input, that several are (JoinedKeys.h), of which this tensor is one: the tensor of
  /// each, where its keys begin, and their number; whether it is a vector of which each key has
  /// `entryOfVector`.
  struct Part {
    unsigned tensor;
    int64_t first, keys = 0;
    bool isVector = false;
    /// What it is where it is not given: another tensor; none for zeros.
    std::optional<unsigned> otherwise = std::nullopt;
  };
  llvm::SmallVector<Part, 2> parts;
  bool hasKeysInRows = false;

  MatType entry() const { return entryType(type); }
};

/// Lists the tensors of a rule, or of one of its stages. `symbolic` is the rule before its dimensions were
/// bound, `bound` after. `shardedClass` may be 0.
llvm::SmallVector<TensorArgument> listTensors(RuleOp symbolic, RuleOp bound, const IndexClasses &classes,
                                              unsigned shardedClass, const KernelOptions &options);

/// Lists behind those so far what inputs, and states, are joined of. Of final states, which are not listed
/// yet, returns the parts.
void addJoinedInputs(llvm::SmallVectorImpl<TensorArgument> &tensors, RuleOp bound);
llvm::SmallVector<llvm::SmallVector<TensorArgument::Part, 2>>
addJoinedStates(llvm::SmallVectorImpl<TensorArgument> &tensors, RuleOp symbolic, RuleOp bound);

/// What a state of a chunk program is where the caller gives none: a number, or a param by its place among
/// them.
struct FirstState {
  double number = 0;
  std::optional<unsigned> param = std::nullopt;
};

/// Finds it, or nothing where it is more than that.
std::optional<FirstState> firstStateOf(chunk::ProgramOp program, unsigned state);

/// Reads and writes tensors. The layout of the argument block is that of recur_cuda_call in
/// runtime/include/recur/abi.h.
class TensorAccess {
public:
  TensorAccess(Threads &threads, mlir::Value call, llvm::ArrayRef<TensorArgument> tensors, bool packed)
      : threads(threads), b(threads.b), call(call), tensors(tensors), packed(packed) {}
  /// The same tensors, found already, for threads in another order. The other one must live on.
  TensorAccess(Threads &threads, const TensorAccess &other)
      : threads(threads), b(threads.b), call(other.call), tensors(other.tensors), packed(other.packed),
        first(other.first), firstInShard(other.firstInShard), find(other.find) {}

  /// Fields of the call: its head.
  enum Field {
    Tokens,
    Heads,
    Slots,
    Scratch,
    CuSeqlens,
    StateIndex = 7,
    Positions = 10,
    Segments = 13,
    Few = 14,
    Pairs = 15,
    TensorsBegin = 16
  };
  /// Fields of one tensor.
  enum TensorField { Data, Sequence, Token, Head, Group, Own, TensorWords = 8 };

  mlir::Value word(int64_t index);
  mlir::Value pointer(int64_t index);
  /// A word of a tensor.
  mlir::Value word(unsigned tensor, TensorField field) {
    return word(TensorsBegin + tensor * TensorWords + field);
  }
  /// Entry `at` of one of the three index tensors, or `otherwise` where it was not given.
  mlir::Value index(Field field, mlir::Value at, mlir::Value otherwise);

  /// Finds the first entry of every tensor for this block's part, from i64s; of states, where `statesApart`
  /// was set, wherever one is asked for, as that is seldom.
  void locate(mlir::Value sequence, mlir::Value slot, mlir::Value firstToken, mlir::Value head,
              mlir::Value shard, int64_t slab);
  bool statesApart = false;
  /// Whether an optional tensor was given.
  mlir::Value isGiven(unsigned tensor);

  /// The memory operations of a load, and what they gave; apart, so that a token's can run ahead.
  llvm::SmallVector<mlir::Value> fetch(unsigned tensor, Axis axis, mlir::Value token, mlir::Value step = {});
  /// The same of each micro-step. Those that are columns of a matrix come together.
  llvm::SmallVector<llvm::SmallVector<mlir::Value>> fetchSteps(unsigned tensor, Axis axis, mlir::Value token,
                                                               int64_t count);
  Tile unpack(unsigned tensor, Axis axis, mlir::ValueRange fetched);
  Tile load(unsigned tensor, Axis axis, mlir::Value token, mlir::Value step = {});
  void store(unsigned tensor, const Tile &tile, mlir::Value token);
  /// The same of an output, or of one column or row of it.
  void store(unsigned tensor, const chunk::OutputPart &part, const Tile &tile, mlir::Value token);

  /// Where a thread's entries of a token lie, a pointer for each packet; then the same of the next token.
  /// What is past the end has a place to be loaded from, not one to be stored to.
  llvm::SmallVector<mlir::Value> addresses(unsigned tensor, Axis axis, mlir::Value token);
  llvm::SmallVector<mlir::Value> next(unsigned tensor, llvm::ArrayRef<mlir::Value> addresses);
  size_t countPackets(unsigned tensor, Axis axis) const;
  mlir::Type packetType(unsigned tensor, Axis axis) const;
  int64_t bytesOfPacket(unsigned tensor, Axis axis) const;
  llvm::SmallVector<mlir::Value> fetch(unsigned tensor, Axis axis, llvm::ArrayRef<mlir::Value> addresses);
  void store(unsigned tensor, const Tile &tile, llvm::ArrayRef<mlir::Value> addresses);
  /// The address of one entry of a state.
  mlir::Value entry(unsigned tensor, mlir::Value row, mlir::Value col);
  /// Whether an entry of a state, or of a vector, is in memory; null where all are.
  mlir::Value exists(unsigned tensor, mlir::Value row, mlir::Value col);
  /// One entry of a state or param in f32, zero where there is none in memory; and of a state, where there
  /// is.
  mlir::Value loadEntry(unsigned tensor, mlir::Value row, mlir::Value col);
  void storeEntry(unsigned tensor, mlir::Value row, mlir::Value col, mlir::Value value);
  /// One entry of a state where the caller gives none. Params begin with tensor `params`.
  mlir::Value firstEntry(const FirstState &state, unsigned params, mlir::Value row, mlir::Value col);
  /// The address of one entry of a token's vector, or of that in a row of its matrix, in a packed tensor.
  mlir::Value entryOfToken(unsigned tensor, mlir::Value token, mlir::Value at, mlir::Value row = {});

private:
  mlir::Value isGivenAlone(unsigned tensor);
  mlir::Value isAnyGiven(const TensorArgument &tensor);
  void storeToParts(unsigned tensor, mlir::Value row, mlir::Value col, mlir::Value value);
  std::tuple<mlir::Value, mlir::Value, mlir::Value> placeInPart(bool inRows, const TensorArgument::Part &part,
                                                                mlir::Value row, mlir::Value col);
  mlir::Value loadFromParts(const TensorArgument &tensor, mlir::Value row, mlir::Value col);
  /// Calls `body(r, c, width, pointer)` for each packet of entries that lie together in memory.
  void forPackets(unsigned tensor, const Tile &tile, mlir::Value token, mlir::Value step, bool clamp,
                  llvm::function_ref<void(int64_t, int64_t, int64_t, mlir::Value)> body);
  /// Entries that lie together in memory.
  int64_t packetWidth(const TensorArgument &tensor, const Layout &layout) const;
  void storePacket(unsigned tensor, const Tile &tile, int64_t r, int64_t c, int64_t width,
                   mlir::Value address);

  Threads &threads;
  mlir::ImplicitLocOpBuilder &b;
  mlir::Value call;
  llvm::ArrayRef<TensorArgument> tensors;
  bool packed;
  mlir::Value firstOf(unsigned tensor);

  llvm::SmallVector<mlir::Value> first; // null: to be found
  mlir::Value firstInShard;             // of the indices that blocks share out, i64
  std::function<mlir::Value(unsigned)> find;
};

} // namespace recur::cuda
