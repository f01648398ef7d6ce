"""Tensors as the C functions take them: pointers to DLPack's DLTensor, into memory that stays where it is."""
import contextlib
import ctypes
import sys

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
INT, UINT, FLOAT, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 4, 5, 6
READ_ONLY = 1  # a flag of DLManagedTensorVersioned

# Element types by the names that a rule's metadata uses.
CODES = {"f32": (FLOAT, 32), "f16": (FLOAT, 16), "bf16": (BFLOAT, 16)}


class DLTensor(ctypes.Structure):
    """A view of an array."""
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned, as far as it is read here."""
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", DLTensor)]


_python = ctypes.pythonapi
_python.PyCapsule_IsValid.restype = ctypes.c_int
_python.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class View:
    """A DLTensor of an array, and what keeps its memory alive."""

    def __init__(self, tensor, kept, read_only):
        self.tensor, self.kept, self.read_only = tensor, kept, read_only

    @property
    def shape(self):
        return tuple(self.tensor.shape[axis] for axis in range(self.tensor.ndim))

    @property
    def dtype(self):
        """(code, bits) of the elements."""
        return self.tensor.code, self.tensor.bits


_libraries = {}  # of the types seen


def library_of(array):
    """The module that an array, or what its class extends, comes from: "numpy", "torch", "jaxlib" .."""
    kind = type(array)
    if kind not in _libraries:
        modules = [k.__module__.partition(".")[0] for k in kind.__mro__]
        _libraries[kind] = next((m for m in modules if m in ("numpy", "torch", "cupy", "jax", "jaxlib")), modules[0])
    return _libraries[kind]


def view(name, array, stream=None):
    """The view of an array; `stream` is the CUDA stream that will use it, as an integer."""
    library = library_of(array)
    if library in _OWN_VIEWS:
        return _OWN_VIEWS[library](name, array)
    if not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
        raise TypeError(f"'{name}' must be a tensor that speaks DLPack, but it is of type {type(array).__name__}")
    arguments = {}
    if int(array.__dlpack_device__()[0]) == CUDA:
        arguments["stream"] = stream or 1  # 1 is CUDA's default stream
    try:
        capsule = array.__dlpack__(max_version=(1, 0), **arguments)
    except TypeError:  # it speaks an older version
        capsule = array.__dlpack__(**arguments)
    except Exception as problem:
        raise TypeError(f"'{name}' cannot be shared: {problem}") from problem
    read_only = library in ("jax", "jaxlib")  # whose arrays never change, though they do not say so here
    # The capsule is not consumed: its destructor gives the memory back.
    if _python.PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_python.PyCapsule_GetPointer(capsule, b"dltensor_versioned"))
        return View(managed.tensor, (capsule, array), read_only or bool(managed.flags & READ_ONLY))
    return View(DLTensor.from_address(_python.PyCapsule_GetPointer(capsule, b"dltensor")), (capsule, array), read_only)


def _make(kept, data, device, code, bits, sizes, steps, read_only):
    """A view from its parts."""
    ndim = len(sizes)
    integers = ctypes.c_int64 * ndim
    shape, strides = integers(*sizes), integers(*steps)
    tensor = DLTensor(data, device[0], device[1], ndim, code, bits, 1, shape, strides, 0)
    return View(tensor, (kept, shape, strides), read_only)


_known = {}  # (code, bits) of the element types seen


def _numpy_view(name, array):
    """numpy's own DLPack refuses arrays that are read-only, and knows no bfloat16."""
    array = sys.modules["numpy"].asanyarray(array)
    dtype, size = array.dtype, array.itemsize
    if dtype not in _known:
        code = {"f": FLOAT, "i": INT, "u": UINT, "b": BOOL}.get(dtype.kind)
        if dtype.name == "bfloat16":
            code = BFLOAT
        if code is None or not dtype.isnative:
            raise TypeError(f"'{name}' cannot be shared: it has elements of type {dtype}")
        _known[dtype] = code, size * 8
    steps = array.strides
    for step in steps:
        if step % size and any(s % size for n, s in zip(array.shape, steps) if n > 1):
            raise TypeError(f"'{name}' cannot be shared: its strides {steps} are no multiples of its elements' {size} "
                            "bytes")
    return _make(array, array.__array_interface__["data"][0], (CPU, 0), *_known[dtype], array.shape,
                 [step // size for step in steps], not array.flags.writeable)


def _torch_view(name, array):
    """What torch's own DLPack says, in a tenth of the time."""
    torch = sys.modules["torch"]
    if not isinstance(array, torch.Tensor):
        raise TypeError(f"'{name}' must be a tensor, but it is of type {type(array).__name__}")
    if array.requires_grad and torch.is_grad_enabled():
        raise TypeError(f"'{name}' needs a gradient, and there is none: detach it, or call under torch.no_grad()")
    if array.layout is not torch.strided or array.is_neg():
        raise TypeError(f"'{name}' cannot be shared: it is sparse, or a negated view")
    dtype, device = array.dtype, array.device
    if dtype not in _known:
        code = BFLOAT if dtype == torch.bfloat16 else FLOAT if dtype.is_floating_point else BOOL if dtype == torch.bool \
            else COMPLEX if dtype.is_complex else INT if dtype.is_signed else UINT
        _known[dtype] = code, dtype.itemsize * 8
    if device.type not in ("cpu", "cuda"):
        raise TypeError(f"'{name}' must be on the CPU or on a CUDA device, but it is on {device}")
    return _make(array, array.data_ptr(), (CUDA, device.index or 0) if device.type == "cuda" else (CPU, 0), *_known[dtype],
                 array.shape, array.stride(), False)


_OWN_VIEWS = {"numpy": _numpy_view, "torch": _torch_view}


def current_stream(array):
    """The stream that the array's library now uses on the array's device, 0 where none is known."""
    if library_of(array) == "torch" and array.is_cuda:
        return sys.modules["torch"].cuda.current_stream(array.device).cuda_stream
    if library_of(array) == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream().ptr
    return 0


def wait(array, stream):
    """Lets a stream wait for what the array's library has enqueued: the other libraries' DLPack does so by itself."""
    if library_of(array) == "torch" and array.is_cuda:
        torch = sys.modules["torch"]
        torch.cuda.ExternalStream(stream, array.device).wait_stream(torch.cuda.current_stream(array.device))


def empty(name, like, shape, dtype):
    """An uninitialised array of the library and on the device of `like`; `dtype` as in metadata, or "u8"."""
    library = library_of(like)
    if library == "torch":
        torch = sys.modules["torch"]
        types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "u8": torch.uint8}
        return torch.empty(shape, dtype=types[dtype], device=like.device)
    if library in ("numpy", "cupy"):
        types = {"f32": "float32", "f16": "float16", "u8": "uint8"}
        if dtype == "bf16":
            if like.dtype.name != "bfloat16":
                raise TypeError(f"'{name}' must be given: {library} has no bfloat16 of its own")
            types["bf16"] = like.dtype
        with like.device if library == "cupy" else contextlib.nullcontext():
            return sys.modules[library].empty(shape, dtype=types[dtype])
    raise TypeError(f"'{name}' must be given: arrays of {library} cannot be written")
