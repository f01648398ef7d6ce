#!/bin/sh
# Builds Recur, then compiles six rules into one C program and runs it: tools/quickstart/recall.c.
set -eu
cd "$(dirname "$0")/.."
sh tools/build.sh

out=build/quickstart
mkdir -p "$out"
objects=""
for rule in linear_attention retnet deltanet gated_deltanet rls deltanet_loss; do
  build/bin/recurc "specs/$rule.rec" --bind dk=64,dv=64 -o "$out/$rule.o"
  objects="$objects $out/$rule.o"
done
# shellcheck disable=SC2086 # one word per object
clang-22 -std=c11 -O2 -Wall -Wextra -Werror -I "$out" -I runtime/include tools/quickstart/recall.c $objects \
  build/lib/librecur_rt.a -lm -lpthread -o "$out/recall"
"$out/recall"
