"""Whether rules cost the same however they are spelled.

    spellings.py

Rules of one state, a decay and one to three corrections or writes, each spelled in several ways. `recurc explain` must find
the same form for all spellings of a rule, and predict the same time within a tenth.
"""
import itertools
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

INPUTS = """input q, k, p, r : vector(dk)
input v, u, t : vector(dv)
input g : vector(dk) in [-5, 0]
input h : vector(dv) in [-5, 0]
input a, b, c, e : scalar in [0, 1]
state S : matrix(dv, dk)
output o
k = l2norm(k)
p = l2norm(p)
r = l2norm(r)
"""
DECAYS = {"none": "S", "of all": "a*S", "by a constant": "0.9*S", "of keys": "S*diag(exp(g))", "of values": "diag(exp(h))*S"}


def corrections(rate, key, value, old="S"):
    return [f"S = {old}*(I - {rate}*{key}*{key}T) + {rate}*{value}*{key}T",
            f"S = {old} - {rate}*({old}*{key})*{key}T + {rate}*{value}*{key}T",
            f"S = {old} + {rate}*({value} - {old}*{key})*{key}T"]


def families():
    """Bodies that are the same rule, by its name."""
    for name, decay in DECAYS.items():
        first = [f"S = {decay}\n{one}" for one in corrections("b", "k", "v")] + corrections("b", "k", "v", decay)
        yield f"a correction, decay {name}", first + [
            f"S = {decay}\nx = sqrt(b)*k\nS = S - (S*x)*xT + sqrt(b)*v*xT"]
        yield f"a correction and a write, decay {name}", [f"{one}\nS = S + c*u*pT" for one in first]
        yield f"an output before, decay {name}", ["o = S*q\n" + one for one in first]
        yield f"an erasure along another key, decay {name}", [
            f"S = {decay}\nS = S*(I - b*p*pT) + c*v*kT", f"S = {decay}*(I - b*p*pT) + c*v*kT",
            f"S = {decay}\nS = S - b*(S*p)*pT + c*v*kT", f"S = {decay}\nS = S*(I - b*p*pT)\nS = S + c*v*kT"]
        yield f"corrections at one time, decay {name}", [
            f"S = {decay}\nS = S - b*(S*k)*kT - c*(S*p)*pT + b*v*kT + c*u*pT",
            f"S = {decay}\nS = S + b*(v - S*k)*kT + c*(u - S*p)*pT",
            f"S = {decay}*(I - b*k*kT - c*p*pT) + b*v*kT + c*u*pT"]
        yield f"two reads written along one vector, decay {name}", [
            f"S = {decay}\nx = b*k - c*p\nS = S + (b*v - S*x)*kT",
            f"S = {decay}\ny = S*p\nS = S + b*(v - S*k)*kT + c*y*kT",
            f"S = {decay}\nS = S*(I - b*k*kT + c*p*kT) + b*v*kT"]
        if name == "of values":  # token by token, each spelling in operations of its own
            continue
        yield f"corrections in turn, decay {name}", [
            "\n".join(both) for both in itertools.product(first[::2], corrections("c", "p", "u")[::2])] + [
            f"S = {decay}*(I - b*k*kT)*(I - c*p*pT) + b*v*kT*(I - c*p*pT) + c*u*pT",
            f"S = ({decay}*(I - b*k*kT) + b*v*kT)*(I - c*p*pT) + c*u*pT"]
        yield f"two erasures and a write along the first key, decay {name}", [
            f"S = {decay}*(I - b*k*kT)*(I - c*p*pT) + e*v*kT",
            f"S = {decay}*(I - b*k*kT)\nS = S - c*(S*p)*pT\nS = S + e*v*kT",
            f"S = {decay}\nS = S*(I - b*k*kT)*(I - c*p*pT)\nS = S + e*v*kT"]
        yield f"what is read written along the next one's vector, decay {name}", [
            f"S = {decay}\nS = S*(I - b*k*pT)*(I - c*p*rT) + e*v*kT",
            f"S = {decay}*(I - b*k*pT)\nS = S - c*(S*p)*rT + e*v*kT",
            f"S = {decay}\nS = S - b*(S*k)*pT\nS = S - c*(S*p)*rT\nS = S + e*v*kT"]
        for along, written in (("a third key", "e*v*rT"), ("both", "b*v*kT + c*u*pT"), ("both, one value", "b*v*kT + c*v*pT")):
            yield f"two erasures and then what is written along {along}, decay {name}", [
                f"S = {decay}*(I - b*k*kT)*(I - c*p*pT) + {written}",
                f"S = {decay}*(I - b*k*kT)\nS = S - c*(S*p)*pT\nS = S + {written}",
                f"S = {decay}\nS = S*(I - b*k*kT)*(I - c*p*pT)\nS = S + {written}"]
        if name in ("of all", "by a constant"):  # numbers may stand between corrections, too
            between = decay.removesuffix("*S")
            yield f"an output between corrections, decay {name}", [
                f"{one}\nS = {decay}\no = S*q\nS = S - c*(S*p - u)*pT" for one in corrections("b", "k", "v")] + [
                f"S = {decay}\nS = S - b*(S*k - {between}*v)*kT\no = S*q\nS = S - c*(S*p - u)*pT"]
        yield f"a value written, then corrected to, decay {name}", [
            f"S = {decay} + b*v*kT\nS = S - c*(S*p)*pT\nS = S - e*(S*k - {value})*kT" for value in "vu"] + [
            f"S = ({decay} + b*v*kT)*(I - c*p*pT)*(I - e*k*kT) + e*v*kT"]
        yield f"three corrections in turn, decay {name}", [
            "\n".join(all_three) for all_three in itertools.product(first[2:5], corrections("c", "p", "u")[1:2],
                                                                    corrections("e", "r", "t")[::2])]


def predict(body):
    text = INPUTS + body + ("" if "o = " in body else "\no = S*q") + "\n"
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder, "rule.rec")
        spec.write_text(text)
        done = subprocess.run(["recurc", "explain", spec, "--bind", "dk=128,dv=128", "--dtype=bf16", "--target=sm_90a",
                               "-Wno-numerics", "-Wno-perf", "-Wno-spectral", "-Wno-unused"], capture_output=True, text=True)
    chosen = re.search(r"^ +(\w+) +(\d+) us.*\(chosen\)", done.stdout, re.M)
    return (chosen[1], int(chosen[2])) if chosen else (done.stderr.strip() or "nothing", 0)


def main():
    wrong = 0
    with ThreadPoolExecutor(2) as pool:
        for name, bodies in families():
            found = list(pool.map(predict, bodies))
            forms, times = {form for form, _ in found}, [time for _, time in found]
            if len(forms) > 1 or not min(times) or max(times) > 1.1 * min(times):
                wrong += 1
                print(f"{name}:")
                for body, (form, time) in zip(bodies, found):
                    print(f"  {form} {time}: {body}".replace("\n", "; "))
    print(f"{wrong} rules cost more in some spellings")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
