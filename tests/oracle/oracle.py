"""Small random checkpoints: the programs against answers of the vendor's modeling file in fp64.

README.md here says what each checkpoint exercises and what the tolerance is. tests/oracle/reference.py
is checked against the same answers, so that it may stand in for them elsewhere (synth.py).
"""
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
import reference
import trace_file
from k3test import check, check_equal


def close(got, want, tolerance, text):
    check(got.shape == want.shape, f"{text}: shape {got.shape} instead of {want.shape}")
    bad = np.abs(got - want)
    check(bad.max() <= tolerance, f"{text}: off by {bad.max():.3g} at {np.unravel_index(bad.argmax(), bad.shape)}, "
                                  f"tolerance {tolerance:.3g}")
    return bad.max()


def checkpoint(case, name):
    path = k3test.oracle(name)
    golden = json.load(open(os.path.join(path, "golden.json")))
    f64 = reference.read_file(os.path.join(path, "golden.f64"))
    config = reference.Config(os.path.join(path, "config.json"))
    tolerance = 5 * golden["fp32_reference_max_abs_difference"]
    worst = 0
    for i, c in enumerate(golden["cases"]):
        text, n = f"{name} case {i}", len(c["ids"])
        trace = case.subdir("trace")
        r = case.k3(path, "--dump-cache-trace", trace, ids=c["ids"], gen=len(c["greedy"]), logits=True)
        check_equal(r.run["prompt_ids"], c["ids"], f"{text}: prompt_ids")
        check_equal(r.run["generated_ids"], c["greedy"], f"{text}: generated_ids")
        rows = r.logits.reshape(-1, config.vocab)
        check_equal(len(rows), n + len(c["greedy"]) - 1, f"{text}: rows of logits")
        last = f"case{i}.logits" not in f64
        want = f64[f"case{i}.logits_last"] if last else f64[f"case{i}.logits"]
        worst = max(worst, close(rows[n - 1:n] if last else rows[:n], want, tolerance, f"{text}: logits"))
        for p, margin in enumerate(c["argmax_margin"]):
            if margin >= 2 * tolerance:
                check_equal(int(rows[p].argmax()), c["argmax"][p], f"{text}: argmax at {p}")
        routing = trace_file.read(trace, config)
        for e in c["experts_last"]:
            check_equal(routing[n - 1, e["layer"]], e["ids"], f"{text}: experts of layer {e['layer']}")
    print(f"{name}: largest difference of a logit from fp64 {worst:.3g}, tolerance {tolerance:.3g}")


def tiny13(case):
    """Another engine's checkpoint with the flat config: its fp32 logits of one prompt."""
    path = k3test.data("oracle/tiny13")
    ref = json.load(open(os.path.join(path, "ref_logits.json")))
    want = np.array(ref["logits_bits"], "<u4").view("<f4").astype(np.float64)
    model = reference.Model(path)
    # fp32 against fp32: both lie within a few 1e-6 of fp64 here, and the argmax has a wide margin.
    tolerance = 5 * np.abs(model.forward(ref["prompt_ids"])[0][-1] - want).max()
    greedy, margin = model.greedy(ref["prompt_ids"], 8)
    check(margin > 2 * tolerance, "the fp64 greedy choice is too close to compare")
    check_equal(greedy[0], ref["argmax"], "argmax of the second implementation")
    r = case.k3(path, ids=ref["prompt_ids"], gen=8, logits=True)
    check_equal(r.run["generated_ids"], greedy, "generated_ids")
    check_equal(r.run["generated_ids"][0], ref["argmax"], "first token")
    close(r.logits.reshape(-1, ref["vocab"])[len(ref["prompt_ids"]) - 1], want, tolerance, "logits")


def second_implementation(case):
    """reference.py gives the vendor's fp64 numbers, and would not with one thing wrong."""
    for name in ("tiny", "range", "ties"):
        path = k3test.oracle(name)
        golden = json.load(open(os.path.join(path, "golden.json")))
        f64 = reference.read_file(os.path.join(path, "golden.f64"))
        model = reference.Model(path)
        for i, c in enumerate(golden["cases"][:3]):
            logits, residual, routing = model.forward(c["ids"])
            close(logits, f64[f"case{i}.logits"], 1e-9, f"{name} case {i}: logits")
            close(residual[:, -1], f64[f"case{i}.residual_last"], 1e-9, f"{name} case {i}: residual")
            for e, (layer, ids, _) in zip(c["experts_last"], routing):
                check_equal((layer, list(ids[-1])), (e["layer"], e["ids"]), f"{name} case {i}: experts")
    # The check notices: the latent norms' eps of other engines instead of the vendor's.
    path = k3test.oracle("range")
    c = json.load(open(os.path.join(path, "golden.json")))["cases"][1]
    f64 = reference.read_file(os.path.join(path, "golden.f64"))
    eps, reference.LATENT_EPS = reference.LATENT_EPS, 1e-5
    try:
        off = np.abs(reference.Model(path).forward(c["ids"])[0] - f64["case1.logits"]).max()
    finally:
        reference.LATENT_EPS = eps
    check(off > 1e-3, f"a wrong eps changes the logits by {off:.3g} only")


NAMES = ["tiny", "odd", "shape", "range", "blocks", "wide", "ties"]
k3test.main([second_implementation] + [(n, lambda case, n=n: checkpoint(case, n)) for n in NAMES] + [tiny13])
