"""Everything that a user can get wrong on the command line and in a spec: one clear error, the right exit code, and
no file written or changed.   usage: bad_input.py RECURC"""
import sys

from sandbox import CARD, SIZES, Sandbox

box = Sandbox(sys.argv[1])

# Command lines about card.rec, which is correct.
COMMANDS = [
    ([], 2, "a spec file is missing; usage: recurc [compile] SPEC"),
    (["check"], 2, "a spec file is missing; usage: recurc check SPEC"),
    (["card.rec", "card.rec"], 2, "too many spec files: 'card.rec'"),
    (["chekc", "card.rec"], 2, "no command 'chekc'; did you mean 'check'?"),
    (["nothing.rec"], 1, "cannot read 'nothing.rec': No such file or directory"),
    (["."], 1, "cannot read '.': Is a directory"),
    (["card.rec", "--frobnicate"], 2, "unknown option '--frobnicate' for 'recurc compile'"),
    (["card.rec", "--targt=native"], 2, "did you mean '--target="),
    (["check", "card.rec", "--oracle"], 2, "unknown option '--oracle' for 'recurc check'"),
    (["card.rec", "@nothing"], 2, "cannot read the response file 'nothing'"),
    (["card.rec", "--emit"], 2, "'--emit' needs a value"),
    (["card.rec", "--emit="], 2, "'--emit' needs a value"),
    (["card.rec", "-o", ""], 2, "'-o' needs a value"),
    (["card.rec", "--emit=elf"], 2, "--emit: there is no kind 'elf'; there are obj, header, json, asm"),
    (["card.rec", "--until-after=nowhere"], 2, "--until-after: there is no stage 'nowhere'; see --list-stages"),
    (["card.rec", "--print-ir-after=nowhere"], 2, "--print-ir-after: there is no stage 'nowhere'"),
    (["card.rec", "-O9"], 2, "-O needs a level from 0 to 3, got: '9'"),
    (["card.rec", "--chunk=24"], 2, "--chunk needs a power of two from 16 to 256, got: '24'"),
    (["card.rec", "--chunk=512"], 2, "--chunk needs a power of two from 16 to 256, got: '512'"),
    (["card.rec", "-Wnonsense"], 2, "unknown warning flag '-Wnonsense'"),
    (["card.rec", "--error-limit=-1"], 2, "--error-limit needs an integer of at least 0, got: '-1'"),
    (["card.rec", "--diagnostics-format=xml"], 2, "--diagnostics-format needs text or json, got: 'xml'"),
    (["card.rec", "--bind", "dk"], 2, "--bind needs NAME=NUMBER, got: 'dk'"),
    (["card.rec", "--bind", "dk=,dv=3"], 2, "--bind needs NAME=NUMBER, got: 'dk='"),
    (["card.rec", "--bind", "=4"], 2, "--bind needs NAME=NUMBER, got: '=4'"),
    (["card.rec", "--bind", "dk=nan,dv=3"], 2, "--bind needs NAME=NUMBER, got: 'dk=nan'"),
    (["card.rec", "--bind", "dk=inf,dv=3"], 2, "--bind needs NAME=NUMBER, got: 'dk=inf'"),
    (["card.rec", "--bind", "dk=4,dk=5,dv=3"], 2, "--bind gives 'dk' twice"),
    (["card.rec", "--bind", "dk=1.5,dv=3"], 1, "dimension 'dk' must be an integer, got: 1.5"),
    (["card.rec", "--bind", "dk=1e30,dv=3"], 1, "dimension 'dk' must be an integer, got: 1e+30"),
    (["card.rec", "--bind", "dk=-4,dv=3"], 1, "dimension 'dk' must be from 1 to 16777216, got: -4"),
    (["card.rec", "--bind", "dk=0,dv=3"], 1, "dimension 'dk' must be from 1 to 16777216, got: 0"),
    (["card.rec", "--bind", "dk=1000000000,dv=3"], 1, "dimension 'dk' must be from 1 to 16777216, got: 1000000000"),
    (["card.rec", "--bind", "dk=100000,dv=100000"], 1, "100000 x 100000 has more than 268435456 elements"),
    (["card.rec", "--bind", "dk=4,dv=3,n=2"], 1, "the rule has no dimension 'n' to bind; its dimensions are 'dk', 'dv'"),
    (["card.rec", "--bind", "dk=4,dv=3,a=2"], 1, "the rule has no dimension 'a' to bind"),
    (["card.rec", "--bind", "dk=4"], 1, "dimension 'dv' has no size"),
    (["card.rec"], 1, "dimensions 'dk', 'dv' have no size"),
    (["card.rec", *SIZES, "--target=z80"], 1, "--target: unknown target 'z80', known are x86-64, "),
    (["card.rec", *SIZES, "--target=native,z80"], 1, "--target: unknown target 'z80'"),
    (["card.rec", *SIZES, "--target=x86-64,x86-64"], 1, "--target: target 'x86-64' is given twice"),
    (["card.rec", *SIZES, "--dtype=f64"], 1, "--dtype: unknown type 'f64', known are f32, bf16, f16"),
    (["card.rec", *SIZES, "--dtype=q=int8"], 1, "--dtype: unknown type 'int8'"),
    (["card.rec", *SIZES, "--dtype=x=f32"], 1, "--dtype: the rule has no tensor 'x'"),
    (["card.rec", *SIZES, "--dtype=S=bf16"], 1, "--dtype: states are f32, so 'S' cannot be bf16"),
    (["card.rec", *SIZES, "--dtype=f32,bf16"], 1, "--dtype: more than one type for all tensors: f32,bf16"),
    (["card.rec", *SIZES, "--name=9lives"], 1, "'9lives' cannot prefix C functions: letters, digits and '_' only"),
    (["card.rec", *SIZES, "--name=a b"], 1, "'a b' cannot prefix C functions"),
    (["card.rec", *SIZES, "--name=a-b;"], 1, "'a-b;' cannot prefix C functions"),
    (["card.rec", *SIZES, "-o", "nowhere/x.o"], 1, "cannot write 'nowhere/x.o': No such file or directory"),
    (["card.rec", *SIZES, "-o", "."], 1, "cannot write '.': "),
    (["card.rec", *SIZES, "-o", "taken.o"], 1, "cannot write 'taken.h': Is a directory"),
    (["card.rec", *SIZES, "-o", "x.h"], 1, "cannot write 'x.h': it would hold two outputs"),
    (["card.rec", *SIZES, "-o", "card.rec"], 1, "cannot write 'card.rec': it is the spec itself"),
    (["card.rec", *SIZES, "-o", "x.o", "-MD", "-MF", "nowhere/x.d"], 1, "cannot write 'nowhere/x.d': No such file"),
    (["card.rec", *SIZES, "-o", "-"], 2, "-o - takes one kind of output, such as --emit=asm, got: obj, header"),
    (["diff", "card.rec"], 2, "a spec file is missing; usage: recurc diff A B"),
    (["run", "card.rec"], 1, "run needs either --inputs DIR or --random SEED"),
    (["run", "card.rec", "--random=1"], 1, "--random needs --tokens N"),
    (["run", "card.rec", "--random=x"], 2, "--random needs an integer of at least 0, got: 'x'"),
    (["run", "card.rec", "--random=1", "--tokens=-3"], 2, "--tokens needs an integer of at least 0, got: '-3'"),
    (["explain", "card.rec", *SIZES, "--tokens=0"], 2, "--tokens needs an integer of at least 1, got: '0'"),
    (["bench", "card.rec", *SIZES, "--batch=0"], 2, "--batch needs an integer of at least 1, got: '0'"),
    (["card.rec", *SIZES, "--form=roles", "--target=x86-64"], 1, "no roles form for x86-64: it is one of GPUs"),
    (["card.rec", *SIZES, "--form=scan", "--target=x86-64"], 1, "no scan form for x86-64: it is one of GPUs"),
    (["run", "card.rec", "--random=1", "--tokens=3", "--heads=0"], 2, "--heads needs an integer of at least 1"),
    (["run", "card.rec", "--random=1", "--tokens=3"], 1, "dimensions 'dk', 'dv' have no size"),
    (["run", "card.rec", *SIZES, "--random=1", "--tokens=100000000000000"], 1, "have more than 2147483648 elements"),
    (["verify", "card.rec", *SIZES, "--heads=100000000000000"], 1, "have more than 2147483648 elements"),
    (["bench", "card.rec", *SIZES, "--batch=100000000000000"], 1, "have more than 2147483648 elements"),
    (["run", "card.rec", "--inputs=nowhere"], 1, "the folder 'nowhere' does not exist"),
    (["verify", "card.rec", *SIZES, "--rounds=0"], 2, "--rounds needs an integer of at least 1, got: '0'"),
]
box.write("taken.h/inside", "")
for arguments, code, message in COMMANDS:
    box.expect_error(arguments, code, message)

# Specs that are wrong, for `recurc check`.
SPECS = [
    ("", "this rule reads nothing out"),
    ("# nothing\n", "this rule reads nothing out"),
    ("S = a*S*(I - b*k*kT", "1:20: error: expected ')'"),
    ("o = = 1", "expected an operand, got '='"),
    ("o = foo(x)", "1:5: error: unknown function 'foo'"),
    ("output y\nS = a*S; o = S", "output 'y' is never assigned"),
    ("input q : vector(dk)\no = q*q", "'*' needs as many columns on the left as rows on the right"),
    ("input q : vector(dk)\ninput p : vector(dv)\no = q + p", "'+' needs operands of one shape"),
    ("input k : scalar\nS = a*S + v*kT; o = S*q", "'kT' needs a vector, but 'k' is a scalar"),
    ("state S : vector(n)\nS = a*S + v*kT; o = S", "'*' needs as many columns on the left"),
    ("input S : scalar\nS = a*S + v*kT; o = S*q", "'*' needs as many columns on the left as rows on the right"),
    ("input x : scalar in [1, 0]\no = x", "range [1, 0] is empty"),
    ("input x : scalar\ninput y : scalar in [0, 1]\ny = clamp(x, 2, 3)\no = y",
     "the declared range is [0, 1], but the value lies in [2, 3]"),
    ("o = x", "the shape of 'x' is ambiguous: declare it"),
    ("input x : vector(0)\no = x", "expected a dimension: a name or an integer from 1 to 16777216, got '0'"),
    ("input x : vector(9000000000000)\no = x", "got '9000000000000'"),
    ("input x : scalar\nfor j in 1..1000000000 { o = x }", "a loop ends at a dimension or an integer from 1 to 1000000"),
    ("input x : scalar[3]\no = x[4]", "micro-steps count from 1 to 3, got: 4"),
    ("input x : vector(n)\nS = S + x*xT; o = solve(S, x, iterations=-1)", "'iterations' needs an integer from 1"),
    ("input x : vector(n)\nS = S + x*xT; o = solve(S, x, iterations=1.5)", "got: '1.5'"),
    ("const c = log(-1)\ninput x : scalar\no = c*x", "the constant 'c' is not a number"),
    ("const c = 0/0\ninput x : scalar\no = c*x", "1:11: error: the constant 'c' is not a number"),
    ("const c = inf - inf\ninput x : scalar\no = c*x", "1:11: error: the constant 'c' is not a number"),
    ("const c = 2 + 1/0\ninput x : scalar\no = c*x", "1:15: error: the constant 'c' is not a finite number"),
    ("const c = 1/exp(1000)\ninput x : scalar\no = c*x", "1:13: error: the constant 'c' is not a finite number"),
    ("input x : scalar\no = 1e999*x", "number '1e999' is out of range"),
    ("input x : scalar\no = x $ x", "'$'"),
    ("input q : vector(dk)\np = " + "x" * 1000 + "\no = |q|^2", "a name has at most 255 characters, got: 1000"),
    ("o = " + "(" * 10000 + "x" + ")" * 10000, "this is nested deeper than 256 levels"),
    ("o = " + "(" * 10000, "this is nested deeper than 256 levels"),
    ("input x : scalar\no = " + "-" * 10000 + "x", "this is nested deeper than 256 levels"),
    ("input x : scalar\no = " + "exp(" * 10000 + "x" + ")" * 10000, "this is nested deeper than 256 levels"),
    ("input x : scalar\no = " + "x[" * 10000, "this is nested deeper than 256 levels"),
    ("input x : scalar\no = " + "x^" * 10000 + "x", "this is nested deeper than 256 levels"),
    ("input x : scalar\no = " + "x+" * 10000 + "x", "this expression has more than 1000 operations inside each other"),
    (CARD * 260000, "it has 10140000 bytes, the limit is 1048576"),
    (b"\x00\x01\x02\x7fELF" * 1000, "is no text: byte 0 is the control byte 0x00"),
    (b"o = \xff\xfe", "is no text: "),
]
for text, message in SPECS:
    box.write("bad.rec", text)
    box.expect_error(["check", "bad.rec"], 1, message)
    box.expect_error(["bad.rec", *SIZES, "-o", "x.o"], 1, message)
    box.expect_error(["check", "-"], 1, message, stdin=text if isinstance(text, bytes) else text.encode())

# A micro-step that there is not, once their number is known.
box.write("bad.rec", "input k : vector(dk)[n]\nS = S + v*k[4].T\no = S*q\n")
box.expect_error(["bad.rec", "--bind=dk=4,dv=4,n=3", "-o", "x.o"], 1, "2:11: error: micro-steps count from 1 to 3, got: 4")
# So do those that loops count.
for index, bind, message in [("j", "n=3,m=2", "1 to 2, got: 3"), ("j + 1", "n=2,m=2", "1 to 2, got: 3"),
                             ("j*j", "n=3,m=8", "1 to 8, got: 9"), ("j/2", "n=2,m=2", "1 to 2, got: 0.5"),
                             ("a", "n=2,m=2", "made of loop counters, dimensions and constants")]:
    box.write("bad.rec", f"input k : vector(dk)[m]\ninput a : scalar\nfor j in 1..n {{ S = S + a*v*k[{index}].T }}\no = S*q\n")
    box.expect_error(["bad.rec", f"--bind=dk=4,dv=4,{bind}", "-o", "x.o"], 1, message)
box.write("bad.rec", "input k : vector(dk)[n]\nfor j in 1..n { S = S + v*k[n + 1 - j].T }\no = S*q\n")
code, _, err = box.run("bad.rec", "--bind=dk=4,dv=4,n=3", "-o", "steps.o")
box.expect(code == 0, f"micro-steps from last to first: {err}")

# Several errors of one spec are all reported in one run, up to the limit.
box.write("bad.rec", "".join(f"o{i} = f{i}(x)\n" for i in range(30)))
code, _, err = box.run("check", "bad.rec")
box.expect(code == 1 and err.count("unknown function") == 20 and "10 more errors are not shown" in err, "error limit")
code, _, err = box.run("check", "bad.rec", "--error-limit=0")
box.expect(code == 1 and err.count("unknown function") == 30, "no error limit")

# What cannot be compiled yet says so.
box.write("bad.rec", "O = softmax(dk^(-1/2)*Q*K.T + log(M))*V\n")
box.expect_error(["bad.rec", *SIZES, "-o", "x.o"], 1, "only in the oracle for now")

# A file that is in the way of a later output leaves the earlier ones unwritten, and what stood there goes, too: an
# object never stands beside a header of another rule.
box.write("old.o", "old")
box.write("old.h/inside", "")
code, _, err = box.run("card.rec", *SIZES, "-o", "old.o")
box.expect(code == 1 and "cannot write 'old.h'" in err and not (box.folder / "old.o").exists(), "half a pair stays")
box.finish()
