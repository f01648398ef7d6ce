"""The meaning of every rule of the zoo, token by token in float64, written from the papers, not from the
specs."""
from types import SimpleNamespace

import numpy as np

import reference_attention
import reference_delta
import reference_elementwise
import reference_functions
import reference_linear
import reference_memory

MODULES = [reference_linear, reference_delta, reference_functions, reference_memory, reference_elementwise, reference_attention]
SAME = {"deltanet_loss": "deltanet", "gated_deltanet_loss": "gated_deltanet"}


def lookup(kind, name):
    """An entry of the modules' tables (START, WHOLE_SEQUENCE), or None."""
    for module in MODULES:
        table = getattr(module, kind, {})
        if name in table:
            return table[name] if isinstance(table, dict) else True
    return None


def function(name):
    """The function of a rule."""
    name = SAME.get(name, name)
    return next(getattr(module, name) for module in MODULES if hasattr(module, name))


def run_head(rule, inputs, params, states, head, heads):
    """One sequence of one head: arrays with the tokens first. Returns the outputs, replaces the states."""
    step, where = function(rule.name), dict(head=head, heads=heads)
    if lookup("WHOLE_SEQUENCE", rule.name):
        return {rule.outputs[0]: step(SimpleNamespace(**inputs, **params, **where), states)}
    out = {name: [] for name in rule.outputs}
    for t in range(len(next(iter(inputs.values())))):
        token = {name: x[t] for name, x in inputs.items()}
        o = step(SimpleNamespace(**token, **params, **where, t=t), states)
        for name, x in (o if isinstance(o, dict) else {"o": o}).items():
            out[name].append(x)
    return {name: np.array(x) for name, x in out.items()}


def initial_states(rule, params, given, dims):
    """The states a sequence starts from: those given, else what the rule says, else zero."""
    start = lookup("START", rule.name)
    own = start(SimpleNamespace(**params), dims) if start else {}
    return SimpleNamespace(**{s.name: given.get(s.name, own.get(s.name, np.zeros([dims[d] for d in s.dims])))
                              for s in rule.states})


def reference(rule, arrays):
    """Outputs [batch, token, head, ..] and final states [batch, head, ..] by name."""
    heads = max(arrays[x.name].shape[2] for x in rule.inputs)
    heads = max([heads, *[arrays[p.name].shape[0] for p in rule.params]])
    batch = arrays[rule.inputs[0].name].shape[0]
    dims = {d: n for x in [*rule.inputs, *rule.params] for d, n in zip(
        x.dims, arrays[x.name].shape[len(arrays[x.name].shape) - len(x.dims):])}
    group = lambda x, axis, head: np.take(x, head // (heads // x.shape[axis]), axis)
    rows = []
    for b in range(batch):
        for h in range(heads):
            inputs = {x.name: group(arrays[x.name], 2, h)[b] for x in rule.inputs}
            params = {x.name: group(arrays[x.name], 0, h) for x in rule.params}
            given = {x.name: arrays[x.name][b, h] for x in rule.states if x.name in arrays}
            states = initial_states(rule, params, given, dims)
            out = run_head(rule, inputs, params, states, h, heads)
            rows.append({**out, **vars(states)})
    result = {}
    for name in [*rule.outputs, *[s.name for s in rule.states]]:
        x = np.array([row[name] for row in rows], dtype=np.float64)
        x = x.reshape((batch, heads) + x.shape[1:])
        result[name] = np.swapaxes(x, 1, 2) if name in rule.outputs else x
    return result
