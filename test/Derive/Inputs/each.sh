# usage: each.sh PIPELINE SED-SCRIPT FILE..: runs the passes on each spec, its dimensions bound by the script.
pipeline=$1
bind=$2
shift 2
for file; do
  recurc --until-after=differentiate "$file" | sed -f "$bind" |
    recur-opt --pass-pipeline="builtin.module(recur.rule(recur-drop-assumptions,canonicalize,cse),$pipeline)" 2>&1 ||
    exit 1
done
