/* A CUDA driver that does nothing, but remembers. The tests load it as libcuda.so.1. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;

/* What the tests set and read. */
static struct {
  address start;
  size_t size;
  int device, plain;
} memories[1024];
static int memory_count;
int driver_launches, driver_loads, driver_waits, driver_capability = 80, driver_capturing, driver_load_result;

void driver_add_memory(address start, size_t size, int device, int plain) {
  memories[memory_count].start = start;
  memories[memory_count].size = size;
  memories[memory_count].device = device;
  memories[memory_count++].plain = plain;
}

static int context;
static void *current;

int cuInit(unsigned flags) { return getenv("DRIVER_DOES_NOT_START") ? 100 : 0; }
int cuGetErrorString(int error, const char **text) {
  *text = error == 100   ? "no CUDA-capable device is detected"
          : error == 101 ? "invalid device ordinal"
                         : "some error";
  return 0;
}
int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return ordinal < 2 ? 0 : 101;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? driver_capability / 10 : driver_capability % 10;
  return 0;
}
int cuCtxGetCurrent(void **out) {
  *out = current;
  return 0;
}
int cuCtxGetDevice(int *device) {
  *device = 0;
  return 0;
}
int cuCtxPushCurrent_v2(void *pushed) {
  current = pushed;
  return 0;
}
int cuCtxPopCurrent_v2(void **popped) {
  *popped = current;
  current = NULL;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **out, int device) {
  *out = &context;
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int *mode) { return 0; }
int cuModuleLoadData(void **module, const void *image) {
  ++driver_loads;
  *module = &context;
  return driver_load_result;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = &context;
  return 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
  ++driver_launches;
  return 0;
}
int cuPointerGetAttributes(unsigned count, int *attributes, void **values, address pointer) {
  for (unsigned i = 0; i < count; ++i)
    memset(values[i], 0, attributes[i] == 11 || attributes[i] == 12 ? 8 : 4);
  for (int m = 0; m < memory_count; ++m) {
    if (pointer < memories[m].start || pointer >= memories[m].start + memories[m].size)
      continue;
    const int words[] = {[2] = 2, [9] = memories[m].device, [13] = memories[m].plain};
    for (unsigned i = 0; i < count; ++i)
      if (attributes[i] == 11)
        memcpy(values[i], &memories[m].start, 8);
      else if (attributes[i] == 12)
        memcpy(values[i], &memories[m].size, 8);
      else
        memcpy(values[i], &words[attributes[i]], 4);
  }
  return 0;
}
int cuStreamIsCapturing(void *stream, int *status) {
  *status = driver_capturing;
  return 0;
}
int cuStreamSynchronize(void *stream) {
  ++driver_waits;
  return 0;
}
int cuMemsetD32Async(address to, unsigned value, size_t count, void *stream) {
  (void)to, (void)value, (void)count, (void)stream;
  return 0;
}

int cuMemcpyDtoH_v2(void *to, address from, size_t bytes) {
  memcpy(to, (const void *)from, bytes);
  return 0;
}
