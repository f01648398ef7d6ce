"""Random sensible rules (rules.py) through the compiler: checked, compiled for CPUs and GPUs, held to the interpreter.

    /usr/bin/python3 test/fuzz/try_rules.py [--recurc build/bin/recurc] [--seed N] [--count N] [--on cpu,emulated]

What of sizes, types, forms and lengths a rule is tried with follows from its seed. GPUs' kernels run on the emulated
one. A line for each failure, with the command; the rule is what `rules.py SEED` prints. --forms says instead which
rules have which form on GPUs, and why others do not. Many, for a night: --count 2000 --log FILE, with another --seed.
"""
import argparse
import json
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rules import make

ROOT = Path(__file__).resolve().parents[2]
QUIET = ["--proofs=3", "-Wno-unused"]
# A form that a rule does not have is no failure, nor is one that its chip lacks.
REFUSED = re.compile(r"has no \w+ form")
NO_ROLES = re.compile(r"^  roles +no: (?!for at most)", re.MULTILINE)
# What verify cannot hold to a budget: rules that amplify roundings, on inputs far from tame ones.
CHAOS = re.compile(r"' on (large state|mixed) inputs differs from the rule by")


def on_cpu(draw):
    """Options of one run on this machine, and sizes of keys and values."""
    sizes = draw.choice([(7, 13), (5, 3), (16, 16), (24, 40), (64, 64), (33, 17), (1, 4)])
    dtype = draw.choice(["f32", "f32", "f32", "bf16", "f16"])
    form = draw.choice(["auto", "auto", "sequential", "chunk", "chunk", "sweep", "sweep"])
    chunk = ["--chunk=32"] if form == "chunk" and draw.random() < 0.2 else []
    tokens = draw.choice([15, 16, 17, 31, 33, 63, 64, 65, 67])
    target = draw.choice([[], [], [], ["--target=x86-64-v3"], ["--target=x86-64"]])
    heads = draw.choice([[], ["--heads=2"], ["--heads=3", "--batch=2"]])
    return sizes, [f"--dtype={dtype}", f"--form={form}", f"--tokens={tokens}", *chunk, *target, *heads]


def emulated(draw):
    """Options of one run on the emulated GPU."""
    old = draw.random() < 0.15
    whole = [(64, 64), (64, 64), (64, 64), (64, 128), (128, 64)]
    sizes = draw.choice([(16, 16), (24, 40), (7, 13), (32, 64)] if old else whole)
    form = draw.choice(["auto", "chunk", "sequential"] if old else ["auto", "roles", "roles", "roles", "chunk"])
    tokens = draw.choice([15, 16, 17, 63, 64, 65, 100, 100, 129])
    heads = draw.choice([["--heads=2"], ["--heads=2", "--batch=2"], ["--heads=3", "--processors=2"]])
    return sizes, [f"--target={'sm_80' if old else 'sm_90a'}", "--emulate", "--dtype=bf16", f"--form={form}",
                   f"--tokens={tokens}", *heads]


PLACES = {"cpu": on_cpu, "emulated": emulated}


class Trial:
    """One rule in a folder of its own."""

    def __init__(self, recurc, seed):
        self.recurc, self.seed = recurc, seed
        self.text, self.sizes = make(seed)
        self.draw = random.Random(f"options {seed}")

    def run(self, folder, command, options, limit=600):
        """What a command prints, how it ends and how long it takes."""
        (folder / "rule.rec").write_text(self.text)
        begin = time.time()
        try:
            done = subprocess.run([self.recurc, command, "rule.rec", *options], cwd=folder, capture_output=True,
                                  text=True, errors="replace", timeout=limit)
            code, out, err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired:
            code, out, err = 124, "", f"longer than {limit} s"
        return {"seed": self.seed, "command": shlex.join([command, "rule.rec", *options]), "code": code, "out": out,
                "err": err, "seconds": round(time.time() - begin, 1)}

    def verify(self, folder, place):
        sizes, options = PLACES[place](self.draw)
        if "--form=roles" in options and NO_ROLES.search(self.explain(folder, *sizes)["out"]):
            options = [option.replace("=roles", "=chunk") for option in options]
        return self.run(folder, "verify", [*self.bind(*sizes), *options, *QUIET])

    def explain(self, folder, *sizes):
        return self.run(folder, "explain", [*self.bind(*sizes), "--target=sm_90a", "--dtype=bf16", "-Wno-unused"])

    def bind(self, *sizes):
        return ["--bind", ",".join(f"{name}={size}" for name, size in self.sizes(*sizes).items())]


def failure(found):
    """What is wrong with how a command ended; empty where nothing is."""
    lines = [line for line in found["err"].splitlines() if "error:" in line]
    if "internal error" in found["err"]:
        return found["err"][-400:] if found["code"] else next(x for x in found["err"].splitlines() if "internal" in x)
    if found["code"] == 0:
        return ""
    if found["code"] != 1 or not lines:
        return f"ends with {found['code']}: {found['err'][-400:]}"
    lines = [line for line in lines if not REFUSED.search(line) and not CHAOS.search(line)]
    return "\n  ".join(line[:300] for line in lines[:4])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recurc", default=ROOT / "build/bin/recurc", help="the compiler (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first rule (default: %(default)s)")
    parser.add_argument("--count", type=int, default=1, help="rules to try (default: %(default)s)")
    parser.add_argument("--on", default="cpu,emulated", help="where (default: %(default)s)")
    parser.add_argument("--forms", action="store_true", help="say which forms the rules have on sm_90a")
    parser.add_argument("--log", help="a file to append all that commands print to, one JSON object a line")
    options = parser.parse_args()
    recurc, failures, reasons = Path(options.recurc).resolve(), 0, {}
    with tempfile.TemporaryDirectory() as name:
        for seed in range(options.seed, options.seed + options.count):
            trial = Trial(recurc, seed)
            if options.forms:
                found = [trial.explain(Path(name), 64, 64)]
                for form, why in re.findall(r"^  (chunk|roles) +(.*)$", found[0]["out"], re.MULTILINE):
                    reasons.setdefault((form, why if why.startswith("no:") else "yes"), []).append(seed)
            else:
                found = [trial.verify(Path(name), place) for place in options.on.split(",")]
            for one in found:
                if options.log:
                    with open(options.log, "a", encoding="utf-8") as log:
                        log.write(json.dumps(one) + "\n")
                if what := failure(one):
                    failures += 1
                    print(f"seed {seed}: {one['command']}\n  {what}", flush=True)
    for (form, why), seeds in sorted(reasons.items(), key=lambda entry: -len(entry[1])):
        print(f"{len(seeds):5} {form:6}{why[:160]}: {seeds[:6]}")
    print(f"{options.count} rules, {failures} failures")
    sys.exit(failures != 0)


if __name__ == "__main__":
    main()
