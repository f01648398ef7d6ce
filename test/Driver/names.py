"""Names that mean something in C: the header compiles as C11 and C++17, whatever a spec calls its tensors.
usage: names.py RECURC INCLUDE CC CXX"""
import subprocess
import sys

from sandbox import Sandbox

box = Sandbox(sys.argv[1])
include, cc, cxx = sys.argv[2:]
FLAGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I", include, "-I", "."]


def compiles(text, *options, name="rule"):
    """The spec compiles, and so does its header, with the fields that a caller would name."""
    box.write("rule.rec", text)
    code, _, err = box.run("rule.rec", "-o", "rule.o", *options)
    box.expect(code == 0, f"{text} {options}: {err}")
    use = f'#include "rule.h"\nint main(void) {{ return {name}_forward(0, 0, 0) == 0; }}\n'
    for compiler, standard, file in [(cc, "-std=c11", "use.c"), (cxx, "-std=c++17", "use.cpp")]:
        box.write(file, use)
        done = subprocess.run([compiler, standard, *FLAGS, file], cwd=box.folder, capture_output=True, text=True)
        box.expect(done.returncode == 0, f"{text}: header: {done.stderr}")


WORDS = ["int", "return", "class", "template", "restrict", "forward", "step", "args", "where", "workspace", "int32_t",
         "DLTensor", "NULL", "offsetof", "cu_seqlens", "state_index", "positions", "main", "data", "size_t", "rule", "metadata"]
compiles("input " + ", ".join(WORDS) + " : scalar\no = " + " + ".join(WORDS))
# Inputs that have the names that a state's arguments get.
compiles("state S : scalar\ninput initial_S, final_S, initial_S_ : scalar\n"
         "S = S + initial_S*final_S*initial_S_\no = S*positions\ninput positions : scalar\n")
for name in ["forward", "int", "class", "x", "_", "a__b", "S"]:
    compiles("input q : scalar\no = 2*q", "--name", name, name=name)
    compiles(f"rule {name}\ninput q : scalar\no = 2*q" if name != "_" else "input q : scalar\no = q*q", "--name", name,
             name=name)
long = "n" * 255
compiles(f"input {long} : scalar\n{long[1:]} = 2*{long}")
compiles("input q : scalar\no = 2*q", "--name", "n" * 3000, name="n" * 3000)
# Text that would end the comment that quotes it, or a line of it.
compiles("input q : scalar # */ int x; /* \\\n# ??/ %s \"quoted\" // \xe9\no = 2*q")

# A file's name becomes the rule's.
for file, name in [("my-rule.rec", "my_rule"), ("9lives.rec", "rule_9lives"), ("sp ace.rec", "sp_ace"), ("int.rec", "int")]:
    box.write(file, "input q : scalar\no = 2*q")
    code, _, err = box.run(file, "-o", "file.o")
    text = (box.folder / "file.h").read_text() if code == 0 else ""
    box.expect(f" {name}_forward(" in text, f"{file}: no {name}_forward {err}")
box.finish()
