"""Runs what device_prepare.py prepared on a GPU: compares every rule with its float64 reference, then times some.

    python3 device_check.py FOLDER [--only PATTERN] [--no-times] [--json FILE]

Needs torch with CUDA. Inputs and references are made here, on all cores. Outputs are poisoned before each call. Prints
one line per rule, type and size, then a table of times.
"""
import argparse
import ctypes
import fnmatch
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the references run side by side

import numpy as np  # noqa: E402
import torch  # noqa: E402

# For tame and for nasty inputs.
LIMITS = {"f32": (1e-5, 1e-4), "bf16": (5e-3, 1e-2)}
MAGNIFIES = {"atlas": 10}  # see test/zoo/check.py
# What a step cannot know: the state at the start of the block of tokens that it is in the middle of.
NO_STEPS = {"ttt_linear", "ttt_mlp"}
TYPES = {torch.float32: (2, 32), torch.bfloat16: (4, 16), torch.float16: (2, 16), torch.int32: (0, 32),
         torch.int64: (0, 64)}
TORCH = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Stream(ctypes.Structure):
    _fields_ = [("parallel_for", ctypes.c_void_p), ("context", ctypes.c_void_p), ("threads", ctypes.c_int32),
                ("cuda_stream", ctypes.c_void_p)]


class Arguments:
    """An array of pointers to DLTensor; keeps what it points to."""

    def __init__(self, tensors):
        self.kept = list(tensors)
        self.views = []
        for t in self.kept:
            if t is None:
                self.views.append(None)
                continue
            shape, strides = (ctypes.c_int64 * t.dim())(*t.shape), (ctypes.c_int64 * t.dim())(*t.stride())
            code, bits = TYPES[t.dtype]
            self.views.append(DLTensor(t.data_ptr(), 2 if t.is_cuda else 1, t.device.index or 0, t.dim(), code, bits, 1,
                                       shape, strides, 0))
        self.array = (ctypes.c_void_p * len(self.views))(
            *[None if v is None else ctypes.addressof(v) for v in self.views])


def metadata(rule, name):
    """What the library says of itself."""
    function = getattr(rule.library, f"{name}_metadata")
    function.restype = ctypes.POINTER(ctypes.c_char_p)
    return json.loads(function()[8])  # abi_version and seven texts stand before


class Rule:
    """The functions of one compiled rule."""

    def __init__(self, folder, entry):
        self.entry = entry
        self.library = ctypes.CDLL(str((folder / entry["library"]).resolve()))
        name = entry["rule"]
        self.functions = {f: getattr(self.library, f"{name}_{f}") for f in
                          ("forward", "forward_workspace", "step", "step_workspace")}
        for f in ("forward_workspace", "step_workspace"):
            self.functions[f].restype = ctypes.c_int64
        self.library.recur_last_error.restype = ctypes.c_char_p
        about = metadata(self, name)
        for kind, role in (("inputs", "input"), ("params", "param"), ("states", "state"), ("outputs", "output")):
            entry[kind] = [t["name"] for t in about["tensors"] if t["role"] == role]

    def prepare(self, function, tensors):
        """A call that can be repeated: a function without arguments."""
        arguments = Arguments(tensors)
        size = self.functions[f"{function}_workspace"](arguments.array)
        if size < 0:
            raise RuntimeError(self.library.recur_last_error().decode())
        workspace = torch.empty(size, dtype=torch.uint8, device="cuda") if size else None

        def call():
            stream = Stream(None, None, 0, torch.cuda.current_stream().cuda_stream)
            code = self.functions[function](arguments.array, ctypes.c_void_p(workspace.data_ptr() if size else 0),
                                            ctypes.byref(stream))
            if code:
                raise RuntimeError(self.library.recur_last_error().decode())
        return call


def poisoned(shape, dtype):
    return torch.full(shape, float("nan"), dtype=dtype, device="cuda")


def distance(found, expected, heads_axis):
    """The largest relative error of any sequence and head."""
    axes = tuple(axis for axis in range(1, expected.ndim) if axis != heads_axis)
    length = lambda x: np.sqrt((x * x).sum(axis=axes))
    error, size = length(found - expected), length(expected)
    error = np.where(error == 0, 0, error / np.maximum(size, 1e-300))
    return float(np.where(np.isfinite(error), error, np.inf).max())


def strided(t):
    """The same values, the head dimension outside the token's, and with a gap."""
    wide = torch.empty(t.shape[0], t.shape[2], t.shape[1], *(n + 3 for n in t.shape[3:]), dtype=t.dtype, device="cuda")
    view = wide.transpose(1, 2)[(slice(None),) * 3 + tuple(slice(1, n + 1) for n in t.shape[3:])]
    view.copy_(t)
    return view


def expect(job):
    """The arrays of one call, in_NAME and out_NAME, the latter in float64."""
    entry, description = job
    import inputs
    from reference import reference
    from signatures import ALL
    rule = ALL[entry["rule"]]
    with np.errstate(all="ignore"):
        arrays = inputs.draw(rule, inputs.Case(**description), entry["dims"])
        if entry["dtype"] == "bf16":
            states = {s.name for s in rule.states}
            arrays = {n: x if n in states else inputs.round_to_bf16(x) for n, x in arrays.items()}
        return {**{f"in_{n}": x.astype(np.float32) for n, x in arrays.items()},
                **{f"out_{n}": x for n, x in reference(rule, arrays).items()}}


class Case:
    """One call of one rule, as tensors on the device."""

    def __init__(self, rule, arrays):
        self.rule, e = rule, rule.entry
        self.arrays = arrays
        self.dtype = TORCH[e["dtype"]]
        give = lambda name, dtype: torch.from_numpy(self.arrays[f"in_{name}"]).to("cuda", dtype).contiguous()
        self.inputs = [give(n, self.dtype) for n in e["inputs"]]
        self.params = [give(n, self.dtype) for n in e["params"]]
        self.initial = [give(n, torch.float32) if f"in_{n}" in self.arrays else None for n in e["states"]]
        self.shapes = [self.arrays[f"out_{n}"].shape for n in e["outputs"]]
        self.finals = [self.arrays[f"out_{n}"].shape for n in e["states"]]

    def errors(self, outputs, states, where):
        """Raises nothing: the largest error, and where."""
        found = {}
        for names, tensors, axis in ((self.rule.entry["outputs"], outputs, 2), (self.rule.entry["states"], states, 1)):
            for name, tensor in zip(names, tensors):
                if tensor is not None:
                    found[f"{where} {name}"] = distance(tensor.double().cpu().numpy(), self.arrays[f"out_{name}"], axis)
        worst = max(found, key=found.get)
        return found[worst], worst

    def forward(self, where="forward", change=lambda t: t):
        outputs = [change(poisoned(s, self.dtype)) for s in self.shapes]
        states = [poisoned(s, torch.float32) for s in self.finals]
        self.rule.prepare("forward", [change(t) for t in self.inputs] + self.params + self.initial + [None] * 3 + outputs
                          + states)()
        return self.errors(outputs, states, where)

    def packed(self):
        """All sequences one after the other, states in a pool in reverse."""
        flat = lambda t: t.reshape(1, -1, *t.shape[2:])
        batch, tokens = self.shapes[0][:2]
        outputs = [flat(poisoned(s, self.dtype)) for s in self.shapes]
        pool = [poisoned((batch + 2, *s[1:]), torch.float32) for s in self.finals]
        index = torch.arange(batch, 0, -1, dtype=torch.int32, device="cuda")
        given = all(t is not None for t in self.initial)
        if given:
            for slots, t in zip(pool, self.initial):
                slots[index.long()] = t
        ends = torch.arange(0, batch + 1, dtype=torch.int64, device="cuda") * tokens
        self.rule.prepare("forward", [flat(t) for t in self.inputs] + self.params
                          + (pool if given else [None] * len(pool)) + [ends, index, None] + outputs + pool)()
        return self.errors([o.reshape(s) for o, s in zip(outputs, self.shapes)], [p[index.long()] for p in pool],
                           "packed")

    def steps(self):
        """Token by token from the given state, else from the state after the first token."""
        outputs = [poisoned(s, self.dtype) for s in self.shapes]
        first = 0
        if all(t is not None for t in self.initial):
            states = [t.clone() for t in self.initial]
        else:
            states = [poisoned(s, torch.float32) for s in self.finals]
            first = 1
            one = lambda t: t[:, :1]
            self.rule.prepare("forward", [one(t) for t in self.inputs] + self.params + [None] * len(states) + [None] * 3
                              + [one(o) for o in outputs] + states)()
        for t in range(first, self.shapes[0][1]):
            at = torch.full((self.shapes[0][0],), t, dtype=torch.int64, device="cuda")
            one = lambda x: x[:, t:t + 1]
            self.rule.prepare("step", [one(x) for x in self.inputs] + self.params + [None, at]
                              + [one(o) for o in outputs] + states)()
        return self.errors(outputs, states, "step")


def check(folder, entry, expected):
    """One rule and type: whether all held, a line, and all errors. `expected` gives the arrays of its calls in turn."""
    given = [next(expected) for _ in entry["cases"]]
    errors = {}
    try:
        rule = Rule(folder, entry)
        worst = (0, 0, "nothing was compared")
        for description, arrays in zip(entry["cases"], given):
            case = Case(rule, arrays)
            limit = LIMITS[entry["dtype"]][description["nasty"]] * MAGNIFIES.get(entry["rule"], 1)
            runs = [case.forward, lambda: case.forward("strided", strided), case.packed]
            for run in runs if entry["rule"] in NO_STEPS else runs + [case.steps]:
                error, where = run()
                errors[f"{description['name']} {where}"] = error
                if not error / limit <= worst[0] or worst[2].startswith("nothing"):
                    worst = (error / limit, error, f"{description['name']} {where}")
        passed = worst[0] < 1
        return passed, f"{worst[1]:.1e} ({worst[2]})", errors
    except (RuntimeError, OSError) as problem:
        return False, str(problem)[:150], errors


# ---- Times ----

def draw(entry, batch, tokens, heads, dims_of):
    """Random inputs in the layout that the rule's metadata gives."""
    generator = torch.Generator("cuda").manual_seed(1)
    tensors = {}
    for t in dims_of["tensors"]:
        lead = {"input": (batch, tokens, heads), "param": (heads,), "state": (batch, heads),
                "output": (batch, tokens, heads)}[t["role"]]
        sizes = [entry["dims"].get(n, n) if isinstance(n, str) else n for n in t["shape"][len(lead):]]
        shape = lead + tuple(int(n) for n in sizes)
        dtype = torch.float32 if t["role"] == "state" else TORCH[entry["dtype"]]
        if t["role"] in ("output", "state"):
            tensors[t["name"]] = torch.zeros(shape, dtype=dtype, device="cuda")
            continue
        x = torch.rand(shape, device="cuda", generator=generator, dtype=torch.float32)
        doc = t["doc"]
        if "(-inf" in doc or "[-" in doc:
            x = -0.1 * x
        elif " in " not in doc:
            x = 2 * x - 1
        if "unit" in doc:
            x = x / x.norm(dim=-1, keepdim=True)
        if len(shape) > len(lead) and "vector" in doc and " in " not in doc:
            x = x / shape[-1] ** 0.5 * 1.7
        tensors[t["name"]] = x.to(dtype)
    return tensors


def measure(call, repeats):
    """The median time of a call in a graph, in milliseconds; fewer repeats where it is long."""
    call()
    torch.cuda.synchronize()
    began = time.time()
    call()
    torch.cuda.synchronize()
    repeats = min(repeats, 3 + int(1 / max(time.time() - began, 1e-6)))
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        with torch.cuda.graph(graph, stream=side):
            call()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return float(np.median(times)), float(np.min(times))


def time_rule(folder, entry, rate, results):
    rule = Rule(folder, entry)
    about = metadata(rule, entry["rule"])
    names = {r: [t["name"] for t in about["tensors"] if t["role"] == r] for r in ("input", "param", "state", "output")}
    forward = [("forward", 1, 8192, 96), ("forward", 4, 8192, 32), ("forward", 1, 8192, 32)] if entry["chunked"] \
        else [("forward", 1, 2048, 96), ("forward", 8, 1024, 32)]
    for function, batch, tokens, heads in forward + [("step", 128, 1, 32), ("step", 1024, 1, 32)]:
        x = draw(entry, batch, tokens, heads, about)
        part = lambda role: [x[n] for n in names[role]]
        if function == "step":
            at = torch.zeros(batch, dtype=torch.int64, device="cuda")
            tensors = part("input") + part("param") + [None, at] + part("output") + part("state")
        else:
            tensors = part("input") + part("param") + [None] * len(names["state"]) + [None] * 3 + part("output") \
                + part("state")
        median, least = measure(rule.prepare(function, tensors), 20)
        moved = sum(t.numel() * t.element_size() for n, t in x.items())
        if function == "step":
            moved += sum(x[n].numel() * 4 for n in names["state"])
        floor = moved / rate * 1e3
        results.append({"rule": entry["rule"], "function": function, "batch": batch, "tokens": tokens, "heads": heads,
                        "ms": median, "min_ms": least, "floor_ms": floor})
        print(f"{entry['rule']:20} {function:8} B{batch:<5} T{tokens:<5} H{heads:<3} {median:9.4f} ms  min {least:9.4f}"
              f"  memory floor {floor:8.4f}  {floor / median:5.1%}", flush=True)


def copy_rate():
    """Bytes per second, read and written, of a large copy."""
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    b = torch.empty_like(a)
    times = []
    for _ in range(10):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        b.copy_(a)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return 2 * a.numel() / (np.median(times) * 1e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="*")
    parser.add_argument("--no-times", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sys.path.insert(0, str(options.folder / "zoo"))
    index = [e for e in json.loads((options.folder / "index.json").read_text())
             if not e["refused"] and fnmatch.fnmatch(e["rule"], options.only)]
    failed = 0
    report = {"checks": [], "times": []}
    with multiprocessing.get_context("fork").Pool() as pool:  # before CUDA starts, which does not survive a fork
        expected = pool.imap(expect, [(entry, case) for entry in index for case in entry["cases"]])
        began = time.time()
        for entry in index:
            if entry["cases"]:
                passed, line, errors = check(options.folder, entry, expected)
                failed += not passed
                report["checks"].append({**{k: entry[k] for k in ("rule", "dtype", "kind", "chunked")}, "passed": passed,
                                         "line": line, "errors": errors})
                print(f"{'ok  ' if passed else 'FAIL'} {entry['rule']:28} {entry['dtype']:5} {entry['kind']:6} "
                      f"{'chunks' if entry['chunked'] else 'tokens'} {line}", flush=True)
    print(f"{len(report['checks']) - failed} passed, {failed} failed, {time.time() - began:.0f} s", flush=True)
    if not options.no_times:
        rate = copy_rate()
        print(f"{torch.cuda.get_device_name()}, copies {rate / 1e12:.2f} TB/s")
        for entry in index:
            if entry["timed"]:
                try:
                    time_rule(options.folder, entry, rate, report["times"])
                except RuntimeError as problem:
                    print(f"FAIL {entry['rule']}: {str(problem)[:150]}")
                    failed += 1
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
