#include "lib/Driver/Peaks.h"
#include "lib/Artifact/Object.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/Support/MemoryBuffer.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <time.h>

using namespace llvm;
using namespace recur;

double recur::secondsOf(Clock clock) {
  if (clock == Clock::Wall)
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec + 1e-9 * time.tv_nsec;
}

// Sums that do not wait for each other: two units with a latency of four cycles need eight. They fit into 16
// registers.
static constexpr unsigned chains = 12;
static constexpr int64_t roundsOfOne = 500000;

// void multiply_add(int64_t rounds, float *data): x = x * data[0] + data[1] in `chains` vectors, whose sum is
// stored.
static void emitMultiplyAdd(Module &module, unsigned lanes) {
  LLVMContext &context = module.getContext();
  IRBuilder<> b(context);
  Type *count = b.getInt64Ty(), *vector = FixedVectorType::get(b.getFloatTy(), lanes);
  auto *function = Function::Create(FunctionType::get(b.getVoidTy(), {count, b.getPtrTy()}, false),
                                    Function::ExternalLinkage, "multiply_add", module);
  BasicBlock *entry = BasicBlock::Create(context, "", function),
             *loop = BasicBlock::Create(context, "", function),
             *end = BasicBlock::Create(context, "", function);
  b.SetInsertPoint(entry);
  auto load = [&](unsigned index) {
    Value *number =
        b.CreateLoad(b.getFloatTy(), b.CreateConstGEP1_64(b.getFloatTy(), function->getArg(1), index));
    return b.CreateVectorSplat(lanes, number);
  };
  Value *factor = load(0), *summand = load(1);
  SmallVector<Value *> starts;
  for (unsigned i = 0; i < chains; ++i)
    starts.push_back(load(2 + i));
  b.CreateBr(loop);
  b.SetInsertPoint(loop);
  PHINode *round = b.CreatePHI(count, 2);
  SmallVector<PHINode *> sums;
  for (Value *start : starts) {
    sums.push_back(b.CreatePHI(vector, 2));
    sums.back()->addIncoming(start, entry);
  }
  SmallVector<Value *> results;
  for (PHINode *sum : sums) {
    results.push_back(b.CreateIntrinsic(vector, Intrinsic::fmuladd, {sum, factor, summand}));
    sum->addIncoming(results.back(), loop);
  }
  Value *next = b.CreateAdd(round, b.getInt64(1));
  round->addIncoming(b.getInt64(0), entry);
  round->addIncoming(next, loop);
  b.CreateCondBr(b.CreateICmpSLT(next, function->getArg(0)), loop, end);
  b.SetInsertPoint(end);
  Value *total = results[0];
  for (Value *result : drop_begin(results))
    total = b.CreateFAdd(total, result);
  b.CreateAlignedStore(total, function->getArg(1), Align(4));
  b.CreateRetVoid();
}

// What copies read and write; made when first asked for.
struct Peaks::Memory {
  std::unique_ptr<char, decltype(&free)> data{nullptr, &free};
  unsigned threads = 0;
};

Peaks::Peaks() : copied(std::make_unique<Memory>()) {}
Peaks::~Peaks() = default;

Expected<std::unique_ptr<Peaks>> Peaks::create(const Target &target) {
  std::unique_ptr<Peaks> peaks(new Peaks());
  peaks->lanes = target.vectorWidth;
  LLVMContext context;
  Module module("peaks", context);
  emitMultiplyAdd(module, target.vectorWidth);
  if (Error error = prepareModule(module, target, {"multiply_add"}))
    return std::move(error);
  Expected<SmallString<0>> object = emitCode(module, CodeKind::Object, 2);
  if (!object)
    return object.takeError();
  auto jit = orc::LLJITBuilder().create();
  if (!jit)
    return jit.takeError();
  peaks->jit = std::move(*jit);
  if (Error error = peaks->jit->addObjectFile(MemoryBuffer::getMemBufferCopy(object->str(), "peaks")))
    return std::move(error);
  auto symbol = peaks->jit->lookup("multiply_add");
  if (!symbol)
    return symbol.takeError();
  peaks->multiplyAdd = symbol->toPtr<void(int64_t, float *)>();
  return peaks;
}

// All threads begin together; the time is that from the first begin to the last end.
double Peaks::rate(unsigned threads, Clock clock, double work, function_ref<void(unsigned)> body) {
  std::vector<double> begin(threads), end(threads);
  std::atomic<unsigned> waiting(threads);
  auto run = [&](unsigned thread) {
    --waiting;
    while (waiting)
      std::this_thread::yield();
    begin[thread] = secondsOf(clock);
    body(thread);
    end[thread] = secondsOf(clock);
  };
  std::vector<std::thread> others;
  for (unsigned i = 1; i < threads; ++i)
    others.emplace_back(run, i);
  run(0);
  for (std::thread &other : others)
    other.join();
  return threads * work / (*llvm::max_element(end) - *llvm::min_element(begin));
}

double Peaks::flopRate(unsigned threads, Clock clock) {
  return rate(threads, clock, 2.0 * roundsOfOne * chains * lanes, [&](unsigned) {
    float data[32] = {0.5f, 0.5f};
    multiplyAdd(roundsOfOne, data);
  });
}

char *Peaks::memory(unsigned threads) {
  if (copied->threads < threads) {
    size_t bytes = size_t(threads) * 2 * copyBytes;
    copied->data.reset(static_cast<char *>(std::aligned_alloc(4096, bytes)));
    if (copied->data)
      std::memset(copied->data.get(), 1, bytes);
    copied->threads = threads;
  }
  return copied->data.get();
}

double Peaks::copyRate(unsigned threads, Clock clock) {
  char *data = memory(threads);
  if (!data)
    return 0;
  return rate(threads, clock, 2.0 * copyBytes, [&](unsigned thread) {
    char *own = data + size_t(thread) * 2 * copyBytes;
    std::memcpy(own, own + copyBytes, copyBytes);
  });
}
