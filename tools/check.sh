#!/bin/sh
# Builds and runs all tests.   usage: sh tools/check.sh [--sanitize] [lit options or test paths]
# Ends with one line: N passed, N failed, N skipped.
set -eu
cd "$(dirname "$0")/.."
tree=build
if [ "${1:-}" = --sanitize ]; then
  tree=build-sanitize
  shift
  sh tools/build.sh --sanitize
else
  sh tools/build.sh
fi

lit="$(llvm-config-22 --bindir)/lit"
[ -x "$lit" ] || lit="$(llvm-config-22 --prefix)/build/utils/lit/lit.py"
status=0
paths=no
for argument in "$@"; do
  case "$argument" in -*) ;; *) paths=yes ;; esac
done
[ "$paths" = yes ] || set -- "$@" "$tree/test"
"$lit" -j "$(nproc)" --order=smart -v --output "$tree/test/results.json" "$@" || status=$?
/usr/bin/python3 - "$tree/test/results.json" <<'PY'
import collections
import json
import sys

codes = collections.Counter(test["code"] for test in json.load(open(sys.argv[1]))["tests"])
passed = codes["PASS"] + codes["XFAIL"]
skipped = codes["UNSUPPORTED"] + codes["SKIPPED"] + codes["EXCLUDED"]
print(f"{passed} passed, {sum(codes.values()) - passed - skipped} failed, {skipped} skipped")
PY
exit $status
