"""Layers include only what lies above them, the runtime knows nothing of the compiler, tools are mains, nothing but
specs and tests knows a rule by name, files stay short and are formatted as .clang-format says, and nothing refers to
the machine it was written on.
usage: layering.py ROOT"""
import re
import subprocess
import sys
from pathlib import Path

root = Path(sys.argv[1])
failures = []
CODE = {".cpp", ".h", ".c", ".td"}
INCLUDE = re.compile(r'^\s*#?\s*include\s+["<]([^">]+)[">]', re.MULTILINE)


def tracked():
    """The files of the repository; without git, all but the builds."""
    try:
        listed = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"], check=True,
                                capture_output=True, text=True).stdout.split("\n")
        return [root / name for name in listed if name and (root / name).is_file()]
    except (OSError, subprocess.CalledProcessError):
        return [p for p in root.rglob("*") if p.is_file() and not p.relative_to(root).parts[0].startswith(("build", "."))]


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


# The order of the layers is that of the build.
order = re.search(r"foreach\(folder ([\w ]+)\)", (root / "lib/CMakeLists.txt").read_text()).group(1).split()
layers = ["lib/Support", "dialect"] + [f"lib/{folder}" for folder in order] + ["tools"]
for folder in {p.name for p in (root / "lib").iterdir() if p.is_dir()} - {Path(layer).name for layer in layers}:
    failures.append(f"lib/{folder} is no layer of lib/CMakeLists.txt")


def layer_of(path):
    return next((i for i, layer in enumerate(layers) if path.startswith(layer + "/")), None)


rules = {p.stem for p in (root / "specs").glob("*.rec")} - {"path"}  # an English word
rules |= {name.replace("_", "") for name in rules} | {name.replace("_", "-") for name in rules}
named = re.compile(r"(?<![a-z])(" + "|".join(sorted(rules)) + r")(?![a-z])", re.IGNORECASE)
machine = re.compile(r"(?<![\w.:/])/(work|root|home|tmp)/|\.\./shared")
compiler = ("dialect/", "lib/", "mlir/", "llvm/")

for path in tracked():
    name = str(path.relative_to(root))
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        failures.append(f"{name}: is no text")
        continue
    if name != "test/layering/layering.py" and (found := machine.search(text)):
        failures.append(f"{name}: refers to a path of one machine: {found.group()}")
    if path.suffix not in CODE:
        continue
    if text.count("\n") > 500:
        failures.append(f"{name}: has {text.count(chr(10))} lines, more than 500")
    includes = INCLUDE.findall(text)
    own = layer_of(name)
    if own is not None:
        for include in includes:
            other = layer_of(include)
            if other is not None and other > own:
                failures.append(f"{name}: includes {include}, which is a layer below")
            if include.startswith("recur/") and not name.startswith(("lib/Artifact/", "lib/Driver/")):
                failures.append(f"{name}: includes {include} of the runtime")
            if include.startswith(("test/", "runtime/")):
                failures.append(f"{name}: includes {include}")
    if name.startswith("runtime/"):
        for include in includes:
            if include.startswith(compiler) or include.endswith((".hpp", "iostream")):
                failures.append(f"{name}: includes {include} of the compiler")
    if name.startswith("tools/") and not name.startswith(("tools/quickstart", "tools/bench")) and text.count("\n") > 60:
        failures.append(f"{name}: a tool is a main, not {text.count(chr(10))} lines")
    if name.startswith(("dialect/", "lib/", "runtime/", "tools/")) and not name.startswith(
            ("tools/quickstart", "tools/bench")):
        for found in named.finditer(without_comments(text)):
            failures.append(f"{name}: knows the rule '{found.group()}'")

sources = [p for p in tracked() if p.suffix in CODE - {".td"}]
formatted = subprocess.run(["clang-format-22", "--dry-run", "-Werror", *sources], capture_output=True, text=True)
for name in sorted(set(re.findall(r"^(\S+?):\d+:\d+: error: code should be clang-formatted", formatted.stderr,
                                  re.MULTILINE))):
    failures.append(f"{Path(name).relative_to(root)}: is not formatted as .clang-format says")

print("\n".join(failures))
sys.exit(bool(failures))
