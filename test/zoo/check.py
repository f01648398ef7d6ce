"""Compares recurc with the references, for every spec of the zoo and every rule of test/rules.

    /usr/bin/python3 test/zoo/check.py [--recurc build/bin/recurc] [--only PATTERN] [--mode MODE] [--case CASE]

Modes: `oracle`, the interpreter against the reference; `f32` and `bf16`, compiled code against the
reference on the same (rounded) inputs; `sweep` and `sweep-bf16`, the same in sweep form; `chunk` and `chunk-bf16`, in
chunk form, in chunks of 16 tokens or as many as --chunk says; `step`, the step function token by token against forward. Errors are
relative Frobenius norms per sequence and head, the largest of them. One line per spec and mode; exit code 1
if anything failed.
"""
import argparse
import fnmatch
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from inputs import CASES, draw, round_to_bf16
from reference import reference
from signatures import ALL

ROOT = Path(__file__).resolve().parents[2]
CHUNK = ["--form=chunk", "--chunk=16"]
FLAGS = {"oracle": ["--oracle"], "f32": [], "bf16": ["--dtype", "bf16"], "step": ["--step"], "chunk": CHUNK,
         "chunk-bf16": [*CHUNK, "--dtype", "bf16"], "sweep": ["--form=sweep"],
         "sweep-bf16": ["--form=sweep", "--dtype", "bf16"]}
# For tame and for nasty inputs.
LIMITS = {"oracle": (1e-10, 1e-10), "f32": (2e-6, 2e-5), "bf16": (5e-3, 5e-3), "step": (1e-6, 1e-6),
          "chunk": (2e-6, 2e-5), "chunk-bf16": (5e-3, 1e-2), "sweep": (2e-6, 2e-5), "sweep-bf16": (5e-3, 1e-2)}

# Five Newton-Schulz steps magnify a rounding error of the momentum by up to 3.4445^5.
MAGNIFIES = {"atlas": 10}

# Block statements and attention forms: recurc interprets them and must say that it does not compile them yet.
ORACLE_ONLY = {"lact", "softmax_attention", "alibi", "fox", "deltaformer", "path", "path_absolute"}
REFUSAL = "only in the oracle for now"

# Rules that are affine neither in their states nor in what they read, write functions of what a token reads of its
# own writes, read states from both sides, or add or multiply full matrices.
NO_CHUNKS = {"anchored", "atlas", "biased", "elman", "gru", "lstm", "slstm", "mesanet", "titans_mlp", "dense_transition",
             "matrix_output", "micro_saturated", "saturated_in_turn", "smoothed_error", "spiking", "summed", "two_sided",
             "momentum_vector_decay", "second_moment"}

# Rules that read states at the start of a block, which one token does not have.
NO_STEP = {"frozen_error", "half_frozen", "ttt_linear", "ttt_mlp"}

# Rules with a matrix that no other state depends on, whose columns do not see each other.
SWEPT = {"block_delta", "block_delta_rows", "comba", "convolved_layer", "decayed_last", "decayed_rates",
         "delayed_delta", "delta_normaliser", "deltanet", "deltanet_loss", "deltaproduct", "deltas_in_turn",
         "dplr", "erased_elsewhere", "gated_deltanet", "gated_deltanet2", "gated_deltanet_loss", "gla", "gsa", "hgrn2",
         "in_rows", "kaczmarz", "kda", "keyed_block", "keyed_reads", "late_decay", "left_slots", "lightning",
         "linear_attention", "linear_attention_feature_map", "linear_attention_normalised",
         "linear_attention_rmsnorm", "longhorn", "low_rank_gate", "made_keys", "mamba2", "mesanet",
         "mesanet_cg", "micro_decay", "micro_functions", "micro_keys", "mimo", "mimo_rows",
         "mixed_projections", "mlstm", "one_line", "outer_decay", "paced_keys", "penalised", "preconditioned_gdn",
         "preconditioned_kda", "projected",
         "projected_output", "read_before", "refined_gate", "remembered_decay", "retnet", "rls", "rwkv6", "rwkv7", "scaled_keys",
         "second_order", "shifted_tokens", "short_convolution", "signed_decay", "signed_delta", "signed_keys", "simple_gla",
         "stepped_rates", "tempered_gate", "three_in_turn", "three_memories", "trapezoid", "trapezoid_turned",
         "two_deltas", "two_keys", "two_outputs", "two_reads", "two_removals", "value_decay",
         "value_forgetting", "value_rates", "values_in_turn", "vector_beta", "weighted_loss"}


class Failure(Exception):
    """A check that did not hold, in one line."""


def run_recurc(recurc, rule, mode, arrays, folder):
    """Run the rule on the arrays; returns the process and the arrays it wrote."""
    inputs, outputs = folder / "in", folder / mode
    inputs.mkdir(exist_ok=True)
    outputs.mkdir()
    for name, x in arrays.items():
        np.save(inputs / f"{name}.npy", x.astype(np.float32))
    command = [recurc, "run", ROOT / rule.file, "--inputs", inputs, "--outputs", outputs, *FLAGS[mode]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done, {path.stem: np.load(path) for path in outputs.glob("*.npy")}


def results(recurc, rule, mode, arrays, folder):
    """What the rule computes, or a failure."""
    done, found = run_recurc(recurc, rule, mode, arrays, folder)
    if done.returncode:
        text = done.stderr.strip().splitlines() or ["no message"]
        raise Failure(f"exit code {done.returncode}: {text[0]}")
    return found


def distance(found, expected, heads_axis):
    """The largest relative error of any sequence and head; infinite where a value is not finite."""
    if found.shape != expected.shape:
        raise Failure(f"shape {list(found.shape)}, expected {list(expected.shape)}")
    axes = tuple(axis for axis in range(1, expected.ndim) if axis != heads_axis)
    length = lambda x: np.sqrt((x * x).sum(axis=axes))
    with np.errstate(all="ignore"):
        error, size = length(found.astype(np.float64) - expected), length(expected)
        error = np.where(error == 0, 0, error / np.maximum(size, 1e-30))  # float32 ends near 1e-38
    return float(np.where(np.isfinite(error), error, np.inf).max())


def compare(rule, found, expected):
    """The largest error of outputs and final states, and the name of the worst."""
    errors = {}
    for name, x in expected.items():
        if name not in found:
            raise Failure(f"'{name}' was not written")
        errors[name] = distance(found[name], x, 2 if name in rule.outputs else 1)
    worst = max(errors, key=errors.get)
    return errors[worst], worst


def rounded(rule, arrays):
    """Inputs and parameters in bfloat16; states stay in float32."""
    states = {s.name for s in rule.states}
    return {name: x if name in states else round_to_bf16(x) for name, x in arrays.items()}


def check_case(recurc, rule, mode, case):
    """One call in one mode: the error over its limit, and a description."""
    arrays = draw(rule, case)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        if mode.endswith("bf16"):
            arrays = rounded(rule, arrays)
        found = results(recurc, rule, mode, arrays, folder)
        with np.errstate(all="ignore"):
            expected = results(recurc, rule, "f32", arrays, folder) if mode == "step" else reference(rule, arrays)
        error, worst = compare(rule, found, expected)
    limit = LIMITS[mode][case.nasty] * (MAGNIFIES.get(rule.name, 1) if mode == "f32" else 1)
    return error / limit, f"{error:.1e} ({case.name} {worst})"


def check_refusal(recurc, rule, mode, refusal):
    """The rule is not compiled, and the error says so."""
    with tempfile.TemporaryDirectory() as folder:
        done, found = run_recurc(recurc, rule, mode, draw(rule, CASES[2]), Path(folder))
    if done.returncode != 1 or refusal not in done.stderr:
        raise Failure(f"expected exit code 1 and '{refusal}', got {done.returncode}: {done.stderr[:200]}")
    if found:
        raise Failure("wrote output beside its error")
    return "refused, as it should be"


def check(recurc, rule, mode, cases):
    """All cases of a rule in one mode: whether it passed, and its line."""
    try:
        if mode.startswith("chunk") and rule.name in NO_CHUNKS:
            passed, text = True, check_refusal(recurc, rule, mode, "has no chunk form: ")
        elif mode != "oracle" and rule.name in ORACLE_ONLY:
            passed, text = True, check_refusal(recurc, rule, mode, REFUSAL)
        elif mode == "step" and rule.name in NO_STEP:
            passed, text = True, check_refusal(recurc, rule, mode, "which a step does not have")
        elif mode.startswith("sweep") and rule.name not in SWEPT:
            passed, text = True, check_refusal(recurc, rule, mode, "has no sweep form")
        else:
            excess, text = max(check_case(recurc, rule, mode, case) for case in cases)
            passed = excess < 1
    except Failure as failure:
        passed, text = False, str(failure)
    except subprocess.TimeoutExpired:
        passed, text = False, "timed out"
    return passed, f"{'ok  ' if passed else 'FAIL'} {rule.name:28} {mode:6} {text}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recurc", default=ROOT / "build/bin/recurc",
                        help="the compiler (default: %(default)s)")
    parser.add_argument("--only", default="*", help="names of rules to check, a shell pattern")
    parser.add_argument("--mode", action="append", choices=FLAGS, help="default: all of them")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES],
                        help="default: carry and nasty")
    parser.add_argument("--chunk", type=int, default=16, help="tokens in a chunk (default: %(default)s)")
    parser.add_argument("-j", type=int, default=os.cpu_count(), help="checks side by side")
    options = parser.parse_args()
    CHUNK[1] = f"--chunk={options.chunk}"
    for mode in ("chunk", "chunk-bf16"):
        FLAGS[mode][:2] = CHUNK

    cases = [case for case in CASES if case.name in (options.case or ["carry", "nasty"])]
    known = {path.stem for folder in ("specs", "test/rules") for path in (ROOT / folder).glob("*.rec")}
    failed = sorted(known ^ ALL.keys())
    for name in failed:
        print(f"FAIL {name:28} a spec without a signature, or a signature without a spec")
    jobs = [(rule, mode) for rule in ALL.values() if fnmatch.fnmatch(rule.name, options.only)
            for mode in options.mode or FLAGS]
    with ThreadPoolExecutor(options.j) as pool:
        for passed, line in pool.map(lambda job: check(options.recurc, *job, cases), jobs):
            print(line, flush=True)
            failed += [] if passed else [line]
    print(f"{len(jobs) + len(known ^ ALL.keys()) - len(failed)} passed, {len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
