"""Compiles the zoo for a GPU and puts it beside inputs and float64 references, for device_check.py on a machine
with one.

    /usr/bin/python3 tools/bench/device_prepare.py FOLDER [--recurc build/bin/recurc] [--only PATTERN]

The folder then holds one shared library for each rule, size and type, one .npz for each call, and index.json. It needs
neither the compiler nor this repository, but device_check.py.
"""
import argparse
import fnmatch
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "zoo"))
import inputs  # noqa: E402
from reference import reference  # noqa: E402
from signatures import ALL  # noqa: E402

CHECKED = [inputs.Case("carry", 3, 21, 4, grouped=True, initial=True),
           inputs.Case("nasty", 1, 43, 4, initial=True, nasty=True),
           inputs.Case("long", 2, 150, 2)]
# Sizes of the matrix units, and sequences of several chunks, the last one ragged.
WIDE = {**inputs.DIMS, "dk": 64, "dv": 128}
IN_CHUNKS = [inputs.Case("chunks", 2, 150, 4, grouped=True, initial=True), inputs.Case("begin", 3, 70, 2),
             inputs.Case("nasty", 1, 200, 4, initial=True, nasty=True)]
# Rules that are timed: dimensions, then (batch, tokens, heads) of forward and step calls.
TIMED = {name: {"dk": 128, "dv": 128, "d": 128, "n": 128 if name == "mamba2" else 2, "m": 64, "dh": 128}
         for name in ("linear_attention", "simple_gla", "gated_deltanet", "kda", "gla", "rwkv7", "deltaproduct",
                      "comba", "mamba2", "mesanet_cg", "titans", "gru", "hgrn")}


def compile_rule(recurc, rule, dims, dtype, target, stem, runtime):
    """A shared library at `stem`.so, and what the compiler said where it failed."""
    binding = ",".join(f"{k}={v}" for k, v in dims.items())
    command = [recurc, ROOT / rule.file, "--dtype", dtype, f"--target={target}", "-o", f"{stem}.o"]
    done = subprocess.run(command + (["--bind", binding] if binding else []), capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip().splitlines()[0]
    subprocess.run(["cc", "-shared", "-o", f"{stem}.so", f"{stem}.o", runtime, "-lpthread", "-ldl", "-lm"], check=True)
    Path(f"{stem}.o").unlink()
    Path(f"{stem}.h").unlink()
    return ""


def dims_of(rule):
    """Names of the rule's dimensions."""
    return sorted({d for t in rule.inputs + rule.params + rule.states for d in t.dims})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recurc", default=ROOT / "build/bin/recurc")
    parser.add_argument("--only", default="*", help="names of rules, a shell pattern")
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--kinds", nargs="*", default=["small", "chunks", "timed"])
    options = parser.parse_args()
    runtime = ROOT / "build/lib/librecur_rt.a"
    options.folder.mkdir(parents=True, exist_ok=True)
    np.seterr(all="ignore")

    def prepare(rule, dtype, dims, cases, kind):
        timed = kind == "timed"
        stem = options.folder / f"{rule.name}-{dtype}-{kind}"
        used = {d: dims[d] for d in dims_of(rule) if d in dims}
        problem = compile_rule(options.recurc, rule, used, dtype, options.target, stem, runtime)
        entry = {"rule": rule.name, "kind": kind, "dtype": dtype, "library": f"{stem.name}.so", "dims": used, "timed": timed,
                 "refused": problem, "cases": []}
        for case in [] if problem else cases:
            arrays = inputs.draw(rule, case, dims)
            if dtype == "bf16":
                states = {s.name for s in rule.states}
                arrays = {n: x if n in states else inputs.round_to_bf16(x) for n, x in arrays.items()}
            expected = reference(rule, arrays)
            name = f"{stem.name}-{case.name}.npz"
            np.savez_compressed(options.folder / name, **{f"in_{n}": x.astype(np.float32) for n, x in arrays.items()},
                                **{f"out_{n}": x for n, x in expected.items()})
            entry["cases"].append({"name": case.name, "file": name, "nasty": case.nasty})
        return entry

    chosen = [rule for rule in ALL.values() if fnmatch.fnmatch(rule.name, options.only)]
    jobs = []
    if "small" in options.kinds:
        jobs += [(r, t, inputs.DIMS, CHECKED, "small") for r in chosen for t in ("f32", "bf16")]
    if "chunks" in options.kinds:
        jobs += [(r, "bf16", WIDE, IN_CHUNKS, "chunks") for r in chosen if {"dk", "dv"} <= set(dims_of(r))]
    if "timed" in options.kinds:
        jobs += [(r, "bf16", TIMED[r.name], [], "timed") for r in chosen if r.name in TIMED]
    with ThreadPoolExecutor(2) as pool:
        index = list(pool.map(lambda job: prepare(*job), jobs))
    (options.folder / "index.json").write_text(json.dumps(index, indent=1))
    shutil.copy(Path(__file__).parent / "device_check.py", options.folder)
    for entry in index:
        if entry["refused"]:
            print(f"{entry['rule']:28} {entry['dtype']} {entry['refused']}")
    print(f"{len(index)} libraries, {sum(len(e['cases']) for e in index)} calls")


if __name__ == "__main__":
    main()
