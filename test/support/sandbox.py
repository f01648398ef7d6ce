"""Runs recurc in an empty folder of its own."""
import subprocess
import sys
import tempfile
from pathlib import Path

CARD = "S = a*S*(I - b*k*kT) + b*v*kT; o = S*q\n"
SIZES = ["--bind", "dk=4,dv=3"]


class Sandbox:
    """A temporary folder with card.rec in it, and the commands that are run there."""

    def __init__(self, recurc):
        self.recurc = Path(recurc).resolve()
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.failures = 0
        self.write("card.rec", CARD)

    def write(self, name, content):
        """Write a file: text, or bytes as they are."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def run(self, *arguments, stdin=b""):
        """Run recurc; its exit code, standard output and standard error."""
        done = subprocess.run([self.recurc, *arguments], cwd=self.folder, input=stdin, capture_output=True,
                              timeout=300)
        return done.returncode, done.stdout, done.stderr.decode(errors="replace")

    def files(self):
        """The files of the folder with their bytes."""
        return {str(p.relative_to(self.folder)): p.read_bytes() for p in self.folder.rglob("*") if p.is_file()}

    def expect(self, condition, what):
        """Count and print a failure unless the condition holds."""
        if not condition:
            self.failures += 1
            print(f"FAIL {what}", flush=True)

    def expect_error(self, arguments, code, message, stdin=b""):
        """The command fails with that exit code and one error, which contains the message, and leaves no file."""
        before = self.files()
        found, out, err = self.run(*arguments, stdin=stdin)
        what = f"recurc {' '.join(arguments)[:200]}\n  expected {code}: {message}\n  got {found}: {err[:600]}"
        errors = [line for line in err.splitlines() if "error: " in line]
        self.expect(found == code and len(errors) == 1 and message in errors[0] and not out, what)
        self.expect(self.files() == before, f"{what}\n  and files changed: {before.keys() ^ self.files().keys()}")

    def finish(self):
        """Exit with the outcome."""
        sys.exit(self.failures != 0)
