/* cuda_driver.c: finds the CUDA driver. */
#define _GNU_SOURCE
#include "cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

recur_i_driver recur_i_cuda;

static const struct {
  const char *name;
  void *slot;
  bool optional;
} symbols[] = {{"cuInit", &recur_i_cuda.init, false},
               {"cuDriverGetVersion", &recur_i_cuda.driver_get_version, true},
               {"cuGetErrorString", &recur_i_cuda.get_error_string, false},
               {"cuDeviceGet", &recur_i_cuda.device_get, false},
               {"cuDeviceGetAttribute", &recur_i_cuda.device_get_attribute, false},
               {"cuCtxGetCurrent", &recur_i_cuda.ctx_get_current, false},
               {"cuCtxGetDevice", &recur_i_cuda.ctx_get_device, false},
               {"cuCtxGetId", &recur_i_cuda.ctx_get_id, true},
               {"cuCtxPushCurrent_v2", &recur_i_cuda.ctx_push_current, false},
               {"cuCtxPopCurrent_v2", &recur_i_cuda.ctx_pop_current, false},
               {"cuDevicePrimaryCtxRetain", &recur_i_cuda.primary_ctx_retain, false},
               {"cuThreadExchangeStreamCaptureMode", &recur_i_cuda.exchange_capture_mode, false},
               {"cuModuleLoadData", &recur_i_cuda.module_load_data, false},
               {"cuModuleGetFunction", &recur_i_cuda.module_get_function, false},
               {"cuFuncSetAttribute", &recur_i_cuda.func_set_attribute, false},
               {"cuTensorMapEncodeTiled", &recur_i_cuda.encode_tiled, true},
               {"cuLaunchKernel", &recur_i_cuda.launch_kernel, false},
               {"cuLaunchKernelEx", &recur_i_cuda.launch_kernel_ex, true},
               {"cuMemsetD32Async", &recur_i_cuda.memset_d32_async, false},
               {"cuPointerGetAttributes", &recur_i_cuda.pointer_get_attributes, false},
               {"cuStreamIsCapturing", &recur_i_cuda.stream_is_capturing, false},
               {"cuStreamSynchronize", &recur_i_cuda.stream_synchronize, false},
               {"cuMemcpyDtoH_v2", &recur_i_cuda.memcpy_dtoh, false}};

static void *library;
static void *find_in_library(const char *name) { return dlsym(library, name); }
static void *(*find)(const char *) = find_in_library;

void recur_rt_find_driver_with(void *(*other)(const char *name)) { find = other; }

static pthread_once_t loaded = PTHREAD_ONCE_INIT;
static char load_error[256]; /* "" once the driver is there */

static void load_driver(void) {
  if (find == find_in_library)
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (find == find_in_library && !library) {
    strncpy(load_error, "libcuda.so.1, the CUDA driver, cannot be loaded: is one installed?",
            sizeof load_error - 1);
    return;
  }
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; ++i) {
    void *symbol = find(symbols[i].name);
    if (!symbol && !symbols[i].optional) {
      strcpy(load_error, "the CUDA driver is too old: it has no ");
      strncat(load_error, symbols[i].name, sizeof load_error - strlen(load_error) - 1);
      return;
    }
    memcpy(symbols[i].slot, &symbol, sizeof symbol);
  }
  const CUresult result = recur_i_cuda.init(0);
  if (result) {
    const char *text = NULL;
    recur_i_cuda.get_error_string(result, &text);
    strcpy(load_error, "the CUDA driver does not start: ");
    strncat(load_error, text ? text : "unknown error", sizeof load_error - strlen(load_error) - 1);
    return;
  }
  int version = 0;
  if (!recur_i_cuda.driver_get_version || recur_i_cuda.driver_get_version(&version) || version < 12030)
    recur_i_cuda.launch_kernel_ex = NULL;
}

int32_t recur_i_fail_driver(const recur_i_call *call, const char *what, CUresult result) {
  const char *text = NULL;
  recur_i_cuda.get_error_string(result, &text);
  return RECUR_I_FAIL(call, RECUR_ERROR_CUDA, "%s failed on CUDA device %d: %s (error %d)", what,
                      call->device.device_id, text ? text : "unknown error", result);
}

int32_t recur_i_cuda_begin(recur_i_call *call) {
  pthread_once(&loaded, load_driver);
  if (load_error[0])
    return RECUR_I_FAIL(call, RECUR_ERROR_CUDA, "%s", load_error);
  CUdevice device = 0;
  int major = 0, minor = 0;
  CUresult result = recur_i_cuda.device_get(&device, call->device.device_id);
  if (!result)
    result = recur_i_cuda.device_get_attribute(&major, CU_CAPABILITY_MAJOR, device);
  if (!result)
    result = recur_i_cuda.device_get_attribute(&minor, CU_CAPABILITY_MINOR, device);
  if (result)
    return recur_i_fail_driver(call, "looking for the device", result);
  call->capability = 10 * major + minor;
  return RECUR_OK;
}
