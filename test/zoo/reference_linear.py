"""Linear attention and its kin: decays and writes, no reads. One function per rule: one token of one head.

`x` holds the token's inputs, the head's parameters, `head`, `heads` and the token's index `t`; `s` the
states, which the function replaces. What it returns is the output (several outputs: a dict). A state S is
dv x dk.
"""
import numpy as np

from functions import elu, exp, l2norm, outer, rmsnorm, rope, scale, sigmoid, softmax


def linear_attention(x, s):
    s.S = s.S + outer(x.v, x.k)
    return scale(x.q) * s.S @ x.q


def linear_attention_normalised(x, s):
    s.S = s.S + outer(x.v, x.k)
    s.z = s.z + x.k
    q = scale(x.q) * x.q
    return s.S @ q / (s.z @ q + 1e-10)


def linear_attention_feature_map(x, s):
    q, k = elu(x.q) + 1, elu(x.k) + 1
    s.S = s.S + outer(x.v, k)
    s.z = s.z + k
    return s.S @ q / (s.z @ q + 1e-6)


def linear_attention_rmsnorm(x, s):
    s.S = s.S + outer(x.v, x.k)
    return x.w * rmsnorm(s.S @ x.q)


def retnet(x, s):
    s.S = (1 - 2.0 ** (-5 - x.head)) * s.S + outer(x.v, rope(x.k, x.t))
    return scale(x.q) * s.S @ rope(x.q, x.t)


def lightning(x, s):
    layer, layers = 0, 24
    s.S = exp(-8 / x.heads * (1 - layer / layers) * x.head) * s.S + outer(x.v, x.k)
    return scale(x.q) * s.S @ x.q


def simple_gla(x, s):
    s.S = exp(x.g) * s.S + outer(x.v, x.k)
    return scale(x.q) * s.S @ x.q


def mamba2(x, s):
    s.S = exp(x.dt * x.A) * s.S + outer(x.dt * x.x, x.B)
    return s.S @ x.C + x.D * x.x


def gla(x, s):
    s.S = s.S * exp(x.g) + outer(x.v, x.k)  # numpy scales the columns
    return scale(x.q) * s.S @ x.q


def hgrn2(x, s):
    s.S = s.S * exp(x.g) + outer(x.v, 1 - exp(x.g))
    return scale(x.q) * s.S @ x.q


def rwkv6(x, s):
    o = (s.S + outer(x.v, x.u * x.k)) @ x.r
    s.S = s.S * exp(x.w) + outer(x.v, x.k)
    return o


def left_slots(x, s):
    a = exp(x.g)
    s.K = a[:, None] * s.K + outer(1 - a, x.k)
    s.V = a[:, None] * s.V + outer(1 - a, x.v)
    return s.V.T @ softmax(s.K @ x.q)


def mimo(x, s):
    s.S = exp(x.g) * s.S + x.X @ x.B.T
    return {"O": s.S @ x.C}


def mimo_rows(x, s):
    s.S = exp(x.g) * s.S + sum(outer(w * x.x, b) for w, b in zip(x.W, x.B))
    return {"O": np.array([z * (s.S @ c) for z, c in zip(x.Z, x.C)])}


def matrix_output(x, s):
    s.S = x.a * s.S + outer(x.v, x.k)
    return {"o": s.S @ x.q, "p": np.tanh(outer(x.v, x.k))}


def gsa(x, s):
    s.Sk = exp(x.g)[:, None] * s.Sk + outer(x.s, x.k)
    s.Sv = s.Sv * exp(x.g) + outer(x.v, x.s)
    return s.Sv @ softmax(s.Sk @ (scale(x.q) * x.q))


def value_decay(x, s):
    s.S = exp(x.h)[:, None] * s.S * exp(x.g) + outer(x.v, x.k)
    return s.S @ x.q


def outer_decay(x, s):
    s.S = sigmoid(x.h)[:, None] * s.S * sigmoid(x.g) + outer(x.v, x.k)
    return s.S @ x.q


def tempered_gate(x, s):
    a = sigmoid(x.g) ** sigmoid(x.r)
    s.S = s.S * a + outer(x.v, (1 - a) ** 2 * x.k)
    return s.S @ x.q


def projected_output(x, s):
    s.S = exp(x.g) * s.S + outer(x.v, x.k)
    return x.W @ rmsnorm(s.S @ x.q)


def second_order(x, s):
    s.G = s.G + outer(x.k, x.k @ s.C)
    s.C = s.C + outer(x.q, x.v)
    s.M = s.M + outer(x.k, x.k)
    return (s.M @ s.C - s.G).T @ x.q


def remembered_decay(x, s):
    s.m = x.a * s.m + (1 - x.a) * x.k * x.k
    s.S = s.S * exp(-s.m) + x.b * outer(x.v, x.k)
    return s.S @ x.q


def read_both_ways(x, s):
    s.S = exp(x.g) * s.S + outer(x.v, x.k)
    return {"o": s.S @ x.q, "p": x.x @ s.S}


def signed_decay(x, s):
    s.S = x.a * s.S + outer(x.v, x.k)
    return s.S @ x.q


def cascade(x, s):
    s.R = x.a * s.R + outer(x.v, x.k)
    s.S = x.b * s.S + (1 - x.b) * s.R
    return s.S @ x.q


def trapezoid(x, s):
    s.S = x.a * s.S + x.b * outer(s.v1, s.k1) + x.c * outer(x.v, x.k)
    s.k1, s.v1 = x.k, x.v
    return s.S @ x.q


def trapezoid_turned(x, s):
    k, q = rope(x.k, x.t), rope(x.q, x.t)
    s.S = exp(x.dt * x.A) * (s.S + (1 - x.mix) * x.dt * outer(s.v1, s.k1)) + x.mix * x.dt * outer(x.v, k)
    s.k1, s.v1 = k, x.v
    return s.S @ q


def dense_transition(x, s):
    s.S = s.S @ x.R + outer(x.v, x.k)
    return s.S @ x.q


def ema(x, s):
    s.h = x.a * s.h + (1 - x.a) * x.x
    return s.h


def shifted_tokens(x, s):
    def mixed(weight, now, last):
        return weight * now + (1 - weight) * last
    decay = exp(-exp(mixed(x.mw, x.w, s.lw)))
    s.S = s.S * decay + outer(mixed(x.mv, x.v, s.lv), mixed(x.mk, x.k, s.lk))
    s.lk, s.lw, s.lv = x.k, x.w, x.v
    return s.S @ x.r


def three_memories(x, s):
    s.S0 = exp(x.g) * s.S0 + outer(x.v, x.k)
    s.S1 = (1 - x.r1 + x.r1 * exp(x.g)) * s.S1 + x.r1 * outer(x.v, x.k)
    s.S2 = (1 - x.r2 + x.r2 * exp(x.g)) * s.S2 + x.r2 * outer(x.v, x.k)
    return (s.S0 + x.r1 * s.S1 + x.r2 * s.S2) @ x.q


def low_rank_gate(x, s):
    s.S = s.S * sigmoid(x.U @ (x.W @ x.x) + 2) + outer(x.v, x.k)
    return s.S @ x.q


def low_rank_decay(x, given):
    return exp(-exp(x.w - 1 + x.B @ np.tanh(x.A @ given) / 8))


def projected(x, s):
    s.S = s.S * low_rank_decay(x, x.x) + outer(x.Wv @ x.x, l2norm(x.Wk @ x.x))
    return s.S @ l2norm(x.Wq @ x.x)


def mixed_projections(x, s):
    def mixed(weight, last):
        return x.x + weight * (last - x.x)
    r, k, v = x.Wr @ mixed(x.mr, s.l1), x.Wk @ mixed(x.mk, s.l1), x.Wv @ mixed(x.mv, s.l2)
    s.S = s.S * low_rank_decay(x, mixed(x.mw, s.l1)) + outer(v, l2norm(k))
    s.l1, s.l2 = x.x, s.l1
    return s.S @ l2norm(r)


def made_keys(x, s):
    k, u = l2norm(x.k), l2norm(x.u)
    s.P = s.P + x.b * outer(u - s.P @ k, k)
    s.S = exp(x.g) * s.S + outer(x.v, s.P @ k)
    return s.S @ (s.P @ x.q)


def turned_keys(x, s):
    c, d = 0.7 * x.c, 0.7 * x.s
    s.R, s.J = s.R * c - s.J * d + outer(x.v, x.k), s.R * d + s.J * c
    return s.R @ x.q


def refined_gate(x, s):
    f, r = sigmoid(x.g), sigmoid(x.r)
    decay = (1 - r) * f**2 + r * (1 - (1 - f)**2)
    s.S = s.S * decay + outer(x.v, (1 - decay) * softmax(x.k))
    return s.S @ softmax(x.q)
