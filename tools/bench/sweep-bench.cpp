// Times the sweep form on rules written here by hand, and checks one head against a float64 token loop.
//   usage: sweep-bench [reads=1] [writes=1] [decay=none|scalar|rows|columns] [tokens=4096] [heads=16]
//   [rows=128]
//                      [columns=128] [group=0] [vectors=0] [chunk=0] [lanes=16] [least=0.9] [runs=12]
//                      [dump=0]
// A token: z_w = b (v - a k_w^T H) for the first `reads` writes, b v for the others; H = a H + sum k_w z_w^T;
// o = H^T q, written in terms of the old H.
#include "lib/Cpu/Sweep.h"
#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/MemRef/Transforms/Passes.h"
#include "mlir/ExecutionEngine/ExecutionEngine.h"
#include "mlir/ExecutionEngine/OptUtils.h"
#include "mlir/IR/Verifier.h"
#include "mlir/InitAllDialects.h"
#include "mlir/InitAllExtensions.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Target/LLVMIR/Dialect/All.h"
#include "mlir/Transforms/Passes.h"
#include "llvm/ExecutionEngine/Orc/JITTargetMachineBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"

#include <immintrin.h>
#include <map>
#include <random>
#include <time.h>
#include <unistd.h>

using namespace mlir;
using namespace recur;
using namespace recur::cpu;

namespace {
enum Decay { None, Scalar, Rows, Columns };

struct Case {
  std::map<std::string, std::string> text{{"decay", "scalar"}};
  std::map<std::string, double> number{{"reads", 1},  {"writes", 1},    {"tokens", 4096}, {"heads", 16},
                                       {"rows", 128}, {"columns", 128}, {"group", 0},     {"vectors", 0},
                                       {"chunk", 0},  {"lanes", 16},    {"least", 0.9},   {"runs", 12},
                                       {"dump", 0}};
  int64_t get(const char *name) { return number[name]; }
  Decay decay() {
    return llvm::StringSwitch<Decay>(text["decay"])
        .Case("none", None)
        .Case("rows", Rows)
        .Case("columns", Columns)
        .Default(Scalar);
  }
};

// Tensors q [T, heads, rows], k [T, heads, writes, rows], v [T, heads, columns], a [T, heads,
// 1|rows|columns], b [T, heads], o as v, all flat.
struct HandRule : SweepRule {
  HandRule(Case &c, ValueRange args)
      : q(args[0]), k(args[1]), v(args[2]), a(args[3]), b(args[4]), o(args[5]), heads(args[7]), head(args[8]),
        reads(c.get("reads")), writes(c.get("writes")), decay(c.decay()), chunk(c.get("chunk")) {
    shape.rows = c.get("rows"), shape.columns = c.get("columns");
    // slots: q, k_1.., and with a decay by rows a, a.k_1 ..
    shape.rowSlots = 1 + writes + (decay == Rows ? 1 + reads : 0);
    for (int64_t w = 0; w < writes; ++w)
      shape.writes.push_back(1 + w);
    for (int64_t r = 0; r < reads; ++r)
      shape.reads.push_back(decay == Rows ? 2 + writes + r : 1 + r);
    shape.reads.push_back(0);
    if (decay == Scalar)
      shape.scalarDecay = 0;
    if (decay == Rows)
      shape.rowDecay = 1 + writes;
    shape.columnDecay = decay == Columns;
    shape.scalarSlots = 2 + 1 + writes + writes * writes; // a, b, a b, q.k_w, k_r.k_w
  }

  Value at(VectorBuilder &m, Value token, int64_t stride) {
    return m.scale(m.add(m.scale(token, heads), head), stride);
  }

  void pack(VectorBuilder &m, const SweepLayout &layout, Value scratch, Value begin, Value count) override {
    m.loop(m.index(0), count, 1, [&](Value t) { packToken(m, layout, scratch, m.add(begin, t), t); });
  }

  void packToken(VectorBuilder &m, const SweepLayout &layout, Value scratch, Value token, Value inChunk) {
    Value rows = m.add(m.scale(inChunk, layout.rowStride), layout.rowsBegin);
    auto row = [&](unsigned slot, Value i) { return m.add(m.add(rows, i), slot * layout.rowSlotStride); };
    Value qAt = at(m, token, shape.rows), kAt = at(m, token, shape.rows * writes), one = at(m, token, 1);
    Value aAt = decay == Rows ? qAt : one;
    SmallVector<Value> zeros(writes + reads * writes, m.splat(0.0));
    auto dots = m.loop(m.index(0), m.index(shape.rows), m.lanes, zeros, [&](Value i, ValueRange carried) {
      SmallVector<Value> sums(carried), ks;
      Value qi = m.load(q, m.add(qAt, i)), ai;
      if (decay == Rows) {
        ai = m.load(a, m.add(aAt, i));
        m.store(ai, scratch, row(*shape.rowDecay, i));
      }
      m.store(m.mul(ai, qi), scratch, row(0, i));
      for (int64_t w = 0; w < writes; ++w) {
        ks.push_back(m.load(k, m.add(m.add(kAt, i), w * shape.rows)));
        m.store(ks[w], scratch, row(1 + w, i));
        if (decay == Rows && w < reads)
          m.store(m.mul(ai, ks[w]), scratch, row(shape.reads[w], i));
        sums[w] = m.fma(qi, ks[w], sums[w]);
      }
      return sums;
    });
    auto put = [&](int64_t slot, Value x) {
      m.storeScalar(x, scratch, m.add(m.scale(inChunk, layout.scalarSlots), layout.scalarsBegin + slot));
    };
    Value bt = m.loadScalar(b, one), at = decay == Scalar ? m.loadScalar(a, one) : m.number(1);
    put(0, at);
    put(1, bt);
    put(2, m.mul(m.number(-1), m.mul(at, bt)));
    for (int64_t w = 0; w < writes; ++w)
      put(3 + w, m.reduce(dots[w]));
  }

  SmallVector<Value> step(VectorBuilder &m, const SweepLayout &layout, Value scratch,
                          const ColumnStep &s) override {
    auto scalar = [&](unsigned slot) {
      return m.loadSplat(scratch, m.add(m.scale(s.inChunk, layout.scalarSlots), layout.scalarsBegin + slot));
    };
    Value place = m.add(at(m, s.token, shape.columns), s.column);
    Value bv = m.mul(scalar(1), m.load(v, place));
    Value ac = decay == Columns ? m.load(a, place) : Value();
    Value out = m.mul(ac, s.reads.back());
    if (decay == Scalar)
      out = m.mul(scalar(0), out);
    SmallVector<Value> z;
    for (int64_t w = 0; w < writes; ++w) {
      z.push_back(w < reads ? m.fma(scalar(2), m.mul(ac, s.reads[w]), bv) : bv);
      out = m.fma(scalar(3 + w), z[w], out);
    }
    m.store(out, o, place);
    return z;
  }

  Value columnDecay(VectorBuilder &m, const SweepLayout &, Value, const ColumnStep &s) override {
    return m.load(a, m.add(at(m, s.token, shape.columns), s.column));
  }

  void enter(VectorBuilder &m, const SweepLayout &layout, SweepRequests &, const ColumnStep &s,
             Value block) override {
    int64_t blocks = layout.blocks;
    Value token = m.add(s.token, chunk);
    auto ask = [&](Value tensor, int64_t size, bool write) {
      int64_t part = roundUp((size + blocks - 1) / blocks, 16);
      Value from = m.add(at(m, token, size), m.scale(block, part));
      for (int64_t x = 0; x < part; x += 16)
        memref::PrefetchOp::create(m, tensor, ValueRange(m.add(from, x)), write, 2, true);
    };
    ask(q, shape.rows, false);
    ask(k, shape.rows * writes, false);
    ask(v, shape.columns, false);
    if (decay == Rows)
      ask(a, shape.rows, false);
    if (decay == Columns)
      ask(a, shape.columns, false);
    ask(o, shape.columns, true);
  }

  Value q, k, v, a, b, o, heads, head;
  int64_t reads, writes;
  Decay decay;
  int64_t chunk;
};

struct Descriptor {
  float *allocated, *aligned;
  int64_t offset = 0, size = int64_t(1) << 40, stride = 1;
  explicit Descriptor(float *data) : allocated(data), aligned(data) {}
};

float *floats(int64_t count) {
  auto *data = static_cast<float *>(std::aligned_alloc(4096, roundUp(count * 4 + 4096, 4096)));
  std::memset(data, 0, roundUp(count * 4 + 4096, 4096));
  return data;
}

// The time that this thread has run, so that others on the machine disturb less.
double now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec + 1e-9 * time.tv_nsec;
}

__attribute__((target("avx512f"))) double fmaPeak() {
  __m512 x[14], m = _mm512_set1_ps(0.5f);
  for (auto &v : x)
    v = m;
  double best = 0;
  for (int run = 0; run < 20; ++run) {
    double begin = now();
    for (int i = 0; i < 1000000; ++i) {
#pragma clang loop unroll(full)
      for (auto &v : x)
        v = _mm512_fmadd_ps(v, m, m);
      for (auto &v : x)
        asm volatile("" : "+v"(v));
    }
    best = std::max(best, 1e6 * 14 * 32 / (now() - begin));
  }
  return best / 1e9;
}

LogicalResult lower(ModuleOp module) {
  PassManager pm(module.getContext());
  pm.addPass(createCanonicalizerPass());
  pm.addPass(createCSEPass());
  pm.addPass(createConvertVectorToSCFPass());
  pm.addPass(createSCFToControlFlowPass());
  pm.addPass(memref::createExpandStridedMetadataPass());
  pm.addPass(createLowerAffinePass());
  ConvertVectorToLLVMPassOptions vectors;
  vectors.reassociateFPReductions = true;
  pm.addPass(createConvertVectorToLLVMPass(vectors));
  pm.addPass(createConvertMathToLLVMPass());
  pm.addPass(createFinalizeMemRefToLLVMConversionPass());
  pm.addPass(createArithToLLVMConversionPass());
  pm.addPass(createConvertIndexToLLVMPass());
  pm.addPass(createUBToLLVMConversionPass());
  pm.addPass(createConvertControlFlowToLLVMPass());
  pm.addPass(createConvertFuncToLLVMPass());
  pm.addPass(createReconcileUnrealizedCastsPass());
  return pm.run(module);
}
} // namespace

int main(int argc, char **argv) {
  Case c;
  for (int i = 1; i < argc; ++i) {
    auto [name, value] = StringRef(argv[i]).split('=');
    if (name == "decay")
      c.text[name.str()] = value.str();
    else
      c.number[name.str()] = atof(value.str().c_str());
  }
  llvm::InitializeNativeTarget();
  llvm::InitializeNativeTargetAsmPrinter();
  DialectRegistry registry;
  registerAllDialects(registry);
  registerAllExtensions(registry);
  registerAllToLLVMIRTranslations(registry);
  MLIRContext context(registry, MLIRContext::Threading::DISABLED);
  context.loadAllAvailableDialects();

  int64_t tokens = c.get("tokens"), heads = c.get("heads"), rows = c.get("rows"), columns = c.get("columns"),
          writes = c.get("writes"), reads = c.get("reads");
  // q k v a b o scratch heads head tokens
  double start = now();
  OpBuilder builder(&context);
  OwningOpRef<ModuleOp> module = ModuleOp::create(builder.getUnknownLoc());
  builder.setInsertionPointToStart(module->getBody());
  Type memory = MemRefType::get(ShapedType::kDynamic, builder.getF32Type()), index = builder.getIndexType();
  SmallVector<Type> types(7, memory);
  types.append(3, index);
  auto func =
      func::FuncOp::create(builder, builder.getUnknownLoc(), "kernel", builder.getFunctionType(types, {}));
  func->setAttr("llvm.emit_c_interface", builder.getUnitAttr());
  builder.setInsertionPointToStart(func.addEntryBlock());
  VectorBuilder b(builder.getUnknownLoc(), builder, c.get("lanes"));
  HandRule rule(c, func.getArguments());
  SweepOptions options = SweepOptions::choose(rule.shape, c.get("lanes"), c.get("lanes") == 16 ? 32 : 16);
  if (c.get("group"))
    options.group = c.get("group");
  if (c.get("vectors"))
    options.vectors = c.get("vectors");
  if (c.get("chunk"))
    options.chunk = c.get("chunk");
  rule.chunk = options.chunk;
  SweepBlocks blocks = {b.index(0), b.index(SweepLayout(rule.shape, options).blocks)};
  Value scale = emitSweep(b, rule, options, func.getArgument(9), func.getArgument(6), blocks);
  (void)scale; // H is left scaled; only the outputs are compared
  func::ReturnOp::create(b);
  if (c.get("dump") == 1)
    module->dump();
  if (failed(verify(*module)) || failed(lower(*module)))
    return 1;
  auto machine =
      llvm::cantFail(llvm::cantFail(llvm::orc::JITTargetMachineBuilder::detectHost()).createTargetMachine());
  auto optimise = makeOptimizingTransformer(2, 0, machine.get());
  ExecutionEngineOptions engineOptions;
  engineOptions.transformer = optimise;
  engineOptions.jitCodeGenOptLevel = llvm::CodeGenOptLevel::Aggressive;
  engineOptions.enableObjectDump = c.get("dump") == 2;
  auto engine = llvm::cantFail(ExecutionEngine::create(*module, engineOptions, std::move(machine)));
  void *symbol = llvm::cantFail(engine->lookup("_mlir_ciface_kernel"));
  double compiled = now() - start;
  if (c.get("dump") == 2)
    engine->dumpToObjectFile("sweep.o");

  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform;
  int64_t all = tokens * heads, decays = c.decay() == Rows ? rows : c.decay() == Columns ? columns : 1;
  int64_t padded = all + heads * 128;
  float *q = floats(padded * rows), *k = floats(padded * rows * writes), *v = floats(padded * columns),
        *a = floats(padded * decays), *bb = floats(padded), *o = floats(padded * columns),
        *scratch = floats(SweepLayout(rule.shape, options).size);
  for (int64_t i = 0; i < all * rows; ++i)
    q[i] = normal(random) / std::sqrt(rows);
  for (int64_t i = 0; i < all * columns; ++i)
    v[i] = normal(random);
  for (int64_t t = 0; t < all * writes; ++t) {
    double norm = 0;
    for (int64_t i = 0; i < rows; ++i) {
      float x = k[t * rows + i] = normal(random);
      norm += x * x;
    }
    for (int64_t i = 0; i < rows; ++i)
      k[t * rows + i] /= std::sqrt(norm);
  }
  double least = c.number["least"];
  for (int64_t i = 0; i < all * decays; ++i)
    a[i] = c.decay() == None                  ? 1
           : least == 0 && random() % 10 == 0 ? 0
                                              : least + (1 - least) * uniform(random);
  for (int64_t t = 0; t < all; ++t)
    bb[t] = uniform(random) / writes;

  Descriptor tensors[] = {Descriptor(q),  Descriptor(k), Descriptor(v),      Descriptor(a),
                          Descriptor(bb), Descriptor(o), Descriptor(scratch)};
  auto kernel = reinterpret_cast<void (*)(void *, void *, void *, void *, void *, void *, void *, int64_t,
                                          int64_t, int64_t)>(symbol);
  double peak = c.get("lanes") == 16 ? fmaPeak() : 0, best = 1e9;
  for (int64_t run = 0; run < c.get("runs"); ++run) {
    for (int64_t h = 0; h < heads; ++h) {
      double begin = now();
      std::memset(scratch, 0, 4 * rows * roundUp(columns, options.width()));
      kernel(&tensors[0], &tensors[1], &tensors[2], &tensors[3], &tensors[4], &tensors[5], &tensors[6], heads,
             h, tokens);
      best = std::min(best, (now() - begin) * heads);
    }
  }
  if (c.get("lanes") == 16)
    peak = std::max(peak, fmaPeak());

  // The last head in float64, for the first tokens.
  std::vector<double> H(rows * columns), y(columns), out(columns);
  double error = 0, size = 0;
  for (int64_t t = 0; t < std::min<int64_t>(tokens, 600); ++t) {
    int64_t at = t * heads + heads - 1;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        H[i * columns + j] *= a[at * decays + (c.decay() == Rows ? i : c.decay() == Columns ? j : 0)];
    std::vector<double> old = H;
    for (int64_t w = 0; w < writes; ++w) {
      const float *kw = k + (at * writes + w) * rows;
      for (int64_t j = 0; j < columns; ++j)
        y[j] = v[at * columns + j];
      for (int64_t i = 0; w < reads && i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j)
          y[j] -= kw[i] * old[i * columns + j];
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j)
          H[i * columns + j] += double(bb[at]) * kw[i] * y[j];
    }
    std::fill(out.begin(), out.end(), 0);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        out[j] += q[at * rows + i] * H[i * columns + j];
    for (int64_t j = 0; j < columns; ++j) {
      double e = o[at * columns + j] - out[j];
      error += e * e, size += out[j] * out[j];
    }
  }
  double flops = 2.0 * (reads + 1 + writes) * rows * columns * all;
  printf("reads %lld writes %lld decay %s, %lldx%lld, %lld tokens, %lld heads; group %lld vectors %lld chunk "
         "%lld: "
         "%.3f us, %.1f GFLOP/s, %.1f %% of %.1f; error %.2e; compiled in %.0f ms\n",
         (long long)reads, (long long)writes, c.text["decay"].c_str(), (long long)rows, (long long)columns,
         (long long)tokens, (long long)heads, (long long)options.group, (long long)options.vectors,
         (long long)options.chunk, best * 1e6 / all, flops / best / 1e9, 100 * flops / best / 1e9 / peak,
         peak, std::sqrt(error / size), compiled * 1e3);
  // The JIT's teardown is of no interest.
  fflush(stdout);
  _exit(0);
}
