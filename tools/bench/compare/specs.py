"""The rules of the comparison: spec (of specs/, or here with a dot) and sizes."""
D = 128
SPECS = {name: (name, {"dk": D, "dv": D}) for name in (
    "linear_attention", "lightning", "simple_gla", "gla", "rwkv6", "deltanet", "gated_deltanet", "kda", "comba", "dplr",
    "rwkv7", "mesanet_cg")}
SPECS |= {"retention": ("./retention", {"dk": D, "dv": D}), "mamba2": ("mamba2", {"d": D, "n": D}),
          "gsa": ("gsa", {"dk": D, "dv": D, "m": 64}), "deltaproduct": ("deltaproduct", {"dk": D, "dv": D, "n": 2}),
          "hgrn": ("hgrn", {"d": D})}
