"""Random well-formed specs go the whole way: checked, printed and read back, compiled, compared with the oracle.

    /usr/bin/python3 test/fuzz/run.py [--recurc build/bin/recurc] [--seed N] [--count N] [--seconds S]

Stops after COUNT specs, or after SECONDS of processor time. A spec that fails is printed with its seed, which makes it
again: --seed N --count 1.
"""
import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/support"))
from generate import generate  # noqa: E402
from sandbox import Sandbox  # noqa: E402
from specs import exercise  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--recurc", default=ROOT / "build/bin/recurc", help="the compiler (default: %(default)s)")
parser.add_argument("--seed", type=int, default=1, help="of the first spec (default: %(default)s)")
parser.add_argument("--count", type=int, default=1 << 30, help="specs to try")
parser.add_argument("--seconds", type=float, default=1e9, help="processor time to spend")
options = parser.parse_args()

box = Sandbox(options.recurc)
tried = 0
while tried < options.count and os.times().children_user + os.times().children_system < options.seconds:
    seed = options.seed + tried
    box.write("spec.rec", generate(seed))
    failures = box.failures
    # Odd seeds also vary how the spec is compiled.
    how = [["--tokens=33"], ["--dtype=bf16"], ["-O0"], ["--target=x86-64"], ["--target=x86-64-v3"], ["--dtype=f16,v=f32"]]
    exercise(box, "spec.rec", *how[seed % 12 // 2 if seed % 2 else 0], may_be_chaotic=True)
    if box.failures > failures:
        print(f"seed {seed}:\n{generate(seed)}", flush=True)
    tried += 1
print(f"{tried} specs, {box.failures} failures")
box.finish()
