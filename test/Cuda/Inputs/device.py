"""Calls on a real GPU, rightly and wrongly, through the Python package. usage: device.py LIBRARY

The library holds test/runtime/Inputs/gate.rec with dk=6, dv=5 and inverse.rec with d=256, in float32, for the CPU too. Wrong calls must be errors
before anything is launched: the context must go on working."""
import ctypes
import os
import sys
import time
import unittest

import recur
import torch
from recur import _tensors

lib = recur.load(sys.argv.pop())
SHAPES = dict(q=(2, 7, 4, 6), k=(2, 7, 4, 6), v=(2, 7, 4, 5), b=(2, 7, 4), w=(4, 5))

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Lie:
    """A DLPack tensor that says whatever it is told of a torch tensor's memory."""

    def __init__(self, tensor, shape=None, device=None, shift=0):
        self.tensor, self.device = tensor, (2, device or 0)
        shape = shape or tuple(tensor.shape)
        self.shape = (ctypes.c_int64 * len(shape))(*shape)

        class Managed(ctypes.Structure):
            _fields_ = [("tensor", _tensors.DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]
        self.managed = Managed(_tensors.DLTensor(tensor.data_ptr() + shift, *self.device, len(shape), 2, 32, 1, self.shape,
                                                 None, 0), None, None)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None):
        return new_capsule(ctypes.addressof(self.managed), b"dltensor", None)


def inputs(device="cuda", batch=2):
    torch.manual_seed(batch)
    x = {n: torch.randn(batch if len(s) > 2 else s[0], *s[1:]) / 2 for n, s in SHAPES.items()}
    x["b"] = torch.sigmoid(x["b"])
    return {n: t.to(device) for n, t in x.items()}


class Calls(unittest.TestCase):
    def setUp(self):
        cpu = {n: t.numpy() for n, t in inputs("cpu").items()}
        self.o, self.S = (torch.from_numpy(t).cuda() for t in lib.gate.forward(**cpu, final_S=True))

    def close(self, found, wanted):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)

    def fails(self, code, text, **changes):
        o = torch.full((2, 7, 4, 5), 7.0, device="cuda")
        with self.assertRaisesRegex(recur.Error, text) as found:
            lib.gate.forward(**{**inputs(), "o": o, **changes})
        self.assertEqual(found.exception.code, code)
        torch.cuda.synchronize()
        self.assertTrue(bool((o == 7).all()))
        self.close(lib.gate.forward(**inputs()).o, self.o)  # nothing is broken

    def test_as_on_the_cpu(self):
        o, S = lib.gate.forward(**inputs(), final_S=True)
        self.close(o, self.o)
        self.close(S, self.S)
        self.assertEqual(o.device.type, "cuda")

    def test_step(self):
        x, S = inputs(), torch.zeros(2, 4, 5, 6, device="cuda")
        for t in range(7):
            o = lib.gate.step(**{n: y if n == "w" else y[:, t:t + 1] for n, y in x.items()}, S=S).o
            self.close(o[:, 0], self.o[:, t])
        self.close(S, self.S)

    def test_streams_and_graphs(self):
        x, o = inputs(), torch.zeros(2, 7, 4, 5, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            lib.gate.forward(**x, o=o)
        side.synchronize()
        self.close(o, self.o)
        o.zero_()
        torch.cuda.synchronize()
        lib.gate.forward(**x, o=o, stream=side)
        side.synchronize()
        self.close(o, self.o)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            lib.gate.forward(**x, o=o)
        o.zero_()
        graph.replay()
        self.close(o, self.o)

    def test_other_libraries(self):
        try:
            import cupy
        except ImportError:
            self.skipTest("no cupy")
        o = lib.gate.forward(**{n: cupy.from_dlpack(t) for n, t in inputs().items()}).o
        self.assertIsInstance(o, cupy.ndarray)
        self.close(torch.from_dlpack(o), self.o)

    def test_jax(self):
        """Its arrays can be read, never written."""
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        try:
            import jax
        except ImportError:
            self.skipTest("no jax")
        x = {n: jax.dlpack.from_dlpack(t) for n, t in inputs().items()}
        o = torch.zeros(2, 7, 4, 5, device="cuda")
        lib.gate.forward(**x, o=o)
        self.close(o, self.o)
        with self.assertRaisesRegex(TypeError, "'o' must be given: arrays of jax(lib)? cannot be written"):
            lib.gate.forward(**x)
        with self.assertRaisesRegex(TypeError, "'o' is written, but the array is read-only"):
            lib.gate.forward(**x, o=jax.numpy.zeros((2, 7, 4, 5)))

    def test_wrong_device(self):
        self.fails(-3, "'k' must be on CUDA device 0, as the first output, but it is on the CPU", k=inputs("cpu")["k"])
        self.fails(-3, "'k' must be on CUDA device 0, as the first output, but it is on CUDA device 1",
                   k=Lie(inputs()["k"], device=1))
        self.fails(-15, "looking for the device failed on CUDA device 99", o=Lie(torch.zeros(2, 7, 4, 5, device="cuda"),
                                                                                 device=99))

    def test_wrong_memory(self):
        self.fails(-3, "'k' must be in memory of CUDA device 0, but the driver does not know its address",
                   k=Lie(inputs("cpu")["k"]))
        self.fails(-3, "'o' must be in memory of CUDA device 0", o=Lie(torch.zeros(2, 7, 4, 5)))
        self.fails(-6, "reaches .* bytes past its allocation", k=Lie(inputs()["k"], (2, 1 << 33, 4, 6)),
                   **{n: Lie(inputs()[n], (2, 1 << 33, *s[2:])) for n, s in SHAPES.items() if n in "qvb"},
                   o=Lie(torch.zeros(1, device="cuda"), (2, 1 << 33, 4, 5)))

    def test_misaligned(self):
        self.fails(-7, "'q' must start at a multiple of 4 bytes", q=Lie(inputs()["q"], shift=2))

    def test_workspace(self):
        x = {n: torch.randn(1, 3, 16, 256) / 16 for n in "kq"}
        wanted = torch.from_numpy(lib.inverse.forward(**{n: t.numpy() for n, t in x.items()}).o).cuda()
        x = {n: t.cuda() for n, t in x.items()}
        size = lib.inverse.forward_workspace(**x, o=torch.empty_like(x["q"]))
        self.assertGreater(size, 4 << 20)  # more than torch allocates for a small tensor
        torch.testing.assert_close(lib.inverse.forward(**x).o, wanted, rtol=1e-4, atol=1e-4)
        o = torch.full((1, 3, 16, 256), 7.0, device="cuda")
        for code, text, workspace in (
                (-13, f"'workspace' must have {size} bytes, but its allocation ends after",
                 Lie(torch.zeros(1, device="cuda"), (1 << 33,))),
                (-3, "'workspace' must be in memory of CUDA device 0", Lie(torch.zeros(1), (1 << 33,))),
                (-7, "'workspace' must start at a multiple of 16 bytes",
                 Lie(torch.zeros(size, device="cuda"), shift=4))):
            with self.assertRaisesRegex(recur.Error, text) as found:
                lib.inverse.forward(**x, o=o, workspace=workspace)
            self.assertEqual(found.exception.code, code)
            self.assertTrue(bool((o == 7).all()))

    def test_slots(self):
        """A sequence whose slot is out of range is left alone; in a debugging environment it is an error."""
        x, pool = inputs(), torch.zeros(3, 4, 5, 6, device="cuda")
        o = torch.full((2, 7, 4, 5), 7.0, device="cuda")
        for slot in (-1, 3):
            index = torch.tensor([2, slot], device="cuda")
            lib.gate.forward(**x, initial_S=pool, final_S=pool, state_index=index, o=o)
            self.close(o[0], self.o[0])
            self.close(pool[2], self.S[0])
            self.assertTrue(bool((o[1] == 7).all() and (pool[:2] == 0).all()))
            pool.zero_()
            os.environ["RECUR_CHECK_INDICES"] = "1"
            try:
                with self.assertRaisesRegex(recur.Error, f"'state_index' must be in range, but entry 1 is {slot}"):
                    lib.gate.forward(**x, initial_S=pool, final_S=pool, state_index=index, o=o)
            finally:
                del os.environ["RECUR_CHECK_INDICES"]

    def test_host_time(self):
        """Prints what a call costs the host."""
        one, S = {n: y if n == "w" else y[:, :1] for n, y in inputs().items()}, torch.zeros(2, 4, 5, 6, device="cuda")
        o = lib.gate.step(**one, S=S).o
        step = lib._library.gate_step
        views = [_tensors.view(n, t) for n, t in [*one.items(), ("o", o), ("S", S)]]
        address = [ctypes.addressof(v.tensor) for v in views]
        packed = (ctypes.c_void_p * 9)(*address[:5], None, None, *address[5:])
        best = {"C": 1e9, "Python": 1e9}
        for _ in range(20):
            for name, call in (("C", lambda: step(packed, None, None)), ("Python", lambda: lib.gate.step(**one, S=S, o=o))):
                torch.cuda.synchronize()
                began = time.perf_counter()
                for _ in range(100):
                    call()
                best[name] = min(best[name], (time.perf_counter() - began) * 1e4)
        print(f"a call takes the host {best['C']:.1f} us in C, {best['Python']:.1f} us from Python", file=sys.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=0)
