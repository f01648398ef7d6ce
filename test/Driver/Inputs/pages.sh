# Writes a page for every spec.   usage: pages.sh SPECS FOLDER
rm -rf "$2" && mkdir "$2"
for spec in "$1"/*.rec; do
  recurc explain "$spec" -o "$2/$(basename "$spec" .rec).html" 2>> "$2/warnings" || exit 1
done
