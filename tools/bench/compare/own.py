"""Rules that are no part of the comparison, from what their libraries say about themselves: only timed."""
from pathlib import Path

import recur
import torch
from draw import draw_all
from rules import Rule

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def rule_of(folder, name, entry):
    """A rule without a reference and without a peer."""
    about = getattr(recur.load(Path(folder) / entry["library"]), name).metadata
    sizes = about["variants"][0]["dims"]
    of = lambda *roles: [t for t in about["tensors"] if t["role"] in roles]

    def draw(d):
        leading = {"input": (d.batch, d.tokens, d.heads), "param": (d.heads,)}
        return draw_all(of("input", "param"), sizes, leading, d.generator, d.device)
    states = tuple(tuple(int(sizes.get(n, n)) for n in t["shape"][2:]) for t in of("state"))
    rule = Rule(name, draw, None, None, states=states, params=tuple(t["name"] for t in of("param")))
    rule.types = {n: TYPES[t] for n, t in about["variants"][0]["dtypes"].items()}
    rule.operations = lambda tokens: entry["flops"] * tokens
    return rule
