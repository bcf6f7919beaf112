"""k3-store verify: what is wrong is named by file, tensor and bytes; nothing that is right is. Damage is made with
the other header reader (tests/oracle/reference.py), so places are not those that the program thinks of."""
import hashlib
import json
import os
import random
import re
import shutil
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "harness"))
sys.path.insert(0, os.path.join(HERE, "..", "oracle"))
import hollow
import k3test
import reference
from k3test import check, check_equal, wait_until

MANIFEST = os.path.join(k3test.ROOT, "deploy", "k3-files.tsv")
LAYER = "language_model.model.layers."


def verify(case, *args, expect=0, **more):
    r = case.exec("k3-store", "verify", *args, **more)
    check_equal(r.rc, expect, f"exit code of k3-store verify\n{r}")
    return r


def shards(model):
    return sorted(n for n in os.listdir(model) if n.endswith(".safetensors"))


def places(model):
    """{tensor: (shard, first byte, bytes, shape)}"""
    out = {}
    for n in shards(model):
        head, base = reference.read_header(os.path.join(model, n))
        for name, e in head.items():
            if name != "__metadata__":
                a, b = e["data_offsets"]
                out[name] = n, base + a, b - a, e["shape"]
    return out


def flip(path, offset, bit=1):
    with open(path, "r+b") as f:
        f.seek(offset)
        byte = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([byte ^ bit]))


def findings(r):
    """[(file, tensor, first byte, last byte)] of the sentences."""
    return [(m[1], m[2], int(m[3]), int(m[4])) for m in re.finditer(
        r"k3-store: (\S+): (?:rows? \d+(?: to \d+)? of )?(\S+), bytes (\d+) to (\d+) of the file, does not have", r.err)]


def flipped(case):
    """One bit anywhere in the text model: found, once, within the bytes that are named."""
    rng = random.Random(5)
    for name in ("tiny", "odd", "range"):
        model = case.copy_model(k3test.oracle(name))
        verify(case, model, "--write")
        verify(case, model, "--deep")
        where = {k: v for k, v in places(model).items() if k.startswith("language_model.")}
        kinds = {}
        for k in where:
            kinds.setdefault(re.sub(r"\d+", "N", k), []).append(k)
        check(len(kinds) > 30, f"only {len(kinds)} kinds of tensors")
        wanted = []
        for kind in sorted(kinds):
            tensor = rng.choice(kinds[kind])
            shard, start, size, shape = where[tensor]
            # A_log may be padded after the heads, where nothing is computed on
            at = start + (0 if tensor.endswith("A_log") else rng.randrange(size))
            flip(os.path.join(model, shard), at, 1 << rng.randrange(8))
            wanted.append((tensor, shard, at, size // (shape[0] or 1)))
        r = verify(case, model, "--deep", expect=1)
        found = findings(r)
        check_equal(sorted(f[1] for f in found), sorted(w[0] for w in wanted), f"tensors that are named in {name}\n{r}")
        for tensor, shard, at, row in wanted:
            path, _, first, last = next(f for f in found if f[1] == tensor)
            check_equal(path, os.path.join(model, shard), f"file of {tensor}")
            check(first <= at <= last, f"{tensor}: byte {at} is not in {first} to {last}")
            check("experts" in tensor and "shared" not in tensor or last - first + 1 <= max(64 * row, where[tensor][2] // 2, 4096)
                  or last - first + 1 == where[tensor][2], f"{tensor}: {first} to {last} is too wide")
        check(f"{len(wanted)} faults" in r.out, f"the summary\n{r}")


def trunk_file(case):
    model = case.copy_model(k3test.oracle("tiny"))
    trunk = case.path("trunk")
    check_equal(case.exec("k3-store", "pack", model, trunk, "--tile", "16384").rc, 0, "exit code of k3-store pack")
    # the same checksums, however tiles are cut
    verify(case, model, "--write")
    sums = open(trunk + ".sums", "rb").read()
    check(sums == open(os.path.join(model, "k3.sums"), "rb").read(), "pack and verify --write write different checksums")
    os.unlink(os.path.join(model, "k3.sums"))
    r = verify(case, model, "--trunk", trunk, "--deep")
    check(" 0 have none" in r.out, f"bytes without a checksum\n{r}")
    b = open(trunk, "rb").read()
    tiles_off, = struct.unpack_from("<Q", b, 72)
    embed_off, embed_size = struct.unpack_from("<QQ", b, 104)
    for tile in (0, 5, 40):
        place, = struct.unpack_from("<Q", b, tiles_off + 64 * tile + 48)
        flip(trunk, place + 10)
        r = verify(case, model, "--trunk", trunk, "--deep", expect=1)
        found = findings(r)
        check(len(found) == 1 and found[0][0] == trunk and found[0][2] <= place + 10 <= found[0][3], f"tile {tile}\n{r}")
        check("k3-store pack" in r.err, f"the remedy\n{r}")
        # without the sidecar the trunk file's own checksum finds it
        os.rename(trunk + ".sums", case.path("away"))
        r = verify(case, model, "--trunk", trunk, "--deep", expect=1)
        check(f"tile {tile} (" in r.err and "there are no checksums" in r.err, f"without checksums\n{r}")
        os.rename(case.path("away"), trunk + ".sums")
        flip(trunk, place + 10)
    flip(trunk, embed_off + embed_size // 2)
    r = verify(case, model, "--trunk", trunk, "--deep", expect=1)
    check("embed_tokens" in r.err and trunk in r.err, f"a byte of the embedding\n{r}")
    # and one in a shard, under an experts' tensor, with the trunk file given
    flip(trunk, embed_off + embed_size // 2)
    shard, start, _, _ = places(model)[f"{LAYER}2.block_sparse_moe.experts.1.w2.weight_packed"]
    flip(os.path.join(model, shard), start)
    check_equal([f[1] for f in findings(verify(case, model, "--trunk", trunk, "--deep", expect=1))],
                [f"{LAYER}2.block_sparse_moe.experts.1.w2.weight_packed"], "the tensor in a shard")


def impossible_scale(case):
    model = case.copy_model(k3test.oracle("tiny"))
    tensor = f"{LAYER}3.block_sparse_moe.experts.2.w1.weight_scale"
    shard, start, _, _ = places(model)[tensor]
    with open(os.path.join(model, shard), "r+b") as f:
        f.seek(start + 7)
        f.write(b"\xff")
    for args, rc in ((["--deep"], 1), (["--write"], 4)):
        r = verify(case, model, *args, expect=rc)
        check(tensor in r.err and f"byte {start + 7} of {os.path.join(model, shard)}" in r.err, f"the sentence\n{r}")
    check(not os.path.exists(os.path.join(model, "k3.sums")), "checksums of a damaged expert")


def stale(case):
    """Checksums of another checkpoint, cut short or changed are not used."""
    model, other = case.copy_model(k3test.oracle("tiny")), case.copy_model(k3test.oracle("range"))
    sums = os.path.join(model, "k3.sums")
    verify(case, other, "--write", "--sums", sums)
    r = verify(case, model, expect=1)
    check("another checkpoint" in r.err and "--write" in r.err, f"the sentence\n{r}")
    verify(case, model, "--write")
    verify(case, model)
    good = open(sums, "rb").read()
    for what, bad in (("cut short", good[:-8]), ("a table", good[:-3] + b"xyz"), ("the header", good[:40] + b"\x01" + good[41:]),
                      ("empty", b""), ("the magic", b"x" + good[1:])):
        open(sums, "wb").write(bad)
        check("k3.sums" in verify(case, model, expect=1).err, f"{what}: the file is not named")
    open(sums, "wb").write(good)
    config = json.load(open(os.path.join(model, "config.json")))
    json.dump(config, open(os.path.join(model, "config.json"), "w"), indent=7)
    check("another checkpoint" in verify(case, model, expect=1).err, "another config.json is not noticed")


def interrupted(case):
    """kill -9 in the middle of --deep and --write: the next run goes on, and forgets no fault."""
    model = case.copy_model(k3test.oracle("tiny"))
    sums, journal = os.path.join(model, "k3.sums"), os.path.join(model, "k3.sums.verify")
    size = sum(v[2] for k, v in places(model).items())

    def kill_when(path, *args, model=model):
        p = case.start("k3-store", "verify", model, *args)
        wait_until(lambda: os.path.exists(path) or p.poll() is not None, f"{path} to appear")
        check(p.poll() is None, "it ended before it could be stopped")
        p.kill()
        p.wait()

    kill_when(sums + ".partial", "--write", "--rate", str(size // 8))
    check(not os.path.exists(sums), "unfinished checksums under the final name")
    check("earlier run" in verify(case, model, "--write").err, "it did not go on")
    resumed = open(sums, "rb").read()
    verify(case, model, "--write", "--sums", case.path("whole"))
    check(resumed == open(case.path("whole"), "rb").read(), "other checksums after an interruption")
    check(not os.path.exists(sums + ".partial"), "the partial file is left")
    shard, start, _, _ = places(model)["language_model.model.layers.0.self_attn.q_proj.weight"]
    check_equal(shard, shards(model)[0], "the shard that is read first")
    flip(os.path.join(model, shard), start)
    kill_when(journal, "--deep", "--rate", str(size // 8))
    r = verify(case, model, "--deep", expect=1)
    check("going on after" in r.err and len(findings(r)) == 1, f"the second run\n{r}")
    check(not os.path.exists(journal), "the journal is left")
    # a file that has changed since begins the work anew
    kill_when(journal, "--deep", "--rate", str(size // 8))
    flip(os.path.join(model, shard), start)
    r = verify(case, model, "--deep")
    check("going on" not in r.err, f"a journal of other files was used\n{r}")
    # steps of fewer layers are other steps
    kill_when(journal, "--layers", "2", "--deep", "--rate", str(size // 24))
    r = verify(case, model, "--deep")
    check("going on" not in r.err, f"a journal of fewer layers was used\n{r}")
    # before there are checksums it has a journal too: the manifest's hashes take as long
    fresh, rows = case.copy_model(model), case.path("rows.tsv")
    os.unlink(os.path.join(fresh, "k3.sums"))
    with open(rows, "w") as f:
        for n in shards(fresh):
            data = open(os.path.join(fresh, n), "rb").read()
            f.write(f"{n}\t{len(data)}\t{hashlib.sha256(data).hexdigest()}\n")
    journal = os.path.join(fresh, "k3.sums.verify")
    kill_when(journal, "--manifest", rows, "--deep", "--rate", str(size // 4), model=fresh)
    check("going on after" in verify(case, fresh, "--manifest", rows, "--deep").err, "it did not go on without checksums")
    check(not os.path.exists(journal), "the journal is left")


def manifest(case):
    model = case.copy_model(k3test.oracle("tiny"))
    path = case.path("manifest.tsv")
    rows = [[n, os.path.getsize(os.path.join(model, n)), hashlib.sha256(open(os.path.join(model, n), "rb").read()).hexdigest()]
            for n in shards(model)]

    def write(rows):
        open(path, "w").write("# name size sha256\n" + "".join("\t".join(map(str, r)) + "\tmore\n" for r in rows))

    write(rows)
    verify(case, model, "--manifest", path)
    verify(case, model, "--manifest", path, "--deep")
    write([[rows[0][0], rows[0][1] + 1, rows[0][2]]] + rows[1:])
    r = verify(case, model, "--manifest", path, expect=1)
    check(rows[0][0] in r.err and str(rows[0][1] + 1) in r.err, f"a wrong size\n{r}")
    write(rows + [["model-00099-of-000099.safetensors", 5, rows[0][2]]])
    check("model-00099-of-000099.safetensors" in verify(case, model, "--manifest", path, expect=1).err, "an absent file")
    write(rows[1:])
    check(rows[0][0] in verify(case, model, "--manifest", path, expect=1).err, "a file that is not in the manifest")
    write(rows)
    flip(os.path.join(model, rows[3][0]), rows[3][1] - 1)
    verify(case, model, "--manifest", path)
    r = verify(case, model, "--manifest", path, "--deep", expect=1)
    check(rows[3][0] in r.err and "SHA-256" in r.err and "1 fault" in r.out, f"a wrong byte\n{r}")
    for text in ("name only\n", "a.safetensors\tb\tc\n", f"a.safetensors\t1\t{'0' * 63}\n", "",
                 f"a.safetensors\t-1\t{'0' * 64}\n", f"a\t1\t{'0' * 64}\n"):
        open(path, "w").write(text)
        verify(case, model, "--manifest", path, expect=2)


def released(case):
    """The real headers and sizes with the published manifest."""
    model = hollow.make(case.path("k3"))
    r = verify(case, model, "--manifest", MANIFEST)
    check(f"96 shards, {1560936091448} bytes" in r.out and "no fault" in r.out, f"the summary\n{r}")
    os.truncate(os.path.join(model, "model-00007-of-000096.safetensors"), 16990911503)
    os.unlink(os.path.join(model, "model-00050-of-000096.safetensors"))
    with open(os.path.join(model, "model-00020-of-000096.safetensors"), "r+b") as f:
        f.write(struct.pack("<Q", 7))
    r = verify(case, model, "--manifest", MANIFEST, expect=1)
    for n in (7, 50, 20):
        check(f"model-{n:05}-of-000096" in r.err, f"shard {n} is not named\n{r}")
    check("3 faults" in r.out, f"the summary\n{r}")


def first_layers(case):
    """The shards of three layers, with checksums of three layers, or of all."""
    full = case.copy_model(k3test.oracle("tiny"))
    model = case.copy_model(full)
    for shard in {p[0] for k, p in places(full).items() if re.match(rf"{re.escape(LAYER)}[3-9]\.", k)}:
        os.unlink(os.path.join(model, shard))
    check("layer 3" in verify(case, model, expect=1).err, "the missing layer is not named")
    verify(case, model, "--layers", "3", "--write")
    verify(case, model, "--layers", "3", "--deep")
    verify(case, model, "--layers", "2", "--deep")
    verify(case, full, "--write")
    verify(case, full, "--layers", "3", "--deep")
    shard, start, _, _ = places(full)["language_model.lm_head.weight"]
    flip(os.path.join(full, shard), start + 3)
    check("lm_head" in verify(case, full, "--layers", "2", "--deep", expect=1).err, "a byte of the head")


def left_alone(case):
    """A name given by mistake costs nobody a file: shards, config.json, devices stay what they are."""
    model = case.copy_model(k3test.oracle("tiny"))
    verify(case, model, "--write")
    os.symlink("/dev/null", case.path("device"))
    for name in (shards(model)[0], "config.json", "k3.sums"):
        path = os.path.join(model, name)
        before = open(path, "rb").read()
        r = verify(case, model, "--deep", "--journal", path, expect=2)
        check(path in r.err and "--journal" in r.err, f"the sentence\n{r}")
        if name != "k3.sums":
            r = verify(case, model, "--write", "--sums", path, expect=2)
            check(path in r.err and "--sums" in r.err, f"the sentence\n{r}")
        check(open(path, "rb").read() == before, f"{name} is not what it was")
    verify(case, model, "--deep", "--journal", case.path("device"), expect=2)
    check(os.path.islink(case.path("device")), "the symlink to a device is gone")
    verify(case, model, "--write", "--sums", case.path("device"), expect=2)
    check(os.path.islink(case.path("device")), "the symlink to a device has been replaced")


def refusals(case):
    model = k3test.oracle("tiny")
    for args in ([], [model, "--write", "--deep"], [model, "--rate", "1M"], [model, "--deep", "--rate", "1"],
                 [model, "--manifest", "/nothing"], [model, "--layers", "500"], [case.path("nothing")]):
        r = case.exec("k3-store", "verify", *args)
        check(r.rc in (1, 2) and r.rc == (1 if args == [case.path("nothing")] else 2), f"{args}\n{r}")


if __name__ == "__main__":
    k3test.main([flipped, trunk_file, impossible_scale, stale, interrupted, manifest, released, first_layers, left_alone, refusals])
