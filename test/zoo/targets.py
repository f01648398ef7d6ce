"""A few rules on every machine that this one can run, with every type of tensors, at every level of optimisation:
compiled code agrees with the oracle.   usage: targets.py RECURC SPECS"""
import sys
from pathlib import Path

from sandbox import Sandbox
from specs import sizes

RULES = ["gated_deltanet", "mamba1", "mesanet", "gru", "deltaproduct", "retnet"]
OPTIONS = [["--target=x86-64"], ["--target=x86-64-v2"], ["--target=x86-64-v3"], ["--target=x86-64-v4"],
           ["--target=x86-64,x86-64-v3,native"], ["--dtype=f16"], ["--dtype=bf16", "--target=x86-64"],
           ["--dtype=f16", "--target=x86-64"], ["--dtype=f16", "--target=x86-64-v3"], ["-O0"], ["-O1"], ["-O3"],
           ["-O0", "--dtype=bf16"], ["--heads=3", "--batch=2", "--tokens=5"], ["--tokens=0"], ["--tokens=1"]]
MIXED = {"gated_deltanet": "bf16,g=f32,o=f16", "mamba1": "f16,A=f32", "gru": "bf16,bn=f16"}

box = Sandbox(sys.argv[1])
for rule in RULES:
    path = Path(sys.argv[2]) / f"{rule}.rec"
    bind = sizes(box, path)
    for options in OPTIONS + ([[f"--dtype={MIXED[rule]}"]] if rule in MIXED else []):
        code, out, err = box.run("verify", path, *bind, "--rounds=1", *options)
        if "this machine only has" in err and "--target=x86-64-v4" in options:
            continue
        box.expect(code == 0, f"{rule} {options}: {err}{out.decode()}")
box.finish()
