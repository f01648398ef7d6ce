"""The rules of the comparison: spec (of specs/, or here with a dot) and sizes."""
D = 128  # keys and values of a head; --size sets others before the rules are imported


def specs():
    """By name, the spec and its sizes."""
    square = {"dk": D, "dv": D}
    return {name: (name, square) for name in (
        "linear_attention", "lightning", "simple_gla", "gla", "rwkv6", "deltanet", "gated_deltanet", "kda", "comba",
        "gated_deltanet2", "momentum_deltanet", "preconditioned_gdn", "preconditioned_kda", "dplr", "rwkv7", "mesanet_cg")} | {
        "retention": ("./retention", square), "mamba2": ("mamba2", {"d": D, "n": D}),
        "gsa": ("gsa", square | {"m": 64}), "deltaproduct": ("deltaproduct", square | {"n": 2}), "hgrn": ("hgrn", {"d": D}),
        "ttt_linear": ("ttt_linear", {"d": D})}
