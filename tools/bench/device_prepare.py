"""Compiles the zoo for a GPU, for device_check.py on a machine with one.

    /usr/bin/python3 tools/bench/device_prepare.py FOLDER [--recurc build/bin/recurc] [--only PATTERN]

The folder then holds one shared library for each rule, size and type, index.json, device_check.py and what that needs
to draw inputs and to compute float64 references: neither the compiler nor this repository.
"""
import argparse
import fnmatch
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ZOO = ROOT / "test" / "zoo"
sys.path[:0] = [str(ZOO), str(ROOT / "runtime/python")]
import inputs  # noqa: E402
import recur  # noqa: E402
from signatures import ALL  # noqa: E402

CHECKED = [inputs.Case("carry", 3, 21, 4, grouped=True, initial=True),
           inputs.Case("nasty", 1, 43, 4, initial=True, nasty=True),
           inputs.Case("long", 2, 150, 2)]
# Sizes of the matrix units, and sequences of several chunks, the last one ragged.
IN_CHUNKS = [inputs.Case("chunks", 2, 150, 4, grouped=True, initial=True), inputs.Case("begin", 3, 70, 2),
             inputs.Case("long", 1, 1000, 2), inputs.Case("nasty", 1, 200, 4, initial=True, nasty=True)]
# Rules that are timed.
TIMED = ("linear_attention", "simple_gla", "deltanet", "gated_deltanet", "kda", "gla", "rwkv7", "deltaproduct", "comba", "mamba2",
         "mesanet_cg", "titans", "gru", "hgrn", "hgrn2", "rwkv4", "rwkv6", "mamba1", "lru", "lightning")


def wide(rule, dk):
    """Sizes of models: `dk` for keys, 128 for values. With few keys, sizes that no unit of the device fits."""
    if dk < 64:
        return {"dk": dk, "dv": 72, "d": 72, "n": 40 if rule.name == "mamba2" else 3, "m": 24, "r": 24, "dh": 72}
    return {"dk": dk, "dv": 128, "d": 128, "n": {"mamba2": 128, "lru": 128, "mamba1": 16}.get(rule.name, 2), "m": 64,
            "r": 32, "dh": 128}


def compile_rule(options, rule, dims, dtype, form, stem):
    """A shared library at `stem`.so; returns what the compiler said where it failed."""
    library = Path(f"{stem}.so")
    if options.keep and library.exists():
        return ""
    command = [options.recurc, ROOT / rule.file, "--dtype", dtype, f"--target={options.target}", f"--form={form}",
               "--emit=obj", "-o", f"{stem}.o"]
    binding = ",".join(f"{k}={v}" for k, v in dims.items())
    done = subprocess.run(command + (["--bind", binding] if binding else []), capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip().splitlines()[0]
    subprocess.run(["cc", "-shared", "-s", "-o", library, f"{stem}.o", options.runtime, "-lpthread", "-ldl", "-lm"],
                   check=True)
    Path(f"{stem}.o").unlink()
    return ""


def form_of(library, name):
    """The name of the kernel that is preferred, without the rule's, but for what takes tokens in turn beside others."""
    variant = getattr(recur.load(library), name).metadata["variants"][0]
    names = [entry["name"][len(name) + 1:] for entry in variant.get("gpu_entries", [])]
    return next((own for own in names if own != "ahead"), "")


def dims_of(rule):
    """Names of the rule's dimensions."""
    return sorted({d for t in rule.inputs + rule.params + rule.states for d in t.dims})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recurc", default=ROOT / "build/bin/recurc")
    parser.add_argument("--only", default="*", help="names of rules, shell patterns with commas between")
    parser.add_argument("--keep", action="store_true", help="compile only what is not there")
    parser.add_argument("--wide", default="*", help="like --only, for all kinds but small")
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--dtype", default="bf16", help="of the rules at sizes of models")
    parser.add_argument("--form", default="auto", help="of the rules at sizes of models")
    parser.add_argument("--kinds", nargs="*", default=["small", "dk64", "dk128"],
                        help="sizes: small, dk64, dk128, dk256, odd")
    options = parser.parse_args()
    options.runtime = Path(options.recurc).resolve().parents[1] / "lib/librecur_rt.a"
    options.folder.mkdir(parents=True, exist_ok=True)

    def prepare(rule, dtype, dims, cases, kind, wanted):
        stem = options.folder / f"{rule.name}-{dtype}-{kind}"
        used = {d: dims[d] for d in dims_of(rule) if d in dims}
        problem = compile_rule(options, rule, used, dtype, wanted, stem)
        form = "" if problem else form_of(Path(f"{stem}.so"), rule.name)
        chunked = form not in ("", "packed", "strided")
        calls = [] if problem else cases if chunked or kind == "small" else cases[:2]
        return {"rule": rule.name, "kind": kind, "dtype": dtype, "library": f"{stem.name}.so", "dims": used,
                "timed": kind == "dk128" and rule.name in TIMED, "chunked": chunked, "form": form,
                "refused": problem,
                "cases": [asdict(case) for case in calls]}

    matches = lambda rule, patterns: any(fnmatch.fnmatch(rule.name, p) for p in patterns.split(","))
    chosen = [rule for rule in ALL.values() if matches(rule, options.only)]
    jobs = []
    if "small" in options.kinds:
        jobs += [(r, t, inputs.DIMS, CHECKED, "small", "auto") for r in chosen for t in ("f32", "bf16")]
    for kind, dk in (("dk64", 64), ("dk128", 128), ("dk256", 256), ("odd", 40)):
        if kind in options.kinds:
            jobs += [(r, options.dtype, wide(r, dk), IN_CHUNKS, kind, options.form) for r in chosen if matches(r, options.wide)
                     and ({"dk", "dv"} <= set(dims_of(r)) or r.name in TIMED and dk == 128)]
    with ThreadPoolExecutor(2) as pool:
        index = list(pool.map(lambda job: prepare(*job), jobs))
    for entry in index:
        if entry["kind"] != "small" and not entry["chunked"] and not entry["timed"] and not entry["refused"]:
            (options.folder / entry["library"]).unlink()
            entry["refused"] = "no chunk form on this target"
        if entry["refused"]:
            print(f"{entry['rule']:28} {entry['dtype']:5} {entry['kind']:6} {entry['refused']}")
    (options.folder / "index.json").write_text(json.dumps(index, indent=1))
    for name in ("device_check.py", "draw.py"):
        shutil.copy(Path(__file__).parent / name, options.folder)
    (options.folder / "zoo").mkdir(exist_ok=True)
    for source in (*(ZOO / f"{name}.py" for name in ("inputs", "signatures", "functions")), *ZOO.glob("reference*.py")):
        shutil.copy(source, options.folder / "zoo")
    shutil.copytree(ROOT / "runtime/python/recur", options.folder / "recur", dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("__pycache__"))
    print(f"{sum(not e['refused'] for e in index)} libraries, {sum(len(e['cases']) for e in index)} calls")


if __name__ == "__main__":
    main()
