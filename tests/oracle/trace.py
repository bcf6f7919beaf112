"""k3 trace and tests/compare: values against the oracles' own, and a fault is found in the layer that has it."""
import json
import os
import re
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import numpy as np

import k3test
from k3test import ROOT, check, check_equal


def trace(case, model, ids, *args):
    out = case.subdir("values")
    r = case.exec("k3", "trace", model, "--ids", ",".join(map(str, ids)), "--out", out, *args)
    check_equal(r.rc, 0, f"exit code\n{r}")
    return out


def compare(*args, rc=0):
    p = subprocess.run([sys.executable, "-B", os.path.join(ROOT, "tests", "compare"), *map(str, args)], capture_output=True, text=True)
    check_equal(p.returncode, rc, f"exit code of compare {args}\n{p.stdout[-3000:]}{p.stderr}")
    return p.stdout


def cases(name):
    path = k3test.oracle(name)
    return path, json.load(open(os.path.join(path, "golden.json")))["cases"]


def agrees_with_the_oracles(case):
    for name in ("tiny", "ties", "range", "odd"):
        path, found = cases(name)
        for i, c in enumerate(found[:3]):
            out = compare(trace(case, path, c["ids"]), os.path.join(path, "golden.f64"), "--case", i)
            check("everything agrees" in out and "cosine 1.0000" in out, out)
            check_equal(len(re.findall(r"^ok +layer \d+ residual", out, re.M)), json.load(open(
                os.path.join(path, "config.json")))["text_config"]["num_hidden_layers"], "layers compared")


def chunks_write_the_same(case):
    path, found = cases("tiny")
    ids = max((c["ids"] for c in found[:3]), key=len)
    whole, parts = trace(case, path, ids), trace(case, path, ids, "--prefill-rows", "3", "--threads", "1", "--isa", "ref")
    for name in ("trace.f32", "logits.f32"):
        check_equal(open(os.path.join(whole, name), "rb").read(), open(os.path.join(parts, name), "rb").read(), name)
    check("everything agrees" in compare(parts, whole, "--tolerance", "0"), "a dump agrees with its equal")


def add_to_bf16(path, tensor, index, value):
    """Change one weight of a shard."""
    with open(path, "r+b") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        t = json.loads(f.read(size))[tensor]
        check_equal(t["dtype"], "BF16", "dtype")
        at = 8 + size + t["data_offsets"][0] + 2 * index
        f.seek(at)
        old = np.array(struct.unpack("<H", f.read(2)), np.uint32)
        new = ((old << 16).view(np.float32) + np.float32(value)).view(np.uint32) >> 16
        f.seek(at)
        f.write(struct.pack("<H", int(new[0])))


def finds_the_layer(case):
    """A weight of one layer's norm changed: everything before it agrees, that layer's input does not."""
    path, found = cases("tiny")
    index = json.load(open(os.path.join(path, "model.safetensors.index.json")))["weight_map"]
    ids = found[1]["ids"]
    good = trace(case, path, ids)
    for layer, norm, value in ((2, "input_layernorm", "attn_in"), (5, "post_attention_layernorm", "ffn_in")):
        name = f"language_model.model.layers.{layer}.{norm}.weight"
        model = case.copy_model(path)
        add_to_bf16(os.path.join(model, index[name]), name, 3, 0.5)
        bad = trace(case, model, ids)
        out = compare(bad, good, "--tolerance", "0", rc=1)
        check(f"first to depart: layer {layer} {value}\n" in out, out[-600:])
        out = compare(bad, os.path.join(path, "golden.f64"), "--case", "1", rc=1)
        check(re.search(f"first to depart: layer {layer} (residual|experts)", out), out[-600:])


def the_published_comparison(case):
    """The published engine's logits against the published reference: the numbers of its own log."""
    out = compare(k3test.data("golden/c_logits.bin"), k3test.data("golden/ref_logits.json"))
    for text in ("max difference 7.867813e-06", "mean 1.231738e-06", "relative to the largest 5.237545e-07", "top-10 agreement 10/10",
                 "argmax equal in 1 of 1"):
        check(text in out, f"no {text!r} in\n{out}")
    check("cosine 1.000000000" in out or "cosine 0.999999999" in out, out)


def the_published_log(case):
    """Its lines are read; a model of other size lacks the layers."""
    out = trace(case, cases("tiny")[0], [3, 4, 5])
    log = case.path("log")
    from_file = np.memmap(os.path.join(out, "trace.f32"), np.uint8, "r")
    check(from_file.size > 0, "an empty dump")
    with open(log, "w") as f:
        f.write("reference forward\n  L0   KDA dense    20.7 s   |h| max 123.000000\n")
    check("first to depart: layer 0 largest of the running sum" in compare(out, log, rc=1), "a wrong log")


def refusals(case):
    path, found = cases("tiny")
    for args, word in ((["--ids", "1"], "--out"), (["--out", "/dev/null/x", "--ids", "1"], "/dev/null"), (["--out", "x"], "--ids")):
        r = case.exec("k3", "trace", path, *args)
        check(r.rc in (1, 2) and word in r.err, f"{args}\n{r}")
        check("--batch-file" not in r.err, f"an option that k3 trace does not have\n{r}")


k3test.main([agrees_with_the_oracles, chunks_write_the_same, finds_the_layer, the_published_comparison, the_published_log, refusals])
