"""The whole model in 1.0 GB: daemon, slab, client, state and a context of 2,048 positions together.

"counts" has the released numbers of everything (93 layers, 896 experts a layer, no fewer tensors of
a layer and tiles of the trunk) with narrow matrices, random weights that are not zero, and the
second implementation beside it. "hollow" has the released headers and sizes, so that every byte of
memory is what the full model takes; its weights are holes, which read as zeros.

Cases that take minutes run when they are named (tests/nightly does): hollow_1_gb, hollow_4_gb,
hollow_16_gb, two tokens each.
"""
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import hollow
import k3test
import reference
from k3test import Skip, check, check_equal
from memory_limit import MemoryLimit
from xxh3 import xxh3_128

CONTEXT = 2048
# The released widths over 16, so that tiles of 128 KiB are as many as the released ones of 32 MiB;
# experts as narrow as their format allows, the shared ones as wide as the others.
COUNTS = {"layers": 93, "dense-layers": 1, "mla-every": 4, "block": 12, "hidden": 448, "vocab": 10240, "dense": 2112,
          "heads": 96, "q-lora": 96, "kv-lora": 32, "nope": 8, "rope": 4, "v": 8, "kda-heads": 96, "kda-dim": 8,
          "experts": 896, "top-k": 16, "shared": 12, "expert": 32, "latent": 224}
COUNTS_TILE, RELEASED_TILES, RELEASED_TENSORS = "128K", 4183, 497_000
PREFILL_LIMIT = 46_000_000
COUNTS_LIMIT = 48_000_000  # of it 19 for a daemon that knows 82,432 experts


class Moved:
    """The tensors of a reference.Checkpoint with every weight moved by about half a unit of fp32."""

    def __init__(self, tensors):
        self.tensors, self.rng = tensors, np.random.default_rng(1)

    def move(self, a):
        return a * (1 + 2.0 ** -24 * self.rng.standard_normal(a.shape))

    def __getitem__(self, name):
        return self.move(self.tensors[name])

    def vector(self, name):
        return self.move(self.tensors.vector(name))

    def mxfp4(self, name):
        return self.move(self.tensors.mxfp4(name))


def limited(case, limit, model, *args, ids, gen):
    """One run in a group that may take limit bytes; run.json."""
    group = MemoryLimit(limit)
    argv, out = case.run_args(model, ["--context", CONTEXT, *args], ids=ids, gen=gen)
    log = os.path.join(out, "log")
    with open(log, "wb") as f:
        p = case.start("k3", *argv, stderr=f, preexec_fn=group.enter)
    rc = group.wait(p)
    text = open(log, errors="replace").read()
    print(f"{limit / 1e9:.3f} GB: {group}", flush=True)
    group.close()
    check_equal(rc, 0, f"exit code within {limit} bytes\n{text[-3000:]}")
    if not k3test.INSTRUMENTED:
        check(group.sampled <= limit, f"{group.sampled} bytes were taken, {limit} were allowed")
    run = json.load(open(os.path.join(out, "run.json")))
    check(sum(run["memory"]["plan"].values()) <= limit, "the plan is larger than the limit")
    run["log"] = text
    return run


def prefill(case, model, config):
    """256 tokens take one sweep a chunk, and a chunk as many rows as fit."""
    ids = [(31 * i * i + 17 * i + 5) % config.vocab for i in range(256)]
    least = ("--tile", COUNTS_TILE, "--trunk-gb", "0", "--cache-gb", "0")
    seen = []
    for limit in (PREFILL_LIMIT, 2 * PREFILL_LIMIT):
        run = limited(case, limit, model, *least, ids=ids, gen=0)
        rows, read = run["memory"]["prefill_rows"], run["steps"][0]["trunk_bytes_read"]
        seen.append((-(-256 // rows), rows, read, run["logits_digest"]))
        print(f"256 tokens in chunks of {rows}: {read} trunk bytes read", flush=True)
    (n, rows, read, digest), (one, _, once, same) = seen
    check(n > 1 and one == 1, f"{n} chunks and {one}, where several and one were wanted")
    head = config.vocab * config.hidden * 2  # in 70 tiles, each up to a page longer
    check(head * (n - 1) <= n * once - read <= (head + 80 * 4096) * (n - 1),
          f"{read} trunk bytes for {n} sweeps; one sweep takes {once}, {head} of them for the head")
    check_equal(same, digest, "digest of one chunk")
    group = MemoryLimit(PREFILL_LIMIT)
    if group.group:
        r = case.exec("k3", "run", model, *least, "--context", str(CONTEXT), "--prefill-rows", str(rows + 8), "--ids",
                      ",".join(map(str, ids)), preexec=group.enter)
        check_equal(r.rc, 2, f"exit code with {rows + 8} rows, where {rows} were chosen\n{r}")
    group.close()


def counts(case):
    if k3test.INSTRUMENTED:
        raise Skip("sanitizers and valgrind keep memory of their own")
    model = case.path("model")
    r = case.exec("k3-store", "synth", model, "--quiet", *(f"--{k}={v}" for k, v in COUNTS.items()))
    check_equal(r.rc, 0, f"exit code of k3-store synth\n{r}")
    m = reference.Model(model)
    check(len(m.t.where) >= RELEASED_TENSORS, f"only {len(m.t.where)} tensors")
    ids = [5, 77, 3000]
    least = ("--tile", COUNTS_TILE, "--trunk-gb", "0", "--cache-gb", "0")
    run = limited(case, COUNTS_LIMIT, model, *least, "--dump-logits-all", case.path("rows"), ids=ids, gen=2)
    n_tiles = int(run["log"].split(" tiles from the shards")[0].split()[-1])
    check(n_tiles >= RELEASED_TILES, f"only {n_tiles} tiles")
    check_equal(run["memory"]["plan"]["daemon_tile_ring"] // (128 << 10), 4, "tiles in the ring")
    check("; 4 expert slots" in run["log"], f"not 4 slots:\n{run['log']}")

    got = np.fromfile(case.path("rows"), "<f4").reshape(-1, m.c.vocab)
    prefix = ids + run["generated_ids"][:1]
    want = m.forward(prefix)[0]
    m.t = Moved(m.t)
    # What rounding to fp32 may do: 93 layers make 1e-7 of a weight up to 1e-3 of a logit.
    tolerance = 4 * np.abs(m.forward(prefix)[0] - want).max(1)
    off = np.abs(got - want).max(1)
    print(f"logits off by {off}, tolerances {tolerance}, largest {np.abs(want).max():.1f}", flush=True)
    check((off <= tolerance).all() and tolerance.max() < 0.02, "logits differ")
    for row, margin, chosen in zip(want[len(ids) - 1:], tolerance[len(ids) - 1:], run["generated_ids"]):
        two = np.sort(row)[-2:]
        check(two[1] - two[0] > margin, "the margin is too small to compare: another seed is needed")
        check_equal(chosen, int(row.argmax()), "generated id")
    prefill(case, model, m.c)
    roomy = case.k3(model, "--tile", "128K", "--trunk-gb", "1", "--cache-gb", "0.2", ids=ids, gen=2)
    check_equal(roomy.run["logits_digest"], run["logits_digest"], "digest with the trunk resident")


def hollow_run(case, limit, gen, *args):
    if k3test.INSTRUMENTED:
        raise Skip("sanitizers and valgrind keep memory of their own")
    run = limited(case, limit, hollow.make(case.path("model")), *args, ids=[5], gen=gen)
    check_equal(len(run["steps"]), gen, "steps")
    for s in run["steps"]:
        check_equal(s["experts_read"] + s["experts_resident"], 92 * 16, "experts of a step")
    check_equal(run["logits_digest"], xxh3_128(bytes(gen * 163840 * 4)), "digest: rows of zeros")
    check_equal(run["generated_ids"], [0] * gen, "ids chosen of equal logits")
    print(f"digest {run['logits_digest']}; seconds {[round(s['seconds'], 1) for s in run['steps']]}; trunk bytes read "
          f"{[s['trunk_bytes_read'] for s in run['steps']]}", flush=True)
    return run


def too_little(case, limit):
    """Refused before anything is allocated, with both numbers."""
    group = MemoryLimit(limit)
    if group.group:
        r = case.exec("k3", "run", case.path("model"), "--ids", "5", "--context", str(CONTEXT), preexec=group.enter)
        check_equal(r.rc, 2, f"exit code within {limit} bytes\n{r}")
        check("this run would take" in r.err and "the least" in r.err, f"no sentence with both numbers\n{r}")
    group.close()


def hollow_one_token(case):
    run = hollow_run(case, 1_000_000_000, 1)
    too_little(case, 800_000_000)
    check_equal(run["memory"]["plan"]["client_state_mla"], CONTEXT * 55296, "latents of the context")
    check(run["steps"][0]["trunk_bytes_read"] >= 111e9, "hardly all of the trunk was read")


def at(limit):
    def two_tokens(case):
        hollow_run(case, limit, 2)
    return two_tokens


# meson's aid against reading freed memory fills blocks that nobody would have touched.
os.environ.pop("MALLOC_PERTURB_", None)
LONG = [("hollow_1_gb", at(1_000_000_000)), ("hollow_4_gb", at(4_000_000_000)), ("hollow_16_gb", at(16_000_000_000))]
k3test.main([counts, hollow_one_token] + [c for c in LONG if c[0] in sys.argv[1:]])
