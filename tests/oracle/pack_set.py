"""k3-store pack with several OUT: the same bits as from one file and from the shards, the same bytes
after any interruption, and no set that is not whole is used."""
import json
import os
import shutil
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import check, check_equal, wait_until

SET = 1  # the incompat bit of shared/trunk_format.h


def read(path):
    return open(path, "rb").read()


def pack(case, model, *outs, expect=0):
    r = case.exec("k3-store", "pack", model, *outs, "--tile", "4096")
    check_equal(r.rc, expect, f"exit code of k3-store pack\n{r}")
    return r


def words(outs):
    return [w for o in outs for w in ("--trunk", o)]


def digest(case, model, outs):
    """All that a run computes, of the model's bytes as the trunk gives them."""
    report = case.path("report.json")
    r = case.exec("k3", "run", model, "--ids", "1,7,3,9,4", "--gen", "6", "--trunk-gb", "0", "--cache-gb", "0", *words(outs),
                  "--out", report)
    check_equal(r.rc, 0, f"exit code of k3 run\n{r}")
    report = json.load(open(report))
    return report["logits_digest"], report["generated_ids"]


def layout(case):
    """By the description in shared/trunk_format.h: tiles go to the shorter file, and say what one file says."""
    model = k3test.oracle("tiny")
    one, outs = case.path("one"), [case.path("a"), case.path("b"), case.path("c")]
    pack(case, model, one)
    pack(case, model, *outs)
    whole, files = read(one), [read(o) for o in outs]
    check_equal(struct.unpack_from("<Q", whole, 24), (0,), "features of one file")
    check(not any(whole[144:4096]), "one file has more than a header in its first page")
    n_tiles, n_parts = struct.unpack_from("<II", whole, 60)
    tables = 4096 + 64 * n_tiles + 32 * n_parts
    sizes = [(tables + 4095) // 4096 * 4096] * 3
    for i, b in enumerate(files):
        check_equal(struct.unpack_from("<Q", b, 24), (SET,), "features of a file of a set")
        check_equal(struct.unpack_from("<II", b, 144 + 16), (i, 3), "which file of how many")
        check_equal(b[144:160], files[0][144:160], "digest of the set")
        check_equal(b[4096:tables], files[0][4096:tables], "tables")
    for i in range(n_tiles):
        slab, _, _, off, checksum = struct.unpack_from("<QQQQQ", whole, 4096 + 64 * i + 24)
        got_slab, _, file, got_off, got_checksum = struct.unpack_from("<QQQQQ", files[0], 4096 + 64 * i + 24)
        check_equal((file, got_off), (sizes.index(min(sizes)), min(sizes)), f"place of tile {i}")
        check_equal((got_slab, got_checksum), (slab, checksum), f"size and checksum of tile {i}")
        check(files[file][got_off:got_off + slab] == whole[off:off + slab], f"bytes of tile {i}")
        sizes[file] += slab
    off, size = struct.unpack_from("<QQ", whole, 104)
    embed = struct.unpack_from("<I", files[0], 144 + 24)[0]
    got_off, got_size = struct.unpack_from("<QQ", files[0], 104)
    check_equal((embed, got_off, got_size), (sizes.index(min(sizes)), min(sizes), size), "place of the embedding")
    check(files[embed][got_off:got_off + size] == whole[off:off + size], "bytes of the embedding")


def same_bits(case):
    """Shards, one file, two and three files in any order: one digest. k3-store verify reads all of it."""
    for name in ("tiny", "odd"):
        model = k3test.oracle(name)
        one, two = [case.path("one")], [case.path("a"), case.path("b")]
        three = [case.path(n) for n in "def"]
        for outs in (one, two, three):
            pack(case, model, *outs)
        want = digest(case, model, [])
        for outs in (one, two, two[::-1], [three[2], three[0], three[1]]):
            check_equal(digest(case, model, outs), want, f"digest with {outs}")
        r = case.exec("k3-store", "verify", model, "--deep", *words(two[::-1]))
        check_equal((r.rc, "no fault" in r.out), (0, True), f"verify\n{r}")
    check(os.path.exists(two[0] + ".sums") and not os.path.exists(two[1] + ".sums"), "one sidecar, beside the first")


def damaged(case):
    """A byte of either file: verify names that file."""
    model = k3test.oracle("tiny")
    outs = [case.path("a"), case.path("b")]
    pack(case, model, *outs)
    for out in outs:
        good = read(out)
        at = 4096 * (len(good) // 8192)
        at += next(i for i in range(4096) if good[at + i])
        open(out, "wb").write(good[:at] + bytes([good[at] ^ 1]) + good[at + 1:])
        r = case.exec("k3-store", "verify", model, "--deep", *words(outs))
        check_equal(r.rc, 1, f"exit code of verify\n{r}")
        check(f"{out}: " in r.err and "make it again with k3-store pack" in r.err, f"the sentence\n{r}")
        open(out, "wb").write(good)


def refused(case):
    """Every set that is not one: which file, why, and what to do. Nothing runs."""
    model, other = k3test.oracle("tiny"), k3test.oracle("odd")
    one, a, b, c = (case.path(n) for n in ("one", "a", "b", "c"))
    pack(case, model, one)
    pack(case, model, a, b)
    pack(case, model, c, case.path("c2"), case.path("c3"))
    copy, alien, cut, flipped = (case.path(n) for n in ("copy", "alien", "cut", "flipped"))
    shutil.copy(b, copy)
    pack(case, other, alien, case.path("alien2"))
    open(cut, "wb").write(read(b)[:-4096])
    raw = bytearray(read(b))
    raw[144 + 16] ^= 1  # which file it is
    open(flipped, "wb").write(raw)
    # Weights of another tuning: the headers are the same, the bytes are not.
    tuned = case.copy_model(model)
    shard = os.path.join(tuned, sorted(f for f in os.listdir(tuned) if f.endswith(".safetensors"))[0])
    bytes_ = bytearray(read(shard))
    bytes_[-3] ^= 1
    os.unlink(shard)
    open(shard, "wb").write(bytes_)
    t1, t2 = case.path("t1"), case.path("t2")
    pack(case, tuned, t1, t2)
    pack_again = f"k3-store pack {model}"
    for outs, named, why, remedy in (
            ([a], a, "part 1 of 2, and part 2 is not given", "--trunk FILE for each part"),
            ([b], b, "part 2 of 2, and part 1 is not given", "--trunk FILE for each part"),
            ([a, a], a, "part 1 of 2, and so is", "once with each part"),
            ([b, a, copy], copy, "part 2 of 2, and so is", "once with each part"),
            ([a, c], c, "another set", "that one k3-store pack wrote"),
            ([a, t2], t2, "another set", "that one k3-store pack wrote"),
            ([a, one], one, "whole trunk file", "one of them only"),
            ([one, a], one, "whole trunk file", "one of them only"),
            ([a, alien], alien, "another checkpoint", f"{pack_again} {a} {alien}"),
            ([a, cut], cut, "cut short", f"{pack_again} {a} {cut}"),
            ([a, flipped], flipped, "header is damaged", f"{pack_again} {a} {flipped}"),
            ([a, case.path("nowhere")], case.path("nowhere"), "No such file", pack_again)):
        for r in (case.exec("k3", "run", model, "--ids", "1,2", "--gen", "1", *words(outs)),
                  case.exec("k3-store", "verify", model, *words(outs))):
            check_equal(r.rc, 1, f"exit code with {outs}\n{r}")
            check(f"{named}: " in r.err and why in r.err and remedy in r.err, f"sentence with {outs}\n{r}")
    r = case.exec("k3-store", "pack", model, a, os.path.join(os.path.dirname(a), ".", "a"))
    check_equal((r.rc, "given twice" in r.err), (2, True), f"one name twice\n{r}")
    check(not os.path.exists(a + ".partial"), "an empty partial file is left")


def killed(case):
    """kill -9 at six points, then again: both files are there or neither is new, and the bytes are the same."""
    model = k3test.oracle("tiny")
    good = [case.path("good1"), case.path("good2")]
    pack(case, model, *good)
    want = [read(g) for g in good]
    folder = case.subdir("out")
    outs = [os.path.join(folder, n) for n in ("a", "b")]
    kills = 0
    for delay in (0, 0.004, 0.01, 0.02, 0.03, 0.05):
        p = subprocess.Popen([k3test.program("k3-store"), "pack", model, *outs, "--tile", "4096"],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        case.processes.append(p)
        wait_until(lambda: p.poll() is not None or len(os.listdir(folder)) > 0, "packing to begin")
        time.sleep(delay)
        p.kill()
        kills += p.wait() != 0
        for out, bytes_ in zip(outs, want):
            check(not os.path.exists(out) or read(out) == bytes_, f"{out} is not whole")
    check(kills > 0, "no pack was killed")
    # Between the two names: the second is still the partial file.
    pack(case, model, *outs)
    os.rename(outs[1], outs[1] + ".partial")
    pack(case, model, *outs)
    # A disk is new: what is left of the other is used again.
    for out in outs:
        os.rename(out, out + ".partial")
    os.unlink(outs[1] + ".partial")
    r = pack(case, model, *outs)
    check("were found good and kept" in r.err, f"nothing was kept\n{r}")
    check([read(o) for o in outs] == want, "the files after interruptions")
    check_equal(sorted(os.listdir(folder)), ["a", "a.sums", "b"], "files in the folder")


k3test.main([layout, same_bits, damaged, refused, killed])
