"""Rules drawn at random, compiled and compared with the oracle.

    random_rules.py FIRST LAST [OPTION ..]

draws the rules of the seeds from FIRST up to LAST, runs `recurc verify` with the options, which are those of an
emulated H200 and bf16 where there are none, and fails with the seeds whose code is wrong. A rule's errors may be
three times their budgets: budgets are estimates, and drawn rules may read what they have just erased."""
import json
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

MARGIN = 3
OPTIONS = ["--dtype=bf16", "--target=sm_90a", "--emulate"]
RANGE = {"a": " in [0, 1]", "b": " in [0, 1]", "c": " in [0, 1]", "m": " in [0, 1]", "d": " in [-1, 1]"}
SHAPES = {"q": "vector(dk)", "k": "vector(dk)", "p": "vector(dk)", "v": "vector(dv)", "w": "vector(dv)",
          "z": "vector(dv)", "a": "scalar", "b": "scalar", "c": "scalar", "m": "scalar", "h": "vector(dk)[n]",
          "u": "vector(dv)[n]", "A": "matrix(dk, n)", "U": "matrix(dv, n)", "d": "vector(dk)", "f": "vector(dk)"}


class Draw:
    """One rule: what is done to a state in turn, where outputs are read, and what stands beside it."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.decay = self.pick("none", "number", "number", "log", "log", "constant", "keys", "keys", "both", "values")
        self.keys = ["k", "p"][:self.pick(1, 2)]
        self.memories = "S"  # that outputs are read of
        self.isTurned = self.chance(0.2)  # the state's keys are its rows
        self.text = self.frozen(self.draw(), random.Random(f"{seed} frozen"))
        own = random.Random(f"{seed} abreast")
        if own.random() < 0.06:  # drawn apart, so that other seeds' rules stay what they are
            self.random, self.memories, self.isTurned = own, "S", own.random() < 0.2
            self.decay, self.keys = "keys", ["k", "p"][:self.pick(1, 1, 2)]
            self.text = self.rule(self.abreast())
        self.text = self.mapped(self.text, random.Random(f"{seed} mapped"))

    def pick(self, *of):
        return self.random.choice(of)

    def chance(self, share):
        return self.random.random() < share

    def read(self, state, vector):
        return f"{state}.T*{vector}" if self.isTurned else f"{state}*{vector}"

    def outer(self, value, key):
        return f"{key}*({value}).T" if self.isTurned else f"({value})*{key}.T"

    def decayed(self, state):
        keys, values = {"keys": "exp(g)", "both": "(a*exp(g))"}.get(self.decay), self.decay == "values" and "exp(g)"
        number = {"number": "a*", "log": "exp(g)*", "constant": "0.9*"}.get(self.decay, "")
        left, right = (keys, values) if self.isTurned else (values, keys)
        return number + (f"diag({left})*" if left else "") + state + (f"*diag({right})" if right else "")

    def change(self, state, old):
        """What a statement adds to a state, which it reads as `old`."""
        key, number, value = self.pick(*self.keys), self.pick("b", "c", "1/2*c"), self.pick("v", "v", "w")
        return self.pick(
            f" - {number}*{self.outer(f'{self.read(old, key)} - {value}', key)}",
            f" - {number}*{self.outer(f'{self.read(old, key)} - {value}', key)}",
            f" - {number}*{self.outer(self.read(old, key), key)}",
            f" + {self.outer(value, key)}",
            f" + {number}*{self.outer(value, key)}")

    def updates(self):
        """Statements that change the state, and where its decay stands among them."""
        kind = self.random.random()
        if kind < 0.08:  # momentum
            step = self.change("", "S")
            return [f"M = m*M{step}", f"S = {self.decayed('S')} + M"]
        if kind < 0.13 and self.decay in ("none", "number", "log", "constant"):  # two memories that share an error
            key = self.pick(*self.keys)
            first, second = self.pick(("T", "S"), ("1/2*T", "S"), ("b*T", "c*S"), ("T", "-S"))
            self.memories = self.pick("S", "T", "(S + T)")
            return [f"e = {self.read(f'({first} + {second})', key)} - v",
                    f"T = m*T - 1/2*b*{self.outer('e', key)}", f"S = {self.decayed('S')} - 1/4*{self.outer('e', key)}"]
        if kind < 0.17:  # several steps along one vector
            key, count = self.pick(*self.keys), self.pick(2, 3, 5)
            step = f" - 1/2*b*{self.outer(self.read('S', key) + ' - v', key)}"
            loop = f"for j in 1..{count} {{\n  S = S{step}\n}}"
            return self.pick([f"S = {self.decayed('S')}", loop], [loop, f"S = {self.decayed('S')}"])
        if kind < 0.25 and self.decay != "values":  # micro-steps
            step = self.outer(f"{self.read('S', 'x')} - u[j]", "x")
            loop = f"for j in 1..n {{\n  x = l2norm(h[j])\n  S = S - b*{step}\n}}"
            return [f"S = {self.decayed('S')}", loop] if self.decay != "none" else [loop]
        if kind < 0.31 and not self.isTurned:  # columns
            lines = ["S = S - 1/4*(S*A - U)*A.T"] + [f"S = S{self.change('S', 'S')}"][:self.pick(0, 0, 1)]
        else:
            lines = [f"S = S{self.change('S', 'S')}" for _ in range(self.pick(1, 1, 2, 2, 3))]
        if self.decay == "none":
            return lines
        kind = self.random.random()
        if kind < 0.5:
            return [f"S = {self.decayed('S')}"] + lines
        if kind < 0.75:  # in one statement: what is read has not decayed, or has
            old = self.pick("S", f"({self.decayed('S')})")
            return [f"S = {self.decayed('S')}{self.change('S', old)}"] + lines[1:]
        lines.insert(self.random.randrange(len(lines) + 1), f"S = {self.decayed('S')}")
        return lines

    def abreast(self):
        """Statements that change two states which each key couples by itself."""
        def decayed(state, gate):
            if gate in ("m", "0.9"):
                return f"{gate}*{state}"
            return f"diag({gate})*{state}" if self.isTurned else f"{state}*diag({gate})"

        keys = self.pick("exp(g)", "exp(g)", "(a*exp(g))", "sigmoid(f)", "d")
        gate = self.pick("m", "m", "0.9", keys, "exp(g)")
        kind = self.random.random()
        if kind < 0.4:  # momentum
            return [f"M = {decayed('M', gate)}{self.change('', 'S')}",
                    f"S = {decayed('S', keys)} {self.pick('+ M', '+ M', '+ 1/2*M', '+ b*M')}"]
        change = self.change("", "S")
        if kind < 0.7:  # an average
            self.memories = self.pick("M", "M", "S", "(S + M)")
            return [f"S = {decayed('S', keys)}", f"S = S{change}", f"M = {decayed('M', gate)} + (1 - m)*S"]
        number = self.pick("a", "0.7")  # a complex number for each key, which makes what is there smaller
        cosine, sine = self.pick((f"({number}*cos(f))", f"({number}*sin(f))"), ("(0.7*d)", "(0.7*sigmoid(f))"))
        return [f"X = {decayed('S', cosine)} - {decayed('M', sine)}{change}",
                f"M = {decayed('S', sine)} + {decayed('M', cosine)}", "S = X"]

    def output(self):
        read = self.read(self.memories, "q")
        return self.pick(read, read, read, f"dk^(-1/2)*{read}", f"rmsnorm({read})", f"{read} + c*v",
                         f"silu(z).*({read})", f"c*({read})")

    def draw(self):
        return self.rule(self.updates())

    def rule(self, lines):
        """The rule whose token does what the lines do: with outputs, and what they name."""
        if not re.search(r"\b[vwuU]\b", "".join(lines)):  # of what only vanishes, f16 loses more than is left
            lines.append(f"S = S + {self.outer('v', 'k')}")
        at = len(lines) if self.chance(0.7) else self.random.randrange(len(lines) + 1)
        lines.insert(at, f"o = {self.output()}")
        if self.chance(0.1):
            lines.insert(self.random.randrange(len(lines) + 1), f"y = {self.read('S', self.pick('q', 'k'))}")
        if self.chance(0.08):
            lines += [self.pick("N = a*N + k", "N = a*N - b*(N.T*k - 1)*k"), "o = o/max(abs(N.T*q), 1)"]
        if self.chance(0.08):
            lines += [f"T = a*T + {self.outer('v', 'k')}", f"o = o + {self.read('T', 'q')}"]
        made = self.pick(["l2norm(@)"], ["l2norm(@)"], ["l2norm(silu(@))"], ["rope(l2norm(@))"])
        first = [f"{key} = {made[0].replace('@', key)}" for key in self.keys]
        first += [self.pick("q = l2norm(q)", "q = silu(q)")][:self.pick(0, 1)]
        first += ["A = l2norm(A.T).T"] if "A.T" in "".join(lines) else []
        body = "\n".join(first + lines)

        def names(name):
            return re.search(rf"(?<![A-Za-z_.]){name}(?![A-Za-z_])", body)

        head = [f"input {name} : {shape}{RANGE.get(name, '')}" for name, shape in SHAPES.items() if names(name)]
        if names("g"):
            shape = {"log": "scalar", "values": "vector(dv)"}.get(self.decay, "vector(dk)")
            head.append(f"input g : {shape} in {self.pick('[-1, 0]', '[-5, 0]', '(-inf, 0]')}")
        matrix = "matrix(dk, dv)" if self.isTurned else "matrix(dv, dk)"
        head += [f"state {name} : {matrix}" for name in "SMT" if names(name)]
        head += ["state N : vector(dk)"] if names("N") else []
        head.append("output " + ", ".join(name for name in "oy" if names(name)))
        return "\n".join(head) + "\n\n" + body + "\n"

    @staticmethod
    def frozen(text, own):
        """A few rules read the state as it was at the start of a block; drawn apart, so that the rest of a seed's rule
        stays what it is."""
        if own.random() >= 0.08:
            return text
        block = own.choice([2, 4, 8, 16, 16, 32, 64, 128])
        head, body = text.rsplit("\n\n", 1)
        body = re.sub(r"\bS(\.T)?\*(?=[kpqx]\b)",
                      lambda read: read[0] if own.random() < 0.3 else f"S@{block}{read[1] or ''}*", body)
        return f"{head}\n\n{body}"

    @staticmethod
    def mapped(text, own):
        """A few rules write functions of their errors; drawn apart, too."""
        if own.random() >= 0.06:
            return text
        function = own.choice(["tanh(@)", "clamp(@, -1/2, 1/2)", "silu(@)", "(@)./sqrt(1 + (@).*(@))",
                               "sigmoid(w).*(@)./(1 + abs(@))"])
        head, body = text.rsplit("\n\n", 1)
        part = r"(?:[^()]|\((?:[^()]|\([^()]*\))*\))*"
        body = re.sub(rf"\(({part}[STM]{part} - (?:[vw]|u\[j\]))\)",
                      lambda error: f"({function.replace('@', error[1])})", body)
        declared = re.search(r"^input w\b", head, re.M) or not re.search(r"\bw\b", body)
        return f"{head}\n\n{body}" if declared else f"input w : vector(dv)\n{head}\n\n{body}"


def verify(seed, folder, options):
    """What is wrong with a seed's rule, or nothing; and the form that it was compiled to."""
    draw = Draw(seed)
    source = Path(folder, f"random{seed}.rec")
    source.write_text(draw.text)
    dims = draw.pick("dk=64,dv=64", "dk=64,dv=64", "dk=128,dv=64", "dk=40,dv=72")
    dims += ",n=" + str(draw.pick(2, 2, 3)) if re.search(r"\bn\b", draw.text) else ""
    command = ["recurc", "verify", source, "--bind", dims, f"--tokens={draw.pick(70, 70, 33, 150)}",
               f"--heads={draw.pick(1, 2)}", "--proofs=1", "--json", "-Wno-numerics", "-Wno-perf", "-Wno-spectral",
               "-Wno-unused", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        found = json.loads(done.stdout)
    except json.JSONDecodeError:
        return f"status {done.returncode}: {done.stderr.strip()}", "none"
    if not found["chunk_form"].get("equal", True) or "internal error" in done.stderr:
        return done.stderr.strip(), found["form"]
    wrong = [f"{row['value']} on {row['inputs']} inputs: {row['forward_error']}, budget {row['budget']}"
             for row in found["rows"] if isinstance(row["budget"], float) and not row["passed"]
             and not (isinstance(row["forward_error"], float) and row["forward_error"] <= MARGIN * row["budget"])]
    return "; ".join(wrong), found["form"]


def main():
    first, last = int(sys.argv[1]), int(sys.argv[2])
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(first, last):
            problem, form = verify(seed, scratch, sys.argv[3:] or OPTIONS)
            print(f"{seed}: {form}" + (f"\n{problem}\n{Draw(seed).text}" if problem else ""), flush=True)
            failed += bool(problem)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
