"""The same weights in other files give the same bits: any order, any alignment, any split over shards
and directories, with or without an index, with things between that are none of ours."""
import json
import os
import random
import shutil
import struct
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
import reference
from k3test import check, check_equal


def tensors(path):
    """{name: (dtype, shape, bytes)} of a checkpoint."""
    out = {}
    for f in sorted(os.listdir(path)):
        if f.endswith(".safetensors"):
            head, base = reference.read_header(os.path.join(path, f))
            data = open(os.path.join(path, f), "rb").read()
            for n, e in head.items():
                out[n] = e["dtype"], e["shape"], data[base + e["data_offsets"][0]:base + e["data_offsets"][1]]
    return out


def write(path, names, all_tensors, pad=0, metadata=None, indent=None):
    """One shard with the tensors in the order of names; pad: blanks after the header."""
    head, at = {}, 0
    if metadata:
        head["__metadata__"] = metadata
    for n in names:
        dtype, shape, data = all_tensors[n]
        head[n] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head, indent=indent).encode() + b" " * pad
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for n in names:
            f.write(all_tensors[n][2])


def index(path, where):
    json.dump({"metadata": {"total_size": 0}, "weight_map": where}, open(os.path.join(path, "model.safetensors.index.json"), "w"))


class Source:
    def __init__(self, case):
        self.case = case
        self.path = k3test.oracle("tiny")
        self.golden = json.load(open(os.path.join(self.path, "golden.json")))
        self.c = self.golden["cases"][2]
        self.tensors = tensors(self.path)
        self.digest = self.run(self.path)

    def folder(self):
        out = self.case.subdir("model")
        shutil.copy(os.path.join(self.path, "config.json"), out)
        return out

    def run(self, *folders, args=()):
        r = self.case.k3(folders[0], *folders[1:], *args, ids=self.c["ids"], gen=4)
        check_equal(r.run["generated_ids"], self.c["greedy"][:4], "generated_ids")
        return r.run["logits_digest"]

    def same(self, *folders, text=""):
        for args in ([], ["--trunk-gb", "0", "--cache-gb", "0"], ["--direct", "off"]):
            check_equal(self.run(*folders, args=args), self.digest, f"{text} {' '.join(args)}: digest")


def one_file(case):
    """Everything in one file, in random order, at every alignment of the first byte."""
    s = Source(case)
    names = sorted(s.tensors)
    for pad in (0, 1, 2, 3, 5, 509, 4093):
        random.Random(pad).shuffle(names)
        out = s.folder()
        write(os.path.join(out, "model.safetensors"), names, s.tensors, pad=pad)
        s.same(out, text=f"padding {pad}")


def scattered(case):
    """An expert's six tensors in different places and files: six reads instead of one."""
    s = Source(case)
    names = sorted(s.tensors)
    random.Random(1).shuffle(names)
    out, where = s.folder(), {}
    for i in range(5):
        f = f"part-{i}.safetensors"
        mine = names[i::5]
        write(os.path.join(out, f), mine, s.tensors, pad=i, metadata={"format": "pt", "note": "a \"quoted\" \\ text é {}[]"})
        where.update({n: f for n in mine})
    index(out, where)
    s.same(out, text="scattered")
    trunk = case.path("trunk")
    check_equal(case.exec("k3-store", "pack", out, trunk).rc, 0, "k3-store pack")
    check_equal(s.run(out, args=["--trunk", trunk]), s.digest, "digest with a trunk file of it")


def no_index(case):
    """Headers are enough."""
    s = Source(case)
    out = case.copy_model(s.path)
    os.unlink(os.path.join(out, "model.safetensors.index.json"))
    s.same(out, text="no index")


def two_folders(case):
    """Shards spread over two directories (two disks), named in either order."""
    s = Source(case)
    names = sorted(f for f in os.listdir(s.path) if f.endswith(".safetensors"))
    a, b = s.folder(), case.subdir("model")
    for i, f in enumerate(names):
        shutil.copy(os.path.join(s.path, f), (a, b)[i % 2])
    shutil.copy(os.path.join(s.path, "model.safetensors.index.json"), a)
    s.same(a, b, text="two folders")
    s.same(b, a, text="two folders, the other way round")
    r = case.exec("k3", "run", a, "--ids", "1")
    check(r.rc in (1, 2), f"half of the shards are enough?\n{r}")


def strangers(case):
    """Vision towers, other names and shards that the index does not list are left alone."""
    s = Source(case)
    extra = dict(s.tensors)
    extra["vision_tower.patch_embed.proj.weight"] = ("BF16", [2, 3, 2, 2], bytes(48))
    extra["mm_projector.proj.0.weight"] = ("F16", [4], bytes(8))
    extra["empty"] = ("I64", [0], b"")
    out = s.folder()
    write(os.path.join(out, "model.safetensors"), sorted(extra), extra, indent=2)
    s.same(out, text="other tensors")
    # A file of an older conversion lies beside; the index does not list it.
    out = case.copy_model(s.path)
    old = {n: (d, sh, bytes(len(b))) for n, (d, sh, b) in s.tensors.items() if ".layers.2." in n}
    write(os.path.join(out, "model-00001-of-000099.safetensors"), sorted(old), old)
    s.same(out, text="a shard that the index does not list")


def unknown_parts(case):
    """A tensor of the text model that is not in the table would change its sense: refused by name."""
    s = Source(case)
    for name in ("language_model.model.layers.3.self_attn.indexer.wk.weight", "language_model.model.layers.9.input_layernorm.weight",
                 "language_model.model.layers.2.self_attn.q_proj.bias"):
        out = s.folder()
        extra = dict(s.tensors)
        extra[name] = ("F32", [1], bytes(4))
        write(os.path.join(out, "model.safetensors"), sorted(extra), extra)
        r = case.exec("k3", "run", out, "--ids", "1")
        check(r.rc in (1, 2), f"exit code {r.rc}\n{r}")
        check(name in r.err and "model.safetensors" in r.err, f"tensor and file are not named\n{r}")


def twice(case):
    """A tensor in two shards, and no index to say which is meant: refused, both named."""
    s = Source(case)
    out = case.copy_model(s.path)
    os.unlink(os.path.join(out, "model.safetensors.index.json"))
    name = "language_model.model.layers.2.self_attn.q_proj.weight"
    write(os.path.join(out, "zz-again.safetensors"), [name], s.tensors)
    r = case.exec("k3", "run", out, "--ids", "1")
    check(r.rc in (1, 2), f"exit code {r.rc}\n{r}")
    check(name in r.err and "zz-again.safetensors" in r.err, f"tensor and file are not named\n{r}")


def wide_dtypes(case):
    """Trunk tensors stored as F32 instead of BF16: the same numbers, summed in the order of F32."""
    s = Source(case)
    wide = {}
    for n, (dtype, shape, data) in s.tensors.items():
        if dtype == "BF16":
            u = np.frombuffer(data, "<u2").astype("<u4") << 16
            wide[n] = "F32", shape, u.tobytes()
        else:
            wide[n] = dtype, shape, data
    f64 = reference.read_file(os.path.join(s.path, "golden.f64"))["case2.logits"]
    out = s.folder()
    write(os.path.join(out, "model.safetensors"), sorted(wide), wide)
    digests = set()
    for args in ([], ["--trunk-gb", "0", "--cache-gb", "0", "--tile", "4096"], ["--isa", "ref", "--prefill-rows", "1"]):
        r = case.k3(out, *args, ids=s.c["ids"], gen=4, logits=True)
        digests.add(r.run["logits_digest"])
        check_equal(r.run["generated_ids"], s.c["greedy"][:4], "generated_ids")
        off = np.abs(r.logits.reshape(-1, f64.shape[1])[:len(f64)] - f64).max()
        check(off <= 5 * s.golden["fp32_reference_max_abs_difference"], f"logits off by {off:.3g}")
    check_equal(len(digests), 1, "digests of F32 weights")


k3test.main([one_file, scattered, no_index, two_folders, strangers, unknown_parts, twice, wide_dtypes])
