"""The functions of the language in plain numpy, as the references use them: float64, vectors 1-D, matrices
2-D."""
import math

import numpy as np

outer = np.outer
exp = np.exp


def sigmoid(x):
    """1/(1 + e^-x) without overflow on either side."""
    e = np.exp(-np.abs(x))
    return np.where(np.asarray(x) >= 0, 1, e) / (1 + e)


def softplus(x):
    """log(1 + e^x)."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def log_sigmoid(x):
    """log(sigmoid(x))."""
    return -softplus(-np.asarray(x))


def silu(x):
    """x sigmoid(x)."""
    return x * sigmoid(x)


def silu_slope(x):
    """The derivative of silu."""
    return sigmoid(x) * (1 + x * (1 - sigmoid(x)))


def normal_cdf(x):
    """The distribution function of the standard normal."""
    return 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu(x):
    """x times the normal distribution function."""
    return x * normal_cdf(x)


def gelu_slope(x):
    """The derivative of gelu."""
    return normal_cdf(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def elu(x):
    """x above zero, e^x - 1 below."""
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def l2norm(x):
    """x over its length, row by row; 1e-6 is added to the sum of squares."""
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def rmsnorm(x):
    """x over its root mean square; 1e-6 is added to the mean of squares."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def layernorm(x):
    """x without its mean, over its standard deviation; 1e-6 is added to the variance."""
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


def layernorm_pullback(x, dy):
    """The gradient at x of a function whose gradient at layernorm(x) is dy."""
    d, y, std = x.shape[-1], layernorm(x), np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return (d * dy - dy.sum(-1, keepdims=True) - y * (y * dy).sum(-1, keepdims=True)) / (d * std)


def softmax(x):
    """e^x over its sum; of no entries, nothing."""
    if x.size == 0:
        return x
    e = np.exp(x - x.max())
    return e / e.sum()


def rope(x, t, base=10000.0):
    """Rotate the pairs (2i, 2i + 1) of x by the angle t base^(-2i/d)."""
    pairs = x.reshape(-1, 2)
    z = pairs[:, 0] + 1j * pairs[:, 1]
    z = z * np.exp(1j * t * base ** (-np.arange(len(z)) * 2.0 / len(x)))
    return np.stack([z.real, z.imag], 1).ravel()


def scale(q):
    """The usual factor of the query, dk^(-1/2)."""
    return q.shape[-1] ** -0.5


def orthogonalise(G, coefficients):
    """Newton-Schulz steps X <- a X + (b A + c A A) X, A = X X^T, from G over its norm."""
    X = G / (np.linalg.norm(G) + 1e-7)
    for a, b, c in coefficients:
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X


def conjugate_gradients(A, q, iterations, eps):
    """Solve A x = q from x = 0; eps is added to the denominators of both quotients."""
    x, r, p = np.zeros_like(q), q, q
    delta = r @ r
    for _ in range(iterations):
        y = A @ p
        step = delta / (p @ y + eps)
        x, r = x + step * p, r - step * y
        delta, old = r @ r, delta
        p = r + delta / (old + eps) * p
    return x
