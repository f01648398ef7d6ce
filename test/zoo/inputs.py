"""Values for the arguments of a rule, drawn within their declared ranges: tame ones and nasty ones.

Nasty: keys of mean cosine 0.5, 0.95 and 1, zero keys and values, decays of 1, 1e-30 and 0 mixed, gates on
the ends of their range, large gate activations, initial states huge and tiny. Each head draws its own
flavour, and errors are measured per head. Everything is representable in float32.
"""
import zlib
from dataclasses import dataclass

import numpy as np

from signatures import SMALL_STATE_LONG_SEQUENCE

DIMS = {"dk": 20, "dv": 12, "d": 18, "dh": 14, "n": 3, "m": 6, "r": 4}
COSINES = [0.5, 0.95, 1.0, 0.0]
STATE_SCALES = [1e4, 1e-20, 1.0, 0.0]


@dataclass(frozen=True)
class Case:
    """One call: how many sequences, tokens and heads, whether keys and queries are shared by two heads each,
    whether the states start from given values, whether the values are nasty, and how many times the usual sizes of
    vectors it has."""
    name: str
    batch: int
    tokens: int
    heads: int
    grouped: bool = False
    initial: bool = False
    nasty: bool = False
    times: int = 1


CASES = [Case("tame", 2, 37, 3), Case("carry", 2, 21, 4, grouped=True, initial=True),
         Case("one", 1, 1, 2, initial=True), Case("nasty", 1, 43, 4, initial=True, nasty=True),
         Case("wide", 1, 9, 1, times=4), Case("long", 1, 300, 4, grouped=True, initial=True),
         Case("long nasty", 1, 300, 4, initial=True, nasty=True),
         Case("broad nasty", 1, 43, 4, initial=True, nasty=True, times=16)]


class Draw:
    """Draws arrays whose last axes are the argument's dimensions; `head` is the axis of heads."""

    def __init__(self, rng, nasty):
        self.rng, self.nasty = rng, nasty

    def some(self, shape, share):
        """A mask of some of the tokens, the same for all entries of an argument."""
        return self.rng.random(shape) < share

    def mixed(self, x, ends):
        """Where nasty, replace about half of the entries by the given ones."""
        if not self.nasty:
            return x
        return np.where(self.some(x.shape, 0.5), self.rng.choice(ends, x.shape), x)

    def real(self, shape, head):
        return self.rng.standard_normal(shape)

    query = real

    def value(self, shape, head):
        x = self.real(shape, head)
        if self.nasty and len(shape) > 3:
            x = np.where(self.some(shape[:3] + (1,) * (len(shape) - 3), 0.1), 0, x)
        return x

    def unit(self, shape, head):
        x = self.rng.standard_normal(shape)
        if self.nasty:
            # A direction per head, mixed in by that head's cosine.
            along = tuple(1 if axis != head and axis < len(shape) - 1 else n for axis, n in enumerate(shape))
            cos = per_head(COSINES, shape, head)
            common = self.rng.standard_normal(along)
            x = np.sqrt(1 - cos) * x / norm(x) + np.sqrt(cos) * common / norm(common)
        return x / norm(x)

    def key(self, shape, head):
        x = self.unit(shape, head) * self.rng.uniform(0.3, 1, shape[:-1] + (1,))
        if self.nasty:
            x = np.where(self.some(shape[:-1] + (1,), 0.1), 0, x)
        return x

    def positive(self, shape, head):
        return np.abs(self.real(shape, head)) + 0.05

    def log_decay(self, shape, head):
        x = -np.exp(self.rng.uniform(-5, 0.5, shape))
        return self.mixed(x, [0, 0, 0, -1e-4, -69, -np.inf])

    def log_decay_5(self, shape, head):
        return self.mixed(-5 * self.gate(shape, head), [0, -5])

    def log_decay_06(self, shape, head):
        return -0.6 * self.rng.uniform(0.01, 1, shape)

    def slow(self, shape, head):
        return self.mixed(-self.rng.uniform(0, 0.05, shape), [0, -0.1])

    def gate(self, shape, head):
        return self.mixed(self.rng.uniform(0.1, 0.9, shape), [0, 1])

    def gate_2(self, shape, head):
        return self.mixed(self.rng.uniform(0.1, 1.5, shape), [0, 1, 2])

    def half(self, shape, head):
        return self.gate(shape, head) / 2

    def quarter(self, shape, head):
        return self.gate(shape, head) / 4

    def small(self, shape, head):
        return self.gate(shape, head) / 16

    def sign(self, shape, head):
        return self.mixed(self.rng.uniform(-1, 1, shape), [-1, 0, 1])

    def step(self, shape, head):
        return self.mixed(np.exp(self.rng.uniform(-5, 1, shape)), [0, 8])

    def rate(self, shape, head):
        return self.mixed(-np.exp(self.rng.uniform(-3, 1, shape)), [0, -16])

    def logit(self, shape, head):
        return self.rng.standard_normal(shape) * (12 if self.nasty else 1)

    def ridge(self, shape, head):
        return 0.25 + self.rng.exponential(1, shape)

    def pole(self, shape, head):
        return self.rng.uniform(-0.7, 0.7, shape)

    def weights(self, shape, head):
        return self.rng.standard_normal(shape) / np.sqrt(shape[-1])

    def recurrent(self, shape, head):
        return self.weights(shape, head) / 2

    def bounded(self, shape, head):
        return self.rng.uniform(-1, 1, shape)

    def gram(self, shape, head):
        x = self.weights(shape, head)
        return x @ np.swapaxes(x, -1, -2) + 0.5 * np.eye(shape[-1])

    def anything(self, shape, head):
        x = self.real(shape, head)
        if self.nasty:
            x = x * per_head(STATE_SCALES, shape, head)
        return x


GROUPED = {"query", "key", "unit", "positive"}


def per_head(values, shape, head):
    """The values in turn along the axis of heads, to be broadcast."""
    return np.resize(values, shape[head]).reshape([-1 if axis == head else 1 for axis in range(len(shape))])


def norm(x):
    """Lengths of the vectors on the last axis."""
    return np.linalg.norm(x, axis=-1, keepdims=True)


def oppose(arrays):
    """DPLR: the read and the write direction are opposite, so that the rule is stable."""
    arrays["a"] = -arrays["b"] * np.abs(arrays["a"][..., :1])


def read_key_near_key(arrays):
    """Comba: the key that is read is a scaled copy of the key, slightly off."""
    arrays["p"] = 0.7 * arrays["k"] + 0.1 * arrays["p"]


ADJUST = {"dplr": oppose, "comba": read_key_near_key}


def draw(rule, case, dims=None):
    """The arrays of one call by name, float32 values held as float64. `dims` replaces the sizes."""
    dims = dict(dims or {d: n if d == "n" else n * case.times for d, n in DIMS.items()})
    tokens = case.tokens
    if rule.name == "lact":
        dims.update(SMALL_STATE_LONG_SEQUENCE)
        tokens += 2048 if case.tokens > 1 else 0
    source = Draw(np.random.default_rng(zlib.crc32(f"{rule.name} {case.name}".encode())), case.nasty)
    arrays = {}
    for tensor in rule.inputs:
        heads = case.heads // 2 if case.grouped and tensor.kind in GROUPED else case.heads
        arrays[tensor.name] = shaped(source, tensor, (case.batch, tokens, heads), dims, head=2)
    for tensor in rule.params:
        arrays[tensor.name] = shaped(source, tensor, (case.heads,), dims, head=0)
    if case.initial:
        for tensor in rule.states:
            arrays[tensor.name] = shaped(source, tensor, (case.batch, case.heads), dims, head=1)
    ADJUST.get(rule.name, lambda arrays: None)(arrays)
    return {name: x.astype(np.float32).astype(np.float64) for name, x in arrays.items()}


def shaped(source, tensor, lead, dims, head):
    """Draw one argument: leading axes, then its dimensions."""
    shape = lead + tuple(dims[d] for d in tensor.dims)
    return np.asarray(getattr(source, tensor.kind)(shape, head), dtype=np.float64)


def round_to_bf16(x):
    """Round float32 values to the nearest bfloat16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32)
    return np.where(np.isfinite(x), rounded.view(np.float32), x).astype(np.float64)
