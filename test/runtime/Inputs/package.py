"""Calls compiled rules through the Python package, rightly and wrongly. usage: package.py LIBRARY"""
import gc
import inspect
import sys
import threading
import unittest
import weakref

import numpy as np
import recur

LIBRARY = sys.argv.pop()
lib = recur.load(LIBRARY)
rng = np.random.default_rng(1)


def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def inputs(batch=2, tokens=7, heads=4, key_heads=2):
    return dict(q=normal(batch, tokens, key_heads, 6), k=normal(batch, tokens, key_heads, 6) / 3,
                v=normal(batch, tokens, heads, 5), b=abs(normal(batch, tokens, heads)) % 1, w=normal(heads, 5))


def expected(x, initial=None):
    """The rule of gate.rec."""
    x = {n: t.astype(np.float64) for n, t in x.items()}
    heads = x["v"].shape[2]
    q, k = (np.repeat(x[n], heads // x[n].shape[2], 2) for n in "qk")
    S = np.zeros((len(q), heads, 5, 6)) if initial is None else initial.astype(np.float64)
    out = np.zeros(x["v"].shape)
    for t in range(q.shape[1]):
        error = x["v"][:, t] - np.einsum("bhij,bhj->bhi", S, k[:, t])
        S = S + np.einsum("bh,bhi,bhj->bhij", x["b"][:, t], error, k[:, t])
        out[:, t] = x["w"] * np.einsum("bhij,bhj->bhi", S, q[:, t])
    return out, S


class Speaks:
    """An array of another library: it has nothing but DLPack."""

    def __init__(self, array, versioned=True):
        self.array, self.versioned, self.exports = array, versioned, 0

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream=None, **versions):
        if versions and not self.versioned:
            raise TypeError("no such argument")
        self.exports += 1
        return self.array.__dlpack__()


class Calls(unittest.TestCase):
    def close(self, found, wanted):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)

    def test_forward(self):
        for shape in ((2, 7, 4, 2), (1, 1, 1, 1), (3, 33, 6, 3)):
            x = inputs(*shape)
            o, S = lib.gate.forward(**x, final_S=True)
            self.close(o, expected(x)[0])
            self.close(S, expected(x)[1])
            self.assertEqual((o.dtype, S.dtype), (np.float32, np.float32))

    def test_nothing_to_do(self):
        self.assertEqual(lib.gate.forward(**inputs(tokens=0)).o.shape, (2, 0, 4, 5))
        self.assertEqual(lib.gate.forward(**inputs(batch=0)).o.shape, (0, 7, 4, 5))

    def test_results(self):
        x = inputs()
        o, S, initial = np.full((2, 7, 4, 5), np.nan, np.float32), np.empty((2, 4, 5, 6), np.float32), normal(2, 4, 5, 6)
        before = initial.copy()
        result = lib.gate.forward(**x, o=o, initial_S=initial, final_S=S)
        self.assertIs(result.o, o)
        self.assertIs(result.final_S, S)
        self.close(o, expected(x, before)[0])
        self.close(S, expected(x, before)[1])
        np.testing.assert_array_equal(initial, before)
        self.assertIsNone(lib.gate.forward(**x, o=o).final_S)
        self.assertIs(lib.gate.forward(**x, initial_S=initial, final_S=initial).final_S, initial)
        self.close(initial, expected(x, before)[1])

    def test_strides(self):
        x = inputs()
        plain = lib.gate.forward(**x).o
        wide = {n: np.zeros([2 * s for s in t.shape], np.float32)[tuple(slice(None, None, -2) for _ in t.shape)]
                for n, t in x.items()}
        for n, t in x.items():
            wide[n][...] = t
        o = np.zeros((2, 4, 7, 5), np.float32).swapaxes(1, 2)
        lib.gate.forward(**wide, o=o)
        np.testing.assert_allclose(o, plain, rtol=1e-6, atol=1e-6)

    def test_read_only_inputs(self):
        x = inputs()
        wanted = lib.gate.forward(**x).o
        for t in x.values():
            t.flags.writeable = False
        np.testing.assert_array_equal(lib.gate.forward(**x).o, wanted)

    def test_packed_and_pooled(self):
        x = inputs(batch=1, tokens=9)
        ends, slots = np.array([0, 2, 2, 9]), np.array([4, 0, 2], np.int32)
        pool = normal(5, 4, 5, 6)
        before = pool.copy()
        o = lib.gate.forward(**x, initial_S=pool, final_S=pool, cu_seqlens=ends, state_index=slots).o
        for i, slot in enumerate(slots):
            part = {n: t if n == "w" else t[:, ends[i]:ends[i + 1]] for n, t in x.items()}
            wanted, state = expected(part, before[slot:slot + 1])
            self.close(o[:, ends[i]:ends[i + 1]], wanted)
            self.close(pool[slot], state[0])
        np.testing.assert_array_equal(pool[[1, 3]], before[[1, 3]])
        self.assertEqual(lib.gate.forward(**x, cu_seqlens=ends, final_S=True).final_S.shape, (3, 4, 5, 6))
        with self.assertRaisesRegex(TypeError, "'final_S' must be given, as its slots are picked by 'state_index'"):
            lib.gate.forward(**x, cu_seqlens=ends, state_index=slots, final_S=True)

    def test_step(self):
        x, S = inputs(), np.zeros((2, 4, 5, 6), np.float32)
        wanted, state = expected(x)
        for t in range(7):
            self.close(lib.gate.step(**{n: y if n == "w" else y[:, t:t + 1] for n, y in x.items()}, S=S).o[:, 0], wanted[:, t])
        self.close(S, state)

    def test_colliding_names(self):
        x = dict(stream=normal(1, 5, 1, 4), threads=normal(1, 5, 1, 4), lambda_=np.full((1, 5, 1), 0.5, np.float32))
        o = lib.clock.forward(**x, positions=np.array([3]), threads_=1, stream_=0).o
        h = np.zeros(4)
        for t in range(5):
            h = 0.5 * h + x["stream"][0, t, 0] + (t + 3) * x["threads"][0, t, 0]
            self.close(o[0, t, 0], h)
        one = {n: t[:, :1] for n, t in x.items()}
        with self.assertRaisesRegex(TypeError, "clock_step.. needs the argument 'positions'"):
            lib.clock.step(**one, h=np.zeros((1, 1, 4), np.float32))

    def test_workspace(self):
        x = inputs()
        size = lib.gate.forward_workspace(**x)
        o = lib.gate.forward(**x).o
        if size:
            with self.assertRaisesRegex(ValueError, f"'workspace' must have {size} bytes, but it has {size - 1}"):
                lib.gate.forward(**x, workspace=np.empty(size - 1, np.uint8))
        np.testing.assert_array_equal(lib.gate.forward(**x, workspace=np.empty(size + 8, np.uint8)).o, o)

    def test_threads(self):
        x = inputs(batch=8)
        wanted, found = lib.gate.forward(**x).o, [None] * 8

        def work(i):
            for _ in range(20):
                found[i] = lib.gate.forward(**x, threads=1).o
                try:
                    lib.gate.forward(**{**x, "q": x["q"][..., :i % 5 + 1]})
                except recur.Error as error:
                    assert f"has {i % 5 + 1} in dimension 3" in str(error)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for o in found:
            np.testing.assert_array_equal(o, wanted)


class Other(unittest.TestCase):
    def test_dlpack(self):
        x = inputs()
        wanted = lib.gate.forward(**x).o
        for versioned in (True, False):
            given = {n: Speaks(t, versioned) for n, t in x.items()}
            o = np.empty_like(wanted)
            lib.gate.forward(**given, o=Speaks(o, versioned))
            np.testing.assert_array_equal(o, wanted)
            self.assertTrue(all(t.exports == 1 for t in given.values()))
        with self.assertRaisesRegex(TypeError, "'o' must be given: arrays of __main__ cannot be written"):
            lib.gate.forward(**{n: Speaks(t) for n, t in x.items()})

    def test_nothing_is_kept(self):
        x = inputs()
        gone = [weakref.ref(t) for t in x.values()] + [weakref.ref(lib.gate.forward(**x).o)]
        del x
        gc.collect()
        self.assertEqual([r() for r in gone], [None] * len(gone))


class About(unittest.TestCase):
    def test_library(self):
        self.assertEqual(lib.rules, ["clock", "gate", "half"])
        self.assertIn("gate", dir(lib))
        self.assertIs(lib.gate, lib.gate)
        with self.assertRaisesRegex(AttributeError, "has no rule 'gates'; it has clock, gate, half"):
            lib.gates
        with self.assertRaises(OSError):
            recur.load(LIBRARY + ".missing")

    def test_rule(self):
        self.assertEqual(lib.gate.name, "gate")
        self.assertIn("S = S + b*(v - S*k)*kT", lib.gate.spec)
        self.assertEqual(lib.gate.metadata["variants"][0]["dims"], {"dk": 6, "dv": 5})
        self.assertEqual(len(lib.gate.spec_sha256), 64)
        self.assertIn("recurc", lib.gate.compiler)

    def test_documentation(self):
        text = lib.gate.forward.__doc__
        self.assertIn("b: [batch, token, head], float32: scalar in [0, 1]", text)
        self.assertIn("x86-64 dk=6 dv=5 float32", text)
        self.assertIn("half_step", repr(lib.half.step.__doc__))
        self.assertIn("bfloat16", lib.half.forward.__doc__)
        self.assertEqual(list(inspect.signature(lib.gate.step).parameters),
                         ["q", "k", "v", "b", "w", "S", "state_index", "positions", "o", "workspace", "stream", "threads"])


class Wrong(unittest.TestCase):
    def fails(self, kind, text, **changes):
        """The call must fail, and write nothing."""
        o = np.full((2, 7, 4, 5), 7, np.float32)
        x = {n: t for n, t in {"o": o, **inputs(), **changes}.items() if t is not None}
        with self.assertRaisesRegex(kind, text):
            lib.gate.forward(**x)
        self.assertTrue((o == 7).all())

    def test_keywords(self):
        self.fails(TypeError, "gate_forward.. needs the argument 'k'", k=None)
        self.fails(TypeError, "gate_forward.. has no argument 'S'; its arguments are q, k, v, b, w, initial_S, cu_seqlens",
                   S=normal(2, 4, 5, 6))
        with self.assertRaises(TypeError):
            lib.gate.forward(normal(2, 7, 2, 6))

    def test_shapes(self):
        self.fails(recur.Error, "'k' has 5 in dimension 3 .dk., but this was compiled for 6", k=normal(2, 7, 2, 5))
        self.fails(recur.Error, "'v' must have 4 dimensions .batch, token, head, dv., but it has 3", v=normal(2, 7, 5))
        self.fails(recur.Error, "'q' has 3 in dimension 2 .head., which does not divide the 4 of 'o'", q=normal(2, 7, 3, 6))
        self.fails(recur.Error, "'b' has 8 in dimension 1", b=normal(2, 8, 4))
        self.fails(recur.Error, "'cu_seqlens' needs a batch of 1", cu_seqlens=np.array([0, 7]))

    def test_types(self):
        self.fails(recur.Error, "'q' must be float32, but it is float64", q=rng.standard_normal((2, 7, 2, 6)))
        self.fails(recur.Error, "'q' must be float32, but it is int32", q=np.zeros((2, 7, 2, 6), np.int32))
        self.fails(TypeError, "'q' must be a tensor that speaks DLPack, but it is of type list", q=[1.0])
        self.fails(TypeError, "'q' cannot be shared: it has elements of type >f4", q=normal(2, 7, 2, 6).astype(">f4"))
        self.fails(TypeError, "'q' cannot be shared: it has elements of type object",
                   q=normal(2, 7, 2, 6).astype(object))
        record = np.zeros((2, 7, 2, 6), [("a", "f4"), ("b", "i1")])
        self.fails(TypeError, "'q' cannot be shared: its strides", q=record["a"])
        with self.assertRaisesRegex(TypeError, "'o' must be given: numpy has no bfloat16 of its own"):
            x = np.zeros((1, 1, 1, 4), np.float16)
            lib.half.forward(stream=x, threads=x, lambda_=x[..., 0])

    def test_written(self):
        fixed = np.full((2, 7, 4, 5), 7, np.float32)
        fixed.flags.writeable = False
        self.fails(TypeError, "'o' is written, but the array is read-only", o=fixed)
        shared = np.broadcast_to(np.zeros((1, 1, 1, 5), np.float32), (2, 7, 4, 5))
        self.fails(TypeError, "'o' is written, but the array is read-only", o=shared)
        self.fails(recur.Error, "'o' is written, so its elements must not share memory",
                   o=np.lib.stride_tricks.as_strided(np.zeros(5, np.float32), (2, 7, 4, 5), (0, 0, 0, 4)))

    def test_indices(self):
        x = inputs(batch=1, tokens=9)
        with self.assertRaisesRegex(recur.Error, "'cu_seqlens' must end at the number of tokens, 9, but it ends at 8") as found:
            lib.gate.forward(**x, cu_seqlens=np.array([0, 8]))
        self.assertEqual(found.exception.code, -8)
        with self.assertRaisesRegex(recur.Error, "'state_index' must be in range, but entry 0 is 3"):
            lib.gate.forward(**x, initial_S=normal(3, 4, 5, 6), state_index=np.array([3]))
        with self.assertRaisesRegex(recur.Error, "'threads' must be from 0|'where->threads' must be from 0"):
            lib.gate.forward(**x, threads=-1)

    def test_misaligned(self):
        raw = np.zeros(2 * 7 * 2 * 6 * 4 + 4, np.uint8)[1:-3].view()
        q = np.frombuffer(raw.data, np.float32).reshape(2, 7, 2, 6)
        self.fails(recur.Error, "'q' must start at a multiple of 4 bytes", q=q)


if __name__ == "__main__":
    unittest.main(verbosity=0)
