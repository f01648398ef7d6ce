"""Checks the references against identities: closed forms, limits, numeric gradients, and one another.

Run: /usr/bin/python3 test/zoo/selftest.py
"""
import sys
from types import SimpleNamespace

import numpy as np

import functions as f
from inputs import CASES, draw, round_to_bf16
from reference import lookup, reference
from signatures import ALL

TAME, CARRY = CASES[0], CASES[1]
FAILED = []


def same(what, a, b, limit=1e-10):
    """Report whether two arrays agree, relative to the second."""
    error = np.linalg.norm(a - b) / np.linalg.norm(b)
    print(f"{'ok  ' if error < limit else 'FAIL'} {error:8.1e}  {what}")
    if not error < limit:
        FAILED.append(what)


def run(name, arrays):
    return reference(ALL[name], arrays)


def given(name, case=TAME, **changes):
    """The drawn arrays of a rule, with some replaced."""
    return {**draw(ALL[name], case), **changes}


def head0(x):
    """Batch 0, head 0 of a token array."""
    return x[0, :, 0]


def cut(arrays, rule, part):
    """Some of the tokens; parameters as they are."""
    names = [x.name for x in rule.inputs]
    return {n: x[:, part] if n in names else x for n, x in arrays.items()}


# Rules that turn vectors by the token's position, which a second piece counts anew.
TURNED = {"retnet", "trapezoid_turned"}


def splitting():
    """A sequence run in two pieces, the states carried over, gives what one run gives."""
    for name, rule in ALL.items():
        if name in TURNED or lookup("WHOLE_SEQUENCE", name):
            continue
        arrays = given(name, CARRY)
        whole = reference(rule, arrays)
        first = reference(rule, cut(arrays, rule, slice(0, 8)))
        carried = {s.name: first[s.name] for s in rule.states}
        second = reference(rule, {**cut(arrays, rule, slice(8, None)), **carried})
        for o in rule.outputs:
            same(f"{name}: two pieces", np.concatenate([first[o], second[o]], 1), whole[o])
        for s in rule.states:
            same(f"{name}: final {s.name}", second[s.name], whole[s.name])


def delta_family():
    x = given("deltanet")
    q, k, v, b = (head0(x[n]) for n in "qkvb")
    L = np.tril(k @ k.T, -1)
    U = np.linalg.solve(np.eye(len(k)) + b[:, None] * L, b[:, None] * v)
    same("deltanet: triangular solve", head0(run("deltanet", x)["o"]), f.scale(q) * np.tril(q @ k.T) @ U)
    x = given("kda")
    x["g"][:] = x["g"][..., :1]
    y = run("gated_deltanet", {**x, "g": x["g"][..., 0]})
    same("kda with equal gates is gated deltanet", run("kda", x)["o"], y["o"])
    x = given("deltaproduct", g=0 * given("deltaproduct")["g"])
    one = {**x, **{n: x[n][:, :, :, 0] for n in "kvb"}}
    y = run("deltaproduct", {**x, **{n: x[n][:, :, :, :1] for n in "kvb"}})
    same("deltaproduct of one step is deltanet", y["o"], run("deltanet", one)["o"])
    x = given("rwkv7")
    kk = f.l2norm(x["kk"])
    y = run("dplr", {**x, "q": x["r"], "g": x["w"], "a": -kk, "b": kk * x["a"]})
    same("rwkv7 is dplr with a = -kk, b = kk.a", run("rwkv7", x)["o"], y["o"] / f.scale(x["r"]))
    x = given("comba", g=0 * given("comba")["g"])
    x["p"] = x["k"]
    y = run("gated_deltanet", x)
    same("comba with p = k and no decay is gated deltanet", run("comba", x)["o"], y["o"])
    x = given("longhorn")
    e = x["b"] / (1 + x["b"] * (x["k"] ** 2).sum(-1))
    y = run("one_line", {**x, "a": np.ones_like(e), "b": e})
    same("longhorn is a delta rule", run("longhorn", x)["o"], y["o"])
    x = given("gated_deltanet2")
    rate = x["b"][..., 0]
    x["b"][:], x["w"][:] = rate[..., None], rate[..., None]
    y = run("kda", {**x, "b": rate})
    same("gated_deltanet2 with one rate is kda", run("gated_deltanet2", x)["o"], y["o"])
    x = given("momentum_deltanet", b=np.ones_like(given("momentum_deltanet")["b"]))
    x["h"][:] = -np.inf
    y = run("gated_deltanet", {**x, "b": x["eta"]})
    same("momentum_deltanet without momentum is gated deltanet", run("momentum_deltanet", x)["o"], y["o"])
    x = given("preconditioned_kda")
    x["g"][:] = x["g"][..., :1]
    y = run("preconditioned_gdn", {**x, "g": x["g"][..., 0]})
    same("preconditioned_kda with equal gates is preconditioned_gdn", run("preconditioned_kda", x)["o"], y["o"])
    x["c"][:], x["m"][:] = 0, np.log(1e-6)  # no squares, which is what they are compared to
    y = run("kda", x)
    same("preconditioned_kda without a preconditioner is kda", run("preconditioned_kda", x)["o"], y["o"])
    x = given("kaczmarz")
    x["q"], x["k"] = f.l2norm(x["q"]), f.l2norm(x["k"])
    y = run("gated_deltanet", {**x, "b": x["eta"]})
    same("kaczmarz with keys of norm 1 is gated deltanet", run("kaczmarz", x)["o"], y["o"], 1e-4)


def linear_family():
    x = given("linear_attention_normalised")
    x["v"][:] = 1
    same("normalised weights sum to one", run("linear_attention_normalised", x)["o"], x["v"], 1e-8)
    x = given("retnet")
    q, k, v = (head0(x[n]) for n in "qkv")
    t = np.arange(len(q))
    turn = np.exp(1j * t[:, None] * 10000.0 ** (-2.0 * np.arange(q.shape[1] // 2) / q.shape[1]))
    Q, K = [(y[:, 0::2] + 1j * y[:, 1::2]) * turn for y in (q, k)]
    mask = np.tril((1 - 2.0 ** -5) ** (t[:, None] - t[None]).clip(0))
    scores = f.scale(q) * (Q @ K.conj().T).real * mask
    same("retnet: complex scores", head0(run("retnet", x)["o"]), scores @ v)
    x = given("mlstm")
    q, k, v, i, lf = (head0(x[n]) for n in "qkvif")
    G = np.cumsum(f.log_sigmoid(lf))
    P = np.tril(np.exp(G[:, None] - G[None] + i[None])) * (q @ k.T) * f.scale(q)
    same("mlstm: without the maximum", head0(run("mlstm", x)["o"]),
         P @ v / np.maximum(np.abs(P.sum(1)), 1)[:, None], 1e-4)  # its 1e-6 is in other units
    x = given("rwkv4")
    k, v, w, u = head0(x["k"]), head0(x["v"]), x["w"][0], x["u"][0]
    for t in (0, 1, 20):
        weights = np.exp(np.vstack([(t - 1 - j) * w + k[j] for j in range(t)] + [u + k[t]]))
        mean = (weights * v[:t + 1]).sum(0) / weights.sum(0)
        same(f"rwkv4: direct sum at {t}", head0(run("rwkv4", x)["o"])[t], mean)


def solves():
    x = given("mesanet")
    exact = run("mesanet", x)["o"]
    same("conjugate gradients solve", run("mesanet_cg", x)["o"], exact, 5e-3)  # limited by its 1e-5
    x = given("rls", g=0 * given("rls")["g"])
    y = run("mesanet", {**x, "lamb": np.repeat(x["lamb"][:, None], x["q"].shape[-1], 1)})
    same("rls without decay is mesanet", run("rls", x)["o"], y["o"])
    k, v, b = f.l2norm(head0(x["k"])), head0(x["v"]), np.sqrt(head0(x["b"]))[:, None]
    rows = np.vstack([b * k, np.sqrt(x["lamb"][0]) * np.eye(k.shape[1])])
    S = np.linalg.lstsq(rows, np.vstack([b * v, np.zeros((k.shape[1], v.shape[1]))]), rcond=None)[0]
    same("rls is least squares", run("rls", x)["S"][0, 0], S.T)
    X = f.orthogonalise(np.random.default_rng(1).standard_normal((6, 9)), [(3.4445, -4.7750, 2.0315)] * 5)
    same("Newton-Schulz: singular values near one", np.linalg.svd(X)[1], np.ones(6), 0.3)


def slope(loss, x):
    """The gradient of a scalar function by central differences."""
    g = np.zeros_like(x)
    for at in np.ndindex(*x.shape):
        d = np.zeros_like(x)
        d[at] = 1e-5
        g[at] = (loss(x + d) - loss(x - d)) / 2e-5
    return g


def gradients():
    """One step of each trained memory against a numeric gradient of its loss."""
    one = CASES[2]
    x = given("titans_mlp", one)
    y = {n: z[0, 0] if n[0] in "WM" else head0(z)[0] if n[0] != "A" else z for n, z in x.items()}
    n = SimpleNamespace(**y)
    loss = lambda W: 0.5 * ((n.W2 @ f.silu(W @ n.k) - n.v) ** 2).sum()
    same("titans_mlp: gradient of W1", run("titans_mlp", x)["M1"][0, 0],
         n.eta * n.M1 - n.theta * slope(loss, n.W1), 1e-6)
    x = given("ttt_mlp", one)
    p = SimpleNamespace(**{n: z[0] for n, z in x.items() if n in ("w", "b")},
                        **{n: z[0, 0] for n, z in x.items() if n in ("W1", "b1", "W2", "b2")},
                        **{n: head0(z)[0] for n, z in x.items() if n in ("k", "v", "eta")})
    answer = lambda W: p.w * f.layernorm(p.W2 @ f.gelu(W @ p.k + p.b1) + p.b2) + p.b
    loss = lambda W: 0.5 * ((answer(W) - p.v + p.k) ** 2).sum()
    same("ttt_mlp: gradient of W1", run("ttt_mlp", x)["W1"][0, 0], p.W1 - p.eta * slope(loss, p.W1), 1e-6)
    x = given("ttt_linear", CARRY)
    p = SimpleNamespace(**{n: z[0, 0] if n in "ScGe" else z[0] if n in "wb" else head0(z)
                           for n, z in x.items()})
    target = p.v - p.k
    loss = lambda S: 0.5 * ((p.w * f.layernorm(p.k[:16] @ S.T + p.c) + p.b - target[:16]) ** 2).sum()
    short = run("ttt_linear", cut(x, ALL["ttt_linear"], slice(0, 16)))
    same("ttt_linear: gradient over a batch", short["S"][0, 0], p.S - p.eta[15] * slope(loss, p.S), 1e-6)
    x = given("lact", one)
    p = SimpleNamespace(**{n: z[0, 0] if n[0] in "WM" else z[0] if n[0] in "Ar" else head0(z)[0]
                           for n, z in x.items()})
    loss = lambda W: p.a * p.v @ (p.W2 @ (f.silu(W @ p.k) * (p.W3 @ p.k)))
    same("lact: gradient of W1", run("lact", x)["M1"][0, 0], p.e * p.M1 + slope(loss, p.W1), 1e-6)


def gates():
    x = given("lstm")
    for n in ("xi", "xf", "xo"):
        x[n][:] = 40
    for n in ("Ri", "Rf", "Rg", "Ro"):
        x[n][:] = 0
    same("lstm with open gates adds up", run("lstm", x)["o"], np.tanh(np.cumsum(np.tanh(x["xg"]), 1)))
    x = given("gru", CARRY)
    x["xz"][:] = 100
    same("gru with a closed update gate keeps its state", run("gru", x)["h"], x["h"])
    x = given("slstm")
    for n in ("Rz", "Ri", "Rf", "Ro"):
        x[n][:] = 0
    z, i, lf, u = (x[n][0, :, 0] for n in ("xz", "xi", "xf", "xo"))
    G = np.cumsum(f.log_sigmoid(lf), 0)
    weights = np.exp(G - G[:, None] + 0).swapaxes(0, 1) * np.exp(i)[None] * np.tri(len(z))[:, :, None]
    mean = np.einsum("tjd,jd->td", weights, np.tanh(z)) / weights.sum(1)
    same("slstm: direct sums", head0(run("slstm", x)["o"]), f.sigmoid(u) * mean)


def attention():
    x = given("fox", g=0 * given("fox")["g"])
    same("fox without decay is softmax attention", run("fox", x)["O"], run("softmax_attention", x)["O"])
    slopes = 2.0 ** (-8 * (np.arange(3) + 1) / 3)
    y = run("fox", {**x, "g": x["g"] - slopes})
    same("fox with a fixed decay is alibi", y["O"], run("alibi", x)["O"])
    x = given("path", b=2 + 0 * given("path")["b"], w=1e4 * given("path")["w"])
    same("path of reflections in absolute positions", run("path_absolute", x)["O"], run("path", x)["O"], 1e-7)
    x = given("path")
    q, k, v, b, w = (head0(x[n]) for n in "qkvbw")
    w, T = f.l2norm(w), len(q)
    Tm = np.linalg.solve(np.eye(T) + b[:, None] * np.tril(w @ w.T, -1), np.diag(b))
    logits = f.scale(q) * (np.tril(q @ k.T) - np.tril(q @ w.T) @ Tm @ np.tril(w @ k.T, -1))
    P = np.exp(logits) * np.tri(T)
    same("path: triangular inverse", head0(run("path", x)["O"]), P @ v / P.sum(1, keepdims=True))


if __name__ == "__main__":
    for part in (splitting, delta_family, linear_family, solves, gradients, gates, attention):
        part()
    x = np.array([1 + 2**-9, 1 + 2**-8, 1 + 3 * 2**-8, -3.0])
    same("bfloat16 rounding", round_to_bf16(x), np.array([1, 1, 1 + 2**-6, -3.0]))
    print(f"{len(FAILED)} failed")
    sys.exit(bool(FAILED))
