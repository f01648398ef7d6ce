"""Calls on tensors of a GPU that is not there, against a driver that only remembers: errors come before any launch.
usage: driver.py LIBRARY DRIVER"""
import ctypes
import os
import sys
import unittest

import numpy as np
import recur
from recur import _tensors

DRIVER = ctypes.CDLL(sys.argv.pop())
DRIVER.driver_add_memory.argtypes = [ctypes.c_ulonglong, ctypes.c_size_t, ctypes.c_int, ctypes.c_int]
lib = recur.load(sys.argv.pop())


def remembered(name):
    return ctypes.c_int.in_dll(DRIVER, name)


class Managed(ctypes.Structure):
    """DLManagedTensor."""
    _fields_ = [("tensor", _tensors.DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


ALL = []  # no memory is used twice, as the driver forgets nothing


class Gpu:
    """An array said to be on a GPU. `known` adds its memory to the driver's."""

    def __init__(self, array, device=0, known=True, on=None, bytes_known=None, plain=1, shift=0, kind=2):
        self.array, self.device, self.streams, self.kind = np.ascontiguousarray(array), device, [], kind
        shape = (ctypes.c_int64 * self.array.ndim)(*self.array.shape)
        code = {"f": 2, "i": 0}[self.array.dtype.kind]
        self.kept = shape
        ALL.append(self.array)
        address = self.array.ctypes.data + shift
        self.managed = Managed(_tensors.DLTensor(address, kind, device, self.array.ndim, code, self.array.itemsize * 8, 1,
                                                 shape, None, 0), None, None)
        if known:
            DRIVER.driver_add_memory(self.array.ctypes.data, bytes_known or self.array.nbytes,
                                     device if on is None else on, plain)

    def __dlpack_device__(self):
        return self.kind, self.device

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        return new_capsule(ctypes.addressof(self.managed), b"dltensor", None)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def call(**changes):
    """One call, each of whose arguments can be replaced; how many kernels it launched."""
    x = dict(q=Gpu(zeros(2, 7, 4, 6)), k=Gpu(zeros(2, 7, 4, 6)), v=Gpu(zeros(2, 7, 4, 5)), b=Gpu(zeros(2, 7, 4)),
             w=Gpu(zeros(4, 5)), o=Gpu(zeros(2, 7, 4, 5)))
    x.update(changes)
    before = remembered("driver_launches").value
    lib.gate.forward(**x)
    return remembered("driver_launches").value - before


class Calls(unittest.TestCase):
    def fails(self, code, text, **changes):
        before = remembered("driver_launches").value
        with self.assertRaisesRegex(recur.Error, text) as found:
            call(**changes)
        self.assertEqual(found.exception.code, code)
        self.assertEqual(remembered("driver_launches").value, before)

    def test_launches(self):
        self.assertEqual(call(), 1)
        loads = remembered("driver_loads").value
        self.assertEqual(call(), 1)
        self.assertEqual(remembered("driver_loads").value, loads)
        self.assertEqual(call(q=Gpu(zeros(0, 7, 4, 6)), k=Gpu(zeros(0, 7, 4, 6)), v=Gpu(zeros(0, 7, 4, 5)),
                              b=Gpu(zeros(0, 7, 4)), o=Gpu(zeros(0, 7, 4, 5))), 0)

    def test_streams(self):
        q, k = Gpu(zeros(2, 7, 4, 6)), Gpu(zeros(2, 7, 4, 6))
        self.assertEqual(call(q=q, stream=77), 1)
        self.assertEqual(call(k=k), 1)
        self.assertEqual((q.streams, k.streams), ([77], [1]))

    def test_device(self):
        self.fails(-3, "'k' must be on CUDA device 0, as the first output, but it is on CUDA device 1",
                   k=Gpu(zeros(2, 7, 4, 6), device=1))
        self.fails(-3, "'k' must be on CUDA device 0, as the first output, but it is on the CPU", k=zeros(2, 7, 4, 6))
        self.fails(-15, "looking for the device failed on CUDA device 2: invalid device ordinal",
                   o=Gpu(zeros(2, 7, 4, 5), device=2))

    def test_memory(self):
        self.fails(-3, "'k' must be in memory of CUDA device 0, but the driver does not know its address",
                   k=Gpu(zeros(2, 7, 4, 6), known=False))
        self.fails(-3, "'o' must be in memory of CUDA device 0, but its address is on device 1",
                   o=Gpu(zeros(2, 7, 4, 5), on=1))
        self.fails(-6, "'v' reaches 20 bytes past its allocation of 1100 bytes", v=Gpu(zeros(2, 7, 4, 5), bytes_known=1100))
        self.assertEqual(call(v=Gpu(zeros(2, 7, 4, 5), bytes_known=1100, plain=0)), 1)
        self.fails(-3, "'state_index' must be in memory of CUDA device 0", initial_S=Gpu(zeros(2, 4, 5, 6)),
                   state_index=Gpu(zeros(2, dtype=np.int32), known=False))

    def test_alignment(self):
        self.fails(-7, "'q' must start at a multiple of 4 bytes .float32., but its first element is 2 bytes past one",
                   q=Gpu(zeros(2, 7, 4, 6), shift=2))

    def test_workspace(self):
        x = {n: Gpu(zeros(1, 2, 1, 208)) for n in "kqo"}
        size = lib.inverse.forward_workspace(**x)
        self.assertGreater(size, 4 * 208 * 208)
        room = zeros(size // 4 + 1)
        lib.inverse.forward(**x, workspace=Gpu(room))
        launches = remembered("driver_launches").value
        with self.assertRaisesRegex(ValueError, f"'workspace' must have {size} bytes, but it has 4000"):
            lib.inverse.forward(**x, workspace=Gpu(zeros(1000)))
        with self.assertRaisesRegex(ValueError, "'workspace' must be on the GPU, as the tensors are"):
            lib.inverse.forward(**x, workspace=room)
        for code, text, workspace in (
                (-13, f"'workspace' must have {size} bytes, but its allocation ends after 4000",
                 Gpu(zeros(size // 4 + 1), bytes_known=4000)),
                (-3, "'workspace' must be in memory of CUDA device 0", Gpu(zeros(size // 4 + 1), known=False)),
                (-3, "'workspace' must be in memory of CUDA device 0", Gpu(zeros(size // 4 + 1), on=1)),
                (-7, "'workspace' must start at a multiple of 16 bytes", Gpu(zeros(size // 4 + 4), shift=2))):
            with self.assertRaisesRegex(recur.Error, text) as found:
                lib.inverse.forward(**x, workspace=workspace)
            self.assertEqual(found.exception.code, code)
        self.assertEqual(remembered("driver_launches").value, launches)

    def test_capability(self):
        capability = remembered("driver_capability")
        capability.value = 75
        try:
            self.fails(-12, "this was compiled for sm_80, but CUDA device 0 has compute capability 7.5")
        finally:
            capability.value = 80

    def test_contents(self):
        """Kernels leave sequences alone whose slots are not there; in a debugging environment that is an error."""
        given = dict(initial_S=Gpu(zeros(3, 4, 5, 6)), state_index=Gpu(np.array([2, 3], np.int32)))
        waits = remembered("driver_waits").value
        self.assertEqual(call(**given), 1)
        self.assertEqual(remembered("driver_waits").value, waits)
        os.environ["RECUR_CHECK_INDICES"] = "1"
        try:
            self.fails(-9, "'state_index' must be in range, but entry 1 is 3 and 'initial_S' has 3 slots", **given)
            self.assertEqual(call(initial_S=Gpu(zeros(3, 4, 5, 6)), state_index=Gpu(np.array([2, 0]))), 1)
            remembered("driver_capturing").value = 1
            self.assertEqual(call(**given), 1)
        finally:
            remembered("driver_capturing").value = 0
            del os.environ["RECUR_CHECK_INDICES"]

    def test_load(self):
        """Each kernel is loaded once; a load that failed is tried again."""
        remembered("driver_load_result").value = 200
        x = {name: Gpu(zeros(1, 2, 1, 4)) for name in ("stream", "threads", "o")}
        x["lambda_"] = Gpu(zeros(1, 2, 1))
        with self.assertRaisesRegex(recur.Error, "loading the kernel failed on CUDA device 0: some error .error 200."):
            lib.clock.forward(**x)
        remembered("driver_load_result").value = 0
        lib.clock.forward(**x)


if __name__ == "__main__":
    if os.environ.get("EXPECT"):  # a driver that cannot be used
        try:
            call()
            sys.exit("nothing was raised")
        except recur.Error as error:
            sys.exit(0 if os.environ["EXPECT"] in str(error) else f"found: {error}")
    unittest.main(verbosity=0)
