"""Which rules that nobody wrote down are slow: the share of the floor that the cost model predicts for rules drawn at
random (test/Emulate/Inputs/random_rules.py), worst first.

    python3 tools/bench/survey.py FIRST LAST [--heads 96] [--tokens 8192] [--target sm_90a] [--below 33] [--show]

compiles the rules of the seeds from FIRST up to LAST at dk = dv = 128, two micro-steps, bf16, a second each, and prints
for each whose predicted time has the floor for less than so many percent of it: its seed, the time and the floor in
microseconds, the share, the form, and why roles refuse it; `--show`: the rule, too. The last line counts them. No device
is needed, and none is asked: predictions leave out registers that spill.
"""
import argparse
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/Emulate/Inputs"))
import random_rules  # noqa: E402

PREDICTED = re.compile(r"(\w+) +(\d+) us, .*\(chosen\)")
FLOOR = re.compile(r"floor: ([\d.]+) us")
REFUSED = re.compile(r"roles +no: (?!for at most)(.*)")


def predict(options, folder, seed):
    """The time, the floor, the form and a refusal; or what the compiler said instead."""
    text = random_rules.Draw(seed).text
    spec = Path(folder, f"random{seed}.rec")
    spec.write_text(text)
    bound = "dk=128,dv=128" + (",n=2" if re.search(r"\bn\b", text) else "")
    said = subprocess.run([options.recurc, "explain", spec, "--bind", bound, "--dtype=bf16", f"--target={options.target}",
                           f"--heads={options.heads}", f"--tokens={options.tokens}", "-Wno-numerics", "-Wno-perf",
                           "-Wno-spectral", "-Wno-unused"], capture_output=True, text=True)
    predicted, floors = PREDICTED.search(said.stdout), [float(us) for us in FLOOR.findall(said.stdout)]
    if not predicted or not floors:
        return seed, None, said.stderr.strip().partition("\n")[0]
    refused = REFUSED.search(said.stdout)
    return seed, max(floors) / int(predicted[2]), \
        f"{predicted[2]} of {max(floors):.0f} us, {predicted[1]}" + (f"; {refused[1]}" if refused else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--heads", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--below", type=float, default=33, help="percent")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--recurc", type=Path, default=ROOT / "build/bin/recurc")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda seed: predict(options, folder, seed), range(options.first, options.last)))
    slow = [row for row in found if row[1] is None or 100 * row[1] < options.below]
    for seed, share, text in sorted(slow, key=lambda row: row[1] or 0):
        print(f"{seed}: " + ("" if share is None else f"{100 * share:.0f} %, ") + text)
        if options.show:
            print(random_rules.Draw(seed).text)
    print(f"{len(slow)} of {len(found)} below {options.below:g} %")


if __name__ == "__main__":
    main()
