"""What the roles of a kernel wait for, by the processor's clock.

    python3 tools/bench/clocks.py prepare FOLDER --spec mine.rec --bind dk=128,dv=128   # where recurc and ptxas are
    python3 tools/bench/clocks.py run FOLDER [--tokens 8192] [--heads 96]                # where the device is

`prepare` compiles a rule twice, the second time with an assembler between that adds to the PTX: around each wait one lane
of each warp of a few blocks writes the place and its clock to device memory, a gibibyte behind the first input. `run`
times both, so that one sees what the clocks cost, and prints for some warps of one block, from the middle of the
sequence: how many cycles a round takes, and of these how many pass from one place to the next; places are lines of
FOLDER/KERNEL.ptx, < before the wait and > behind it. It needs torch. A place between a product and its wait is left out.
Clocks where registers are few may have the assembler serialise the chain's products, as the warnings that `prepare`
prints then say: `--skip` leaves out lines.
"""
import argparse
import collections
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FIRST_INPUT = 128  # where its address is in a kernel's arguments: runtime/include/recur/abi.h
BEHIND = 1 << 30   # bytes from there to the clocks
BLOCKS, WARPS, EVENTS = 4, 32, 4096  # of the first blocks, for each warp
WAIT = re.compile(r"mbarrier\.try_wait|wgmma\.wait_group|bar\.sync\s+%|mbarrier\.arrive\.(shared|expect)|setmaxnreg")


def with_clocks(ptx, skipped=()):
    """The same PTX with clocks around its waits. A warp's next address is in local memory, as registers are few; it is 0
    where a lane has none, or no more."""
    lines = ptx.split("\n")
    arguments = re.search(r"\.param \.align 8 \.b8 (\w+)\[", ptx)[1]

    def clock(place):
        return ("{ .reg .pred on, full; .reg .b32 clock, place, next, at; .reg .b64 to, offset; mov.u32 at, %tid.y; "
                "shl.b32 at, at, 2; mov.u32 next, %clockat; add.u32 at, at, next; ld.local.b32 next, [at]; "
                f"setp.ne.u32 on, next, 0; ld.param.b64 to, [{arguments}+{FIRST_INPUT}]; cvt.u64.u32 offset, next; "
                f"add.s64 to, to, offset; mov.u32 clock, %clock; mov.u32 place, {place}; "
                "@on st.global.v2.u32 [to], {place, clock}; @on add.u32 next, next, 8; "
                f"and.b32 place, next, {EVENTS * 8 - 1}; setp.eq.u32 full, place, 0; @full mov.u32 next, 0; "
                "st.local.b32 [at], next; }")
    begin = ("{ .reg .pred on, own; .reg .b32 thread, block, at, next; mov.u32 thread, %tid.x; mov.u32 block, %ctaid.x; "
             "and.b32 at, thread, 31; setp.eq.u32 on, at, 0; "
             f"setp.lt.u32 own, block, {BLOCKS}; and.pred on, on, own; shr.u32 thread, thread, 5; "
             f"mad.lo.u32 next, block, {WARPS}, thread; mad.lo.u32 next, next, {EVENTS * 8}, {BEHIND}; "
             "selp.u32 next, next, 0, on; mov.u32 at, %tid.y; shl.b32 at, at, 2; mov.u32 thread, %clockat; "
             "add.u32 at, at, thread; st.local.b32 [at], next; }")
    written, declared, begun, pending = [], False, False, False
    for number, line in enumerate(lines, 1):
        code = line.strip()
        if not declared and code.startswith(".reg"):
            written.append(".local .b32 %clockat[2];")
            declared = True
        elif declared and not begun and code and code[0] not in ".{/":
            written.append(begin)
            begun = True
        if "wgmma.mma_async" in code:
            pending = True
        lands = code.startswith("wgmma.wait_group") and code.endswith(" 0;")
        pending &= not lands
        logged = begun and WAIT.search(code) and not pending and number not in skipped
        if logged and not lands and ("try_wait" in code or code.startswith("bar.sync")):
            written.append(clock(2 * number))
        written.append(line)
        if logged:
            written.append(clock(2 * number + 1))
    return "\n".join(written)


def assemble(arguments):
    """In ptxas' place: adds clocks to the kernels that are asked for, keeps their PTX, and calls it."""
    folder, skipped = Path(os.environ["CLOCKS_FOLDER"]), json.loads(os.environ["CLOCKS_SKIPPED"])
    for i, argument in enumerate(arguments):
        if argument.startswith("-") or arguments[i - 1] == "-o" or not Path(argument).is_file():
            continue
        ptx = Path(argument).read_text()
        entry = re.search(r"\.entry\s+(\w+)", ptx)
        wanted = os.environ["CLOCKS_KERNELS"]
        if entry and (re.search(wanted, entry[1]) if wanted else "wgmma" in ptx):
            (folder / f"{entry[1]}.ptx").write_text(ptx)
            Path(argument).write_text(with_clocks(ptx, skipped))
    os.execv(os.environ["CLOCKS_PTXAS"], ["ptxas", *arguments])


def prepare(options):
    """The rule's library as it is and with clocks, and what `run` needs."""
    options.folder.mkdir(parents=True, exist_ok=True)
    name, runtime = options.spec.stem, options.recurc.resolve().parents[1] / "lib/librecur_rt.a"
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    ptxas = shutil.which("ptxas") or f"{home}/bin/ptxas"
    with tempfile.TemporaryDirectory() as between:
        wrapper = Path(between) / "bin/ptxas"
        wrapper.parent.mkdir()
        wrapper.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{HERE / 'clocks.py'}' assemble \"$@\"\n")
        wrapper.chmod(0o755)
        clocks = {"CUDA_HOME": between, "CLOCKS_PTXAS": ptxas, "CLOCKS_FOLDER": str(options.folder.resolve()),
                  "CLOCKS_SKIPPED": json.dumps(options.skip), "CLOCKS_KERNELS": options.kernels}
        for kind, environment in (("plain", {}), ("clocks", clocks)):
            stem = options.folder / f"{name}.{kind}"
            done = subprocess.run([options.recurc, options.spec, "--bind", options.bind, "--dtype", options.dtype,
                                   f"--target={options.target}", "--form=roles", "--emit=obj", "-o", f"{stem}.o",
                                   f"--name={name}"], env={**os.environ, **environment}, capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            subprocess.run(["cc", "-shared", "-s", "-o", f"{stem}.so", f"{stem}.o", runtime, "-lpthread", "-ldl", "-lm"],
                           check=True)
            Path(f"{stem}.o").unlink()
            print(f"{name} {kind}", *re.findall(r"^warning: .*", done.stderr, re.M), sep="\n    ")
    (options.folder / "rule.json").write_text(json.dumps({"name": name}))
    shutil.copytree(ROOT / "runtime/python/recur", options.folder / "recur", dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("clocks.py", "draw.py"):
        shutil.copy(HERE / file, options.folder)


def call(folder, library, name, tokens, heads):
    """A call of one sequence that can be repeated, and the clocks that it leaves behind its first input."""
    import torch
    import recur
    from draw import draw_all
    rule = getattr(recur.load(folder / library), name)
    about = rule.metadata
    sizes = about["variants"][0]["dims"]
    types = {n: {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[t]
             for n, t in about["variants"][0]["dtypes"].items()}
    given = [t for t in about["tensors"] if t["role"] in ("input", "param")]
    generator = torch.Generator("cuda").manual_seed(1)
    tensors = {n: x.to(types[n]) for n, x in
               draw_all(given, sizes, {"input": (1, tokens, heads), "param": (heads,)}, generator).items()}
    first = tensors[given[0]["name"]]
    size = first.numel() * first.element_size()
    if size > BEHIND:
        sys.exit(f"the first input has {size} bytes, and clocks lie {BEHIND} behind its begin: take fewer tokens or heads")
    memory = torch.zeros(BEHIND + BLOCKS * WARPS * EVENTS * 8, dtype=torch.uint8, device="cuda")
    tensors[given[0]["name"]] = memory[:size].view(first.dtype).view(first.shape).copy_(first)
    for t in about["tensors"]:
        if t["role"] == "output":
            own = [int(sizes.get(n, n)) for n in t["shape"][3:]]
            tensors[t["name"]] = torch.empty((1, tokens, heads, *own), dtype=types[t["name"]], device="cuda")
    size = rule.forward_workspace(**tensors)
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda") if size else None
    return lambda: rule.forward(**tensors, workspace=workspace), memory[BEHIND:].view(torch.int32)


def measure(repeat):
    """The median time of a call, in milliseconds."""
    import torch
    for _ in range(3):
        repeat()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(12)]
    for event in events:
        event.record()
        repeat()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in zip(events, events[1:]))


def kernel_of(places, kernels):
    """Of PTX files by name the one in which all these lines are waits."""
    waits = lambda lines: all(p // 2 <= len(lines) and WAIT.search(lines[p // 2 - 1]) for p in places)
    return next(((n, lines) for n, lines in kernels.items() if waits(lines)), ("?", []))


def table(events, kernels):
    """The lines that say where a warp's time went, from its (place, clock) in order."""
    name, lines = kernel_of({place for place, _ in events}, kernels)
    middle = events[len(events) // 4:3 * len(events) // 4]
    passed = collections.defaultdict(list)
    for (before, began), (place, ended) in zip(middle, middle[1:]):
        passed[before, place].append((ended - began) % 2**32)
    rounds = statistics.median(len(times) for times in passed.values())

    def text(place):
        code = re.search(r"(mbarrier|wgmma|bar|setmaxnreg)[.\w]*", lines[place // 2 - 1])[0] if lines else ""
        return f"{place // 2}{'<>'[place % 2]} {code.replace('.shared::cta.b64', '').replace('.sync.aligned', '')}"
    whole = sum(map(sum, passed.values())) / rounds
    yield f"{name}, {whole:.0f} cycles a round"
    for (before, place), times in sorted(passed.items(), key=lambda item: item[0][1]):
        yield f"    {text(before):44} {text(place):44} {sum(times) / rounds:8.0f}"


def run(options):
    """Times both libraries, and prints tables."""
    sys.path.insert(0, str(options.folder))
    import torch
    name = json.loads((options.folder / "rule.json").read_text())["name"]
    print(f"{torch.cuda.get_device_name()}, {options.tokens} tokens, {options.heads} heads")
    for kind in ("plain", "clocks"):
        repeat, clocks = call(options.folder, f"{name}.{kind}.so", name, options.tokens, options.heads)
        print(f"{name} {kind}: {measure(repeat):.3f} ms")
    clocks.zero_()
    repeat()
    torch.cuda.synchronize()
    kernels = {f.stem: f.read_text().split("\n") for f in sorted(options.folder.glob("*.ptx"))}
    # The numbers' and the loader's warps differ; of other warpgroups one stands for all.
    told = 0
    for warp, events in enumerate(clocks.view(BLOCKS, WARPS, EVENTS, 2)[options.block].tolist()):
        events = [(place, clock % 2**32) for place, clock in events if place]
        if len(events) > 40 and (warp < 4 or warp % 4 == 0):
            told += 1
            print(f"warp {warp}:", "\n".join(table(events, kernels)))
    if not told:
        print(f"no warp of block {options.block} has gone a few rounds: take more tokens or heads")


def main():
    if sys.argv[1:2] == ["assemble"]:
        return assemble(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    own = commands.add_parser("prepare", help="compile a rule with clocks")
    own.set_defaults(do=prepare)
    own.add_argument("folder", type=Path)
    own.add_argument("--spec", type=Path, required=True)
    own.add_argument("--bind", required=True)
    own.add_argument("--dtype", default="bf16")
    own.add_argument("--target", default="sm_90a")
    own.add_argument("--skip", type=int, nargs="*", default=[], help="lines of the PTX without clocks")
    own.add_argument("--kernels", default="", help="which kernels have clocks, a regular expression (default: those "
                     "with products of warpgroups); of several in a call the last one's are read")
    own.add_argument("--recurc", type=Path, default=ROOT / "build/bin/recurc")
    own = commands.add_parser("run", help="time it, and say where the time went")
    own.set_defaults(do=run)
    own.add_argument("folder", type=Path)
    own.add_argument("--tokens", type=int, default=8192)
    own.add_argument("--heads", type=int, default=96)
    own.add_argument("--block", type=int, default=1, choices=range(BLOCKS))
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
