"""Elementwise and dense recurrences, and exponential gates. Conventions as in reference_linear.py."""
import numpy as np

from functions import exp, log_sigmoid, outer, rmsnorm, scale, sigmoid


def summed(x, s):
    s.S = exp(-exp(x.A)) * s.S + outer(x.x, x.b)
    return {"o": np.sum(x.C * s.S), "y": np.sum(s.S)}


def mamba1(x, s):
    s.S = exp(x.dt[:, None] * x.A) * s.S + outer(x.dt * x.x, x.B)
    return s.S @ x.C + x.D * x.x


def lru(x, s):
    pole = x.a + 1j * x.b
    h = pole * (s.hr + 1j * s.hi) + np.sqrt(1 - np.abs(pole) ** 2) * ((x.Br + 1j * x.Bi) @ x.x)
    s.hr, s.hi = h.real, h.imag
    return ((x.Cr + 1j * x.Ci) @ h).real + x.D * x.x


def hgrn(x, s):
    s.h = exp(x.g) * s.h + x.x
    return s.h


def spiking(x, s):
    u = 0.9 * s.u + x.x
    fires = sigmoid(4 * (u - x.w))
    s.u = u - fires * x.w
    return fires


def rglru(x, s):
    r, i = sigmoid(x.Wa @ x.x + x.ba), sigmoid(x.Wx @ x.x + x.bx)
    a = exp(8 * r * log_sigmoid(x.L))
    s.h = a * s.h + np.sqrt(1 - a * a) * (i * x.x)
    return s.h


def mingru(x, s):
    z = sigmoid(x.Wz @ x.x + x.bz)
    s.h = s.h + z * (x.Wh @ x.x + x.bh - s.h)
    return s.h


def minlstm(x, s):
    f, i = sigmoid(x.Wf @ x.x + x.bf), sigmoid(x.Wi @ x.x + x.bi)
    s.h = (f * s.h + i * (x.Wh @ x.x + x.bh)) / (f + i)
    return s.h


def rwkv4(x, s):
    now = x.u + x.k
    p = np.maximum(s.m, now)
    o = (exp(s.m - p) * s.num + exp(now - p) * x.v) / (exp(s.m - p) * s.den + exp(now - p))
    m = np.maximum(s.m + x.w, x.k)
    s.num = exp(s.m + x.w - m) * s.num + exp(x.k - m) * x.v
    s.den = exp(s.m + x.w - m) * s.den + exp(x.k - m)
    s.m = m
    return o


def rwkv4_start(p, dims):
    return {"m": np.full(dims["d"], -1e38)}


def gru(x, s):
    z = sigmoid(x.xz + x.Rz @ s.h)
    r = sigmoid(x.xr + x.Rr @ s.h)
    n = np.tanh(x.xn + r * (x.Rn @ s.h + x.bn))
    s.h = (1 - z) * n + z * s.h
    return s.h


def lstm(x, s):
    i, f = sigmoid(x.xi + x.Ri @ s.h), sigmoid(x.xf + x.Rf @ s.h)
    g, u = np.tanh(x.xg + x.Rg @ s.h), sigmoid(x.xo + x.Ro @ s.h)
    s.c = f * s.c + i * g
    s.h = u * np.tanh(s.c)
    return s.h


def elman(x, s):
    s.h = np.tanh(x.W @ x.x + x.R @ rmsnorm(s.h) + x.b)
    return x.W.T @ s.h


def slstm(x, s):
    z, u = np.tanh(x.xz + x.Rz @ s.h), sigmoid(x.xo + x.Ro @ s.h)
    i, f = x.xi + x.Ri @ s.h, log_sigmoid(x.xf + x.Rf @ s.h)
    m = np.maximum(f + s.m, i)
    s.c = exp(f + s.m - m) * s.c + exp(i - m) * z
    s.n = exp(f + s.m - m) * s.n + exp(i - m)
    s.m = m
    s.h = u * s.c / s.n
    return s.h


def slstm_start(p, dims):
    return {"m": np.full(dims["d"], -1e38)}


def mlstm(x, s):
    f = log_sigmoid(x.f)
    m = max(f + s.m, x.i)
    keep, write = exp(f + s.m - m), exp(x.i - m)
    s.S = keep * s.S + write * outer(x.v, x.k)
    s.z = keep * s.z + write * x.k
    s.m = m
    q = scale(x.q) * x.q
    return s.S @ q / (max(abs(s.z @ q), exp(-m)) + 1e-6)


START = {"rwkv4": rwkv4_start, "slstm": slstm_start}
