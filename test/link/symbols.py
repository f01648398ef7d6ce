"""No object of the zoo needs more than the runtime, libm, memcpy, memset and memmove, and none has data that is
written.   usage: symbols.py SPECS NM RECURC"""
import shutil
import subprocess
import sys
from pathlib import Path

from sandbox import Sandbox
from specs import REFUSAL, sizes

specs, nm, recurc = sys.argv[1:]
box = Sandbox(shutil.which(recurc))
LIBM = {name + suffix for suffix in ["", "f"] for name in
        "exp exp2 log log2 log1p expm1 sin cos tan tanh sinh cosh pow sqrt erf fmod floor ceil round".split()}
ALLOWED = LIBM | {f"recur_rt_{name}" for name in ["forward", "forward_workspace", "step", "step_workspace"]} | {
    "memcpy", "memset", "memmove"}
for path in sorted(Path(specs).glob("*.rec")):
    code, _, err = box.run(path, *sizes(box, path), "-o", "x.o")
    if code == 1 and REFUSAL in err:
        continue
    box.expect(code == 0, f"{path.stem}: {err}")
    lines = subprocess.run([nm, "x.o"], cwd=box.folder, capture_output=True, text=True, check=True).stdout.splitlines()
    for kind, name in (line.split()[-2:] for line in lines):
        if kind == "U":
            box.expect(name in ALLOWED, f"{path.stem} needs '{name}'")
        elif kind == "T":
            box.expect(name.startswith(path.stem + "_"), f"{path.stem} defines '{name}'")
        else:
            box.expect(kind in "trd", f"{path.stem} has '{name}' of kind {kind}")
box.finish()
