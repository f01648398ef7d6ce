"""Runs what device_prepare.py prepared on a GPU: compares every rule with its float64 reference, then times some.

    python3 device_check.py FOLDER [--only PATTERN] [--no-times] [--json FILE]

Needs torch with CUDA. Inputs and references are made here, on all cores. Outputs are poisoned before each call. Prints
one line per rule, type and size, then a table of times.
"""
import argparse
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

from draw import draw_all  # noqa: E402

# For tame and for nasty inputs.
LIMITS = {"f32": (1e-5, 1e-4), "bf16": (5e-3, 1e-2), "f16": (1e-3, 2e-3)}
MAGNIFIES = {"atlas": 10}  # see test/zoo/check.py
TORCH = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Rule:
    """One compiled rule: its functions, and the names of its tensors by what they are."""

    def __init__(self, folder, entry):
        import recur
        self.entry = entry
        self.rule = getattr(recur.load(folder / entry["library"]), entry["rule"])
        self.tensors = self.rule.metadata["tensors"]
        self.inputs, self.params, self.states, self.outputs = (
            [t["name"] for t in self.tensors if t["role"] == role] for role in ("input", "param", "state", "output"))

    def call(self, function, tensors, initial=(), final=(), **indices):
        """A call that can be repeated: a function without arguments. States may be missing."""
        given = {**tensors, **indices, **{f"initial_{n}": t for n, t in zip(self.states, initial)},
                 **{f"final_{n}": t for n, t in zip(self.states, final)}}
        size = getattr(self.rule, f"{function}_workspace")(**given)
        workspace = torch.empty(size, dtype=torch.uint8, device="cuda") if size else None
        run = getattr(self.rule, function)
        return lambda: run(**given, workspace=workspace)


def poisoned(shape, dtype):
    return torch.full(shape, float("nan"), dtype=dtype, device="cuda")


def distance(found, expected, heads_axis):
    """The largest relative error of any sequence and head."""
    axes = tuple(axis for axis in range(1, expected.ndim) if axis != heads_axis)
    length = lambda x: np.sqrt((x * x).sum(axis=axes))
    error, size = length(found - expected), length(expected)
    error = np.where(error == 0, 0, error / np.maximum(size, 1e-30))  # float32 ends near 1e-38
    return float(np.where(np.isfinite(error), error, np.inf).max())


def strided(t, gap=3, begin=1):
    """The same values, the head dimension outside the token's, and with a gap."""
    wide = torch.empty(t.shape[0], t.shape[2], t.shape[1], *(n + gap for n in t.shape[3:]), dtype=t.dtype, device="cuda")
    view = wide.transpose(1, 2)[(slice(None),) * 3 + tuple(slice(begin, n + begin) for n in t.shape[3:])]
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
        if entry["dtype"] != "f32": # what bf16 holds of these sizes f16 holds, too
            states = {s.name for s in rule.states}
            arrays = {n: x if n in states else inputs.round_to_bf16(x) for n, x in arrays.items()}
        if entry["dtype"] == "f16": # what is read of the largest states it would not hold
            arrays = {n: x / 32 if n in states and description["nasty"] else x for n, x in arrays.items()}
        return {**{f"in_{n}": x.astype(np.float32) for n, x in arrays.items()},
                **{f"out_{n}": x for n, x in reference(rule, arrays).items()}}


class Case:
    """One call of one rule, as tensors on the device."""

    def __init__(self, rule, arrays):
        self.rule = rule
        self.arrays = arrays
        self.dtype = TORCH[rule.entry["dtype"]]
        give = lambda name, dtype: torch.from_numpy(self.arrays[f"in_{name}"]).to("cuda", dtype).contiguous()
        self.inputs = {n: give(n, self.dtype) for n in rule.inputs}
        self.params = {n: give(n, self.dtype) for n in rule.params}
        self.initial = [give(n, torch.float32) for n in rule.states if f"in_{n}" in self.arrays]
        self.shapes = {n: self.arrays[f"out_{n}"].shape for n in rule.outputs}
        self.finals = [self.arrays[f"out_{n}"].shape for n in rule.states]
        self.batch, self.tokens = next(iter(self.shapes.values()))[:2]

    def poisoned(self):
        """Outputs nothing was written to."""
        return {n: poisoned(s, self.dtype) for n, s in self.shapes.items()}

    def errors(self, outputs, states, where):
        """Raises nothing: the largest error, and where."""
        found = {}
        for tensors, axis in ((outputs, 2), (dict(zip(self.rule.states, states)), 1)):
            for name, tensor in tensors.items():
                found[f"{where} {name}"] = distance(tensor.double().cpu().numpy(), self.arrays[f"out_{name}"], axis)
        worst = max(found, key=found.get)
        return found[worst], worst

    def forward(self, where="forward", change=lambda t: t):
        outputs = {n: change(t) for n, t in self.poisoned().items()}
        inputs = {n: change(t) for n, t in self.inputs.items()}
        states = [poisoned(s, torch.float32) for s in self.finals]
        self.rule.call("forward", {**inputs, **self.params, **outputs}, self.initial, states)()
        return self.errors(outputs, states, where)

    def packed(self):
        """All sequences one after the other, states in a pool in reverse."""
        flat = lambda tensors: {n: t.reshape(1, -1, *t.shape[2:]) for n, t in tensors.items()}
        outputs = flat(self.poisoned())
        pool = [poisoned((self.batch + 2, *s[1:]), torch.float32) for s in self.finals]
        index = torch.arange(self.batch, 0, -1, dtype=torch.int32, device="cuda")
        for slots, t in zip(pool, self.initial):
            slots[index.long()] = t
        ends = torch.arange(0, self.batch + 1, dtype=torch.int64, device="cuda") * self.tokens
        self.rule.call("forward", {**flat(self.inputs), **self.params, **outputs}, pool if self.initial else (), pool,
                       cu_seqlens=ends, state_index=index)()
        return self.errors({n: o.reshape(self.shapes[n]) for n, o in outputs.items()}, [p[index.long()] for p in pool],
                           "packed")

    def steps(self):
        """Token by token from the given state, else from the state after the first token."""
        outputs = self.poisoned()
        token = lambda t: {n: x[:, t:t + 1] for n, x in {**self.inputs, **outputs}.items()}
        states = [t.clone() for t in self.initial]
        if not states:
            states = [poisoned(s, torch.float32) for s in self.finals]
            self.rule.call("forward", {**token(0), **self.params}, (), states)()
        for t in range(0 if self.initial else 1, self.tokens):
            at = torch.full((self.batch,), t, dtype=torch.int64, device="cuda")
            self.rule.call("step", {**token(t), **self.params, **dict(zip(self.rule.states, states))}, positions=at)()
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
            runs = [case.forward, lambda: case.forward("strided", strided),
                    lambda: case.forward("strided, aligned", lambda t: strided(t, 8, 8)), case.packed]
            if rule.rule.metadata["has_step"]:
                runs.append(case.steps)
            for run in runs:
                error, where = run()
                errors[f"{description['name']} {where}"] = error
                if not error / limit <= worst[0] or worst[2].startswith("nothing"):
                    worst = (error / limit, error, f"{description['name']} {where}")
        passed = worst[0] < 1
        return passed, f"{worst[1]:.1e} ({worst[2]})", errors
    except (RuntimeError, OSError, TypeError) as problem:
        return False, str(problem)[:150], errors


# ---- Times ----

def draw_call(rule, batch, tokens, heads):
    """Random inputs, and room for outputs and states."""
    entry = rule.entry
    generator = torch.Generator("cuda").manual_seed(1)
    leading = {"input": (batch, tokens, heads), "param": (heads,)}
    tensors = {n: x.to(TORCH[entry["dtype"]])
               for n, x in draw_all(rule.tensors, entry["dims"], leading, generator).items()}
    for t in rule.tensors:
        if t["role"] in ("state", "output"):
            lead = (batch, heads) if t["role"] == "state" else (batch, tokens, heads)
            shape = lead + tuple(int(entry["dims"].get(n, n)) for n in t["shape"][len(lead):])
            dtype = torch.float32 if t["role"] == "state" else TORCH[entry["dtype"]]
            tensors[t["name"]] = torch.zeros(shape, dtype=dtype, device="cuda")
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
    forward = [("forward", 1, 8192, 96), ("forward", 4, 8192, 32), ("forward", 1, 8192, 32)] if entry["chunked"] \
        else [("forward", 1, 2048, 96), ("forward", 8, 1024, 32)]
    for function, batch, tokens, heads in forward + [("step", 128, 1, 32), ("step", 1024, 1, 32)]:
        x = draw_call(rule, batch, tokens, heads)
        states = {n: x[n] for n in rule.states}
        others = {n: t for n, t in x.items() if n not in states}
        if function == "step":
            call = rule.call("step", x, positions=torch.zeros(batch, dtype=torch.int64, device="cuda"))
        else:
            call = rule.call("forward", others, (), list(states.values()))
        median, least = measure(call, 20)
        moved = sum(t.numel() * t.element_size() for n, t in x.items())
        if function == "step":
            moved += sum(t.numel() * 4 for t in states.values())
        floor = moved / rate * 1e3
        results.append({"rule": entry["rule"], "function": function, "batch": batch, "tokens": tokens, "heads": heads,
                        "ms": median, "min_ms": least, "floor_ms": floor})
        print(f"{entry['rule']:20} {entry['form']:7} {function:8} B{batch:<5} T{tokens:<5} H{heads:<3} "
              f"{median:9.4f} ms  min {least:9.4f}  memory floor {floor:8.4f}  {floor / median:5.1%}", flush=True)


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
    sys.path[:0] = [str(options.folder), str(options.folder / "zoo")]
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
                about = {k: entry[k] for k in ("rule", "dtype", "kind", "form")}
                report["checks"].append({**about, "passed": passed, "line": line, "errors": errors})
                print(f"{'ok  ' if passed else 'FAIL'} {entry['rule']:28} {entry['dtype']:5} {entry['kind']:6} "
                      f"{entry['form'] or 'CPU':7} {line}", flush=True)
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
