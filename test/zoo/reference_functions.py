"""Rules that write functions of what they read. Conventions as in reference_linear.py."""
import numpy as np

from functions import exp, l2norm, outer, sigmoid, silu
from reference_delta import delta_step


def saturated_write(x, s):
    s.S = exp(x.g) * s.S
    s.S = s.S + outer(np.tanh(x.v - s.S @ x.k), x.k)
    return s.S @ x.q


def clipped_error(x, s):
    k = l2norm(x.k)
    s.S = x.a * s.S
    s.S = s.S + x.b * outer(np.clip(x.v - s.S @ k, -x.h, x.h), k)
    return s.S @ x.q


def clipped_momentum(x, s):
    k = l2norm(x.k)
    s.M = x.m * s.M + x.b * outer(np.clip(x.v - s.S @ k, -1, 1), k)
    s.S = x.a * s.S + s.M
    return s.S @ x.q


def shared_saturation(x, s):
    k = l2norm(x.k)
    F, S = exp(x.f) * s.F, exp(x.g) * s.S
    write = outer(np.tanh(x.v - F @ k - S @ k), k)
    s.F, s.S = F + x.b * write, S + write / 4
    return s.F @ x.q + s.S @ x.q


def micro_saturated(x, s):
    s.S = s.S * exp(x.g)
    for k, v, b in zip(x.k, x.v, x.b):
        k = l2norm(k)
        s.S = s.S + b * outer(np.tanh(v - s.S @ k), k)
    return s.S @ x.q


def saturated_in_turn(x, s):
    k, p = l2norm(x.k), l2norm(x.p)
    s.S = exp(x.g) * s.S
    s.S = s.S + x.b * outer(np.tanh(x.v - s.S @ k), k)
    s.S = s.S + x.c * outer(np.tanh(x.w - s.S @ p), p)
    return s.S @ x.q


def power_error(x, s):
    k = l2norm(x.k)
    s.S = s.S * exp(x.g)
    error = x.v - s.S @ k
    s.S = s.S + x.b * outer(np.sign(error) * error**2, k)
    return s.S @ x.q


def gated_error(x, s):
    k, f, S = l2norm(x.k), l2norm(x.f), x.a * s.S
    read = S @ k
    write = sigmoid(x.r) * (silu(x.v) - read) * sigmoid(read)
    s.S = S @ (np.eye(len(f)) - outer(f, f) / 2) + outer(write, k)
    return s.S @ x.q


def clipped_gradient(x, s):
    k = l2norm(x.k)
    error = x.v - x.a * s.S @ k
    s.S = x.a * s.S + x.b * min(1, 1 / np.linalg.norm(error)) * outer(error, k)
    return s.S @ x.q


def novel_write(x, s):
    k = l2norm(x.k)
    p = x.a * s.S @ k
    cosine = p @ x.v / np.sqrt((p @ p) * (x.v @ x.v) + 0.01)
    s.S = x.a * s.S + x.b * (1 - cosine) * outer(x.v, k)
    return s.S @ x.q


def centred_error(x, s):
    k = l2norm(x.k)
    s.S = x.a * s.S
    y = s.S @ k
    y = y - np.mean(y)
    s.S = s.S + x.b * outer(x.v - y / np.sqrt(1 + np.mean(y**2)), k)
    return s.S @ x.q


def surprised(x, s):
    k = l2norm(x.k)
    S = s.S * exp(x.g)
    s.S = delta_step(S, k, x.v, sigmoid(np.sum((x.v - S @ k) ** 2) - 1))
    return s.S @ x.q
