"""Memories trained or solved for while they are used. Conventions as in reference_linear.py; the functions
over whole sequences take arrays with the tokens first and return one. Gradients are written out by hand."""
import numpy as np

from functions import (conjugate_gradients, exp, gelu, gelu_slope, l2norm, layernorm, layernorm_pullback,
                       orthogonalise, outer, scale, silu, silu_slope)


def mesa_states(x, s):
    """The decayed moments of MesaNet; returns the normalised query."""
    k = l2norm(x.k)
    s.G = exp(x.g) * s.G + x.b * outer(x.v, k)
    s.H = exp(x.g) * s.H + x.b * outer(k, k)
    return l2norm(x.q)


def mesanet(x, s):
    q = mesa_states(x, s)
    return s.G @ np.linalg.solve(s.H + np.diag(x.lamb), q)


def mesanet_cg(x, s):
    q = mesa_states(x, s)
    return s.G @ conjugate_gradients(s.H + np.diag(x.lamb), q, 30, 1e-5)


def rls(x, s):
    # By the moments and an explicit inverse, not by the recursion.
    k = l2norm(x.k)
    R = np.linalg.inv(s.P)
    X = exp(x.g) * s.S @ R + x.b * outer(x.v, k)
    s.P = np.linalg.inv(exp(x.g) * R + x.b * outer(k, k))
    s.S = X @ s.P
    return s.S @ l2norm(x.q)


def rls_start(p, dims):
    return {"P": np.eye(dims["dk"]) / p.lamb}


def titans(x, s):
    s.M = x.eta * s.M - x.theta * outer(s.S @ x.k - x.v, x.k)
    s.S = (1 - x.al) * s.S + s.M
    return s.S @ x.q


def momentum_deltanet(x, s):
    k, S = l2norm(x.k), exp(x.g) * s.S
    s.M = exp(x.h) * s.M - x.eta * outer(x.v - S @ k, k)
    s.S = S - x.b * s.M
    return scale(x.q) * s.S @ l2norm(x.q)


def fixed_momentum(x, s):
    k = l2norm(x.k)
    s.M = 0.9 * s.M + 0.7 * x.b * outer(x.v - s.S @ k, k)
    s.S = 0.99 * s.S + 1.3 * s.M
    return s.S @ x.q


def titans_mlp(x, s):
    z = s.W1 @ x.k
    error = s.W2 @ silu(z) - x.v
    grad1 = outer(s.W2.T @ error * silu_slope(z), x.k)
    grad2 = outer(error, silu(z))
    s.M1, s.M2 = x.eta * s.M1 - x.theta * grad1, x.eta * s.M2 - x.theta * grad2
    s.W1, s.W2 = (1 - x.al) * s.W1 + s.M1, (1 - x.al) * s.W2 + s.M2
    return s.W2 @ silu(s.W1 @ x.q)


def titans_mlp_start(p, dims):
    return {"W1": p.A1, "W2": p.A2}


def atlas(x, s):
    window = [(x.k, x.v, x.c), (s.k1, s.v1, s.c1), (s.k2, s.v2, s.c2)]
    s.M = x.theta * s.M + sum(c * outer(s.S @ k - v, k) for k, v, c in window)
    s.S = x.al * s.S - x.eta * orthogonalise(s.M, [(3.4445, -4.7750, 2.0315)] * 5)
    (s.k1, s.v1, s.c1), (s.k2, s.v2, s.c2) = window[:2]
    return s.S @ x.q


def momentum_vector_decay(x, s):
    s.M = s.M * exp(x.g) - x.theta * outer(s.S @ x.k - x.v, x.k)
    s.S = (1 - x.al) * s.S + s.M
    return s.S @ x.q


def nesterov(x, s):
    ahead = s.S + x.eta * s.M
    s.M = x.eta * s.M - x.theta * outer(ahead @ x.k - x.v, x.k)
    s.S = s.S + s.M
    return s.S @ x.q


def weighted_loss(x, s):
    s.S = s.S - x.b * (outer(x.w * (s.S @ x.k - x.v), x.k) + 0.1 * s.S)
    return s.S @ x.q


def second_moment(x, s):
    G = outer(s.S @ x.k - x.v, x.k)
    s.D = x.r * s.D + (1 - x.r) * G * G
    s.S = s.S - x.b * G / (np.sqrt(s.D) + 0.1)
    return s.S @ x.q


def layer_in_turn(x, s):
    k = l2norm(x.k)
    y = s.S @ k
    s.S = s.S - x.eta * outer(layernorm_pullback(y, x.w * (x.w * layernorm(y) + x.b - x.v)), k)
    return s.S @ x.q


def batches(tokens, size):
    """Slices of `size` tokens, the last one shorter where it must be."""
    return [slice(t, min(t + size, tokens)) for t in range(0, tokens, size)]


def ttt_linear(x, s):
    """(h, c) is frozen over a mini-batch; the reader's rate scales its row, the last one the state's step."""
    h, c, out = s.S.T, s.c, []
    for part in batches(len(x.q), 16):
        q, k, v, eta = scale(x.q) * x.q[part], x.k[part], x.v[part], x.eta[part][:, None]
        z = k @ h + c
        u = layernorm_pullback(z, x.w * (x.w * layernorm(z) + x.b - (v - k)))
        y = q @ h + c - eta * (np.tril(q @ k.T + 1) @ u)
        out.append(y + x.w * layernorm(y) + x.b)
        h, c = h - eta[-1] * k.T @ u, c - eta[-1] * u.sum(0)
        s.G, s.e = s.G + u.T @ k, s.e + u.sum(0)
    s.S, s.c = h.T, c
    return np.concatenate(out)


def ttt_mlp(x, s):
    out = []
    for part in batches(len(x.q), 16):
        W1, b1, W2, b2 = s.W1, s.b1, s.W2, s.b2
        for q, k, v, eta in zip(x.q[part], x.k[part], x.v[part], x.eta[part]):
            a = W1 @ k + b1
            z = W2 @ gelu(a) + b2
            dz = layernorm_pullback(z, x.w * (x.w * layernorm(z) + x.b - (v - k)))
            da = W2.T @ dz * gelu_slope(a)
            s.W1, s.b1 = s.W1 - eta * outer(da, k), s.b1 - eta * da
            s.W2, s.b2 = s.W2 - eta * outer(dz, gelu(a)), s.b2 - eta * dz
            out.append(q + x.w * layernorm(s.W2 @ gelu(s.W1 @ q + s.b1) + s.b2) + x.b)
    return np.array(out)


def frozen_error(x, s):
    out = []
    for part in batches(len(x.q), 32):
        start = s.S
        for q, k, v, m, a, b in zip(x.q[part], l2norm(x.k[part]), x.v[part], x.m[part], x.a[part], x.b[part]):
            s.M = m * s.M - b * outer(start @ k - v, k)
            s.S = a * s.S + s.M
            out.append(s.S @ q)
    return np.array(out)


def half_frozen(x, s):
    out = []
    for part in batches(len(x.q), 16):
        start = s.S
        for q, k, v, b in zip(x.q[part], l2norm(x.k[part]), x.v[part], x.b[part]):
            s.S = s.S + b * outer(v - (s.S @ k + start @ k) / 2, k)
            out.append(s.S @ q + np.tanh(start @ q))
    return np.array(out)


def ttt_mlp_start(p, dims):
    return {"W1": p.A1, "b1": p.c1, "W2": p.A2, "b2": p.c2}


MUON = [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012)]


def lact(x, s):
    """Apply, then update; the update's backpropagation is written out, a token a column."""
    out = []
    for part in batches(len(x.q), 2048):
        Q, K, V = x.q[part].T, x.k[part].T, x.v[part].T
        out.append((s.W2 @ (silu(s.W1 @ Q) * (s.W3 @ Q))).T)
        gate, up, back = s.W1 @ K, s.W3 @ K, s.W2.T @ V
        keep = x.e[part].mean()
        s.M1 = keep * s.M1 + (back * up * silu_slope(gate)) @ (K * x.a[part]).T
        s.M2 = keep * s.M2 + V @ (silu(gate) * up * x.b[part]).T
        s.M3 = keep * s.M3 + (back * silu(gate)) @ (K * x.c[part]).T
        s.W1 = x.r1[:, None] * l2norm(s.W1 + orthogonalise(s.M1, MUON))
        s.W2 = x.r2[:, None] * l2norm(s.W2 + orthogonalise(s.M2, MUON))
        s.W3 = x.r3[:, None] * l2norm(s.W3 + orthogonalise(s.M3, MUON))
    return np.concatenate(out)


def lact_start(p, dims):
    return {"W1": p.r1[:, None] * l2norm(p.A1), "W2": p.r2[:, None] * l2norm(p.A2),
            "W3": p.r3[:, None] * l2norm(p.A3)}


WHOLE_SEQUENCE = {"ttt_linear", "ttt_mlp", "frozen_error", "half_frozen", "lact"}
START = {"rls": rls_start, "titans_mlp": titans_mlp_start, "ttt_mlp": ttt_mlp_start, "lact": lact_start}
