"""Attention forms, over the whole sequence of one head: arrays with the tokens first. Token by token, without
matrices of scores, except where the comment says so."""
import numpy as np

from functions import exp, l2norm, scale, softmax


def attend(q, k, v, bias):
    """Row t is the softmax over j <= t of q_t.k_j scaled plus bias(t, j), applied to v."""
    rows = range(len(q))
    weights = [softmax(np.array([scale(q) * (q[t] @ k[j]) + bias(t, j) for j in range(t + 1)])) for t in rows]
    return np.array([w @ v[:len(w)] for w in weights])


def softmax_attention(x, s):
    return attend(x.q, x.k, x.v, lambda t, j: 0)


def alibi(x, s):
    slope = 2.0 ** (-8 * (x.head + 1) / x.heads)
    return attend(x.q, x.k, x.v, lambda t, j: -slope * (t - j))


def fox(x, s):
    return attend(x.q, x.k, x.v, lambda t, j: x.g[j + 1:t + 1].sum())


def deltaformer(x, s):
    u = np.zeros_like(x.v)
    for t in range(len(u)):
        u[t] = x.v[t] - x.b[t] * softmax(scale(x.k) * x.k[:t] @ x.k[t]) @ u[:t]
    return attend(x.q, x.k, u, lambda t, j: 0)


def path(x, s):
    w, out = l2norm(x.w), []
    for t in range(len(w)):
        q, logits = x.q[t], np.zeros(t + 1)
        for j in range(t, -1, -1):  # q passes through the factors of t, t-1, .., j+1
            logits[j] = scale(q) * (q @ x.k[j])
            q = q - x.b[j] * w[j] * (w[j] @ q)
        out.append(softmax(logits) @ x.v[:t + 1])
    return np.array(out)


def path_absolute(x, s):
    w, q, k = l2norm(x.w), x.q.copy(), x.k.copy()
    for t in range(len(w)):
        s.P = s.P - x.b[t] * np.outer(s.P @ w[t], w[t])
        q[t], k[t] = s.P @ q[t], s.P @ k[t]
    return attend(q, k, x.v, lambda t, j: 0)


def path_absolute_start(p, dims):
    return {"P": np.eye(dims["dk"])}


WHOLE_SEQUENCE = {"softmax_attention", "alibi", "fox", "deltaformer", "path", "path_absolute"}
START = {"path_absolute": path_absolute_start}
