#include "lib/Cuda/Ptx.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;
using namespace recur;
using namespace recur::cuda;

static char constraintOf(Type type) {
  if (type.isF32())
    return 'f';
  return isa<LLVM::LLVMPointerType>(type) || type.isInteger(64) ? 'l' : 'r';
}

Values Ptx::assembly(StringRef text, TypeRange results, ValueRange operands, bool effects, unsigned tied) {
  std::string constraints;
  auto append = [&](const Twine &constraint) {
    constraints += (constraints.empty() ? "" : ",") + constraint.str();
  };
  for (Type type : results)
    append("=" + Twine(constraintOf(type)));
  for (auto [i, operand] : llvm::enumerate(operands))
    append(i < tied ? Twine(i) : Twine(constraintOf(operand.getType())));
  if (effects)
    append("~{memory}");
  SmallVector<Type> types(results);
  SmallVector<Type, 1> type;
  if (types.size() == 1)
    type = {types[0]};
  else if (!types.empty())
    type = {LLVM::LLVMStructType::getLiteral(b.getContext(), types)};
  auto op = LLVM::InlineAsmOp::create(b, type, operands, text, constraints, effects, /*is_align_stack=*/false,
                                      LLVM::TailCallKind::None, LLVM::AsmDialectAttr(), ArrayAttr());
  if (types.size() <= 1)
    return Values(op->getResults());
  Values values;
  for (size_t i = 0; i < types.size(); ++i)
    values.push_back(LLVM::ExtractValueOp::create(b, op.getResult(0), i));
  return values;
}

Values Ptx::pin(ValueRange values) { return assembly("", values.getTypes(), values, true, values.size()); }

Value Ptx::exp2(Value x) { return assembly("ex2.approx.ftz.f32 $0, $1;", x.getType(), x, false)[0]; }

Value Ptx::log2(Value x) { return assembly("lg2.approx.ftz.f32 $0, $1;", x.getType(), x, false)[0]; }

Value Ptx::reciprocal(Value x) { return assembly("rcp.approx.ftz.f32 $0, $1;", x.getType(), x, false)[0]; }

Value Ptx::reciprocalRoot(Value x) {
  return assembly("rsqrt.approx.ftz.f32 $0, $1;", x.getType(), x, false)[0];
}

Value Ptx::root(Value x) { return assembly("sqrt.approx.ftz.f32 $0, $1;", x.getType(), x, false)[0]; }

Value Ptx::tanh(Value x) { return assembly("tanh.approx.f32 $0, $1;", x.getType(), x, false)[0]; }

Value Ptx::negative(Value x) { return assembly("neg.f32 $0, $1;", x.getType(), x, false)[0]; }

//===----------------------------------------------------------------------===//
// Barriers and copies
//===----------------------------------------------------------------------===//

void Ptx::initBarrier(Value barrier, int64_t arrivals) {
  assembly("mbarrier.init.shared::cta.b64 [$0], $1;", {}, {barrier, constant(arrivals)});
}

void Ptx::fenceBarrierInit() { assembly("fence.mbarrier_init.release.cluster;", {}, {}); }

void Ptx::arrive(Value barrier) { assembly("mbarrier.arrive.shared::cta.b64 _, [$0];", {}, barrier); }

void Ptx::arriveExpecting(Value barrier, int64_t bytes) {
  assembly("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", {}, {barrier, constant(bytes)});
}

void Ptx::await(Value barrier, Value phase) {
  // The scope makes the labels local, so that the block may be duplicated.
  assembly("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @done bra.uni "
           "over; "
           "bra.uni again; over: }",
           {}, {barrier, phase});
}

void Ptx::meet(Value id, Value threads) { assembly("bar.sync $0, $1;", {}, {id, threads}); }

void Ptx::announce(Value id, Value threads) { assembly("bar.arrive $0, $1;", {}, {id, threads}); }

void Ptx::meetCluster() { assembly("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;", {}, {}); }

Value Ptx::inBlock(Value address, Value rank) {
  return assembly("mapa.shared::cluster.u32 $0, $1, $2;", b.getI32Type(), {address, rank}, false)[0];
}

Value Ptx::loadThere(Value address, int64_t offset) {
  return assembly(("ld.shared::cluster.b32 $0, [$1+" + Twine(offset) + "];").str(), b.getI32Type(),
                  address)[0];
}

void Ptx::storeThere(Value address, Value word) {
  assembly("st.shared::cluster.b32 [$0], $1;", {}, {address, word});
}

void Ptx::arriveThere(Value barrier) {
  assembly("mbarrier.arrive.shared::cluster.b64 _, [$0];", {}, barrier);
}

void Ptx::arriveThereExpecting(Value barrier, int64_t bytes) {
  assembly("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [$0], $1;", {}, {barrier, constant(bytes)});
}

void Ptx::fenceProxy() { assembly("fence.proxy.async.shared::cta;", {}, {}); }

void Ptx::setRegisters(int64_t count, bool more) {
  assembly(("setmaxnreg." + Twine(more ? "inc" : "dec") + ".sync.aligned.u32 " + Twine(count) + ";").str(),
           {}, {});
}

static std::string braced(unsigned first, size_t count) {
  std::string text = "{";
  for (size_t i = 0; i < count; ++i)
    text += (i ? ",$" : "$") + std::to_string(first + i);
  return text + "}";
}

void Ptx::loadBox(Value to, Value map, Value barrier, ValueRange coordinates) {
  Values operands{to, map, barrier};
  llvm::append_range(operands, coordinates);
  assembly(("cp.async.bulk.tensor." + Twine(coordinates.size()) +
            "d.shared::cta.global.tile.mbarrier::complete_tx::bytes [$0], [$1, " +
            braced(3, coordinates.size()) + "], [$2];")
               .str(),
           {}, operands);
}

void Ptx::prefetchBox(Value map, ValueRange coordinates, Value condition) {
  Values operands{map, arith::ExtUIOp::create(b, b.getI32Type(), condition)};
  llvm::append_range(operands, coordinates);
  assembly(("{ .reg .pred on; setp.ne.b32 on, $1, 0; @on cp.async.bulk.prefetch.tensor." +
            Twine(coordinates.size()) + "d.L2.global.tile [$0, " + braced(2, coordinates.size()) + "]; }")
               .str(),
           {}, operands);
}

void Ptx::storeBox(Value map, Value from, ValueRange coordinates, Value condition) {
  // A predicate and no branch: one around the copy of a single thread costs more than the copy.
  Values operands{map, from, arith::ExtUIOp::create(b, b.getI32Type(), condition)};
  llvm::append_range(operands, coordinates);
  assembly(("{ .reg .pred on; setp.ne.b32 on, $2, 0; @on cp.async.bulk.tensor." + Twine(coordinates.size()) +
            "d.global.shared::cta.tile.bulk_group [$0, " + braced(3, coordinates.size()) +
            "], [$1]; cp.async.bulk.commit_group; }")
               .str(),
           {}, operands);
}

void Ptx::loadBytes(Value to, Value from, int64_t bytes, Value barrier) {
  assembly("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];", {},
           {to, from, constant(bytes), barrier});
}

void Ptx::storeBytes(Value to, Value from, int64_t bytes) {
  assembly("cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;", {}, {to, from, constant(bytes)});
}

void Ptx::commitStores() { assembly("cp.async.bulk.commit_group;", {}, {}); }

void Ptx::copyPacket(Value to, int64_t offset, Value from, int64_t bytes) {
  assembly(("cp.async." + Twine(bytes == 16 ? "cg" : "ca") + ".shared.global [$0+" + Twine(offset) +
            "], [$1], " + Twine(bytes) + ";")
               .str(),
           {}, {to, from});
}

void Ptx::commitPackets() { assembly("cp.async.commit_group;", {}, {}); }

void Ptx::awaitPackets(std::optional<int64_t> left) {
  assembly(left ? ("cp.async.wait_group " + Twine(*left) + ";").str() : "cp.async.wait_all;", {}, {});
}

void Ptx::copyThere(Value to, Value from, int64_t bytes, Value barrier) {
  assembly("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];", {},
           {to, from, constant(bytes), barrier});
}

void Ptx::awaitStores(bool written, int64_t left) {
  assembly((Twine("cp.async.bulk.wait_group") + (written ? " " : ".read ") + Twine(left) + ";").str(), {},
           {});
}

//===----------------------------------------------------------------------===//
// Shared memory
//===----------------------------------------------------------------------===//

static std::string vectorSuffix(size_t count, Type type) {
  return (count == 1 ? "" : ".v" + std::to_string(count)) + (type.isF32() ? ".f32" : ".b32");
}

Values Ptx::load(Value address, int64_t offset, unsigned count, Type type) {
  std::string to = count == 1 ? "$0" : braced(0, count);
  return assembly(("ld.shared" + vectorSuffix(count, type) + " " + to + ", [$" + Twine(count) + "+" +
                   Twine(offset) + "];")
                      .str(),
                  SmallVector<Type>(count, type), address);
}

// An instruction where a condition, its last operand, holds.
static std::string when(ImplicitLocOpBuilder &b, Value condition, const std::string &text, Values &operands) {
  if (!condition)
    return text;
  operands.push_back(arith::ExtUIOp::create(b, b.getI32Type(), condition));
  return "{ .reg .pred on; setp.ne.b32 on, $" + std::to_string(operands.size() - 1) + ", 0; @on " + text +
         " }";
}

void Ptx::store(Value address, int64_t offset, ValueRange values, bool relaxed, Value condition) {
  Values operands{address};
  llvm::append_range(operands, values);
  std::string from = values.size() == 1 ? "$1" : braced(1, values.size());
  std::string text =
      (Twine(relaxed ? "st.relaxed.cta" : "st") + ".shared" +
       vectorSuffix(values.size(), values[0].getType()) + " [$0+" + Twine(offset) + "], " + from + ";")
          .str();
  assembly(when(b, condition, text, operands), {}, operands);
}

Values Ptx::loadMatrices(Value address, int64_t offset, bool transposed) {
  return assembly((Twine("ldmatrix.sync.aligned.m8n8.x4") + (transposed ? ".trans" : "") +
                   ".shared.b16 {$0,$1,$2,$3}, [$4+" + Twine(offset) + "];")
                      .str(),
                  SmallVector<Type>(4, b.getI32Type()), address);
}

void Ptx::storeMatrices(Value address, int64_t offset, ValueRange registers, bool transposed,
                        Value condition) {
  Values operands{address};
  llvm::append_range(operands, registers);
  std::string text = (Twine("stmatrix.sync.aligned.m8n8.x4") + (transposed ? ".trans" : "") +
                      ".shared.b16 [$0+" + Twine(offset) + "], {$1,$2,$3,$4};")
                         .str();
  assembly(when(b, condition, text, operands), {}, operands);
}

Value Ptx::transpose(Value registers) {
  return assembly("movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;", b.getI32Type(), registers)[0];
}

Value Ptx::pack(Value low, Value high, bool saturates) {
  const char *text = !isF16      ? "cvt.rn.bf16x2.f32 $0, $1, $2;"
                     : saturates ? "cvt.rn.satfinite.f16x2.f32 $0, $1, $2;"
                                 : "cvt.rn.f16x2.f32 $0, $1, $2;";
  return assembly(text, b.getI32Type(), {high, low}, false)[0];
}

Value Ptx::packFinite(Value low, Value high) {
  return assembly(("cvt.rn.satfinite." + half() + "x2.f32 $0, $1, $2;").str(), b.getI32Type(), {high, low},
                  false)[0];
}

uint32_t Ptx::bitsOf(double number) const {
  llvm::APFloat half(number);
  bool isInexact;
  half.convert(isF16 ? llvm::APFloat::IEEEhalf() : llvm::APFloat::BFloat(),
               llvm::APFloat::rmNearestTiesToEven, &isInexact);
  return half.bitcastToAPInt().getZExtValue();
}

Value Ptx::packF16(Value low, Value high) {
  return assembly("cvt.rn.f16x2.f32 $0, $1, $2;", b.getI32Type(), {high, low}, false)[0];
}

Values Ptx::unpack(Value pair) {
  if (isF16)
    return unpackF16(pair);
  // A bf16 is the upper half of an f32.
  Value low = arith::ShLIOp::create(b, pair, constant(16)), high = bits(pair, int32_t(0xffff0000));
  return {arith::BitcastOp::create(b, b.getF32Type(), low),
          arith::BitcastOp::create(b, b.getF32Type(), high)};
}

Values Ptx::unpackF16(Value pair) {
  return assembly("{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }",
                  {b.getF32Type(), b.getF32Type()}, pair, false);
}

Value Ptx::multiplyPairs(Value x, Value y) {
  return assembly("mul.rn.f16x2 $0, $1, $2;", b.getI32Type(), {x, y}, false)[0];
}

Value Ptx::addProducts(Value sum, Value x, Value y) {
  return assembly("fma.rn.f16x2 $0, $1, $2, $3;", b.getI32Type(), {x, y, sum}, false)[0];
}

Value Ptx::greater(Value x, Value y) {
  return assembly(isF16 ? "max.f16x2 $0, $1, $2;" : "max.bf16x2 $0, $1, $2;", b.getI32Type(), {x, y},
                  false)[0];
}

void Ptx::syncWarp() { assembly("bar.warp.sync 0xffffffff;", {}, {}); }

// What an instruction makes q of threads' p.
static Value ask(Ptx &ptx, const char *instruction, Value condition, ValueRange others = {}) {
  Type type = ptx.b.getI32Type();
  Values number{arith::ExtUIOp::create(ptx.b, type, condition)};
  llvm::append_range(number, others);
  std::string text =
      (Twine("{ .reg .pred p, q; setp.ne.b32 p, $1, 0; ") + instruction + " selp.b32 $0, 1, 0, q; }").str();
  return ptx.compare(arith::CmpIPredicate::ne, ptx.assembly(text, type, number)[0], ptx.constant(0));
}

Value Ptx::any(Value condition) { return ask(*this, "vote.sync.any.pred q, p, 0xffffffff;", condition); }

Value Ptx::meetForAny(Value condition) { return ask(*this, "bar.red.or.pred q, 0, p;", condition); }

Value Ptx::meetForAny(Value id, Value threads, Value condition) {
  return ask(*this, "bar.red.or.pred q, $2, $3, p;", condition, {id, threads});
}

Value Ptx::isElected() { return NVVM::ElectSyncOp::create(b, b.getI1Type(), Value()); }

Value Ptx::shuffle(Value x, Value lane) {
  return assembly("shfl.sync.idx.b32 $0, $1, $2, 31, 0xffffffff;", x.getType(), {x, lane})[0];
}

Value Ptx::exchange(Value x, int64_t distance) {
  std::string text = ("shfl.sync.bfly.b32 $0, $1, " + Twine(distance) + ", 31, 0xffffffff;").str();
  return assembly(text, x.getType(), {x})[0];
}

Value Ptx::shuffleByFours(Value x, int64_t lane) {
  constexpr int64_t kept = 3 << 8; // bits that a lane's source has of its own number
  std::string text =
      ("shfl.sync.idx.b32 $0, $1, " + Twine(lane) + ", " + Twine(kept | 31) + ", 0xffffffff;").str();
  return assembly(text, x.getType(), {x})[0];
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

Value Ptx::descriptor(Value address, int64_t leading, int64_t rowBytes) {
  uint64_t swizzle = uint64_t(rowBytes == 64 ? 2 : 1) << 62;
  int64_t groupOfRows = 8 * rowBytes;
  Value field = arith::ExtUIOp::create(b, b.getI64Type(), bits(shiftRight(address, 4), 0x3fff));
  return arith::OrIOp::create(
      b, field, constant(int64_t(swizzle) | (groupOfRows >> 4 << 32) | (leading >> 4 << 16), 64));
}

Pending Ptx::product(int64_t columns, ValueRange start, ArrayRef<Step> steps, bool leftByDepth,
                     bool rightByDepth, StringRef type) {
  size_t count = columns / 2;
  if (type.empty())
    type = half();
  std::string text =
      "{ .reg .pred no, yes; setp.ne.b32 no, 0, 0; setp.eq.b32 yes, 0, 0; wgmma.fence.sync.aligned; ";
  Values operands(start);
  std::string sums = braced(0, count);
  for (auto [i, step] : llvm::enumerate(steps)) {
    unsigned next = count + operands.size();
    bool inRegisters = step.left.size() > 1;
    text += "wgmma.mma_async.sync.aligned.m64n" + std::to_string(columns) + "k16.f32." + type.str() + "." +
            type.str() + " " + sums + ", " + (inRegisters ? braced(next, 4) : "$" + std::to_string(next)) +
            ", $" + std::to_string(next + step.left.size()) + (start.empty() && i == 0 ? ", no" : ", yes") +
            ", 1, 1, " +
            (inRegisters   ? ""
             : leftByDepth ? "1, "
                           : "0, ") +
            (rightByDepth ? "1; " : "0; ");
    llvm::append_range(operands, step.left);
    operands.push_back(step.right);
  }
  text += "wgmma.commit_group.sync.aligned; }";
  return {assembly(text, SmallVector<Type>(count, b.getF32Type()), operands, true, start.size())};
}

SmallVector<Values> Ptx::await(int64_t left, ArrayRef<Pending> landed) {
  Values all;
  for (const Pending &product : landed)
    llvm::append_range(all, product.entries);
  // Passing the sums through the wait keeps everything that reads them below it.
  Values values = assembly(("wgmma.wait_group.sync.aligned " + Twine(left) + ";").str(),
                           ValueRange(all).getTypes(), all, true, all.size());
  SmallVector<Values> results;
  ArrayRef<Value> rest = values;
  for (const Pending &product : landed) {
    results.emplace_back(rest.take_front(product.entries.size()));
    rest = rest.drop_front(product.entries.size());
  }
  return results;
}

Values Ptx::multiply16By8(StringRef type, ValueRange sum, ValueRange left, ValueRange right) {
  Values operands(sum);
  llvm::append_range(operands, left);
  llvm::append_range(operands, right);
  return assembly(("mma.sync.aligned.m16n8k16.row.col.f32." + type + "." + type +
                   ".f32 {$0,$1,$2,$3}, {$8,$9,$10,$11}, {$12,$13}, {$4,$5,$6,$7};")
                      .str(),
                  SmallVector<Type>(4, b.getF32Type()), operands, false);
}

Values Ptx::multiplyPacked(ValueRange sum, ValueRange left, ValueRange right) {
  Values results;
  for (unsigned half : {0, 1})
    llvm::append_range(results, multiply16By8(this->half(), sum.slice(4 * half, 4), left,
                                              Values{right[half], right[2 + half]}));
  return results;
}

Values Ptx::multiply16By8Tf32(ValueRange sum, ValueRange left, ValueRange right) {
  // Which of the columns is which step of depth does not matter, if it is the same on both sides: a thread's
  // neighbouring columns are four steps apart.
  Values operands(sum);
  for (Value entry : {left[0], left[2], left[1], left[3], right[0], right[1]})
    operands.push_back(arith::BitcastOp::create(b, b.getI32Type(), entry));
  return assembly("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {$0,$1,$2,$3}, {$8,$9,$10,$11}, "
                  "{$12,$13}, {$4,$5,$6,$7};",
                  SmallVector<Type>(4, b.getF32Type()), operands, false);
}

Values Ptx::multiplyTf32(ValueRange sum, ValueRange left, ValueRange right) {
  Values results(sum);
  for (unsigned first : {0, 4})
    for (unsigned half : {0, 1})
      llvm::copy(multiply16By8Tf32(ArrayRef(results).slice(4 * half, 4), left.slice(first, 4),
                                   right.slice(first + 2 * half, 2)),
                 results.begin() + 4 * half);
  return results;
}

Values Ptx::roundTf32(ValueRange entries) {
  Values results;
  for (Value entry : entries) {
    Value bits = arith::BitcastOp::create(b, b.getI32Type(), entry);
    // Half of the last bit that is kept; what is cut off stays.
    results.push_back(arith::BitcastOp::create(b, b.getF32Type(), add(bits, 0x1000)));
  }
  return results;
}
