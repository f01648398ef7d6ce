"""Arrays from files: what is read, what is refused, and that both ways of running agree.   usage: arrays.py RECURC"""
import io
import shutil
import sys

import numpy as np

from sandbox import Sandbox

box = Sandbox(sys.argv[1])
RNG = np.random.default_rng(1)
GOOD = {"q": RNG.standard_normal((5, 4)), "k": RNG.standard_normal((5, 4)) / 2, "v": RNG.standard_normal((5, 3)),
        "a": RNG.uniform(0, 1, 5), "b": RNG.uniform(0, 1, 5)}
GOOD = {name: x.astype(np.float32) for name, x in GOOD.items()}
FULL = {name: x[None, :, None] for name, x in GOOD.items()}  # with batch and head axes


def inputs(base, changes):
    """Write a folder of arrays; a change of None drops one, bytes are written as they are."""
    shutil.rmtree(box.folder / "in", ignore_errors=True)
    (box.folder / "in").mkdir()
    for name, x in {**base, **changes}.items():
        if isinstance(x, bytes):
            box.write(f"in/{name}.npy", x)
        elif x is not None:
            np.save(box.folder / "in" / f"{name}.npy", x)


def results(*options):
    """Run the card's rule on the folder; outputs and states by name."""
    shutil.rmtree(box.folder / "out", ignore_errors=True)
    code, out, err = box.run("run", "card.rec", "--inputs=in", "--outputs=out", *options)
    box.expect(code == 0 and not out and not err, f"run {options}: {err}")
    return {path.stem: np.load(path) for path in (box.folder / "out").glob("*.npy")}


def same(what, base, changes, reference, *options, tolerance=0.0):
    inputs(base, changes)
    found = results(*options)
    for name, x in reference.items():
        y = found.get(name, np.zeros(0))
        box.expect(x.shape == y.shape and np.allclose(x, y, rtol=tolerance, atol=tolerance), f"{what}: '{name}' differs")


# The rule itself, in numpy.
S = np.zeros((3, 4))
rows = []
for t in range(5):
    q, k, v, a, b = (GOOD[name][t].astype(np.float64) for name in "qkvab")
    S = a * S @ (np.eye(4) - b * np.outer(k, k)) + b * np.outer(v, k)
    rows.append(S @ q)
expected = {"o": np.array(rows), "S": S}
same("oracle", GOOD, {}, expected, "--oracle", tolerance=1e-12)
same("compiled", GOOD, {}, expected, tolerance=1e-6)
plain = results()
box.expect(plain["o"].dtype == np.float32 and results("--oracle")["o"].dtype == np.float64, "types of the results")

# Other ways to write down the same numbers.
same("float64", GOOD, {"q": GOOD["q"].astype(np.float64)}, plain)
same("fortran order", GOOD, {"q": np.asfortranarray(GOOD["q"])}, plain)
same("all axes", FULL, {}, {"o": plain["o"][None, :, None], "S": plain["S"][None, None]})
same("step", GOOD, {}, plain, "--step", tolerance=1e-6)
same("sizes that agree", GOOD, {}, plain, "--bind", "dk=4,dv=3")
for dtype in ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f8", "?"]:
    whole = np.arange(20).reshape(5, 4) % 2
    inputs(GOOD, {"q": whole.astype(np.float32)})
    reference = results()
    same(f"type {dtype}", GOOD, {"q": whole.astype(dtype)}, reference)
stream = io.BytesIO()
np.lib.format.write_array(stream, GOOD["q"], version=(2, 0))
same("format version 2", GOOD, {"q": stream.getvalue()}, plain)

# An initial state; half of a sequence continues with the other half's state.
inputs({name: x[:2] for name, x in GOOD.items()}, {})
half = results()
same("continued", {name: x[2:] for name, x in GOOD.items()}, {"S": half["S"]}, {"o": plain["o"][2:], "S": plain["S"]},
     tolerance=1e-6)

# Heads in groups, several sequences, none, and no tokens.
grouped = {**FULL, "q": np.repeat(FULL["q"], 4, 2), "v": np.repeat(FULL["v"], 2, 2)}
same("groups", grouped, {}, {"o": np.repeat(plain["o"][None, :, None], 4, 2),
                             "S": np.repeat(plain["S"][None, None], 4, 1)})
two = {name: np.repeat(x, 2, 0) for name, x in FULL.items()}
same("batch", two, {}, {"o": np.repeat(plain["o"][None, :, None], 2, 0), "S": np.repeat(plain["S"][None, None], 2, 0)})
same("no sequences", {name: x[:0] for name, x in FULL.items()}, {},
     {"o": np.zeros((0, 5, 1, 3)), "S": np.zeros((0, 1, 3, 4))})
same("no tokens", {name: x[:0] for name, x in GOOD.items()}, {"S": half["S"]}, {"o": np.zeros((0, 3)), "S": half["S"]})
inputs(GOOD, {"q": np.full((5, 4), np.nan, np.float32)})
box.expect(np.isnan(results()["o"]).all() and np.isnan(results("--oracle")["o"]).all(), "nan in, nan out")

# What is refused.
BODY = GOOD["q"].tobytes()


def header(text):
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


REFUSED = [
    (GOOD, {"q": None}, "cannot read 'in/q.npy': No such file or directory"),
    (GOOD, {"q": b""}, "cannot read 'in/q.npy': not a .npy file"),
    (GOOD, {"q": b"hello, world, this is no array"}, "not a .npy file"),
    (GOOD, {"q": header("{'descr': '<f4', 'shape': (5, 4)}\n")[:20]}, "the file ends within its header"),
    (GOOD, {"q": b"\x93NUMPY\x02\x00\xff\xff\xff\xff"}, "the file ends within its header"),
    (GOOD, {"q": header("{'descr': '<f4', 'shape': (5, 4)}\n") + BODY[:-5]}, "the file ends within its data"),
    (GOOD, {"q": header("nonsense") + BODY}, "its header names no type or no shape"),
    (GOOD, {"q": header("{'descr':") + BODY}, "its header names no type or no shape"),
    (GOOD, {"q": header("{'descr': '<f4'}") + BODY}, "its header names no type or no shape"),
    (GOOD, {"q": header("{'descr': <f4, 'shape': (5, 4)}") + BODY}, "its header names no type or no shape"),
    (GOOD, {"q": header("{'descr': '<f4', 'shape': (5, -4)}") + BODY}, "its shape is broken: (5, -4)"),
    (GOOD, {"q": header("{'descr': '<f4', 'shape': (99999999999, 99999999999)}") + BODY}, "its shape is too large"),
    (GOOD, {"q": header("{'descr': '<f4', 'shape': (99999999999,)}") + BODY}, "the file ends within its data"),
    (GOOD, {"q": header("{'descr': '<f0', 'shape': (5, 4)}") + BODY}, "elements of type '<f0' are not read"),
    (GOOD, {"q": GOOD["q"].astype(">f4")}, "elements of type '>f4' are not read"),
    (GOOD, {"q": GOOD["q"].astype(complex)}, "elements of type '<c16' are not read"),
    (GOOD, {"q": np.array(["a", "b"])}, "elements of type '<U1' are not read"),
    (GOOD, {"q": GOOD["q"][:, :2]}, "'q' has 2 for the dimension 'dk', but it is 4 elsewhere"),
    (GOOD, {"q": GOOD["q"][:3]}, "'q' has 3 along the token axis, but 'a' has 5"),
    (GOOD, {"q": FULL["q"]}, "'q' must be [token, dk], as the arrays have no batch and head axes, got: [1, 5, 1, 4]"),
    (FULL, {"q": FULL["q"][None]}, "'q' must be [batch, token, head, dk], got: [1, 1, 5, 1, 4]"),
    (GOOD, {"k": GOOD["k"][:, :0]}, "'k' needs at least 1 for the dimension 'dk', got: 0"),
    (GOOD, {"S": np.ones((4, 3))}, "'S' has 4 for the dimension 'dv', but it is 3 elsewhere"),
    (FULL, {"S": np.ones((2, 1, 3, 4))}, "'S' must begin with [1, 1] sequences and heads, got: [2, 1, 3, 4]"),
    ({**FULL, "q": np.repeat(FULL["q"], 4, 2)}, {"k": np.repeat(FULL["k"], 3, 2)},
     "the head count of 'k' must divide 4, got: 3"),
]
shutil.rmtree(box.folder / "out")
for base, changes, message in REFUSED:
    inputs(base, changes)
    for options in [[], ["--oracle"]]:
        box.expect_error(["run", "card.rec", "--inputs=in", "--outputs=out", *options], 1, message)
inputs(GOOD, {})
box.expect_error(["run", "card.rec", "--inputs=in", "--bind", "dk=5"], 1, "'dk', but it is 5 elsewhere")
box.expect_error(["run", "card.rec", "--inputs=in", "--random=1", "--tokens=1"], 1, "needs either --inputs DIR or")
box.expect_error(["run", "card.rec", "--inputs=in", "--outputs=card.rec"], 1, "card.rec")
box.finish()
