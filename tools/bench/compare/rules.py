"""The rules of the comparison: how each is drawn, what it means in float64, and how the peer is called.

Tensors are [batch, token, head, dim] and named as in the spec. A reference is one token of [batch, head, dim], states
[batch, head, value, key]; it is written from the definition, not from the spec. A peer's function returns the output
and the final states in the order of the spec, value rows by key columns.
"""
import fnmatch
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Callable

import torch
import torch.nn.functional as F

from specs import D

CHUNK = 64


# ---- Values ----

class Draw:
    """Draws inputs of [batch, tokens, heads] on a device; `cosine` is the mean cosine of two keys."""

    def __init__(self, device, batch, tokens, heads, key_heads, cosine, seed=0):
        self.generator = torch.Generator(device).manual_seed(seed)
        self.device, self.batch, self.tokens = device, batch, tokens
        self.heads, self.key_heads, self.cosine = heads, key_heads, cosine

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.generator, device=self.device)

    def token(self, *own, heads=None):
        return self.normal(self.batch, self.tokens, heads or self.heads, *own)

    def query(self):
        return self.token(D, heads=self.key_heads)

    def value(self, *own):
        return self.token(*(own or (D,)))

    def key(self, *steps):
        """Unit vectors."""
        x = F.normalize(self.token(*steps, D, heads=self.key_heads), dim=-1)
        if self.cosine:
            common = F.normalize(self.normal(self.batch, 1, self.key_heads, *[1 for _ in steps], D), dim=-1)
            x = (1 - self.cosine) ** 0.5 * x + self.cosine ** 0.5 * common
        return F.normalize(x, dim=-1)

    def gate(self, *own):
        return torch.sigmoid(self.token(*own))

    def log_decay(self, *own):
        return F.logsigmoid(self.token(*own)).clamp(min=-5)

    def log_decay_06(self):
        return -0.6065 * torch.sigmoid(self.token(D))


def qkv(d):
    return dict(q=d.query(), k=d.key(), v=d.value())


# ---- References, one token ----

def read(S, k):
    return (S @ k[..., None])[..., 0]


def outer(v, k):
    return v[..., None] * k[..., None, :]


def l2(x):
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def scaled(S, q):
    return read(S, q) * q.shape[-1] ** -0.5


def rows(a):
    """A factor per head, for states."""
    return a[..., None, None]


def delta(S, k, v, b):
    return S + outer(b[..., None] * (v - read(S, k)), k)


def linear_step(x, S, a):
    S = rows(a) * S + outer(x.v, x.k)
    return scaled(S, x.q), S


def gamma_retention(H, x):
    return 1 - 2.0 ** (-5 - torch.arange(H, device=x.v.device, dtype=torch.float64))


def gamma_lightning(H, x):
    return torch.exp(-8.0 / H * torch.arange(H, device=x.v.device, dtype=torch.float64))


def mamba2_step(x, S):
    S = rows(torch.exp(x.dt * x.A)) * S + outer(x.dt[..., None] * x.x, x.B)
    return read(S, x.C) + x.D[:, None] * x.x, S


def gla_step(x, S):
    S = S * torch.exp(x.g)[..., None, :] + outer(x.v, x.k)
    return scaled(S, x.q), S


def rwkv6_step(x, S):
    o = read(S, x.r) + x.v * (x.u * x.k * x.r).sum(-1, keepdim=True)
    return o, S * torch.exp(x.w)[..., None, :] + outer(x.v, x.k)


def gsa_step(x, Sk, Sv):
    a = torch.exp(x.g)
    Sk = a[..., None] * Sk + outer(x.s, x.k)
    Sv = Sv * a[..., None, :] + outer(x.v, x.s)
    return read(Sv, torch.softmax(scaled(Sk, x.q), -1)), Sk, Sv


def deltanet_step(x, S):
    S = delta(S, x.k, x.v, x.b)
    return scaled(S, x.q), S


def gated_delta_step(x, S):
    S = delta(rows(torch.exp(x.g)) * S, l2(x.k), x.v, x.b)
    return scaled(S, l2(x.q)), S


def kda_step(x, S):
    S = delta(S * torch.exp(x.g)[..., None, :], l2(x.k), x.v, x.b)
    return scaled(S, l2(x.q)), S


def comba_step(x, S):
    S = rows(torch.exp(x.g)) * S + outer(x.b[..., None] * (x.v - read(S, l2(x.p))), l2(x.k))
    return scaled(S, l2(x.q)), S


def kda2_step(x, S):
    S, k = S * torch.exp(x.g)[..., None, :], l2(x.k)
    S = S + outer(x.w * x.v - read(S, x.b * k), k)
    return scaled(S, l2(x.q)), S


def momentum_step(x, S, M):
    k, S = l2(x.k), rows(torch.exp(x.g)) * S
    M = rows(torch.exp(x.h)) * M - outer(x.eta[..., None] * (x.v - read(S, k)), k)
    S = S - rows(x.b) * M
    return scaled(S, l2(x.q)), S, M


def preconditioned_step(x, S, A):
    k = l2(x.k)
    A = torch.exp(x.h)[..., None] * A + x.c[..., None] * k * k
    far = torch.log(A + 1e-6) - x.m[:, None]
    decay = torch.exp(x.g)
    S = S * (decay[..., None, :] if decay.ndim == k.ndim else rows(decay))
    S = S + outer(x.b[..., None] * (x.v - read(S, k)), k * 1.5 ** (-far / (1 + far.abs())))
    return scaled(S, l2(x.q)), S, A


def product_step(x, S):
    S = rows(torch.exp(x.g)) * S
    for j in range(x.k.shape[-2]):
        S = delta(S, x.k[..., j, :], x.v[..., j, :], x.b[..., j])
    return scaled(S, x.q), S


def dplr_step(x, S):
    S = S * torch.exp(x.g)[..., None, :] + outer(read(S, x.a), x.b) + outer(x.v, x.k)
    return scaled(S, x.q), S


def rwkv7_step(x, S):
    kk = l2(x.kk)
    S = S * torch.exp(x.w)[..., None, :] - outer(read(S, kk), kk * x.a) + outer(x.v, x.k)
    return read(S, x.r), S


def mesa_step(x, G, H):
    k, q, a, b = l2(x.k), l2(x.q), rows(torch.exp(x.g)), x.b[..., None]
    G, H = a * G + outer(b * x.v, k), a * H + outer(b * k, k)
    # Exact where the peer iterates: 30 steps are enough for these inputs.
    y = torch.linalg.solve(H + torch.diag_embed(x.lamb), q)
    return read(G, y), G, H


def hgrn_step(x, h):
    h = torch.exp(x.g) * h + x.x
    return h, h


def normed(x):
    """A layer norm without weights, and what it is divided by."""
    x = x - x.mean(-1, keepdim=True)
    root = torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)
    return x / root, root


def ttt_whole(x):
    """Blocks of 16 tokens, whose gradients are all taken at the block's start; S and c at the end."""
    q, k, v = (t.transpose(1, 2) for t in (x.q, x.k, x.v))
    eta, w, b = x.eta.transpose(1, 2)[..., None], x.w[:, None], x.b[:, None]
    S = q.new_zeros(*q.shape[:2], D, D)
    c, outputs = S[..., :1, :], []
    for t in range(0, q.shape[2], 16):
        qs, ks, vs, es = (y[..., t:t + 16, :] for y in (q, k, v, eta))
        z, root = normed(ks @ S.transpose(-1, -2) + c)
        u = w * (w * z + b - (vs - ks))
        u = (u - u.mean(-1, keepdim=True) - z * (u * z).mean(-1, keepdim=True)) / root
        y = D ** -0.5 * (qs @ S.transpose(-1, -2) - es * (torch.tril(qs @ ks.transpose(-1, -2)) @ u))
        y = y + c - es * u.cumsum(-2)
        outputs.append(y + w * normed(y)[0] + b)
        S, c = S - es[..., -1:, :] * (u.transpose(-1, -2) @ ks), c - es[..., -1:, :] * u.sum(-2, keepdim=True)
    return torch.cat(outputs, 2).transpose(1, 2), [S, c[..., 0, :]]


def token_of(rule, x):
    """The only token of a step's inputs, in float64."""
    return SimpleNamespace(**{n: (t if n in rule.params else t[:, 0]).double() for n, t in x.items()})


def reference(rule, x):
    """Output and final states in float64."""
    wide = {n: t.double() for n, t in x.items()}
    if rule.whole:
        return rule.whole(SimpleNamespace(**wide))
    per_token = {n: t for n, t in wide.items() if n not in rule.params}
    batch, tokens, heads = max((t.shape[:3] for t in per_token.values()), key=lambda s: s[2])
    per_token = {n: t.repeat_interleave(heads // t.shape[2], 2) for n, t in per_token.items()}
    params = {n: t for n, t in wide.items() if n in rule.params}
    device = next(iter(wide.values())).device
    states = [torch.zeros(batch, heads, *shape, dtype=torch.float64, device=device) for shape in rule.states]
    outputs = []
    for t in range(tokens):
        o, *states = rule.step(SimpleNamespace(**{n: y[:, t] for n, y in per_token.items()}, **params), *states)
        outputs.append(o)
    return torch.stack(outputs, 1), states


# ---- Rules ----

def flip(state):
    return None if state is None else state.transpose(-1, -2)


def one(call):
    """A peer's function that returns one state, keys by values."""
    def run(ops, x, final, **more):
        o, state = call(ops, x, output_final_state=final, **more)
        return o, [flip(state)]
    return run


@dataclass
class Rule:
    """One rule of the comparison."""
    name: str
    draw: Callable   # from a Draw to tensors
    step: Callable   # its meaning; None where a token needs more than the states
    peer: Callable   # (ops, x, final) -> output, states
    peer_step: Callable = None  # (ops, x, states) -> output, states; one token
    states: tuple = ((D, D),)
    params: tuple = ()
    grouped: bool = False  # whether the peer takes fewer key heads than value heads
    host: bool = False     # whether the peer's call does work on the host that no graph captures
    # Matrix products of a chunk: of dk x dv, of chunk x dk, of chunk x dv, for each token.
    products: tuple = (2, 1, 1)
    tokens: int = 1024     # of the check
    types: dict = field(default_factory=dict)  # of inputs and params by name; else what is compared
    whole: Callable = None  # the meaning of a sequence, (inputs) -> output, states, of a rule without a step

    def operations(self, tokens):
        """Floating-point operations of the matrix products."""
        whole, keys, values = self.products
        return 2 * tokens * (whole * D * D + (keys + values) * CHUNK * D)


def micro(x, name):
    """[B, T, H, n, ..] as [B, T*n, H, ..]."""
    t = getattr(x, name).transpose(2, 3)
    return t.reshape(t.shape[0], -1, *t.shape[3:]).contiguous()


def steps_of(name, *names, **renamed):
    """A peer's step function by name, with these arguments."""
    def run(ops, x, states):
        given = {n: getattr(x, n) for n in names} | {n: getattr(x, ours) if isinstance(ours, str) else ours
                                                     for n, ours in renamed.items()}
        return getattr(ops, name)(**given, initial_state=states[0], output_final_state=True)
    return run


def mesa(ops, x, final):
    o, hkk, hkv = ops.chunk_mesa_net(x.q, x.k, x.v, x.g, x.b, x.lamb, output_final_state=final,
                                     use_qk_l2norm_in_kernel=True)
    return o, [flip(hkv), hkk]


def mesa_step_of(ops, x, states):
    o, *states = ops.mesa_net_decoding_one_step(*x.ready, x.v[:, 0], x.g[:, 0], x.lamb, x.b[:, 0], states[1], states[0])
    return o[:, None], states


def gsa(ops, x, final):
    o, states = ops.chunk_gsa(x.q, x.k, x.v, x.s, g=x.g, output_final_state=final)
    return o, [flip(s) for s in states or (None, None)]


def gsa_step_of(ops, x, states):
    return ops.fused_recurrent_gsa(x.q, x.k, x.v, x.s, g=x.g, initial_state=states, output_final_state=True)


def gdn2(ops, x, final):
    o, state = ops.chunk_gdn2(x.q, x.k, x.v, x.g, x.b, x.w, output_final_state=final, use_qk_l2norm_in_kernel=True,
                              safe_gate=True, lower_bound=-5)
    return o, [flip(state)]


def momentum(ops, x, final):
    o, states = ops.chunk_momentum_delta_rule(x.q, x.k, x.v, x.g, x.h, beta=x.b, eta=x.eta, output_final_state=final)
    return o, [flip(s) for s in (states if final else (None, None))]


def preconditioned(name, **more):
    def run(ops, x, final):
        o, state, squares = getattr(ops, name)(
            q=x.q, k=x.k, v=x.v, g_atk=x.h, g=x.g, beta_atk=x.c, beta=x.b, output_final_state=final,
            use_qk_l2norm_in_kernel=True, log_atk_scale=x.m.float(), **more)
        return o, [flip(state), squares]
    return run


def ttt(ops, x, final):
    o, state, bias = ops.chunk_ttt_linear(x.q, x.k, x.v, x.w, x.b, x.eta[..., None], output_final_state=final)
    return o, [flip(state), None if bias is None else bias[..., 0, :]]


def hgrn(ops, x, final, initial=None):
    flat = lambda t: t.flatten(2)
    o, state = ops.fused_recurrent_hgrn(flat(x.x), flat(x.g), initial_state=initial, output_final_state=final)
    return o.view(x.x.shape), [None if state is None else state.view(state.shape[0], *x.x.shape[2:])]


RULES = [
    Rule("linear_attention", qkv, lambda x, S: linear_step(x, S, torch.ones_like(x.v[..., 0])),
         one(lambda ops, x, **s: ops.chunk_linear_attn(x.q, x.k, x.v, normalize=False, **s)),
         steps_of("fused_recurrent_linear_attn", "q", "k", "v")),
    Rule("retention", qkv, lambda x, S: linear_step(x, S, gamma_retention(S.shape[1], x)),
         one(lambda ops, x, **s: ops.chunk_retention(x.q, x.k, x.v, **s)),
         steps_of("fused_recurrent_retention", "q", "k", "v"), host=True),
    Rule("lightning", qkv, lambda x, S: linear_step(x, S, gamma_lightning(S.shape[1], x)),
         one(lambda ops, x, **s: ops.chunk_lightning_attn(x.q, x.k, x.v, layer_idx=0, num_layers=24, **s)),
         steps_of("fused_recurrent_lightning_attn", "q", "k", "v", layer_idx=0, num_layers=24), host=True),
    Rule("simple_gla", lambda d: dict(**qkv(d), g=d.log_decay()), lambda x, S: linear_step(x, S, torch.exp(x.g)),
         one(lambda ops, x, **s: ops.chunk_simple_gla(x.q, x.k, x.v, g=x.g, **s)),
         steps_of("fused_recurrent_simple_gla", "q", "k", "v", "g")),
    # The peer gets dt*x and dt*A ready made, and D*x is added for it: both outside the time.
    Rule("mamba2", lambda d: dict(x=d.value(), dt=F.softplus(d.token()), B=d.key(), C=d.query(),
                                  A=-torch.exp(d.normal(d.heads)), D=d.normal(d.heads)), mamba2_step,
         one(lambda ops, x, **s: ops.chunk_simple_gla(x.C, x.B, x.ready[0], g=x.ready[1], scale=1.0, **s)),
         lambda ops, x, states: ops.fused_recurrent_simple_gla(x.C, x.B, x.ready[0], g=x.ready[1], scale=1.0,
                                                               initial_state=states[0], output_final_state=True),
         params=("A", "D")),
    Rule("gla", lambda d: dict(**qkv(d), g=d.log_decay(D)), gla_step,
         one(lambda ops, x, **s: ops.chunk_gla(x.q, x.k, x.v, x.g, **s)),
         steps_of("fused_recurrent_gla", "q", "k", "v", gk="g")),
    Rule("rwkv6", lambda d: dict(r=d.query(), k=d.key(), v=d.value(), w=d.log_decay(D), u=d.normal(d.heads, D)),
         rwkv6_step,
         one(lambda ops, x, **s: ops.chunk_rwkv6(x.r, x.k, x.v, x.w, x.u, scale=1.0, **s)),
         steps_of("fused_recurrent_rwkv6", "r", "k", "v", "w", "u", scale=1.0), params=("u",)),
    Rule("gsa", lambda d: dict(**qkv(d), s=d.gate(64), g=d.log_decay(64)), gsa_step, gsa, gsa_step_of,
         states=((64, D), (D, 64))),
    Rule("deltanet", lambda d: dict(**qkv(d), b=d.gate()), deltanet_step,
         one(lambda ops, x, **s: ops.chunk_delta_rule(x.q, x.k, x.v, x.b, **s)),
         steps_of("fused_recurrent_delta_rule", "q", "k", "v", beta="b"), products=(3, 2, 2)),
    Rule("gated_deltanet", lambda d: dict(**qkv(d), g=d.log_decay(), b=d.gate()), gated_delta_step,
         one(lambda ops, x, **s: ops.chunk_gated_delta_rule(x.q, x.k, x.v, g=x.g, beta=x.b,
                                                            use_qk_l2norm_in_kernel=True, **s)),
         steps_of("fused_recurrent_gated_delta_rule", "q", "k", "v", "g", beta="b", use_qk_l2norm_in_kernel=True),
         products=(3, 2, 2), grouped=True),
    Rule("kda", lambda d: dict(**qkv(d), g=d.log_decay(D), b=d.gate()), kda_step,
         one(lambda ops, x, **s: ops.chunk_kda(x.q, x.k, x.v, x.g, x.b, use_qk_l2norm_in_kernel=True, safe_gate=True,
                                               lower_bound=-5, **s)),
         steps_of("fused_recurrent_kda", "q", "k", "v", "g", beta="b", use_qk_l2norm_in_kernel=True),
         products=(3, 2, 2), grouped=True),
    Rule("comba", lambda d: dict(**qkv(d), p=d.key(), g=d.log_decay(), b=d.gate()), comba_step,
         one(lambda ops, x, **s: ops.chunk_comba(x.q, x.k, x.v, p=x.p, g=x.g, beta=x.b,
                                                use_qk_l2norm_in_kernel=True, **s)),
         steps_of("fused_recurrent_comba", "q", "k", "v", "p", "g", beta="b", use_qk_l2norm_in_kernel=True),
         products=(3, 2, 2)),
    Rule("gated_deltanet2", lambda d: dict(**qkv(d), g=d.log_decay(D), b=d.gate(D), w=d.gate(D)), kda2_step, gdn2,
         products=(3, 2, 2)),
    Rule("momentum_deltanet", lambda d: dict(**qkv(d), g=d.log_decay(), h=d.log_decay(), b=d.gate(), eta=d.gate()),
         momentum_step, momentum, states=((D, D), (D, D)), products=(5, 2, 2)),
    Rule("preconditioned_gdn", lambda d: dict(**qkv(d), g=d.log_decay(), h=d.log_decay(), b=d.gate(), c=d.gate(),
                                              m=0.1 * d.normal(d.heads)),
         preconditioned_step, preconditioned("chunk_precond_gated_delta_rule"), params=("m",), states=((D, D), (D,)),
         products=(3, 2, 2)),
    Rule("preconditioned_kda", lambda d: dict(**qkv(d), g=d.log_decay(D), h=d.log_decay(), b=d.gate(), c=d.gate(),
                                              m=0.1 * d.normal(d.heads)),
         preconditioned_step, preconditioned("chunk_precond_kda", safe_gate=True, lower_bound=-5), params=("m",),
         states=((D, D), (D,)), products=(3, 2, 2)),
    Rule("deltaproduct", lambda d: dict(q=d.query(), k=d.key(2), v=d.value(2, D), b=2 * d.gate(2), g=d.log_decay()),
         product_step,
         one(lambda ops, x, **s: ops.chunk_gated_delta_product(x.q, x.micro[0], x.micro[1], g=x.g, beta=x.micro[2],
                                                               num_householder=2, **s)), products=(5, 6, 6)),
    Rule("dplr", lambda d: dict(**qkv(d), a=None, b=None, g=d.log_decay(D)), dplr_step,
         one(lambda ops, x, **s: ops.chunk_dplr_delta_rule(x.q, x.k, x.v, x.a, x.b, x.g, scale=D ** -0.5,
                                                           safe_gate=True, chunk_size=64, lower_bound=-5, **s)),
         steps_of("fused_recurrent_dplr_delta_rule", "q", "k", "v", "a", "b", gk="g", scale=D ** -0.5),
         products=(4, 4, 3)),
    Rule("rwkv7", lambda d: dict(r=d.query(), k=d.key(), kk=d.key(), v=d.value(), w=d.log_decay_06(), a=d.gate(D)),
         rwkv7_step,
         one(lambda ops, x, **s: ops.chunk_rwkv7(x.r, x.w, x.k, x.v, -x.ready[0], x.ready[1], scale=1.0, safe_gate=True,
                                                 chunk_size=64, lower_bound=-0.6065306597, **s)),
         steps_of("fused_mul_recurrent_rwkv7", "r", "w", "k", "v", "a", kk="kk_unit", scale=1.0), products=(4, 4, 3)),
    Rule("mesanet_cg", lambda d: dict(**qkv(d), g=d.log_decay(), b=d.gate(),
                                      lamb=F.softplus(d.normal(d.heads, D)) + 0.25),
         mesa_step, mesa, mesa_step_of, params=("lamb",), states=((D, D), (D, D)), products=(33, 62, 2), tokens=512),
    Rule("ttt_linear", lambda d: dict(**qkv(d), eta=d.gate() / 16, w=1 + 0.1 * d.normal(d.heads, D),
                                      b=0.1 * d.normal(d.heads, D)),
         None, ttt, params=("w", "b"), whole=ttt_whole, products=(3, 1, 1)),
    Rule("hgrn", lambda d: dict(x=d.value(), g=d.log_decay(D)), hgrn_step, hgrn,
         lambda ops, x, states: hgrn(ops, x, True, states[0].flatten(1)), states=((D,),),
         products=(0, 0, 0)),
]


def chosen(all_rules, index, patterns):
    """The rules that a folder has and the patterns name."""
    return [r for p in patterns.split(",") for r in all_rules if r.name in index and fnmatch.fnmatch(r.name, p)]


def inputs_of(rule, draw, dtype=torch.bfloat16):
    """A rule's inputs, rounded to the type that is compared."""
    x = rule.draw(draw)
    if rule.name == "dplr":  # stable: what is read is what is written, with the other sign
        kk = draw.key()
        x.update(a=-kk, b=kk * draw.gate(D))
    return {n: t.to(rule.types.get(n, dtype)) for n, t in x.items()}


def states_of(rule, batch, heads, device):
    """States to begin with."""
    found = [torch.randn(batch, heads, *shape, device=device) * 0.1 for shape in rule.states]
    if rule.name.startswith("preconditioned"):  # the second is a sum of squares
        found[1] = found[1].abs()
    if rule.name == "mesanet_cg":  # the second is a sum of k*kT
        found[1] = found[1] @ found[1].transpose(-1, -2)
    return found


def for_peer(rule, x):
    """The inputs as the peer takes them; what is made here is outside the time."""
    given = SimpleNamespace(**x)
    if rule.name == "mamba2":
        given.ready = (x["dt"][..., None] * x["x"], (x["dt"].float() * x["A"].float()))
    if rule.name == "rwkv7":
        kk = l2(x["kk"].float())
        given.ready = kk.to(x["kk"].dtype), (kk * x["a"].float()).to(x["kk"].dtype)
        given.kk_unit = given.ready[0]
    if rule.name == "mesanet_cg" and x["q"].shape[1] == 1:
        given.ready = [l2(x[n][:, 0].float()).to(x[n].dtype) for n in "qk"]
    if rule.name == "deltaproduct":
        given.micro = [micro(given, n) for n in ("k", "v", "b")]
    return given


def complete(rule, o, x):
    """What the peer's output lacks."""
    if rule.name == "mamba2":
        return o + x["D"].to(o.dtype)[:, None] * x["x"]
    return o
