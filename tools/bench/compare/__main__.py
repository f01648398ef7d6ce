"""Recur beside flash-linear-attention, in one process on one device.

    python3 tools/bench/compare prepare FOLDER [--target sm_90a]                  # where recurc is
    python3 tools/bench/compare run FOLDER [--only gated_deltanet] [--json FILE]   # where the device is
    python3 tools/bench/compare prepare FOLDER --spec mine.rec --bind dk=128,dv=128   # then run FOLDER --only mine

`prepare` compiles the rules. `run` gives both the same inputs, compares both with float64, times both, and prints one
table; without the peer it does Recur's part and says so. It needs torch, for the peer fla-core (which brings Triton);
FOLDER holds all it needs of Recur. Times are medians of CUDA graphs' replays, of queued calls where a call cannot be
captured (marked *); consecutive calls take different tensors, more of them than the L2 holds. A floor is the larger of
bytes (inputs and output once; a step's states in and out) over the copy rate and products (in chunks of 64) over the
rate of a large bf16 product, both measured in the same run. Of a spec of one's own only times are taken, and products are
those that any form of it needs. Some kernels of the peer (dplr, rwkv7) try so many configurations that it takes them
minutes: `--tuning few` leaves them four each, as the first line of the table then says; with all of them the peer may
be faster.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def prepare(options):
    """Compiles the rules into shared libraries, and puts beside them what `run` needs."""
    from prepare import prepare as compile_all
    compile_all(options, HERE, ROOT)


def warm(options):
    """Lets the peer compile its kernels, many rules side by side: that takes it a minute or two each. What it measures
    meanwhile is not kept."""
    from rules import RULES, chosen
    index = json.loads((options.folder / "rules.json").read_text())
    names = [rule.name for rule in chosen(RULES, index, options.only)]
    environment = {**os.environ, "FLA_CACHE_RESULTS": "0", "PYTHONUNBUFFERED": "1"}

    def one(name):
        command = [sys.executable, HERE, "run", options.folder, "--only", name, "--shapes", options.shapes, "--part",
                   "peer-only", "--tuning", options.tuning, "--size", str(options.size)]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=options.warm)
            return f"{name}: {(done.stderr.strip().splitlines() or ['ready'])[-1]}"
        except subprocess.TimeoutExpired:
            return f"{name}: not ready after {options.warm} s"
    with ThreadPoolExecutor(max(1, min(os.cpu_count(), len(names)))) as pool:
        for line in pool.map(one, names):
            print(f"warm {line}", flush=True)


def run(options):
    """Compares, times and prints."""
    if options.warm:
        warm(options)
    from run import run as compare_all
    compare_all(options)


def main():
    parser = argparse.ArgumentParser(prog="compare", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    p = commands.add_parser("prepare", help="compile the rules")
    p.add_argument("folder", type=Path)
    p.add_argument("--recurc", type=Path, default=ROOT / "build/bin/recurc")
    p.add_argument("--only", default="*", help="names of rules, shell patterns with commas between")
    p.add_argument("--size", type=int, default=128, help="keys and values of a head")
    p.add_argument("--target", default="sm_90a")
    p.add_argument("--form", default="auto")
    p.add_argument("--spec", type=Path, nargs="*", default=[], help="specs to time instead of the rules compared")
    p.add_argument("--bind", default="", metavar="DIM=SIZE,..", help="their sizes")
    p.add_argument("--dtype", default="bf16")
    p.set_defaults(do=prepare)
    p = commands.add_parser("run", help="compare and time")
    p.add_argument("folder", type=Path)
    p.add_argument("--only", default="*", help="names of rules, shell patterns with commas between")
    p.add_argument("--shapes", default="*", help="names of shapes, likewise, or others such as 'B2 T4096 H16'")
    p.add_argument("--size", type=int, default=128, help="keys and values of a head, as they were prepared")
    p.add_argument("--part", choices=("all", "check", "times", "peer-only"), default="all")
    p.add_argument("--device", default="cuda", help="cpu: a check of the check, with short sequences and no times")
    p.add_argument("--warm", type=int, metavar="SECONDS", help="let the peer compile side by side first")
    p.add_argument("--tuning", choices=("all", "few"), default="all",
                   help="what the peer tunes itself among: few is four configurations of each kernel")
    p.add_argument("--beside", action="append", default=[], metavar="COMMAND",
                   help="a program that times other kernels, run after the rules; its output is kept")
    p.add_argument("--json", type=Path)
    p.set_defaults(do=run)
    options = parser.parse_args()
    import specs
    specs.D = options.size
    options.do(options)


if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    main()
