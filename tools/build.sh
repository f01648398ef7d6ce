#!/bin/sh
# Installs what is missing (Debian 12 packages) and builds into build/.   usage: sh tools/build.sh [--sanitize]
# With --sanitize the tree is build-sanitize/, with AddressSanitizer and UBSan.
set -eu
cd "$(dirname "$0")/.."

packages="llvm-22-dev llvm-22-tools libmlir-22-dev mlir-22-tools clang-22 clang-format-22 lld-22 libclang-rt-22-dev \
libfmt-dev libgtest-dev python3-numpy cmake ninja-build ccache zlib1g-dev libzstd-dev"
missing=""
for package in $packages; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
  if [ "$(id -u)" = 0 ]; then as_root=""
  elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then as_root="sudo"
  else
    echo "error: these packages are missing, and neither root nor sudo is available:$missing" >&2
    exit 1
  fi
  $as_root apt-get update -q
  # shellcheck disable=SC2086 # one word per package
  DEBIAN_FRONTEND=noninteractive $as_root apt-get install -q -y --no-install-recommends $missing
fi

tree=build
options="-DRECUR_SANITIZE=OFF"
if [ "${1:-}" = --sanitize ]; then
  tree=build-sanitize
  options="-DRECUR_SANITIZE=ON"
fi
if [ ! -f "$tree/build.ninja" ]; then
  cmake -S . -B "$tree" -G Ninja -DCMAKE_C_COMPILER=clang-22 -DCMAKE_CXX_COMPILER=clang++-22 \
    -DMLIR_DIR="$(llvm-config-22 --prefix)/lib/cmake/mlir" $options
fi
# ccache needs to be told that a precompiled header is worth caching.
CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
export CCACHE_SLOPPINESS
cmake --build "$tree"
