"""Random well-formed specs.   usage: generate.py SEED   prints one

Every value stays of a tame size: decays lie in [0, 1], keys have norm 1, gates lie in [0, 1], and functions that grow
are wrapped in ones that do not. So compiled code can be held to the oracle's numbers.
"""
import random
import sys

# Shapes are pairs of dimensions; dk is even, for rope.
SCALAR, K, V, SVK, SKK, SVV = ("1", "1"), ("dk", "1"), ("dv", "1"), ("dv", "dk"), ("dk", "dk"), ("dv", "dv")
VECTORS, MATRICES = [K, V], [SVK, SKK, SVV]
DECLARED = {SCALAR: "scalar", K: "vector(dk)", V: "vector(dv)", SVK: "matrix(dv, dk)", SKK: "matrix(dk, dk)",
            SVV: "matrix(dv, dv)"}


class Generator:
    """Writes one spec. `known` holds, for each shape, expressions for values of tame size."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = []
        self.known = {shape: [] for shape in DECLARED}
        self.states = []
        self.written = []
        self.count = 0

    def chance(self, p):
        return self.random.random() < p

    def pick(self, choices):
        return self.random.choice(choices)

    def name(self, prefix):
        self.count += 1
        return f"{prefix}{self.count}"

    def say(self, line):
        self.lines.append(line)

    # Declarations

    def declare(self):
        pick, say = self.pick, self.say
        if self.chance(0.3):
            say("rule generated")
        say(f"input q, k : vector(dk){pick(['', ' unit'])}")
        say("input v : vector(dv)")
        say(f"input a, b : scalar in {pick(['[0, 1]', '(0, 1)', '[0, 0.9]'])}")
        say(f"input g : scalar in {pick(['(-inf, 0]', '[-5, 0]'])}")
        self.known[K] += ["q", "k"]
        self.known[V] += ["v"]
        self.known[SCALAR] += ["a", "b", "exp(g)"]
        if self.chance(0.5):
            say("input r : vector(dk) in [0, 1]")
            self.known[K].append("r")
        if self.chance(0.3):
            say("input m : matrix(dv, dk) in [-1, 1]")
            self.known[SVK].append("m")
        if self.chance(0.5):
            shape = pick([SCALAR, K, V, SVK, SKK])
            say(f"param w : {DECLARED[shape]} in [-1, 1]")
            self.known[shape].append("w")
        if self.chance(0.4):
            say(f"const c = {pick(['1/2', '2^(-3)', '1 - 2^(-5 - head)', '1/(1 + heads)', 'dk^(-1/2)'])}")
            self.known[SCALAR].append("c")
        if self.chance(0.3):
            say("input y : vector(dk)[3]")
            say("input z : scalar[3] in [0, 1]")
            self.micro = True
        else:
            self.micro = False
        if self.chance(0.3):
            say("fn squash(x) = x./(1 + abs(x))")
            self.functions = ["squash"]
        else:
            self.functions = []
        for shape in self.random.sample([SVK, SVK, SCALAR, K, V, SKK], self.random.randint(1, 3)):
            state = self.name("S")
            initial = pick(["", " = 0", "", " = 1/2" if shape == SCALAR else " = 0"])
            if shape == SKK and self.chance(0.3):
                initial = " = 1/2*I"
            say(f"state {state} : {DECLARED[shape]}{initial}")
            self.states.append((state, shape))

    # Expressions

    def scalar(self, depth):
        if depth <= 0:
            return self.pick(self.known[SCALAR])
        sub = lambda: self.expression(self.pick([SCALAR, K, V]), depth - 1)
        x = self.pick([K, V])
        return self.pick([
            lambda: f"{self.scalar(depth - 1)}*{self.factor(SCALAR, depth - 1)}",
            lambda: f"1/2*({self.scalar(depth - 1)} + {self.scalar(depth - 1)})",
            lambda: f"(1 - {self.factor(SCALAR, depth - 1)})/2",
            lambda: f"tanh(dot({self.expression(x, depth - 1)}, {self.expression(x, depth - 1)}))",
            lambda: f"sigmoid(sum({self.expression(x, depth - 1)}))",
            lambda: f"exp(-|{self.expression(x, depth - 1)}|^2)",
            lambda: f"1/(1 + {self.scalar(depth - 1)}^2)",
            lambda: f"{self.pick(['max', 'min'])}({self.scalar(depth - 1)}, {self.scalar(depth - 1)})",
            lambda: f"clamp({self.scalar(depth - 1)}, 1/4, 3/4)",
            lambda: f"{self.scalar(depth - 1)}/max(abs({self.scalar(depth - 1)}), 1)",
            lambda: f"mean({self.expression(x, depth - 1)})/2",
            lambda: f"sqrt(1/8 + {self.scalar(depth - 1)}^2)",
        ])()

    def vector(self, shape, depth):
        if depth <= 0:
            return self.pick(self.known[shape])
        one = lambda: self.expression(shape, depth - 1)
        other = self.pick(VECTORS)
        matrix = (shape[0], other[0])
        choices = [
            lambda: f"{self.factor(SCALAR, depth - 1)}*{self.factor(shape, depth - 1)}",
            lambda: f"1/2*({one()} + {one()})",
            lambda: f"({one()} - {one()})/2",
            lambda: f"{self.factor(shape, depth - 1)}.*tanh({one()})",
            lambda: f"({one()})./(1 + abs({one()}))",
            lambda: self.pick(["tanh", "sigmoid", "silu", "gelu", "relu", "elu", "abs"]) + f"({one()})",
            lambda: f"softplus({one()})/2",
            lambda: f"exp(-abs({one()}))",
            lambda: f"l2norm({one()})",
            lambda: f"rmsnorm({one()})/2",
            lambda: f"layernorm({one()})/2",
            lambda: f"softmax({one()})",
            lambda: self.pick(["max", "min"]) + f"({one()}, {one()})",
        ]
        if self.functions:
            choices.append(lambda: f"squash({one()})")
        if shape == K:
            choices.append(lambda: f"rope({one()})")
            choices.append(lambda: f"solve({self.known_square(SKK)} + 2*I, {one()}"
                           f"{self.pick(['', '', ', iterations=6'])})/2")
        if matrix in DECLARED and self.known[matrix]:
            read = self.pick(self.known[matrix])
            choices += [lambda: f"tanh({read}*{self.factor(other, depth - 1)})"] * 2
        if (other[0], shape[0]) in DECLARED and self.known[(other[0], shape[0])]:
            back = self.pick(self.known[(other[0], shape[0])])
            choices.append(lambda: f"tanh({back}.T*{self.factor(other, depth - 1)})")
        return self.pick(choices)()

    def known_square(self, shape):
        """A positive semidefinite matrix of tame size."""
        x = self.factor((shape[0], "1"), 0)
        return self.pick([f"{x}*{x}.T", "diag(exp(-abs(" + self.pick(self.known[(shape[0], '1')]) + ")))"])

    def matrix(self, shape, depth):
        if depth <= 0 and self.known[shape]:
            return self.pick(self.known[shape])
        row, column = (shape[0], "1"), (shape[1], "1")
        one = lambda: self.expression(shape, depth - 1)
        choices = [lambda: f"{self.factor(row, depth - 1)}*{self.factor(column, depth - 1)}.T"] * 3
        if depth > 0:
            choices += [
                lambda: f"{self.factor(SCALAR, depth - 1)}*{self.factor(shape, depth - 1)}",
                lambda: f"1/2*({one()} + {one()})",
                lambda: f"tanh({one()})",
                lambda: f"{self.factor(shape, depth - 1)}.*sigmoid({one()})",
                lambda: f"{self.factor(row, depth - 1)}.*tanh({one()})",
                lambda: f"l2norm({one()})",
            ]
        if shape[0] == shape[1]:
            choices.append(lambda: f"({self.factor(SCALAR, 0)}*I + {self.pick(['', '1/4*'])}{one()})/2")
        return self.pick(choices)()

    def expression(self, shape, depth):
        if shape == SCALAR:
            return self.scalar(depth)
        return self.vector(shape, depth) if shape in VECTORS else self.matrix(shape, depth)

    def factor(self, shape, depth):
        """An expression that can stand as a factor."""
        text = self.expression(shape, depth)
        return text if text.isidentifier() else f"({text})"

    # Statements

    def update(self, state, shape):
        """One of the ways to update a state, by its shape."""
        decay = self.pick(["a", "exp(g)", "(1 - b)", f"sigmoid({self.scalar(1)})", "a*b"])
        write = f"{self.pick(['b', '(1 - a)', '1/2'])}*{self.factor(shape, self.random.randint(0, 2))}"
        choices = [lambda: f"{state} = {decay}*{state} + {write}"] * 2
        choices.append(lambda: f"{state} = tanh({decay}*{state} + {write})")
        if shape in VECTORS:
            choices.append(lambda: f"{state} = sigmoid({self.expression(shape, 1)}).*{state} + {write}")
        if shape in MATRICES:
            row, column = (shape[0], "1"), (shape[1], "1")
            unit = lambda s: f"l2norm({self.expression(s, 1)})"
            key, left = self.name("x"), self.name("x")

            def delta():
                self.say(f"{key} = {unit(column)}")
                return f"{state} = {decay}*{state}*(I - b*{key}*{key}.T) + {write}"

            def two_sided():
                self.say(f"{key} = {unit(column)}")
                self.say(f"{left} = {unit(row)}")
                return f"{state} = (I - b*{left}*{left}.T)*{state}*(I - a*{key}*{key}.T) + {write}"

            def gradient():
                self.say(f"{key} = {unit(column)}")
                function = self.pick(["", "", "tanh", "sigmoid", "silu", "gelu", "layernorm", "rmsnorm"])
                loss = f"1/2*|{function}({state}*{key}) - {self.factor(row, 1)}|^2"
                if self.chance(0.5):
                    self.say(f"loss{key} = {loss}")
                    loss = f"loss{key}"
                return f"{state} = {decay}*{state} - b/2*grad({loss}, {state})"

            def rows():
                return f"{state} = diag(sigmoid({self.expression(row, 1)}))*{state} + {write}"

            def columns():
                return f"{state} = {state}*diag(exp(-abs({self.expression(column, 1)}))) + {write}"

            choices += [delta, delta, two_sided, gradient, gradient, rows, columns]
            if self.micro and column == K:
                choices += [lambda: (f"for j in 1..3 {{ {state} = {state}*(I - z[j]*l2norm(y[j])*l2norm(y[j]).T) + "
                                     f"z[j]*{self.factor(row, 1)}*l2norm(y[j]).T }}")] * 3
        self.say(self.pick(choices)())

    def local(self):
        shape = self.pick([SCALAR, K, V, K, V, SVK])
        name = self.name("u")
        self.say(f"{name} = {self.expression(shape, self.random.randint(1, 3))}")
        self.known[shape].append(name)

    def spec(self):
        self.declare()
        if self.chance(0.6):
            self.say("k = l2norm(k)")
        if self.chance(0.3):
            self.say(f"q = {self.pick(['silu', 'softmax', 'rope', 'l2norm', 'elu'])}(q)")
        early = self.chance(0.3)  # reads see the old states
        for state, shape in self.states:
            if early:
                self.known[shape].append(state)
        for _ in range(self.random.randint(0, 2)):
            self.local()
        for state, shape in self.states:
            self.update(state, shape)
            if state not in self.known[shape]:
                self.known[shape].append(state)
        for _ in range(self.random.randint(0, 2)):
            self.local()
        reads = [f"{state}*q" if shape in MATRICES and shape[1] == "dk" else state for state, shape in self.states]
        self.say("o = " + self.pick(reads))
        outputs = ["o"]
        if self.chance(0.6):
            self.say(f"p = {self.expression(self.pick([SCALAR, K, V, SVK]), 2)}")
            outputs.append("p")
        if len(outputs) > 1 or self.chance(0.3):
            self.say("output " + ", ".join(outputs))
        return "\n".join(self.lines) + "\n"


def generate(seed):
    """A well-formed spec; equal seeds give equal specs."""
    return Generator(seed).spec()


if __name__ == "__main__":
    print(generate(int(sys.argv[1])), end="")
