"""Rules that read their state: the delta family. Conventions as in reference_linear.py."""
import numpy as np

from functions import exp, l2norm, outer, rmsnorm, scale, sigmoid, silu, softplus


def delta_step(S, k, v, b):
    """Move what S stores under k towards v by the fraction b."""
    return S + b * outer(v - S @ k, k)


def deltanet(x, s):
    s.S = delta_step(s.S, x.k, x.v, x.b)
    return scale(x.q) * s.S @ x.q


def gated_deltanet(x, s):
    s.S = delta_step(exp(x.g) * s.S, l2norm(x.k), x.v, x.b)
    return scale(x.q) * s.S @ l2norm(x.q)


def one_line(x, s):
    s.S = x.a * s.S @ (np.eye(len(x.k)) - x.b * outer(x.k, x.k)) + x.b * outer(x.v, x.k)
    return s.S @ x.q


def comba(x, s):
    k, p = l2norm(x.k), l2norm(x.p)
    s.S = exp(x.g) * s.S + x.b * outer(x.v - s.S @ p, k)  # reads before the decay
    return scale(x.q) * s.S @ l2norm(x.q)


def kda(x, s):
    s.S = delta_step(s.S * exp(x.g), l2norm(x.k), x.v, x.b)
    return scale(x.q) * s.S @ l2norm(x.q)


def gated_deltanet2(x, s):
    k = l2norm(x.k)
    s.S = (s.S * exp(x.g)) @ (np.eye(len(k)) - outer(x.b * k, k)) + outer(x.w * x.v, k)
    return scale(x.q) * s.S @ l2norm(x.q)


def kaczmarz(x, s):
    # The nearest state that gives the value, as far as the rate says; what keys of no length find stays.
    S, square = exp(x.g) * s.S, x.k @ x.k + 1e-6
    s.S = S + x.eta * outer((x.v - S @ x.k) / square, x.k)
    return scale(x.q) * s.S @ x.q


def preconditioned(x, s, decayed):
    """Keys are written along times what their squares' sums say, within a factor of 1.5."""
    k = l2norm(x.k)
    s.A = exp(x.h) * s.A + x.c * k**2
    far = np.log(s.A + 1e-6) - x.m
    s.S = decayed + x.b * outer(x.v - decayed @ k, k * 1.5 ** (-far / (1 + np.abs(far))))
    return scale(x.q) * s.S @ l2norm(x.q)


def preconditioned_gdn(x, s):
    return preconditioned(x, s, exp(x.g) * s.S)


def preconditioned_kda(x, s):
    return preconditioned(x, s, s.S * exp(x.g))


def deltaproduct(x, s):
    s.S = exp(x.g) * s.S
    for k, v, b in zip(x.k, x.v, x.b):
        s.S = delta_step(s.S, k, v, b)
    return scale(x.q) * s.S @ x.q


def dplr(x, s):
    s.S = s.S * exp(x.g) + outer(s.S @ x.a, x.b) + outer(x.v, x.k)
    return scale(x.q) * s.S @ x.q


def rwkv7(x, s):
    kk = l2norm(x.kk)
    s.S = s.S * exp(x.w) - outer(s.S @ kk, kk * x.a) + outer(x.v, x.k)
    return s.S @ x.r


def longhorn(x, s):
    # The minimiser of |S' - S|^2 + b |S' k - v|^2, from its normal equations rather than the closed form.
    A = np.eye(len(x.k)) + x.b * outer(x.k, x.k)
    s.S = np.linalg.solve(A, (s.S + x.b * outer(x.v, x.k)).T).T
    return s.S @ x.q


def vector_beta(x, s):
    s.S = s.S + outer(x.b * (x.v - s.S @ x.k), x.k)
    return s.S @ x.q


def value_rates(x, s):
    k = l2norm(x.k)
    s.S = exp(x.g) * s.S
    s.S = s.S + outer(x.b * (x.v - s.S @ k), k)
    return s.S @ x.q


def decayed_rates(x, s):
    k, q = l2norm(x.k), l2norm(x.q)
    s.S = s.S * exp(x.g)
    s.S = s.S - outer(x.b * (s.S @ k - x.v), k)
    return s.S @ q


def erased_elsewhere(x, s):
    k, p = l2norm(x.k), l2norm(x.p)
    decayed = exp(x.h)[:, None] * s.S
    s.S = decayed - x.b * outer(decayed @ k, k) + x.b * outer(x.v, p)
    return s.S @ x.q


def value_forgetting(x, s):
    k = l2norm(x.k)
    s.S = exp(x.a)[:, None] * s.S
    s.S = s.S + outer(x.b * (x.v - s.S @ k), k)
    return s.S @ x.q


def erased_by_value(x, s):
    v = l2norm(x.v)
    s.S = s.S + x.b * outer(v, x.k - s.S.T @ v)
    return s.S @ x.q


def in_rows(x, s):
    k = l2norm(x.k)
    s.S = exp(x.g)[:, None] * s.S
    s.S = s.S + x.b * outer(k, x.v - s.S.T @ k)
    return x.q @ s.S / x.q.size**0.5


def gated_oja(x, s):
    v = l2norm(x.v)
    s.S = exp(x.g)[:, None] * s.S
    s.S = s.S + x.b * outer(v, x.k - s.S.T @ v)
    return s.S @ x.q


def signed_delta(x, s):
    s.S = delta_step(x.a * s.S, l2norm(x.k), x.v, x.b)
    return s.S @ x.q


def signed_keys(x, s):
    s.S = delta_step(s.S * x.a, l2norm(x.k), x.v, x.b)
    return s.S @ x.q


def short_convolution(x, s):
    c = l2norm(silu(x.c0 * x.k + x.c1 * s.k1 + x.c2 * s.k2))
    s.k1, s.k2 = x.k, s.k1
    s.S = delta_step(exp(x.g) * s.S, c, x.v, x.b)
    return s.S @ x.q


def convolved_layer(x, s):
    q = l2norm(silu(x.q0 * x.q + x.q1 * s.lq1 + x.q2 * s.lq2 + x.q3 * s.lq3))
    k = l2norm(silu(x.k0 * x.k + x.k1 * s.lk1 + x.k2 * s.lk2 + x.k3 * s.lk3))
    v = silu(x.v0 * x.v + x.v1 * s.lv1 + x.v2 * s.lv2 + x.v3 * s.lv3)
    s.lq1, s.lq2, s.lq3 = x.q, s.lq1, s.lq2
    s.lk1, s.lk2, s.lk3 = x.k, s.lk1, s.lk2
    s.lv1, s.lv2, s.lv3 = x.v, s.lv1, s.lv2
    s.S = delta_step(exp(-exp(x.rate) * softplus(x.a + x.bias)) * s.S, k, v, sigmoid(x.b))
    return silu(x.z) * (x.w * rmsnorm(s.S @ q))


def scaled_keys(x, s):
    k = l2norm(x.k)
    S = sigmoid(x.g) ** (1 / 16) * s.S
    s.S = S + sigmoid(x.b) * outer(x.v - S @ k, x.p * k)
    return s.S @ (x.p * x.q)


def two_reads(x, s):
    s.S = exp(x.g) * s.S - x.b * outer(s.S @ x.k, x.k) - x.c * outer(s.S @ x.p, x.p) + outer(x.v, x.k)
    return s.S @ x.q


def block_delta(x, s):
    K = l2norm(x.K.T).T
    S = exp(x.g) * s.S
    s.S = S - x.b / K.shape[1] * (S @ K - x.V) @ K.T
    return s.S @ x.q


def keyed_block(x, s):
    K = l2norm(x.K.T).T
    S = s.S * exp(x.g)
    s.S = S - x.b / K.shape[1] * (S @ K - x.V) @ K.T
    return s.S @ x.q


def delta_normaliser(x, s):
    q, k = l2norm(silu(x.q)), l2norm(silu(x.k))
    s.S = delta_step(exp(x.g) * s.S, k, x.v, x.b)
    s.z = exp(x.g) * s.z
    s.z = s.z + x.b * (1 - s.z @ k) * k
    return s.S @ q / (abs(s.z @ q) + 1)


def decayed_last(x, s):
    k = l2norm(x.k)
    S = s.S - x.b * outer(s.S @ k - x.v, k)
    s.S = S * exp(x.g)
    return S @ x.q


def block_delta_rows(x, s):
    S = exp(x.g) * s.S
    s.S = S + sum(b * outer(v - S @ k, k) for b, k, v in zip(x.b, x.K, x.V))
    return {"O": x.Q @ s.S.T}


def turned_reads(x, s):
    k = l2norm(x.W @ x.k + x.W.T @ x.v)
    s.S = x.a * s.S - x.b * outer(s.S @ k, k) + outer(x.v, k)
    return s.S @ x.q - x.b * (s.S.T @ x.q)


def biased(x, s):
    e = s.S @ x.k + s.c - x.v
    s.S = x.a * s.S - x.b * outer(e, x.k)
    s.c = x.a * s.c - x.b * e
    return s.S @ x.q + s.c


def own_keys(x, s):
    e = x.v - s.S @ x.k - s.R @ x.p
    s.S = x.a * s.S + x.b * outer(e, x.k)
    s.R = x.a * s.R + x.b * outer(e, x.p)
    return (s.S + s.R) @ x.q


def smoothed_error(x, s):
    s.u = x.c * s.u + (1 - x.c) * (x.v - s.S @ x.k)
    s.S = x.a * s.S + x.b * outer(s.u, x.k)
    return s.S @ x.q


def read_again(x, s):
    S = exp(x.g) * s.S
    s.S = S + x.b * np.outer(x.v - S @ x.k, x.k)
    return s.S @ (s.S @ x.q)


def mean_squares(x, s):
    o = s.w @ x.x
    s.w = s.w + 0.5 * (x.y - o) * x.x / (x.x @ x.x + 1)
    return o


def shared_error(x, s):
    q, k = l2norm(x.q), l2norm(x.k)
    F, S = exp(x.f) * s.F, exp(x.s) * s.S
    error = x.v - (F + S) @ k
    s.F, s.S = F + x.b * outer(error, k), S + x.c * outer(error, k)
    return (s.F + s.S) @ q


def delayed_delta(x, s):
    k = l2norm(x.k)
    s.S = delta_step(exp(x.g) * s.S + x.c * outer(s.v1, s.k1), k, x.v, x.b)
    s.k1, s.v1 = k, x.v
    return s.S @ x.q


def two_deltas(x, s):
    k, p = l2norm(x.k), l2norm(x.p)
    S = exp(x.g) * s.S
    s.S = S + x.b * outer(x.v - S @ k, k) + x.c * outer(x.u - S @ p, p)
    return s.S @ x.q


def deltas_in_turn(x, s):
    S = delta_step(s.S * exp(x.g), l2norm(x.k), x.v, x.b)
    s.S = delta_step(S, l2norm(x.p), x.u, x.c)
    return s.S @ x.q


def values_in_turn(x, s):
    S = delta_step(exp(x.g)[:, None] * s.S, l2norm(x.k), x.v, x.b)
    s.S = delta_step(S, l2norm(x.p), x.u, x.c)
    return s.S @ x.q


def keyed_reads(x, s):
    s.S = s.S * exp(x.g) - x.b * outer(s.S @ x.k, x.k) - x.c * outer(s.S @ x.p, x.p) + outer(x.v, x.k)
    return s.S @ x.q


def three_in_turn(x, s):
    s.S = exp(x.g) * s.S
    for k, v, b in (x.k1, x.v1, x.b1), (x.k2, x.v2, x.b2), (x.k3, x.v3, x.b3):
        s.S = delta_step(s.S, l2norm(k), v, b)
    return s.S @ x.q


def two_removals(x, s):
    s.S = s.S * exp(x.g) - x.r * outer(s.S @ x.a, x.a) - x.s * outer(s.S @ x.c, x.c) + outer(x.v, x.k)
    return s.S @ x.q


def two_outputs(x, s):
    S = exp(x.g) * s.S
    s.S = delta_step(S, x.k, x.v, x.b)
    return {"o": s.S @ x.q, "p": S @ x.k}


def two_sided(x, s):
    s.S = s.S - x.b * outer(s.S @ x.k, x.k) - x.c * outer(x.w, x.w @ s.S) + outer(x.v, x.k)
    return s.S @ x.q


def micro_decay(x, s):
    for k, v, a, b in zip(x.k, x.v, x.a, x.b):
        u = l2norm(k)
        s.S = a * (s.S - b * outer(s.S @ u, u)) + outer(v, u)
    return sigmoid(x.r) * (s.S @ x.q)


def micro_keys(x, s):
    s.S = x.a * s.S * exp(x.g)
    for k, v, b in zip(x.k, x.v, x.b):
        s.S = delta_step(s.S, l2norm(k), v, b)
    return s.S @ x.q


def penalised(x, s):
    k, rate = l2norm(x.k), sigmoid(x.th)
    s.S = s.S - rate * (outer(s.S @ k - x.v, k) + sigmoid(x.al) * s.S)
    return s.S @ x.q


def trained_start(x, s):
    s.S = delta_step(exp(x.g) * s.S, l2norm(x.k), x.v, x.b)
    return s.S @ x.q


def anchored(x, s):
    s.S = delta_step(x.a * s.S + (1 - x.a) * x.W, l2norm(x.k), x.v, x.b)
    return s.S @ x.q


def trapezoid_delta(x, s):
    k = l2norm(x.k)
    S = x.a * s.S
    s.S = S - x.b * outer(S @ k, k) + x.a * x.c * s.P + x.b * outer(x.v, k)
    s.P = x.b * outer(x.v, k)
    return s.S @ x.q


def late_decay(x, s):
    s.S = x.a * delta_step(s.S + x.c * outer(x.u, l2norm(x.p)), l2norm(x.k), x.v, x.b)
    return s.S @ x.q


def read_before(x, s):
    k, S = l2norm(x.k), x.a * s.S
    o = S @ x.q
    s.S = delta_step(delta_step(S, k, x.v, x.b) + x.c * outer(x.u, l2norm(x.p)), k, x.w, x.c)
    return o


def momentum_beside(x, s):
    k = l2norm(x.k)
    s.M = x.m * s.M - x.b * outer(s.S @ k, k)
    s.S = x.a * s.S + s.M + outer(x.v, l2norm(x.p))
    return s.S @ x.q


def error_beside(x, s):
    k = l2norm(x.k)
    e = s.T @ k - s.S @ k - x.v
    s.T = x.m * s.T - x.b / 2 * outer(e, k)
    s.S = x.a * s.S - outer(e, k) / 4 + outer(x.v, k)
    return (s.S + s.T) @ x.q


def paced_keys(x, s):
    s.S = delta_step(x.a * s.S * exp(x.g), l2norm(x.k), x.v, x.b)
    return s.S @ x.q


def stepped_rates(x, s):
    s.S = delta_step(s.S * exp(-x.a * exp(x.w)), l2norm(x.k), x.v, x.b)
    return s.S @ x.q


def two_keys(x, s):
    k = l2norm(x.k)
    S = exp(x.g) * s.S
    s.S = S - x.b * outer(S @ k, k) + x.b * outer(x.v, k) + outer(x.u, l2norm(x.p))
    return s.S @ x.q


def fed_by_delta(x, s):
    s.F = delta_step(exp(x.g) * s.F, l2norm(x.k), x.v, x.b)
    s.S = (1 - x.c) * s.S + x.c * s.F
    return (s.S + s.F) @ x.q


START = {"trained_start": lambda params, dims: {"S": params.S0}, "anchored": lambda params, dims: {"S": params.W}}


def micro_functions(x, s):
    s.S = exp(x.g) * s.S
    for k, v, b in zip(x.k, x.v, x.b):
        s.S = delta_step(s.S, l2norm(k), v, 2 * sigmoid(b))
    return s.S @ l2norm(silu(x.q))
