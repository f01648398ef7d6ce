# Runs the text tests: every file with a RUN line.
import os
import shutil
import subprocess

import lit.formats

config.name = "recur"
config.test_format = lit.formats.ShTest(False)
config.suffixes = [".mlir", ".rec", ".test"]
config.excludes = ["Inputs"]
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = os.path.join(config.recur_build, "test")

bin_path = os.path.join(config.recur_build, "bin")
config.environment["PATH"] = os.pathsep.join([bin_path, config.llvm_bin, os.environ["PATH"]])
config.environment["PYTHONPATH"] = os.path.join(config.test_source_root, "support")
config.environment["PYTHONDONTWRITEBYTECODE"] = "1"
config.environment["FILECHECK_OPTS"] = "-enable-var-scope"
config.substitutions.append(("%specs", os.path.join(os.path.dirname(config.test_source_root), "specs")))
config.substitutions.append(("%root", os.path.dirname(config.test_source_root)))
config.substitutions.append(("%build", config.recur_build))
config.substitutions.append(("%python", "/usr/bin/python3"))
config.substitutions.append(("%mlir", os.path.join(os.path.dirname(config.llvm_bin), "lib", "cmake", "mlir")))
config.substitutions.append(("%cc", config.cc))
config.substitutions.append(("%cxx", config.cxx))
# What a program needs that links the runtime of this build.
config.substitutions.append(("%sanitizers", "-fsanitize=address,undefined" if config.sanitize else ""))
if shutil.which("ptxas") or os.path.exists("/usr/local/cuda/bin/ptxas"):
    config.available_features.add("ptxas")


def find_gpu():
    """The target of this machine's GPU, if there is a Python whose torch sees it."""
    if not shutil.which("nvidia-smi"):
        return None
    ask = "import torch; print(''.join(map(str, torch.cuda.get_device_capability())))"
    found = subprocess.run(["python3", "-c", ask], capture_output=True, text=True)
    return f"sm_{found.stdout.strip()}" if found.returncode == 0 else None


gpu = find_gpu()
if gpu:
    config.available_features.add("gpu")
    config.substitutions.append(("%{gpu-python}", shutil.which("python3")))
    config.substitutions.append(("%{gpu-target}", "sm_90a" if gpu == "sm_90" else "sm_80"))
if config.sanitize:
    config.available_features.add("sanitize")
    config.environment["ASAN_OPTIONS"] = "detect_leaks=0:detect_container_overflow=0:allow_user_poisoning=0"
