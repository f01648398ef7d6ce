"""Kernels for GPUs on the emulated one: every rule with a state of fixed size, ten kinds of inputs, sequences of 67
tokens (and 1 and 5) apart and packed, states in slots, and steps, each against the rule in float64.
usage: zoo.py RECURC ROOT [PATTERN]"""
import fnmatch
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

recurc, root = sys.argv[1], Path(sys.argv[2])
pattern = sys.argv[3] if len(sys.argv) > 3 else "*"
sys.path.insert(0, str(root / "test" / "zoo"))
from check import NO_CHUNKS, ORACLE_ONLY  # noqa: E402
from inputs import DIMS  # noqa: E402
from signatures import ALL  # noqa: E402

# Five Newton-Schulz steps magnify what bf16 rounds, and take long.
SLOW = {"atlas"}
# What bf16 rounds is a little more than their budgets on some of the inputs.
ROUGH = {"mesanet_cg", "erased_by_value", "preconditioned_gdn"}
F32 = {"gated_deltanet", "gla", "mamba1", "gru", "deltaproduct", "mlstm", "titans"}
# Some of each kind that have chunks and are taken in turn as well: vectors ahead, micro-steps, states of vectors, matrices.
IN_TURN = {"gated_deltanet", "kda", "rwkv7", "titans", "deltaproduct", "mlstm", "mamba2", "mimo", "turned_keys",
           "value_forgetting", "dense_transition", "shifted_tokens"}


def jobs():
    """Rules, sizes and types. Roles of warps want whole tiles; odd sizes are for the portable kernels."""
    for rule in ALL.values():
        if rule.name in ORACLE_ONLY | SLOW or not fnmatch.fnmatch(rule.name, pattern):
            continue
        names = sorted({d for t in rule.inputs + rule.params + rule.states for d in t.dims} & DIMS.keys())
        odd = {n: DIMS[n] for n in names}
        whole = {n: 64 if n in ("dk", "dv") else DIMS[n] for n in names}
        if rule.name not in ROUGH:
            yield rule, "sm_80", "bf16", odd, 2
        if rule.name in IN_TURN:
            yield rule, "sm_90a", "bf16", whole, 2, "sequential"
            yield rule, "sm_80", "f32", odd, 1, "sequential"
        if rule.name in F32 | ROUGH:
            yield rule, "sm_80", "f32", odd, 2
        if rule.name not in ROUGH and {"dk", "dv"} <= set(names) and rule.name not in NO_CHUNKS:
            yield rule, "sm_90a", "bf16", whole, 1


def run(job):
    rule, target, dtype, dims, heads, form = (*job, "auto")[:6]
    command = [recurc, "verify", root / rule.file, "--target", target, "--dtype", dtype, "--emulate", f"--heads={heads}",
               f"--form={form}", "--batch=2", "--tokens=67", "--proofs=1", "-Wno-numerics", "-Wno-spectral", "-Wno-perf"]
    if dims:
        command += ["--bind", ",".join(f"{n}={size}" for n, size in dims.items())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    name = f"{rule.name} {target} {dtype} {dims} {form}"
    return "" if done.returncode == 0 else f"{name}: {done.stderr.strip()[:500]}"


with ThreadPoolExecutor(2) as pool:
    problems = [text for text in pool.map(run, jobs()) if text]
print("\n".join(problems))
sys.exit(bool(problems))
