"""Which rules are slow: the share of the floor that the cost model predicts, worst first, for rules that nobody wrote down
(drawn at random by test/Emulate/Inputs/random_rules.py) or for the specs named.

    python3 tools/bench/survey.py FIRST LAST [--heads 96] [--tokens 8192] [--target sm_90a] [--below 33] [--show]
    python3 tools/bench/survey.py SPEC... [the same]

compiles the rules of the seeds from FIRST up to LAST, or the specs, at dk = dv = 128, two micro-steps, bf16, a second
each, and prints for each whose predicted time has the floor for less than so many percent of it: its seed or the spec's
name, the time and the floor in microseconds, the share, the form, and why roles refuse it; `--show`: the rule, too. The
last line counts them. No device is needed, and none is asked: predictions leave out registers that spill.
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


def rules(named, folder):
    """The rules asked for: what to call each, and its file. Those of seeds are written to the folder."""
    if not all(name.isdigit() for name in named):
        return [(Path(name).stem, Path(name)) for name in named]
    first, last = map(int, named)
    drawn = [(str(seed), Path(folder, f"random{seed}.rec")) for seed in range(first, last)]
    for seed, spec in drawn:
        spec.write_text(random_rules.Draw(int(seed)).text)
    return drawn


def predict(options, rule):
    """The rule's name, the share, the time, the floor, the form and a refusal, and the rule; or what the compiler said."""
    name, spec = rule
    text = spec.read_text()
    bound = "dk=128,dv=128" + (",n=2" if re.search(r"\bn\b", text) else "")
    said = subprocess.run([options.recurc, "explain", spec, "--bind", bound, "--dtype=bf16", f"--target={options.target}",
                           f"--heads={options.heads}", f"--tokens={options.tokens}", "-Wno-numerics", "-Wno-perf",
                           "-Wno-spectral", "-Wno-unused"], capture_output=True, text=True)
    predicted, floors = PREDICTED.search(said.stdout), [float(us) for us in FLOOR.findall(said.stdout)]
    if not predicted or not floors:
        return name, None, said.stderr.strip().partition("\n")[0], text
    refused = REFUSED.search(said.stdout)
    return name, max(floors) / int(predicted[2]), \
        f"{predicted[2]} of {max(floors):.0f} us, {predicted[1]}" + (f"; {refused[1]}" if refused else ""), text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rules", nargs="+", help="the first seed and the one after the last; or specs")
    parser.add_argument("--heads", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--below", type=float, default=33, help="percent")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--recurc", type=Path, default=ROOT / "build/bin/recurc")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda rule: predict(options, rule), rules(options.rules, folder)))
    slow = [row for row in found if row[1] is None or 100 * row[1] < options.below]
    for name, share, outcome, text in sorted(slow, key=lambda row: row[1] or 0):
        print(f"{name}: " + ("" if share is None else f"{100 * share:.0f} %, ") + outcome)
        if options.show:
            print(text)
    print(f"{len(slow)} of {len(found)} below {options.below:g} %")


if __name__ == "__main__":
    main()
