"""k3-store census on the released headers, to the byte; and checkpoints of which a part is there."""
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import hollow
import k3test
from k3test import check, check_equal


def census(case, *args, expect=0):
    r = case.exec("k3-store", "census", *args, "--json")
    check_equal(r.rc, expect, f"exit code of k3-store census\n{r}")
    return json.loads(r.out)


def released(case):
    """The published figures: docs of the release, its index (total_size) and the sizes of its files."""
    model = hollow.make(case.path("k3"))
    got = census(case, model)
    check_equal(got["experts"], {"tensors": 494592, "bytes": 1446456066048}, "routed experts")
    check_equal(got["all"], {"tensors": 497220, "bytes": hollow.TOTAL_SIZE}, "all tensors")
    check_equal(got["header_bytes"], 75766584, "headers")
    check_equal(got["file_bytes"], 1560936091448, "files")
    check_equal(got["token_expert_bytes"], 16 * 92 * 17547264, "experts of a token")
    check_equal(got["absent"], [], "absent shards")
    rows = 163840 * 7168 * 2
    check_equal(got["kinds"]["embedding"], {"tensors": 1, "bytes": rows}, "embedding")
    check_equal(got["kinds"]["head"], {"tensors": 1, "bytes": rows}, "head")
    check_equal(got["kinds"]["output_mix"], {"tensors": 3, "bytes": 3 * 7168 * 2}, "output mix")
    check_equal(got["kinds"]["vision"], {"tensors": 168, "bytes": 894717952}, "vision")
    check("unknown" not in got["kinds"], "an unknown tensor")
    # 2,460 resident text tensors of 113,509,540,864 bytes are the trunk, head, mix and embedding
    check_equal(got["trunk"], {"tensors": 2455, "bytes": 113509540864 - 2 * rows - 3 * 7168 * 2}, "trunk")
    # shard L + 1 is layer L, and its published size less the header is all there is of it
    sizes = hollow.manifest()
    for layer in got["layers"]:
        size, _, header, tensors = sizes[f"model-{layer['layer'] + 1:05}-of-000096.safetensors"]
        check_equal(layer["all"], {"tensors": tensors, "bytes": size - header}, f"layer {layer['layer']}")
        check_equal(layer["attention"] == "mla", layer["layer"] % 4 == 3 or layer["layer"] == 92, "kind of attention")
        check_equal(layer["experts"]["bytes"], 896 * 17547264 if layer["layer"] else 0, "experts of a layer")
        check_equal(sum(k["bytes"] for k in layer["kinds"].values()), layer["all"]["bytes"], "kinds of a layer")
    check_equal({f["name"]: (f["bytes"], f["header"]) for f in got["files"]},
                {n: (s[0], s[2]) for n, s in sizes.items()}, "files")
    text = case.exec("k3-store", "census", model).out
    for number in ("1,446,456,066,048", "1,560,860,324,864", "25,829,572,608", "108,811,877,376"):
        check(number in text, f"{number} is not in the table")


def partial(case):
    """Shards of two layers and of the head: what is absent is named, with what it costs."""
    model = hollow.make(case.path("k3"), shards={1, 2, 94}, index=True)
    got = census(case, model, expect=1)
    check_equal(len(got["absent"]), 93, "absent shards")
    want = {f"model-{n:05}-of-000096.safetensors": [n - 1] if n < 94 else [] for n in range(1, 97) if n not in (1, 2, 94)}
    check_equal({a["name"]: a["layers"] for a in got["absent"]}, want, "absent shards and their layers")
    check_equal([x["complete"] for x in got["layers"]], [True, True] + 91 * [False], "complete layers")
    check_equal(got["all"]["bytes"], 2341213184 + 16990092800 + 2 * 163840 * 7168 * 2 + 3 * 7168 * 2, "bytes that are there")
    check_equal(census(case, model, "--layers", "2")["trunk"]["bytes"], 2341213184 + 1267744256, "trunk of two layers")
    check_equal(census(case, model, "--layers", "1")["left_out_bytes"], 16990092800, "bytes beyond --layers 1")
    # without the index the numbers in the names still tell which are absent, though not their layers
    os.unlink(os.path.join(model, "model.safetensors.index.json"))
    check_equal({a["name"]: a["layers"] for a in census(case, model, expect=1)["absent"]}, {n: [] for n in want},
                "absent shards without an index")


def first_layers(case):
    """A small checkpoint with the shards of three layers: everything works with --layers 3, and is refused with
    the shards and layers by name without it."""
    full = k3test.oracle("tiny")
    model = case.copy_model(full)
    index = json.load(open(os.path.join(model, "model.safetensors.index.json")))["weight_map"]
    layer_of = {}
    for name, shard in index.items():
        m = re.match(r"language_model\.model\.layers\.(\d+)\.", name)
        layer_of.setdefault(shard, set()).add(int(m[1]) if m else -1)
    gone = {s for s, layers in layer_of.items() if min(layers) >= 3}
    check(0 < len(gone) < len(layer_of), f"shards and layers: {layer_of}")
    for shard in gone:
        os.unlink(os.path.join(model, shard))
    trunk = case.path("trunk")
    for argv in (("k3", "run", model, "--ids", "1,2,3", "--gen", "1"), ("k3-iod", "--model", model, "--socket", case.path("s")),
                 ("k3-store", "pack", model, trunk)):
        r = case.exec(*argv)
        check_equal(r.rc, 1, f"exit code without --layers\n{r}")
        first = min(gone)
        layer = min(layer_of[first])
        check(f"{first} (layer {layer})" in r.err, f"{first} is not named with its layer\n{r}")
        check("--layers 3" in r.err, f"the remedy is not named\n{r}")
    want = case.k3(full, "--layers", "3", ids=[1, 2, 3], gen=2).run
    got = case.k3(model, "--layers", "3", ids=[1, 2, 3], gen=2).run
    check_equal(got["logits_digest"], want["logits_digest"], "digest of the partial checkpoint")
    check_equal(case.exec("k3-store", "pack", model, trunk, "--layers", "3").rc, 0, "exit code of k3-store pack --layers")
    for layers in ("3", "2"):
        got = case.k3(model, "--layers", layers, "--trunk", trunk, ids=[1, 2, 3], gen=2).run
        want = case.k3(full, "--layers", layers, ids=[1, 2, 3], gen=2).run
        check_equal(got["logits_digest"], want["logits_digest"], f"digest of {layers} layers with the trunk file")
    d = k3test.Daemon(case, model, "--layers", "3", "--trunk-gb", "0", "--cache-gb", "0")
    check_equal(d.stop(), 0, "exit code of k3-iod --layers")
    census(case, model, "--layers", "3")
    census(case, model, expect=1)


def refusals(case):
    model = case.copy_model(k3test.oracle("tiny"))
    check_equal(case.exec("k3-store", "census").rc, 2, "exit code without a model")
    check_equal(case.exec("k3-store", "census", model, "--layers", "1000").rc, 2, "exit code of too many layers")
    check_equal(case.exec("k3-store", "census", case.path("nothing")).rc, 2, "exit code without config.json")
    shard = sorted(n for n in os.listdir(model) if n.endswith(".safetensors"))[1]
    with open(os.path.join(model, shard), "r+b") as f:
        f.truncate(os.path.getsize(os.path.join(model, shard)) - 1)
    r = case.exec("k3-store", "census", model)
    check_equal(r.rc, 1, f"exit code with a shard cut short\n{r}")
    check(shard in r.err, f"the shard is not named\n{r}")


if __name__ == "__main__":
    k3test.main([released, partial, first_layers, refusals])
