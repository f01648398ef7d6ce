"""The first half of the comparison: compiled rules in a folder."""
import fnmatch
import json
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

from specs import specs


def prepare(options, here, root):
    """One shared library for each rule and rules.json."""
    options.folder.mkdir(parents=True, exist_ok=True)
    runtime = options.recurc.resolve().parents[1] / "lib/librecur_rt.a"

    def compile_rule(job):
        name, spec, bind = job
        stem = options.folder / name
        binding = ["--bind", bind] if bind else []
        done = subprocess.run([options.recurc, spec, *binding, "--dtype", options.dtype, f"--target={options.target}",
                               f"--form={options.form}", "--emit=obj,json", "-o", f"{stem}.o"],
                              capture_output=True, text=True)
        if done.returncode:
            return name, {"problem": done.stderr.strip().splitlines()[0]}
        subprocess.run(["cc", "-shared", "-s", "-o", f"{stem}.so", f"{stem}.o", runtime, "-lpthread", "-ldl", "-lm"],
                       check=True)
        about = json.loads(open(f"{stem}.json").read())
        for suffix in ("o", "json"):
            (options.folder / f"{name}.{suffix}").unlink()
        library, name = f"{name}.so", about["name"]  # no identifier begins with a digit, as a file's name may
        entries = about["variants"][0].get("gpu_entries")  # best first, named RULE_FORM
        entry = {"library": library, "form": entries[0]["name"][len(name) + 1:] if entries else about["form"]}
        if options.spec:
            text = subprocess.run([options.recurc, "explain", spec, *binding], check=True, capture_output=True, text=True)
            entry["flops"] = float(re.search(r"token and head: (\S+) flop", text.stdout)[1])
        return name, entry

    compared = specs()

    def job_of(name):
        spec, sizes = compared[name]
        path = (here if spec.startswith(".") else root / "specs") / f"{spec}.rec"
        return name, path, ",".join(f"{d}={size}" for d, size in sizes.items())
    jobs = [(s.stem, s, options.bind) for s in options.spec] or \
        [job_of(n) for p in options.only.split(",") for n in compared if fnmatch.fnmatch(n, p)]
    with ThreadPoolExecutor(2) as pool:
        rules = dict(pool.map(compile_rule, jobs))
    index = options.folder / "rules.json"
    known = json.loads(index.read_text()) if index.exists() else {}
    index.write_text(json.dumps(known | rules, indent=1))
    shutil.copytree(root / "runtime/python/recur", options.folder / "recur", dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("__pycache__"))
    for name, entry in rules.items():
        print(f"{name:20} {entry.get('problem') or entry['form']}")
