// Loads objects with LLVM's JIT linker and calls them through the public interface.
#include "lib/Driver/Jit.h"
#include "llvm/ADT/APFloat.h"
#include "llvm/ADT/bit.h"
#include "llvm/ExecutionEngine/Orc/AbsoluteSymbols.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Process.h"

#include <cstdlib>
#include <list>
#include <sys/mman.h>

using namespace recur;

// What compilers' own libraries (libgcc, compiler-rt) provide for machines without half-precision
// instructions.
extern "C" {
float __extendhfsf2(uint16_t);
uint16_t __truncsfhf2(float);
}

LoadedRule::LoadedRule() = default;
LoadedRule::~LoadedRule() = default;

llvm::Expected<std::unique_ptr<LoadedRule>> LoadedRule::load(llvm::StringRef object, llvm::StringRef name) {
  using namespace llvm::orc;
  std::unique_ptr<LoadedRule> rule(new LoadedRule());
  auto jit = LLJITBuilder().create();
  if (!jit)
    return jit.takeError();
  rule->jit = std::move(*jit);
  JITDylib &main = rule->jit->getMainJITDylib();
  SymbolMap runtime;
  auto add = [&](const char *symbol, auto *function) {
    runtime[rule->jit->mangleAndIntern(symbol)] = {ExecutorAddr::fromPtr(function),
                                                   llvm::JITSymbolFlags::Exported};
  };
  add("recur_rt_forward", &recur_rt_forward);
  add("recur_rt_forward_workspace", &recur_rt_forward_workspace);
  add("recur_rt_step", &recur_rt_step);
  add("recur_rt_step_workspace", &recur_rt_step_workspace);
  add("__extendhfsf2", &__extendhfsf2);
  add("__truncsfhf2", &__truncsfhf2);
  if (llvm::Error error = main.define(absoluteSymbols(std::move(runtime))))
    return error;
  auto process =
      DynamicLibrarySearchGenerator::GetForCurrentProcess(rule->jit->getDataLayout().getGlobalPrefix());
  if (!process)
    return process.takeError();
  main.addGenerator(std::move(*process)); // libm
  if (llvm::Error error = rule->jit->addObjectFile(llvm::MemoryBuffer::getMemBufferCopy(object, name)))
    return error;
  auto find = [&](const char *suffix, auto &function) -> llvm::Error {
    auto address = rule->jit->lookup((name + suffix).str());
    if (!address)
      return address.takeError();
    function = address->toPtr<std::remove_reference_t<decltype(function)>>();
    return llvm::Error::success();
  };
  const recur_metadata *(*metadata)() = nullptr;
  llvm::Error error = find("_forward", rule->forward);
  for (auto lookup : {&LoadedRule::forwardWorkspace, &LoadedRule::stepWorkspace})
    if (!error)
      error = find(lookup == &LoadedRule::stepWorkspace ? "_step_workspace" : "_forward_workspace",
                   (*rule).*lookup);
  if (!error)
    error = find("_step", rule->step);
  if (!error)
    error = find("_metadata", metadata);
  if (error)
    return error;
  rule->metadata = metadata();
  return rule;
}

//===----------------------------------------------------------------------===//
// Elements
//===----------------------------------------------------------------------===//

static const llvm::fltSemantics &semantics(DLDataType type) {
  return type.bits == 32          ? llvm::APFloat::IEEEsingle()
         : type.code == kDLBfloat ? llvm::APFloat::BFloat()
                                  : llvm::APFloat::IEEEhalf();
}

static void storeElement(char *p, DLDataType type, double value) {
  if (type.bits == 32) {
    float single = value;
    memcpy(p, &single, 4);
    return;
  }
  llvm::APFloat number(value);
  bool loses;
  number.convert(semantics(type), llvm::APFloat::rmNearestTiesToEven, &loses);
  uint16_t bits = number.bitcastToAPInt().getZExtValue();
  memcpy(p, &bits, 2);
}

static double loadElement(const char *p, DLDataType type) {
  if (type.bits == 32) {
    float single;
    memcpy(&single, p, 4);
    return single;
  }
  uint16_t bits;
  memcpy(&bits, p, 2);
  llvm::APFloat number(semantics(type), llvm::APInt(16, bits));
  bool loses;
  number.convert(llvm::APFloat::IEEEdouble(), llvm::APFloat::rmNearestTiesToEven, &loses);
  return number.convertToDouble();
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

namespace {
// A large tensor gets huge pages where the system has them, as NumPy's arrays of 4 MB and more do: a token of
// every tensor is a page or a part of one, and looking up small ones is 5 % of the time of long sequences.
void adviseHugePages(char *memory, size_t bytes) {
  size_t page = llvm::sys::Process::getPageSizeEstimate();
  char *begin = memory + llvm::offsetToAlignedAddr(memory, llvm::Align(page));
  if (bytes >= size_t(4) << 20)
    madvise(begin, memory + bytes - begin, MADV_HUGEPAGE); // only advice: without huge pages all is as before
}

// A tensor with its memory, aligned to a cache line.
struct Buffer {
  DLDataType type;
  std::vector<int64_t> shape, strides;
  std::unique_ptr<char, decltype(&free)> memory{nullptr, &free};
  DLTensor tensor{};

  Buffer(DLDataType type, std::vector<int64_t> dims, DLDevice device)
      : type(type), shape(std::move(dims)), strides(shape.size()) {
    int64_t stride = 1;
    for (size_t i = shape.size(); i-- > 0; stride *= shape[i])
      strides[i] = stride;
    memory.reset(static_cast<char *>(aligned_alloc(64, llvm::alignTo(bytes() + 64, 64))));
    adviseHugePages(memory.get(), bytes());
    tensor = {memory.get(),   device, static_cast<int32_t>(shape.size()), type, shape.data(),
              strides.data(), 0};
  }
  int64_t bytes() const { return elementsOf(shape) * (type.bits / 8); }
  void fill(const Array &array) {
    for (auto [i, x] : llvm::enumerate(array.data))
      storeElement(memory.get() + i * (type.bits / 8), type, x);
  }
  // So that an element that is not written is seen.
  void poison() {
    for (int64_t i = 0, n = elementsOf(shape); i < n; ++i)
      storeElement(memory.get() + i * (type.bits / 8), type, std::numeric_limits<double>::quiet_NaN());
  }
  // Exchanges the parts of the first dimension end for end.
  void reverse() {
    int64_t count = shape[0], size = count ? bytes() / count : 0;
    for (int64_t i = 0; i < count / 2; ++i)
      std::swap_ranges(memory.get() + i * size, memory.get() + (i + 1) * size,
                       memory.get() + (count - 1 - i) * size);
  }
  Array array() const {
    Array result(shape);
    for (auto [i, x] : llvm::enumerate(result.data))
      x = loadElement(memory.get() + i * (type.bits / 8), type);
    return result;
  }
};
} // namespace

struct Call::Impl {
  const LoadedRule *rule;
  /// Of calls whose tokens begin at position 0 nobody need be told.
  const DLTensor *givenPositions() const {
    return positions.empty() || !positions.front() ? nullptr : &positionTensor;
  }
  int64_t batch, tokens;
  int64_t one = 1;
  std::vector<int64_t> positions; // of each sequence
  DLTensor positionTensor;
  DLDevice device;           // an emulated GPU has the host's memory
  std::list<Buffer> buffers; // addresses of tensors must stay
  std::vector<std::pair<std::string, Buffer *>> inputs, params, states, outputs, initial;
  std::vector<char> workspace;

  Impl(const LoadedRule &rule, const Problem &problem)
      : rule(&rule), batch(problem.batch), tokens(problem.tokens), positions(batch, problem.position),
        device{rule.metadata->model->variants[0].cuda ? kDLCUDA : kDLCPU, 0} {
    positionTensor = {positions.data(), device, 1, {kDLInt, 64, 1}, &batch, &one, 0};
  }

  static const DLTensor *given(const std::pair<std::string, Buffer *> &entry) {
    return entry.second ? &entry.second->tensor : nullptr;
  }

  int32_t call(LoadedRule::Entry entry, LoadedRule::Query query, std::vector<const DLTensor *> &args,
               unsigned threads) {
    int64_t bytes = query(args.data());
    if (bytes < 0)
      return bytes;
    workspace.resize(bytes + 64);
    void *aligned =
        reinterpret_cast<void *>(llvm::alignTo(reinterpret_cast<uintptr_t>(workspace.data()), 64));
    recur_stream where = {nullptr, nullptr, static_cast<int32_t>(threads), nullptr};
    return entry(args.data(), aligned, &where);
  }
};

Call::Call(const LoadedRule &rule, const Problem &problem) : impl(std::make_unique<Impl>(rule, problem)) {
  const recur_model &model = *rule.metadata->model;
  // The first variant has the sizes and types; all variants of one compilation share them.
  const recur_variant &variant = model.variants[0];
  for (int32_t i = 0; i < model.tensor_count; ++i) {
    const recur_tensor &tensor = model.tensors[i];
    std::vector<int64_t> own;
    for (int32_t d = 0; d < tensor.rank; ++d)
      own.push_back(variant.dims[tensor.dims[d]]);
    auto make = [&](std::vector<int64_t> shape) {
      shape.insert(shape.end(), own.begin(), own.end());
      return &impl->buffers.emplace_back(variant.dtypes[i], std::move(shape), impl->device);
    };
    std::string name = tensor.name;
    Buffer *buffer = nullptr;
    switch (tensor.role) {
    case RECUR_INPUT:
      buffer = make({problem.batch, problem.tokens, problem.inputs.at(name).shape[2]});
      buffer->fill(problem.inputs.at(name));
      impl->inputs.push_back({name, buffer});
      break;
    case RECUR_PARAM:
      buffer = make({problem.params.at(name).shape[0]});
      buffer->fill(problem.params.at(name));
      impl->params.push_back({name, buffer});
      break;
    case RECUR_OUTPUT:
      buffer = make({problem.batch, problem.tokens, problem.heads});
      buffer->poison();
      impl->outputs.push_back({name, buffer});
      break;
    default:
      buffer = make({problem.batch, problem.heads});
      buffer->poison();
      impl->states.push_back({name, buffer});
      Buffer *first = nullptr;
      if (auto given = problem.states.find(name); given != problem.states.end()) {
        first = make({problem.batch, problem.heads});
        first->fill(given->second);
      }
      impl->initial.push_back({name, first});
    }
  }
}
Call::~Call() = default;

void Call::use(const LoadedRule &rule) { impl->rule = &rule; }

int32_t Call::forward(unsigned threads) {
  std::vector<const DLTensor *> args;
  for (const auto *group : {&impl->inputs, &impl->params, &impl->initial})
    for (const auto &entry : *group)
      args.push_back(Impl::given(entry));
  args.insert(args.end(), {nullptr, nullptr, impl->givenPositions()}); // no cu_seqlens, no state_index
  for (const auto *group : {&impl->outputs, &impl->states})
    for (const auto &entry : *group)
      args.push_back(Impl::given(entry));
  return impl->call(impl->rule->forward, impl->rule->forwardWorkspace, args, threads);
}

int32_t Call::forwardPacked(unsigned threads) {
  int64_t batch = impl->batch, tokens = impl->tokens, one = 1, ends = batch + 1;
  std::vector<int64_t> bounds, slots;
  for (int64_t i = 0; i <= batch; ++i)
    bounds.push_back(i * tokens);
  for (int64_t i = batch; i-- > 0;)
    slots.push_back(i);
  DLTensor boundsTensor = {bounds.data(), impl->device, 1, {kDLInt, 64, 1}, &ends, &one, 0};
  DLTensor slotsTensor = {slots.data(), impl->device, 1, {kDLInt, 64, 1}, &batch, &one, 0};
  std::vector<const DLTensor *> args;
  auto add = [&](const auto &group) {
    for (const auto &entry : group)
      args.push_back(Impl::given(entry));
  };
  auto addTokens = [&](const auto &group) {
    for (const auto &entry : group) {
      entry.second->shape[0] = 1;
      entry.second->shape[1] = batch * tokens;
    }
    add(group);
  };
  addTokens(impl->inputs);
  add(impl->params);
  for (size_t i = 0; i < impl->states.size(); ++i) {
    Buffer *first = impl->initial[i].second, *last = impl->states[i].second;
    if (first)
      std::copy_n(first->memory.get(), first->bytes(), last->memory.get());
    last->reverse();
    args.push_back(first ? &last->tensor : nullptr);
  }
  args.insert(args.end(), {&boundsTensor, &slotsTensor, impl->givenPositions()});
  addTokens(impl->outputs);
  add(impl->states);
  int32_t code = impl->call(impl->rule->forward, impl->rule->forwardWorkspace, args, threads);
  for (const auto &entry : impl->states)
    entry.second->reverse();
  for (auto *group : {&impl->inputs, &impl->outputs})
    for (auto &entry : *group) {
      entry.second->shape[0] = batch;
      entry.second->shape[1] = tokens;
    }
  return code;
}

int32_t Call::step(int64_t at, unsigned threads) {
  std::list<DLTensor> views; // one token of each input and output
  auto token = [&](Buffer *buffer) {
    DLTensor &view = views.emplace_back(buffer->tensor);
    view.byte_offset = at * buffer->strides[1] * (buffer->type.bits / 8);
    return &view;
  };
  std::vector<std::vector<int64_t>> shapes;
  std::vector<int64_t> positions;
  for (int64_t first : impl->positions)
    positions.push_back(first + at);
  std::vector<const DLTensor *> args;
  auto addTokens = [&](const auto &group) {
    for (const auto &entry : group) {
      DLTensor *view = token(entry.second);
      std::vector<int64_t> &shape = shapes.emplace_back(entry.second->shape);
      shape[1] = 1;
      args.push_back(view);
    }
  };
  shapes.reserve(impl->inputs.size() + impl->outputs.size());
  addTokens(impl->inputs);
  for (const auto &entry : impl->params)
    args.push_back(Impl::given(entry));
  int64_t count = impl->batch, one = 1;
  DLTensor positionTensor = {positions.data(), impl->device, 1, {kDLInt, 64, 1}, &count, &one, 0};
  args.push_back(nullptr); // state_index
  args.push_back(&positionTensor);
  addTokens(impl->outputs);
  auto shape = shapes.begin();
  for (DLTensor &view : views)
    view.shape = (shape++)->data();
  for (const auto &entry : impl->states)
    args.push_back(Impl::given(entry));
  return impl->call(impl->rule->step, impl->rule->stepWorkspace, args, threads);
}

int32_t Call::stepAll(unsigned threads) {
  // A forward call over no token leaves the initial states as the final ones.
  int64_t tokens = impl->tokens;
  for (auto *group : {&impl->inputs, &impl->outputs})
    for (auto &entry : *group)
      entry.second->shape[1] = 0;
  int32_t code = forward(threads);
  for (auto *group : {&impl->inputs, &impl->outputs})
    for (auto &entry : *group)
      entry.second->shape[1] = tokens;
  for (int64_t t = 0; t < tokens && code == RECUR_OK; ++t)
    code = step(t, threads);
  return code;
}

void Call::store(Problem &problem) const {
  for (const auto &[name, buffer] : impl->outputs)
    problem.outputs[name] = buffer->array();
  for (const auto &[name, buffer] : impl->states)
    problem.states[name] = buffer->array();
}

void Call::round(Problem &problem) const {
  for (const auto &[name, buffer] : impl->inputs)
    problem.inputs[name] = buffer->array();
  for (const auto &[name, buffer] : impl->params)
    problem.params[name] = buffer->array();
}

int64_t Call::tensorBytes() const {
  int64_t bytes = 0;
  for (const auto *group : {&impl->inputs, &impl->params, &impl->outputs})
    for (const auto &entry : *group)
      bytes += entry.second->bytes();
  return bytes;
}

int64_t Call::stateBytes() const {
  int64_t bytes = 0;
  for (const auto &entry : impl->states)
    bytes += entry.second->bytes();
  return 2 * bytes;
}
