"""Compiles every spec of the zoo for GPUs. Attention forms and statements per block must be refused.

Kernels are assembled one by one, but chips that an object has no code for get its PTX as a whole: so does ptxas
here."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

root = Path(sys.argv[1])
sys.path.insert(0, str(root / "test" / "zoo"))
from inputs import DIMS  # noqa: E402
from signatures import ALL  # noqa: E402

REFUSED = {"lact", "softmax_attention", "alibi", "fox", "deltaformer", "path", "path_absolute"}

PTXAS = shutil.which("ptxas") or "/usr/local/cuda/bin/ptxas"


def assemble_text(object_file):
    """What is wrong with the PTX in an object, or nothing."""
    texts = re.findall(rb"//[^\0]*?\.version [^\0]+", object_file.read_bytes())
    if len(texts) != 1:
        return f"has {len(texts)} texts of PTX"
    source = object_file.with_suffix(".ptx")
    source.write_bytes(texts[0])
    done = subprocess.run([PTXAS, "-O0", "-arch=sm_90", source, "-o", os.devnull], capture_output=True, text=True)
    return done.stdout + done.stderr if done.returncode else ""


def compile_rule(rule, folder):
    """What went wrong, or nothing."""
    names = {d for t in rule.inputs + rule.params + rule.states for d in t.dims} & DIMS.keys()
    object_file = Path(folder, f"{rule.name}.o")
    command = ["recurc", root / rule.file, "--target=sm_80,sm_90a", "--dtype", "bf16", "-o", object_file]
    if names:
        command += ["--bind", ",".join(f"{n}={DIMS[n]}" for n in sorted(names))]
    done = subprocess.run(command, capture_output=True, text=True)
    if rule.name in REFUSED:
        return "" if done.returncode == 1 and "run only in the oracle for now" in done.stderr else "was not refused"
    return done.stderr.strip().splitlines()[0] if done.returncode else assemble_text(object_file)


with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
    problems = {rule.name: text for rule, text in
                zip(ALL.values(), pool.map(lambda rule: compile_rule(rule, folder), ALL.values())) if text}
for name, text in problems.items():
    print(f"{name}: {text}")
sys.exit(bool(problems))
