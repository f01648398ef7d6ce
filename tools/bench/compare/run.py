"""The second half of the comparison: on the device."""
import fnmatch
import json
import math
import os
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass

import torch

import rules
from rules import Draw, complete, for_peer, inputs_of, reference, states_of, token_of

L2_SEVERAL_TIMES = 512 << 20  # bytes


@dataclass
class Shape:
    """What is timed. A step is one token of each of `batch` sequences."""
    name: str
    batch: int
    tokens: int
    heads: int
    key_heads: int = 0

    @property
    def is_step(self):
        return self.tokens == 1


SHAPES = [Shape("B1 T8192 H96", 1, 8192, 96), Shape("B1 T8192 H32", 1, 8192, 32),
          Shape("B1 T8192 H16/32", 1, 8192, 32, 16), Shape("step B128 H32", 128, 1, 32),
          Shape("step B1024 H32", 1024, 1, 32)]


def shapes_of(patterns):
    """The shapes that are asked for: by name, or others as names are written."""
    found = []
    for p in patterns.split(","):
        own = re.fullmatch(r"B(\d+) T(\d+) H(\d+)", p)
        found += [s for s in SHAPES if fnmatch.fnmatch(s.name, p)] or ([Shape(p, *map(int, own.groups()))] if own else [])
    return found


def few(configs):
    """Of the configurations that a kernel of the peer would try, at most four: 4 or 8 warps, 3 stages, tiles of about 64
    by 64."""
    chosen = [c for c in configs if c.num_warps in (4, 8) and c.num_stages == 3] or configs
    distance = lambda c: sum(abs(math.log2(n / 64)) for n in c.kwargs.values() if isinstance(n, int) and n > 0)
    return sorted(chosen, key=distance)[:4]


def load_peer(compile_only, tuning):
    """fla's operations, or why not."""
    # As the tool that users have: no other back ends, and its tuning, with shorter measurements, or with none where the
    # kernels are only to be compiled.
    os.environ.setdefault("FLA_DISABLE_BACKEND_DISPATCH", "1")
    try:
        import triton.testing
        plain = triton.testing.do_bench

        def bench(call, **more):
            if not compile_only:
                return plain(call, warmup=2, rep=10, quantiles=more.get("quantiles"))
            call()
            return [1.0, 1.0, 1.0]
        triton.testing.do_bench = bench
        if tuning == "few":
            tune = triton.autotune
            triton.autotune = lambda configs, **more: tune(configs=few(configs), **more)
        import fla
        from fla import ops
        from fla.ops.gated_delta_product import chunk_gated_delta_product
        from fla.ops.mesa_net import mesa_net_decoding_one_step
        from fla.ops.rwkv7 import fused_mul_recurrent_rwkv7
        from fla.ops.ttt import chunk_ttt_linear
        try:
            from fla.ops.gdn2 import chunk_gdn2
            ops.chunk_gdn2 = chunk_gdn2
        except ImportError:  # before 0.6
            pass
        ops.chunk_ttt_linear = chunk_ttt_linear
        ops.chunk_gated_delta_product = chunk_gated_delta_product
        ops.mesa_net_decoding_one_step = mesa_net_decoding_one_step
        ops.fused_mul_recurrent_rwkv7 = fused_mul_recurrent_rwkv7
        return ops, f"flash-linear-attention {fla.__version__}, Triton {triton.__version__}"
    except Exception as problem:  # whatever a package does when it is imported
        return None, f"the peer does not import: {brief(problem)}"


def brief(problem):
    """One line of an exception."""
    return f"{type(problem).__name__}: {(str(problem).strip().splitlines() or [''])[0][:100]}"


class Ours:
    """Recur's side of one rule."""

    def __init__(self, folder, name, entry):
        import recur
        from own import TYPES
        if "problem" in entry:
            raise RuntimeError(entry["problem"])
        self.rule = getattr(recur.load(folder / entry["library"]), name)
        about = self.rule.metadata["tensors"]
        self.types = {n: TYPES[t] for n, t in self.rule.metadata["variants"][0]["dtypes"].items()}
        self.states = [t["name"] for t in about if t["role"] == "state"]
        self.outputs = [t["name"] for t in about if t["role"] == "output"]

    def forward(self, x, final):
        found = self.rule.forward(**x, **({f"final_{n}": True for n in self.states} if final else {}))
        return found[0], list(found[1:])

    def forward_into(self, x):
        """A call that makes nothing, to be timed."""
        outputs = self.outputs_of(self.rule.forward(**x))
        size = self.rule.forward_workspace(**x, **outputs)
        workspace = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")
        return lambda: self.rule.forward(**x, **outputs, workspace=workspace), list(outputs.values())

    def outputs_of(self, result):
        return {n: getattr(result, n) for n in self.outputs}

    def step_into(self, x, states):
        given = dict(zip(self.states, states))
        outputs = self.outputs_of(self.rule.step(**x, **given))
        size = self.rule.step_workspace(**x, **given, **outputs)
        workspace = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")
        return lambda: self.rule.step(**x, **given, **outputs, workspace=workspace), list(outputs.values())


def distance(found, expected):
    """Relative error in the Frobenius norm; infinite where it is none."""
    error = ((found.double() - expected).norm() / expected.norm()).item()
    return error if error == error else float("inf")


# ---- Right ----

def check(rule, ours, ops, device, tokens, heads):
    """Errors of outputs and states of both sides, for random and for correlated keys."""
    found = {}
    for keys, cosine in (("random", 0), ("cosine", 0.9)):
        x = inputs_of(rule, Draw(device, 1, tokens, heads, heads, cosine))
        expected, states = reference(rule, x)
        row = found[keys] = {}
        for side in ("recur", "peer"):
            try:
                if side == "recur":
                    if not ours:
                        continue
                    o, finals = ours.forward(x, True)
                else:
                    if not ops:
                        continue
                    o, finals = rule.peer(ops, for_peer(rule, x), True)
                    o = complete(rule, o, x)
                row[side] = distance(o, expected)
                row[f"{side}_state"] = max(distance(f, s) for f, s in zip(finals, states))
            except Exception as problem:
                row[f"{side}_problem"] = brief(problem)
    return found


def check_step(rule, ours, ops, x, states, row):
    """Errors of one token's output for the first sequences."""
    x = {n: t if n in rule.params else t[:8] for n, t in x.items()}
    states = [s[:8] for s in states]
    expected = rule.step(token_of(rule, x), *[s.double() for s in states])[0][:, None]
    if ours:
        o = ours.rule.step(**x, **dict(zip(ours.states, [s.clone() for s in states]))).o
        row["recur_error"] = distance(o, expected)
    if ops and rule.peer_step:
        o = rule.peer_step(ops, for_peer(rule, x), transposed(states))[0]
        row["peer_error"] = distance(complete(rule, o, x), expected)


def transposed(states):
    """As the peer holds them."""
    return [s.transpose(-1, -2).contiguous() if s.dim() > 3 else s for s in states]


# ---- Times ----

def elapsed(call, count):
    """Milliseconds of `count` calls' worth of work that one call of `call` enqueues."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / count


def measure(calls, capture=True, repeats=15):
    """Median milliseconds of one of the calls, run one after the other, and whether in a graph; fewer repeats where
    they are long."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    all_of_them = lambda: [call() for call in calls]
    replay, captured = all_of_them, False
    if capture:
        try:
            graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side), torch.cuda.graph(graph, stream=side):
                all_of_them()
            replay, captured = graph.replay, True
        except Exception:
            torch.cuda.synchronize()
    first = elapsed(replay, 1)
    return statistics.median(elapsed(replay, len(calls)) for _ in range(repeats if first < 200 else 3)), captured


def rates():
    """Bytes per second of a copy, read and written, and operations per second of a large bf16 product."""
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    b = torch.empty_like(a)
    copy = measure([lambda: b.copy_(a)], capture=False)[0]
    m = torch.randn(8192, 8192, device="cuda").bfloat16()
    n = torch.randn(8192, 8192, device="cuda").bfloat16()
    c = torch.empty_like(m)
    product = measure([lambda: torch.matmul(m, n, out=c)])[0]
    return 2 * a.numel() / copy * 1e3, 2 * 8192 ** 3 / product * 1e3


def size(*tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def sets_of(rule, shape):
    """Inputs, and states for a step; as many sets as exceed the L2 several times, at most 8."""
    found, total = [], 0
    while len(found) < 8 and total < L2_SEVERAL_TIMES:
        x = inputs_of(rule, Draw("cuda", shape.batch, shape.tokens, shape.heads, shape.key_heads or shape.heads, 0,
                                 len(found)))
        states = states_of(rule, shape.batch, shape.heads, "cuda") if shape.is_step else []
        found.append((x, states))
        total += size(*x.values(), *states)
    return found


def time_one(rule, ours, ops, shape, copy_rate, product_rate, sides):
    """One row: milliseconds of both, and the floor."""
    row = {"shape": shape.name}
    sets = sets_of(rule, shape)
    x, states = sets[0]
    outputs = 0
    if shape.is_step and rule.step:
        try:
            check_step(rule, ours if "recur" in sides else None, ops, x, states, row)
        except Exception as problem:
            row["step_problem"] = brief(problem)
    if ours and "recur" in sides:
        try:
            made = [(ours.step_into(x, s) if shape.is_step else ours.forward_into(x)) for x, s in sets]
            outputs = size(*made[0][1])
            row["recur"], row["recur_captured"] = measure([call for call, _ in made])
            ours_o = made[0][1][0]
        except Exception as problem:
            row["recur_problem"] = brief(problem)
    if ops and rule.peer and "peer" in sides:
        try:
            given = [(for_peer(rule, x), transposed(s)) for x, s in sets]
            if shape.is_step:
                if not rule.peer_step:
                    raise RuntimeError("not called here")
                calls = [lambda x=x, s=s: rule.peer_step(ops, x, s) for x, s in given]
            else:
                calls = [lambda x=x: rule.peer(ops, x, False) for x, _ in given]
            with torch.no_grad():
                row["peer"], row["peer_captured"] = measure(calls, capture=not rule.host)
                if not shape.is_step:
                    o = complete(rule, calls[0]()[0], sets[0][0])
                    outputs = size(o)
                    if "recur" in row:
                        row["apart"] = distance(ours_o, o.double())
        except Exception as problem:
            row["peer_problem"] = brief(problem)
    moved = size(*x.values(), *states) + size(*states) + outputs
    row["memory_floor"] = moved / copy_rate * 1e3
    row["product_floor"] = 0 if shape.is_step else \
        rule.operations(shape.tokens) * shape.batch * shape.heads / product_rate * 1e3
    row["floor"] = max(row["memory_floor"], row["product_floor"])
    return row


def number(row, key, form="{:.3f}"):
    if key in row:
        return form.format(row[key]) + ("*" if row.get(f"{key}_captured") is False else "")
    return "-"


def run(options):
    """Everything that was asked for, as a table and as JSON."""
    sys.path.insert(0, str(options.folder))
    index = json.loads((options.folder / "rules.json").read_text())
    from own import rule_of
    ops, peer = load_peer(options.part == "peer-only", options.tuning) if options.device == "cuda" else (None, "the peer needs a GPU")
    own = [rule_of(options.folder, name, entry) for name, entry in index.items() if "flops" in entry]
    chosen = rules.chosen(rules.RULES + own, index, options.only)
    if not chosen:
        sys.exit(f"no rule in the folder is named {options.only}; there is {', '.join(index) or 'none'}")
    on_gpu = options.device == "cuda"
    sides = ("peer",) if options.part == "peer-only" else ("recur", "peer")
    copy_rate, product_rate = rates() if on_gpu and options.part in ("all", "times") else (4.3e12, 7.5e14)
    name = torch.cuda.get_device_name() if on_gpu else "CPU"
    if ops and options.tuning == "few":
        peer += ", few configurations tried"
    report = {"device": name, "torch": torch.__version__, "peer": peer, "copy_rate": copy_rate,
              "product_rate": product_rate, "rules": {}}
    print(f"{name}, torch {torch.__version__}, {peer}; copies {copy_rate / 1e12:.2f} TB/s, products "
          f"{product_rate / 1e12:.0f} TFLOP/s", flush=True)
    print(HEADER)
    for rule in chosen:
        entry = index[rule.name]
        result = report["rules"][rule.name] = {"form": entry.get("form"), "times": []}
        ours = None
        if "recur" in sides:
            try:
                ours = Ours(options.folder, rule.name, entry)
                rule.types.update(ours.types)
            except Exception as problem:
                result["problem"] = brief(problem)
        # Times come first, so that the peer tunes itself for what is timed.
        for shape in shapes_of(options.shapes) if on_gpu and options.part != "check" else ():
            if (shape.key_heads and not rule.grouped) or (shape.is_step and rule.whole):
                continue
            if options.part == "peer-only" and shape.batch > 128:
                continue  # the same kernels, and all rules at once are too much for the memory
            row = time_one(rule, ours, ops, shape, copy_rate, product_rate, sides)
            result["times"].append(row)
            print(line(rule.name, result, row), flush=True)
            torch.cuda.empty_cache()
        if options.part != "times" and (rule.step or rule.whole):
            tokens = 128 if options.part == "peer-only" else rule.tokens if on_gpu else 100
            result["errors"] = check(rule, ours, ops, options.device, tokens, 32 if on_gpu else 2)
            for keys, row in result["errors"].items():
                print(f"{rule.name:18} errors with {keys} keys: recur {number(row, 'recur', '{:.1e}')} state "
                      f"{number(row, 'recur_state', '{:.1e}')}, peer {number(row, 'peer', '{:.1e}')} state "
                      f"{number(row, 'peer_state', '{:.1e}')} {row.get('recur_problem', '')} "
                      f"{row.get('peer_problem', '')}", flush=True)
        write(options, report)
    for command in options.beside:
        done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        report.setdefault("beside", {})[command] = done.stdout
        print(f"$ {command}\n{done.stdout}", flush=True)
    write(options, report)


def write(options, report):
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))


HEADER = (f"{'rule':18} {'shape':16} {'form':10} {'recur ms':>9} {'peer ms':>9} {'peer/recur':>10} {'floor ms':>9} "
          f"{'recur':>6} {'peer':>6} {'apart':>8}")


def line(name, result, row):
    """One line of the table."""
    ratio = f"{row['peer'] / row['recur']:.2f}" if "peer" in row and "recur" in row else "-"
    share = [f"{row['floor'] / row[side]:.0%}" if side in row else "-" for side in ("recur", "peer")]
    more = [row[f"{side}_problem"] for side in ("recur", "peer", "step") if f"{side}_problem" in row]
    if "recur_error" in row or "peer_error" in row:
        more.append(f"errors {number(row, 'recur_error', '{:.1e}')} {number(row, 'peer_error', '{:.1e}')}")
    return (f"{name:18} {row['shape']:16} {result['form'] or '-':10} {number(row, 'recur'):>9} "
            f"{number(row, 'peer'):>9} {ratio:>10} {row['floor']:9.3f} {share[0]:>6} {share[1]:>6} "
            f"{number(row, 'apart', '{:.1e}'):>8} {' '.join(more)}")
