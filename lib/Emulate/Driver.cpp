// The CUDA driver's functions that the run-time library uses, on one emulated GPU whose memory is the host's.
#include "lib/Emulate/Host.h"
#include "lib/Emulate/Image.h"
#include "lib/Emulate/Machine.h"
#include "lib/Emulate/TensorMap.h"

#include <algorithm>
#include <cstring>
#include <mutex>

using namespace llvm;
using namespace recur::emulate;

namespace {
// Results and attributes as cuda.h numbers them.
enum Result {
  Success = 0,
  InvalidValue = 1,
  InvalidDevice = 101,
  InvalidImage = 200,
  NotFound = 500,
  LaunchFailed = 719
};
enum Attribute { Processors = 16, CapabilityMajor = 75, CapabilityMinor = 76, SharedBytes = 97 };
enum PointerAttribute { MemoryType = 2, PointerDevice = 9, RangeStart = 11, RangeSize = 12, IsPlain = 13 };
enum { DeviceMemory = 2 };
} // namespace

// What the last launch did wrong.
static std::string wrong;

static int getErrorString(int result, const char **text) {
  switch (result) {
  case InvalidValue:
    *text = "invalid argument";
    break;
  case InvalidDevice:
    *text = "there is one emulated GPU";
    break;
  case InvalidImage:
    *text = "the code was not compiled for the emulated GPU";
    break;
  case NotFound:
    *text = "named symbol not found";
    break;
  case LaunchFailed:
    *text = wrong.c_str();
    break;
  default:
    *text = "no error";
  }
  return Success;
}

static int init(unsigned) { return Success; }
static int succeedWith(void *) { return Success; }

static int driverGetVersion(int *version) {
  *version = 13000;
  return Success;
}

static int deviceGet(int *device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? Success : InvalidDevice;
}

static int deviceGetAttribute(int *value, int attribute, int) {
  const DeviceTraits &traits = deviceTraits();
  switch (attribute) {
  case Processors:
    *value = traits.processors;
    return Success;
  case CapabilityMajor:
    *value = traits.capability / 10;
    return Success;
  case CapabilityMinor:
    *value = traits.capability % 10;
    return Success;
  case SharedBytes:
    *value = traits.sharedBytes;
    return Success;
  default:
    return InvalidValue;
  }
}

// There is one context, and it is always current.
static int context;
static int ctxGetCurrent(void **current) {
  *current = &context;
  return Success;
}
static int ctxGetDevice(int *device) {
  *device = 0;
  return Success;
}
static int primaryCtxRetain(void **retained, int) { return ctxGetCurrent(retained); }

static int moduleLoadData(void **module, const void *image) {
  *module = findImage(static_cast<const char *>(image));
  return *module ? Success : InvalidImage;
}

static int moduleGetFunction(void **function, void *module, const char *name) {
  auto &image = *static_cast<Image *>(module);
  auto found = image.find(name);
  if (found == image.end())
    return NotFound;
  *function = &found->second;
  return Success;
}

static int funcSetAttribute(void *, int, int value) {
  return value <= deviceTraits().sharedBytes ? Success : InvalidValue;
}

static int encodeTiled(void *out, int type, uint32_t dims, void *data, const uint64_t *sizes,
                       const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                       int swizzle, int, int) {
  constexpr uint32_t bytesOf[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2}, rowBytes[] = {1u << 20, 32, 64, 128};
  if (type < 0 || type >= int(std::size(bytesOf)) || dims < 1 || dims > TensorMap::mostDims || interleave ||
      swizzle < 0 || swizzle > 3 || reinterpret_cast<uintptr_t>(data) % 16)
    return InvalidValue;
  TensorMap map{
      TensorMap::magic, dims, bytesOf[type], uint32_t(swizzle), static_cast<char *>(data), {}, {}, {}};
  for (uint32_t i = 0; i < dims; ++i) {
    map.sizes[i] = sizes[i];
    map.box[i] = box[i];
    if (!sizes[i] || sizes[i] > uint64_t(1) << 32 || !box[i] || box[i] > 256 || steps[i] != 1)
      return InvalidValue;
    if (i + 1 < dims)
      map.strides[i] = strides[i];
    if (i + 1 < dims && (!strides[i] || strides[i] % 16 || strides[i] >= uint64_t(1) << 40))
      return InvalidValue;
  }
  if (box[0] * map.elementBytes % 16 || box[0] * map.elementBytes > rowBytes[swizzle])
    return InvalidValue;
  memcpy(out, &map, sizeof map);
  return Success;
}

static int launchKernel(void *function, unsigned blocks, unsigned blocksY, unsigned blocksZ, unsigned threads,
                        unsigned threadsY, unsigned threadsZ, unsigned shared, void *, void **parameters,
                        void **) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  const auto &kernel = *static_cast<Function *>(function);
  if (blocksY != 1 || blocksZ != 1 || threadsY != 1 || threadsZ != 1 || threads > 1024 ||
      threads > kernel.threads || threads % 32 || blocks % kernel.cluster ||
      shared > deviceTraits().sharedBytes)
    return InvalidValue;
  // A kernel without descriptors has one parameter, but the caller's array always has two.
  wrong = run({kernel.code, parameters[0], parameters[1], blocks, threads, shared, kernel.cluster});
  return wrong.empty() ? Success : LaunchFailed;
}

// A launch as cuda.h lays it out. What may run beside the launch before runs after it.
struct LaunchConfig {
  unsigned blocks[3], threads[3], shared;
  void *stream, *attributes;
  unsigned attributeCount;
};

static int launchKernelEx(const LaunchConfig *config, void *function, void **parameters, void **extra) {
  const auto &[blocks, threads, shared, stream, attributes, count] = *config;
  return launchKernel(function, blocks[0], blocks[1], blocks[2], threads[0], threads[1], threads[2], shared,
                      stream, parameters, extra);
}

static int pointerGetAttributes(unsigned count, int *attributes, void **values, unsigned long long) {
  for (unsigned i = 0; i < count; ++i)
    switch (attributes[i]) {
    case MemoryType:
      *static_cast<unsigned *>(values[i]) = DeviceMemory;
      break;
    case PointerDevice:
    case IsPlain: // how far an allocation reaches is not known
      *static_cast<int *>(values[i]) = 0;
      break;
    default:
      *static_cast<uint64_t *>(values[i]) = 0;
    }
  return Success;
}

static int streamIsCapturing(void *, int *capturing) {
  *capturing = 0;
  return Success;
}

static int memsetD32Async(unsigned long long to, unsigned value, size_t count, void *) {
  std::fill_n(reinterpret_cast<unsigned *>(to), count, value);
  return Success;
}

static int memcpyDtoH(void *to, unsigned long long from, size_t bytes) {
  memcpy(to, reinterpret_cast<const void *>(from), bytes);
  return Success;
}

void *recur::emulate::findDriverFunction(const char *name) {
  static const StringMap<void *> functions = {
      {"cuInit", reinterpret_cast<void *>(init)},
      {"cuDriverGetVersion", reinterpret_cast<void *>(driverGetVersion)},
      {"cuGetErrorString", reinterpret_cast<void *>(getErrorString)},
      {"cuDeviceGet", reinterpret_cast<void *>(deviceGet)},
      {"cuDeviceGetAttribute", reinterpret_cast<void *>(deviceGetAttribute)},
      {"cuCtxGetCurrent", reinterpret_cast<void *>(ctxGetCurrent)},
      {"cuCtxGetDevice", reinterpret_cast<void *>(ctxGetDevice)},
      {"cuCtxPushCurrent_v2", reinterpret_cast<void *>(succeedWith)},
      {"cuCtxPopCurrent_v2", reinterpret_cast<void *>(succeedWith)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void *>(primaryCtxRetain)},
      {"cuThreadExchangeStreamCaptureMode", reinterpret_cast<void *>(succeedWith)},
      {"cuModuleLoadData", reinterpret_cast<void *>(moduleLoadData)},
      {"cuModuleGetFunction", reinterpret_cast<void *>(moduleGetFunction)},
      {"cuFuncSetAttribute", reinterpret_cast<void *>(funcSetAttribute)},
      {"cuTensorMapEncodeTiled", reinterpret_cast<void *>(encodeTiled)},
      {"cuLaunchKernel", reinterpret_cast<void *>(launchKernel)},
      {"cuLaunchKernelEx", reinterpret_cast<void *>(launchKernelEx)},
      {"cuMemsetD32Async", reinterpret_cast<void *>(memsetD32Async)},
      {"cuPointerGetAttributes", reinterpret_cast<void *>(pointerGetAttributes)},
      {"cuStreamIsCapturing", reinterpret_cast<void *>(streamIsCapturing)},
      {"cuStreamSynchronize", reinterpret_cast<void *>(succeedWith)},
      {"cuMemcpyDtoH_v2", reinterpret_cast<void *>(memcpyDtoH)},
  };
  return functions.lookup(name);
}
