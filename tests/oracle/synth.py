"""Random checkpoints of odd geometries, made by k3-store synth, against the second implementation.

reference.py is checked against the vendor's numbers in oracle.py; here it stands in for them where
no golden file exists. Each geometry has something that the checkpoints of tests/oracle have not."""
import hashlib
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
import reference
import trace_file
from k3test import check, check_equal

SMALL = {"hidden": 64, "layers": 5, "dense": 96, "vocab": 200, "block": 3, "heads": 2, "q-lora": 24, "kv-lora": 16, "nope": 8,
         "rope": 4, "v": 8, "kda-heads": 3, "kda-dim": 8, "conv": 4, "experts": 6, "top-k": 2, "shared": 1, "expert": 32,
         "latent": 32, "dense-layers": 1, "mla-every": 4, "seed": 1}

GEOMETRIES = {
    "smallest": {},
    "one layer a block": {"block": 1, "layers": 6},
    "one block": {"block": 12},
    "every layer MLA but one": {"mla-every": 2, "layers": 5},
    "no dense layer": {"dense-layers": 0},
    "three dense layers": {"dense-layers": 3, "layers": 6},
    "all dense": {"dense-layers": 5},
    "every expert chosen": {"top-k": 6},
    "one expert chosen": {"top-k": 1},
    "two taps": {"conv": 2},
    "seven taps": {"conv": 7},
    "one head": {"heads": 1, "kda-heads": 1},
    "odd widths": {"hidden": 77, "dense": 101, "vocab": 131, "q-lora": 13, "kv-lora": 11, "nope": 5, "rope": 3, "v": 7,
                   "kda-dim": 9, "kda-heads": 5, "heads": 7},
    "latent wider than hidden": {"hidden": 40, "latent": 96, "expert": 160},
    "many experts": {"experts": 300, "top-k": 16, "layers": 3},
    "two layers": {"layers": 2},
    "three shared": {"shared": 3, "seed": 5},
}
# Seeds with a margin between best and second logit, and between chosen experts, that fp32 cannot cross.
PROMPT, GEN = 19, 3


def synth(case, out, geometry):
    args = []
    for k, v in dict(SMALL, **geometry).items():
        args += ["--" + k, str(v)]
    r = case.exec("k3-store", "synth", out, *args, "--quiet")
    check(r.rc == 0, f"k3-store synth failed\n{r}")


def against_reference(case, geometry, model=None):
    if model is None:
        model = case.path("model")
        synth(case, model, geometry)
    m = reference.Model(model)
    ids = [(31 * i * i + 17 * i + 5) % m.c.vocab for i in range(PROMPT)]
    want, _, routing = m.forward(ids)
    trace = case.subdir("trace")
    r = case.k3(model, "--dump-cache-trace", trace, "--prefill-rows", "5", ids=ids, gen=GEN, logits=True)
    got = r.logits.reshape(-1, m.c.vocab)[:PROMPT]
    off = np.abs(got - want).max()
    # The fp32 noise of the reference checkpoints is 1e-6 to 2e-5 of the largest logit; errors of
    # formulas are thousands of times that.
    tolerance = 1e-4 * max(1, np.abs(want).max())
    check(off <= tolerance, f"logits off by {off:.3g}, tolerance {tolerance:.3g}")
    experts = trace_file.read(trace, m.c)
    for layer, chosen, _ in routing:
        for p in range(PROMPT):
            check_equal(experts[p, layer], list(chosen[p]), f"experts of layer {layer} at {p}")
    greedy, margin = m.greedy(ids, GEN)
    check(margin > 4 * tolerance, f"the margin {margin:.3g} is too small to compare: another seed is needed")
    check_equal(r.run["generated_ids"], greedy, "generated_ids")
    low = case.k3(model, "--trunk-gb", "0", "--cache-gb", "0", "--tile", "4096", "--isa", "ref", "--recompute", ids=ids, gen=GEN)
    check_equal(low.run["logits_digest"], r.run["logits_digest"], "digest with the least memory, reference kernels, recompute")


def repeatable(case):
    """The same seed gives the same files, another seed others."""
    def digest(path):
        h = hashlib.sha256()
        for f in sorted(os.listdir(path)):
            h.update(f.encode() + open(os.path.join(path, f), "rb").read())
        return h.hexdigest()

    for name, geometry in (("a", {}), ("b", {}), ("c", {"seed": 2})):
        synth(case, case.path(name), geometry)
    check_equal(digest(case.path("a")), digest(case.path("b")), "digest with the same seed")
    check(digest(case.path("a")) != digest(case.path("c")), "another seed gives the same files")


def layout(case):
    """What it writes looks like the release: several shards, an index that is right, dtypes by the table."""
    model = case.path("model")
    synth(case, model, {"layers": 5})
    index = json.load(open(os.path.join(model, "model.safetensors.index.json")))
    seen, total = {}, 0
    for f in sorted(os.listdir(model)):
        if f.endswith(".safetensors"):
            head, _ = reference.read_header(os.path.join(model, f))
            for n, e in head.items():
                seen[n] = f
                total += e["data_offsets"][1] - e["data_offsets"][0]
                tail = n.rsplit(".", 1)[-1]
                want = ("U8" if tail in ("weight_packed", "weight_scale") else "F32" if "conv1d" in n or tail in (
                    "A_log", "dt_bias", "e_score_correction_bias") or n.endswith("o_norm.weight") else "BF16")
                check_equal(e["dtype"], want, f"dtype of {n}")
    check_equal(index["weight_map"], seen, "weight_map of the index")
    check_equal(index["metadata"]["total_size"], total, "total_size of the index")
    check(len(set(seen.values())) >= 5, "hardly several shards")
    config = json.load(open(os.path.join(model, "config.json")))
    check_equal(config["architectures"], ["KimiK3ForConditionalGeneration"], "architectures")
    check(not [f for f in os.listdir(model) if f.endswith((".tmp", ".partial"))], "temporary files are left")
    r = case.exec("k3-store", "synth", model, "--quiet")
    check(r.rc in (1, 2), f"an existing checkpoint is overwritten without a word\n{r}")


def refused(case):
    for args in (["--latent", "33"], ["--top-k", "7", "--experts", "6"], ["--layers", "0"], ["--hidden", "0"]):
        r = case.exec("k3-store", "synth", case.path("model"), *args)
        check_equal(r.rc, 2, f"exit code with {args}\n{r}")
        check(not os.path.exists(case.path("model")) or not os.listdir(case.path("model")), "files were written")


k3test.main([(n, lambda case, g=g: against_reference(case, g)) for n, g in GEOMETRIES.items()] + [repeatable, layout, refused])
