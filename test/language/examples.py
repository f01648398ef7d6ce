"""Every example of the language is checked, printed and read back, compiled, and compared with the oracle.
usage: examples.py RECURC"""
import sys
from pathlib import Path

from sandbox import Sandbox
from specs import exercise

# These are interpreted only, for now.
UNCOMPILED = {"softmax_attention", "fox", "deltaformer", "path"}

box = Sandbox(sys.argv[1])
# The page's example of an error; its text is compared in test/Frontend.
WRONG = {"deltanet"}
for path in sorted(p for p in Path(__file__).parent.glob("*.rec") if p.stem not in WRONG):
    compiled = exercise(box, path)
    box.expect(compiled != (path.stem in UNCOMPILED), f"{path.stem}: {'compiles' if compiled else 'is refused'}")
box.finish()
