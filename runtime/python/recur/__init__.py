"""Calls rules that recurc compiled, on tensors of numpy, torch, cupy, jax or whatever speaks DLPack.

    recurc gated.rec --bind dk=128,dv=128 -o gated.o
    cc -shared -o libgated.so gated.o librecur_rt.a -lm -lpthread -ldl

    import recur
    lib = recur.load("libgated.so")
    o, S = lib.gated.forward(q=q, k=k, v=v, g=g, b=b, final_S=True)
    o = lib.gated.step(q=q1, k=k1, v=v1, g=g1, b=b1, S=S).o

Nothing is copied. `help(lib.gated.forward)` says what each argument is.
"""
from ._library import Error, Library, Rule, load

__all__ = ["Error", "Library", "Rule", "load"]
__version__ = "0.1.0"
