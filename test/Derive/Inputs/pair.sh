# usage: pair.sh A B: compares the rules of two modules.
rules() { sed '/^module {$/d; /^}$/d' "$1"; }
{ rules "$1"; rules "$2" | sed 's/recur.rule @[a-z_]*/recur.rule @other/'; } |
  recur-opt --pass-pipeline='builtin.module(recur.rule(recur-drop-assumptions),recur-diff)'
