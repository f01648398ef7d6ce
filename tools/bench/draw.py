"""Random inputs for a rule from what its metadata says about each tensor; for device_check.py and compare."""
import math
import re

import torch

RANGE = re.compile(r" in ([\[(])(\S+), (\S+)[\])]")


def draw(doc, shape, own, generator, device="cuda"):
    """One tensor, its last `own` dimensions a token's (or a head's), from a text such as 'vector(dk), unit' or 'scalar
    in (-inf, 0]'. Numbers without a declared range keep states from growing."""
    x = torch.randn(shape, generator=generator, device=device)
    if found := RANGE.search(doc):
        low, high = float(found[2]), float(found[3])
        if math.isinf(low) and math.isinf(high):
            return x
        if math.isinf(low):  # a log decay: as gates have it
            return high + torch.nn.functional.logsigmoid(x).clamp(min=-5)
        if math.isinf(high):
            return low + torch.nn.functional.softplus(x)
        return low + (high - low) * torch.sigmoid(x)
    if "unit" in doc:
        return torch.nn.functional.normalize(x, dim=-1)
    return x / math.sqrt(shape[-1]) if own and shape[-1] > 1 else torch.tanh(x)


def draw_all(tensors, sizes, leading, generator, device="cuda"):
    """Inputs and params in f32: `leading` gives the first dimensions for a role, `sizes` those of symbols."""
    found = {}
    for t in tensors:
        if t["role"] in leading:
            lead = leading[t["role"]]
            own = [int(sizes.get(n, n)) for n in t["shape"][len(lead):]]
            found[t["name"]] = draw(t["doc"], (*lead, *own), len(own), generator, device)
    return found
