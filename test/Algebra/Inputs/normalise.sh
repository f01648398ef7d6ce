# usage: normalise.sh SPEC: the normal form of a spec, micro-steps unrolled to three.
recurc --until-after=differentiate "$1" | sed 's/<n x \([a-z0-9]*\) x 1>/<3 x \1 x 1>/g; s/to n iter/to 3 iter/' |
  recur-opt --pass-pipeline='builtin.module(recur.rule(recur-drop-assumptions,canonicalize,cse,recur-normalise))'
