"""Every spec of the zoo compiles to an object and a header, and `check` runs: how long it takes and how much memory.
usage: compile.py RECURC SPECS"""
import os
import sys
import time
from pathlib import Path

from sandbox import Sandbox
from specs import REFUSAL, sizes

box = Sandbox(sys.argv[1])


def measure(*arguments):
    """Run recurc; its exit code, seconds of processor time, seconds of wall time, MiB of memory."""
    begin = time.monotonic()
    pid = os.posix_spawn(box.recurc, [str(box.recurc), *map(str, arguments)], os.environ, file_actions=[
        (os.POSIX_SPAWN_OPEN, 1, str(box.folder / "out"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        (os.POSIX_SPAWN_OPEN, 2, str(box.folder / "err"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)])
    _, status, usage = os.wait4(pid, 0)
    return (os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, time.monotonic() - begin,
            usage.ru_maxrss / 1024)


rows = []
for path in sorted(Path(sys.argv[2]).glob("*.rec")):
    code, seconds, wall, memory = measure("check", path)
    box.expect(code == 0, f"{path.stem} does not check")
    row = f"{path.stem:28} check {1e3 * seconds:5.0f} ms ({1e3 * wall:5.0f} ms wall)"
    bind = [option.replace("=6", "=64").replace("=5", "=64") for option in sizes(box, path)]
    code, seconds, wall, memory = measure(path, *bind, "-o", box.folder / f"{path.stem}.o")
    if code == 1 and REFUSAL in (box.folder / "err").read_text():
        print(row + "   not compiled yet")
        continue
    box.expect(code == 0 and (box.folder / f"{path.stem}.h").exists(), f"{path.stem}: exit code {code}")
    rows.append((seconds, memory, path.stem))
    print(row + f"   compile {1e3 * seconds:5.0f} ms ({1e3 * wall:5.0f} ms wall) {memory:4.0f} MiB")
print(f"slowest: {max(rows)[2]}, {max(rows)[0]:.2f} s; largest: {max(row[1] for row in rows):.0f} MiB")
box.finish()
