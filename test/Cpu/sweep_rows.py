"""Reads the assembly of a sweep and checks its loops over rows that read and update: the innermost loops that
store two vectors for every so many fused operations as given. They must not store to the stack, may read it only as
often as the third argument says, and broadcast no more entries than the second says for each row. Those that ask for
lines of memory ask for as many as the fourth says for every four rows, and some do where that is not 0."""
import re
import sys

operations, broadcasts = int(sys.argv[1]), int(sys.argv[2])
reads = int(sys.argv[3]) if len(sys.argv) > 3 else 0
requests = int(sys.argv[4]) if len(sys.argv) > 4 else 0
lines = [line.split("#")[0].strip() for line in sys.stdin]
places = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
loops = []
for i, line in enumerate(lines):
    jump = re.match(r"j\w+\s+(\.L\w+)$", line)
    if jump and places.get(jump.group(1), i) < i:
        loops.append((places[jump.group(1)], i))
inner = [lines[a:b] for a, b in loops if not any(a <= c and d < b for c, d in loops)]


def count(loop, pattern):
    return sum(bool(re.match(pattern, line)) for line in loop)


def fused(loop):
    return count(loop, r"v(fmadd\w*|dpbf16)ps\b.*[yz]mm")


def is_row(loop):
    """Two vectors are stored for each row, or for each of two rows of pairs. A store's last operand is memory."""
    stores = count(loop, r"vmov[au]ps\s+%[yz]mm\d+, .*\(")
    return stores and stores * operations == fused(loop) * (4 if any("dpbf16" in line for line in loop) else 2)


rows = list(filter(is_row, inner))
if not rows:
    sys.exit(f"error: there is no loop over rows with {operations} fused operations in each")
for loop in rows:
    unrolled = fused(loop) // operations
    stack = [line for line in loop if re.search(r"\(%rsp\b", line)]
    if any(line.endswith(")") for line in stack) or len(stack) > reads * unrolled:
        sys.exit(f"error: a loop over rows uses the stack: {stack}")
    found = count(loop, r"v(p?broadcast|movddup)\w*") + sum("{1to" in line for line in loop)
    if found > broadcasts * unrolled:
        sys.exit(f"error: {found} broadcasts in {unrolled} rows, more than {broadcasts} in each")
    found = count(loop, "prefetch")
    if found and found * 4 != requests * unrolled:
        sys.exit(f"error: {found} requests in {unrolled} rows, not {requests} in each four")
    print("unrolled", unrolled, "times")
if requests and not any(count(loop, "prefetch") for loop in rows):
    sys.exit("error: no loop over rows asks for lines")
