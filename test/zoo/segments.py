"""Rules run by many threads, which cut the sequence of a lone head into segments, give what one thread gives, and the
same bits each time.
usage: segments.py RECURC SPECS"""
import os
import sys
from pathlib import Path

import numpy as np

from sandbox import Sandbox

# One state or several, coupled or not, of any shape, one (max, +), some found in two rounds.
RULES = {"gla": "dk=40,dv=72", "mamba2": "d=64,n=16", "mamba1": "d=20,n=16", "hgrn": "d=37", "lru": "d=24,n=16",
         "rwkv4": "d=33", "mlstm": "dk=32,dv=40", "gsa": "dk=32,dv=24,m=16", "retnet": "dk=33,dv=7",
         "linear_attention_rmsnorm": "dk=16,dv=64", "rwkv6": "dk=64,dv=64"}
TOKENS = 1003

os.environ["RECUR_NUM_THREADS"] = "7"
box = Sandbox(sys.argv[1])
specs = Path(sys.argv[2]).resolve()


def run(rule, threads, *options):
    """What a rule makes of the same random inputs, by the names of its outputs and states."""
    folder = box.folder / f"{rule}-{threads}"
    code, _, err = box.run("run", specs / f"{rule}.rec", "--bind", RULES[rule], "--random=3", f"--tokens={TOKENS}",
                           f"--threads={threads}", "--outputs", folder, *options)
    box.expect(code == 0, f"{rule} with {threads} threads: {err}")
    return {path.stem: np.load(path).astype(np.float64) for path in sorted(folder.glob("*.npy"))}


HALF = {"gla", "mlstm"}
for rule in RULES:
    for options, limit in (((), 2e-6), (("--dtype=bf16", "--batch=2"), 5e-3))[:1 + (rule in HALF)]:
        alone = run(rule, 1, *options)
        # Poles of lru that were drawn outside of the unit disc are a matter of its own.
        if not all(np.isfinite(x).all() for x in alone.values()):
            continue
        cut, again = run(rule, 7, *options), run(rule, 7, *options)
        error = max(np.linalg.norm(cut[name] - alone[name]) / max(np.linalg.norm(alone[name]), 1e-30) for name in alone)
        box.expect(error <= limit, f"{rule} {options}: segments differ from the whole by {error:.1e}")
        box.expect(all(np.array_equal(cut[name], again[name]) for name in cut), f"{rule} {options}: other bits each time")
        print(f"{rule:28} {' '.join(options):24} {error:.1e}")
box.finish()
