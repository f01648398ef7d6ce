"""Random rules as papers have them: decays, reads, writes and readouts put together in ways that no paper has.

    /usr/bin/python3 test/fuzz/rules.py SEED      prints one

generate.py makes any well-formed spec; this one makes sensible recurrences, most of which have a chunk form: what is
erased goes along vectors of norm 1, by strengths that keep the state of one size. Equal seeds give equal rules;
try_rules.py takes them through the compiler. Those from NEWER on may read a state again along what they have read of
it, and decay by what other states say: with those before, seeds that are written down would give other rules. From
NEEDING on, most have states that need each other.
"""
import random
import sys

COLUMNS = (1, 2, 3, 4, 8)
NEWER, NEEDING = 40000, 50000


class Maker:
    """Writes one rule: declarations as they are needed, then the statements of a token."""

    def __init__(self, seed):
        self.random = random.Random(f"rule {seed}")
        self.declared = {}
        self.before = []  # functions of the token
        self.body = []  # updates and reads
        self.after = []  # what later tokens are handed
        self.dims = {"dk", "dv"}
        self.keys, self.values, self.states = [], [], ["S"]
        self.count = 0
        self.slots = False
        self.few = self.random.choice(COLUMNS)
        self.steps = self.random.choice((2, 2, 3))
        self.plain = self.chance(0.6)  # few parts, so that most forms take it
        self.newer, self.needing = seed >= NEWER, seed >= NEEDING

    def chance(self, p):
        return self.random.random() < p

    def pick(self, *choices):
        return self.random.choice(choices)

    def name(self, prefix):
        self.count += 1
        return f"{prefix}{self.count}"

    def declare(self, kind, prefix, shape, more=""):
        name = self.name(prefix)
        self.declared[name] = f"{kind} {name} : {shape}{more}"
        return name

    def let(self, prefix, text):
        name = self.name(prefix)
        self.before.append(f"{name} = {text}")
        return name

    # Values of a token

    def vector(self, dim, prefix):
        """A vector: an input, one that is convolved, mixed with the last token's, or a product with a param."""
        x = self.declare("input", prefix, f"vector({dim})")
        if self.plain or self.chance(0.6):
            return x
        w = lambda: self.declare("param", "w", f"vector({dim})")
        if self.chance(0.3):
            self.dims.add("d")
            self.declared[x] = f"input {x} : vector(d)"
            return f"({self.declare('param', 'W', f'matrix({dim}, d)')}*{x})"
        if self.chance(0.5):
            last, other = self.declare("state", "l", f"vector({dim})"), self.declare("state", "l", f"vector({dim})")
            self.after += [f"{other} = {last}", f"{last} = {x}"]
            return self.let(prefix, f"silu({w()}.*{x} + {w()}.*{last} + {w()}.*{other})")
        last, mixed = self.declare("state", "l", f"vector({dim})"), w()
        self.after.append(f"{last} = {x}")
        return self.let(prefix, f"{x} + {mixed}.*({last} - {x})")

    def unit(self, dim):
        """A vector of norm 1."""
        old = self.keys if dim == "dk" else []
        if old and self.chance(0.5):
            return self.random.choice(old)
        how = "unit" if self.chance(0.2) else self.pick("l2norm", "l2norm", "l2norm", "silu", "rope")
        if how == "unit":
            key = self.declare("input", "k", f"vector({dim})", " unit")
        else:
            x = self.vector(dim, "k" if dim == "dk" else "x")
            if how == "silu":
                x = f"silu({x})"
            turned = how == "rope" and dim == "dk"
            key = self.let("k", f"rope(l2norm({x}))" if turned else f"l2norm({x})")
        old.append(key)
        return key

    def value(self):
        if self.values and self.chance(0.4):
            return self.random.choice(self.values)
        v = self.vector("dv", "v")
        if not v.isidentifier():
            v = self.let("v", v[1:-1])
        self.values.append(v)
        return v

    def rate(self, most="1"):
        """A strength between 0 and `most`."""
        kind = self.pick("input", "input", "sigmoid", "const")
        if kind == "input":
            return self.declare("input", "b", "scalar", f" in [0, {most}]")
        if kind == "const":
            return self.pick("0.25", "0.5")
        b = f"sigmoid({self.declare('input', 'b', 'scalar')})"
        return b if most == "1" else f"{most}*{b}"

    def strength(self, most="1"):
        """A rate, at times one for each value."""
        if self.chance(0.12):
            return f"diag({self.declare('input', 'b', 'vector(dv)', f' in [0, {most}]')})"
        return self.rate(most)

    # Decays

    def remembered(self, shape, dim=None):
        """What a state of numbers or vectors says, between 0 and 1: an average, a maximum, or a function of itself."""
        m, a, x = self.name("m"), self.rate(), self.declare("input", "x", shape)
        self.declared[m] = f"state {m} : {shape}"
        kind = self.pick("average", "average", "function", "function", "maximum" if dim is None else "norm")
        self.before.append({"average": f"{m} = {a}*{m} + (1 - {a})*{x}.*{x}" if dim else f"{m} = {a}*{m} + {x}*{x}",
                            "function": f"{m} = tanh({a}*{m} + {x})", "maximum": f"{m} = max({a}*{m}, {x})",
                            "norm": f"{m} = {a}*{m} + {x}/sqrt(1 + dot({m}, {x})^2)"}[kind])
        return f"exp(-{m})" if kind == "average" else f"sigmoid({m} + 1)"

    def scalar_decay(self):
        if self.newer and self.chance(0.3):
            return self.remembered("scalar")
        number = lambda kind, prefix: self.declare(kind, prefix, "scalar")
        log = lambda: self.declare("input", "g", "scalar", f" in {self.pick('(-inf, 0]', '(-inf, 0]', '[-5, 0]')}")
        choices = {
            "log": lambda: f"exp({log()})",
            "plain": lambda: self.declare("input", "a", "scalar", " in [0, 1]"),
            "open": lambda: self.declare("input", "a", "scalar", " in (0, 1)"),
            "signed": lambda: self.declare("input", "a", "scalar", " in [-1, 1]"),
            "const": lambda: self.pick("0.9", "(1 - 2^(-3 - head))"),
            "softplus": lambda: f"exp(-softplus({number('input', 'x')}))",
            "mamba": lambda: f"exp(-exp({number('param', 'A')})*"
                             f"softplus({number('input', 'x')} + {number('param', 'c')}))",
            "sigmoid": lambda: f"sigmoid({number('input', 'x')} + 2)",
            "power": lambda: f"sigmoid({number('input', 'x')})^(1/8)",
            "tanh": lambda: f"tanh({number('input', 'x')})",
            "sum": lambda: f"(1 - {self.rate()})",
        }
        return choices[self.random.choice(["log"] * 4 + ["plain", "plain", "signed"] + list(choices))]()

    def vector_decay(self, dim):
        if self.newer and self.chance(0.5):
            return self.let("a", self.remembered(f"vector({dim})", dim))
        range_of = lambda: self.pick("(-inf, 0]", "[-5, 0]", "[-1, 0]")
        log = lambda: self.declare("input", "g", f"vector({dim})", f" in {range_of()}")
        kind = self.pick("log", "log", "log", "sigmoid", "softplus", "plain", "signed", "low rank")
        if kind == "low rank" and not self.plain:
            self.dims |= {"d", "m"}
            x = self.declare("input", "x", "vector(d)")
            inner = self.declare("param", "A", "matrix(m, d)")
            low = f"{self.declare('param', 'B', f'matrix({dim}, m)')}*tanh({inner}*{x})"
            return self.let("a", f"exp(-exp({self.declare('param', 'w', f'vector({dim})')} - 1 + ({low})/8))")
        if kind == "sigmoid":
            return self.let("a", f"sigmoid({self.declare('input', 'x', f'vector({dim})')} + 2)")
        if kind == "softplus":
            return self.let("a", f"exp(-softplus({self.declare('input', 'x', f'vector({dim})')}))")
        if kind == "plain":
            return self.declare("input", "a", f"vector({dim})", " in [0, 1]")
        if kind == "signed":
            return self.declare("input", "a", f"vector({dim})", " in [-1, 1]")
        return self.let("a", f"exp({log()})")

    def decayed(self, state):
        """The state, decayed."""
        kind = self.pick("none", "scalar", "scalar", "scalar", "keys", "values") if self.plain else self.pick(
            "none", "scalar", "scalar", "scalar", "two", "keys", "values", "both", "outer", "mixed")
        if kind == "none":
            return state
        if kind == "scalar":
            return f"{self.scalar_decay()}*{state}"
        if kind == "two":
            return f"{self.scalar_decay()}*{self.scalar_decay()}*{state}"
        if kind == "keys":
            return f"{state}*diag({self.vector_decay('dk')})"
        if kind == "values":
            return f"diag({self.vector_decay('dv')})*{state}"
        if kind == "both":
            return f"diag({self.vector_decay('dv')})*{state}*diag({self.vector_decay('dk')})"
        if kind == "outer":
            return f"({self.vector_decay('dv')}*{self.vector_decay('dk')}.T).*{state}"
        return f"{self.scalar_decay()}*{state}*diag({self.vector_decay('dk')})"

    # Updates

    def taps(self):
        """A key and a value of the token before."""
        k, v = self.unit("dk"), self.value()
        last_k, last_v = self.declare("state", "lk", "vector(dk)"), self.declare("state", "lv", "vector(dv)")
        self.after += [f"{last_k} = {k}", f"{last_v} = {v}"]
        return last_k, last_v

    def few_columns(self, dim, rows):
        """A matrix of few columns, or rows, as its columns would stand in a product: X of X*B.T."""
        self.dims.add("r")
        shape = f"matrix(r, {dim})" if rows else f"matrix({dim}, r)"
        return self.declare("input", "X" if dim == "dv" else "B", shape)

    def columns(self, state, reads):
        rows = self.chance(0.5)
        X, B = self.few_columns("dv", rows), self.few_columns("dk", rows)
        if not reads:
            rate = self.pick("", f"{self.rate()}*")
            return [f"{state} = {state} + {rate}{X}.T*{B}" if rows else f"{state} = {state} + {rate}{X}*{B}.T"]
        K = self.let("K", f"l2norm({B})" if rows else f"l2norm({B}.T).T")
        strength = f"{self.rate()}/r"
        if rows:
            return [f"{state} = {state} - {strength}*({state}*{K}.T - {X}.T)*{K}"]
        return [f"{state} = {state} - {strength}*({state}*{K} - {X})*{K}.T"]

    def update(self, state):
        """Statements that change a state in one way."""
        kind = self.pick(*["write", "tap", "columns", "read columns"] * 2, *["delta"] * 4, "one line", "two", "two keys",
                         "dplr", "comba", "tap delta", "micro", "values", "gradient", "oja", "rotated")
        b, k, v = self.strength, self.unit, self.value
        if kind == "write":
            return [f"{state} = {state} + {self.pick('', self.rate() + '*')}{v()}*{k('dk')}.T"]
        if kind == "delta":
            x = k("dk")
            return [f"{state} = {state} + {b()}*({v()} - {state}*{x})*{x}.T"]
        if kind == "one line":
            x, s = k("dk"), self.rate()
            return [f"{state} = {self.decayed(state)}*(I - {s}*{x}*{x}.T) + {s}*{v()}*{x}.T"]
        if kind == "two":
            x, y = k("dk"), k("dk")
            return [f"{state} = {state} + {b('0.5')}*({v()} - {state}*{x})*{x}.T"
                    f" + {b('0.5')}*({v()} - {state}*{y})*{y}.T"]
        if kind == "two keys":
            x, s = k("dk"), b()
            return [f"{state} = {state} - {s}*{state}*{x}*{x}.T + {v()}*{k('dk')}.T"]
        if kind == "dplr":
            return [f"{state} = {state} - {self.rate('0.3')}*({state}*{k('dk')})*{k('dk')}.T + {v()}*{k('dk')}.T"]
        if kind == "comba":
            x, s = k("dk"), self.rate("0.5")
            return [f"{state} = {self.scalar_decay()}*{state} - {s}*{state}*({self.rate()}*{x})*{x}.T"
                    f" + {s}*{v()}*{x}.T"]
        if kind == "tap":
            lk, lv = self.taps()
            return [f"{state} = {state} + {self.rate()}*{lv}*{lk}.T"]
        if kind == "tap delta":
            lk, lv = self.taps()
            return [f"{state} = {state} + {self.rate()}*({lv} - {state}*{lk})*{lk}.T"]
        if kind in ("columns", "read columns"):
            return self.columns(state, kind == "read columns")
        if kind == "micro":
            self.dims.add("n")
            x, y = self.declare("input", "y", "vector(dk)[n]"), self.declare("input", "u", "vector(dv)[n]")
            z = self.declare("input", "z", "scalar[n]", " in [0, 1]")
            step = self.pick(f"{state} = {state} + {z}[j]*({y}[j] - {state}*kj)*kj.T",
                             f"{state} = {state} + {z}[j]*({y}[j] - {state}*kj)*kj.T",
                             f"{state} = {z}[j]*{state} + {y}[j]*kj.T")
            return [f"for j in 1..n {{ kj = l2norm({x}[j]); {step} }}"]
        if kind == "values":
            x, s = k("dv"), self.rate()
            return [f"{state} = {state} - {s}*{x}*({x}.T*{state}) + {s}*{x}*{k('dk')}.T"]
        if kind == "gradient":
            loss = f"1/2*|{state}*{k('dk')} - {v()}|^2" + self.pick("", f" + 1/20*|{state}|^2")
            return [f"{state} = {state} - {self.rate()}*grad({loss}, {state})"]
        if kind == "oja":
            x = k("dv")
            return [f"{state} = {state} + {self.rate()}*{x}*({k('dk')} - {state}.T*{x}).T"]
        # What the last token wrote decays with the state; its key turns on.
        lk, lv = self.taps()
        return [f"{state} = {self.scalar_decay()}*({state} + {self.rate()}*{lv}*{lk}.T) + {v()}*{k('dk')}.T"]

    def main(self, state):
        decayed = self.decayed(state)
        if decayed != state:
            self.body.append(f"{state} = {decayed}")
        for _ in range(self.pick(1, 1, 2) if self.plain else self.pick(1, 1, 2, 3)):
            self.body += self.update(state)

    def needed(self):
        """A vector, or a matrix with keys of its own, that the state needs and that needs it; what it adds to outputs."""
        say, x, v, y = self.body.append, self.unit("dk"), self.value(), self.unit("dk")
        a, b = self.scalar_decay(), self.rate("0.5")
        other = self.pick(a, a, self.rate(), "0.9")
        kind = self.pick("bias", "bias", "smoothed", "feedback", "keys", "squashed")
        shape = "matrix(dv, dk)" if kind == "keys" else "vector(dv)"
        first = f" = {self.declare('param', 'c', shape)}" if self.chance(0.3) else ""
        self.declared["c"] = f"state c : {shape}{first}"
        if kind == "smoothed":
            say(f"c = {other}*c + 0.5*({v} - S*{x})")
            say(f"S = {a}*S + {b}*c*{x}.T")
            return ""
        if kind == "feedback":
            say(f"S = {a}*S + {b}*({v} + {self.rate('0.5')}*c)*{x}.T")
            say(f"c = 0.5*c + S*{y}")
            return self.pick("", " + c")
        read = f"S*{x} + c" + (f"*{y}" if kind == "keys" else "")
        say(f"e = {f'tanh({read})' if kind == 'squashed' else read} - {v}")
        say(f"S = {a}*S - {b}*e*{x}.T")
        say(f"c = {other}*c - {b}*e" + (f"*{y}.T" if kind == "keys" else ""))
        return " + c" + ("*q" if kind == "keys" else "")

    def more_states(self):
        """A second state, coupled to the first in one of the ways that are known."""
        kind = self.pick(*["none"] * (8 if self.plain else 3), "momentum", "nesterov", "cascade", "fed", "two", "keys",
                         "complex", "coupled", "slots")
        state = lambda name: self.declared.setdefault(name, f"state {name} : matrix(dv, dk)")
        say = self.body.append
        reads = ["S"]
        if kind in ("none", "cascade", "fed", "two", "keys", "slots"):
            self.main("S")
        if kind in ("momentum", "nesterov"):
            state("M")
            x, v, rate = self.unit("dk"), self.value(), self.rate()
            at = "S"
            if kind == "nesterov":
                say("Z = S + 0.5*M")
                at = "Z"
            say(f"M = {self.pick(self.decayed('M'), self.scalar_decay() + '*M')} - {rate}*({at}*{x} - {v})*{x}.T")
            say(f"S = {self.pick('S', self.scalar_decay() + '*S', '(1 - ' + self.rate('0.5') + ')*S')} + M")
        elif kind in ("cascade", "fed"):
            state("R")
            c = self.rate()
            taken = self.pick("S", "S", "(S - R)") if kind == "cascade" else "S"
            say(f"R = {self.pick('(1 - ' + c + ')*R', self.decayed('R'))} + {c}*{taken}")
            reads = self.pick(["R"], ["R", "S"])
        elif kind == "two":
            state("R")
            self.main("R")
            reads = ["S", "R"]
        elif kind == "keys":
            self.declared["P"] = "state P : matrix(dk, dk)"
            x = self.unit("dk")
            error = f"(l2norm({self.vector('dk', 'u')}) - P*{x})"
            self.body.insert(0, f"P = {self.scalar_decay()}*P + {self.rate()}*{error}*{x}.T")
            say(f"S = S + {self.value()}*(P*{x}).T")
        elif kind == "complex":
            state("R")
            c, s = (self.declare("input", "c", "vector(dk)", " in [0, 1]") for _ in range(2))
            say(f"Z = S*diag(0.7*{c}) - R*diag(0.7*{s}) + {self.value()}*{self.unit('dk')}.T")
            say(f"R = S*diag(0.7*{s}) + R*diag(0.7*{c})")
            say("S = Z")
        elif kind == "coupled":
            state("R")
            x, y = self.unit("dk"), self.unit("dk")
            say(f"S = {self.scalar_decay()}*S + {self.rate()}*({self.value()} - {self.pick('R', 'S', 'S')}*{x})*{x}.T")
            say(f"R = {self.scalar_decay()}*R + {self.rate('0.5')}*(S*{y} - R*{y})*{y}.T")
            reads = ["S", "R"]
        elif kind == "slots":
            self.dims.add("m")
            self.declared["K"], self.declared["V"] = "state K : matrix(m, dk)", "state V : matrix(m, dv)"
            a = self.vector_decay("m")
            say(f"K = diag({a})*K + (1 - {a})*{self.unit('dk')}.T")
            say(f"V = diag({a})*V + (1 - {a})*{self.value()}.T")
            self.slots = True
        return reads

    def readout(self, reads, query):
        total = reads[0] if len(reads) == 1 else f"({' + '.join(reads)})" if self.chance(0.5) else None
        q = query
        if self.chance(0.3):
            scaled, function = self.pick("dk^(-1/2)", "0.5"), self.pick("silu", "l2norm", "softmax", "rope")
            q = f"({scaled}*{q})" if self.chance(0.5) else self.let("q", f"{function}({q})")
        text = f"{total}*{q}" if total else " + ".join(f"{state}*{q}" for state in reads)
        if self.newer and self.chance(0.3):
            back = f"{self.pick('', 'silu', 'l2norm')}({self.pick('S', reads[0])}.T*({text}))"
            text = f"{reads[0]}*({self.pick('', self.unit('dk') + ' + ')}{back})"
        kind = self.pick(*["plain"] * 4, "norm", "gate", "skip", "normaliser", "bonus", "columns", "tanh")
        if kind == "norm":
            return f"{self.declare('param', 'w', 'vector(dv)')}.*rmsnorm({text})"
        if kind == "gate":
            return f"silu({self.vector('dv', 'r')}).*({text})"
        if kind == "skip":
            return f"{text} + {self.declare('param', 'D', 'vector(dv)')}.*{self.value()}"
        if kind == "bonus":
            return f"{text} + dot({q}, {self.unit('dk')})*{self.value()}"
        if kind == "tanh":
            return f"tanh({text})"
        if kind == "normaliser":
            self.declared["z"] = "state z : vector(dk)"
            self.body.append(f"z = {self.rate()}*z + {self.unit('dk')}")
            return f"({text})/max(abs(dot(z, {q})), 1)"
        if kind == "columns":
            rows = self.chance(0.5)
            C = self.few_columns("dk", rows)
            return f"{C}*{reads[0]}.T" if rows else f"{reads[0]}*{C}"
        return text

    def spec(self):
        self.declared["q"] = "input q : vector(dk)"
        self.declared["S"] = "state S : matrix(dv, dk)"
        outputs = ["o"]
        if self.chance(0.12):
            self.body.append(f"p = S*{self.pick('q', self.unit('dk'))}")
            outputs.append("p")
        if self.chance(0.1):
            self.declared["S0"] = "param S0 : matrix(dv, dk)"
            self.declared["S"] += " = S0"
        if self.needing and self.chance(0.8):
            reads, more = ["S"], self.needed()
        else:
            reads, more = self.more_states(), ""
        readout = self.readout(reads, "q") + more
        self.body.append(f"o = {readout}")
        if self.slots:
            self.body.append("y = V.T*softmax(K*q)")
            outputs.append("y")
        if self.chance(0.06):
            self.body.append(f"w = S.T*{self.value()}")
            outputs.append("w")
        lines = [*self.declared.values(), "", *self.before, *self.body, *self.after]
        lines.append(f"output {', '.join(outputs)}")
        return "\n".join(lines) + "\n"

    def sizes(self, dk, dv):
        sizes = {"dk": dk, "dv": dv, "r": self.few, "n": self.steps, "m": 8, "d": 24}
        return {name: size for name, size in sizes.items() if name in self.dims}


def make(seed):
    """A rule's text, and a function from (dk, dv) to the sizes of all of its dimensions."""
    maker = Maker(seed)
    return maker.spec(), maker.sizes


if __name__ == "__main__":
    print(make(int(sys.argv[1]))[0], end="")
