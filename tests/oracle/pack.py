"""k3-store pack: the trunk file says what the shards say, is complete or absent, and can be resumed."""
import hashlib
import json
import os
import re
import resource
import signal
import struct
import subprocess
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
import reference
from k3test import check, check_equal, wait_until


def sha(path):
    return hashlib.sha256(open(path, "rb").read()).hexdigest()


def pack(case, model, out, *args, expect=0, **more):
    r = case.exec("k3-store", "pack", model, out, *args, **more)
    check_equal(r.rc, expect, f"exit code of k3-store pack\n{r}")
    return r


def roles():
    """[(role, layer kind, V or M, suffix)] of shared/roles.def."""
    return [(r[0], r[1], r[2], r[3].strip('"')) for r in k3test.table("shared/roles.def", "ROLE")]


def round_trip(case):
    """Parsed by shared/trunk_format.h's description: every tensor's bytes, in execution order."""
    for name in ("tiny", "odd"):
        model = k3test.oracle(name)
        raw = {}
        for f in sorted(set(json.load(open(os.path.join(model, "model.safetensors.index.json")))["weight_map"].values())):
            head, base = reference.read_header(os.path.join(model, f))
            data = open(os.path.join(model, f), "rb").read()
            raw.update({k: data[base + e["data_offsets"][0]:base + e["data_offsets"][1]] for k, e in head.items()})
        out = case.path(f"{name}.trunk")
        pack(case, model, out, "--tile", "16384")
        b = open(out, "rb").read()
        magic, version, header_size, compat, incompat = struct.unpack_from("<QIIQQ", b)
        check_equal((magic, version, compat, incompat), (0x31304B4E5552544B, 1, 0, 0), "magic, version and features")
        file_size, n_layers, n_tiles, n_parts, _, tiles_off, parts_off = struct.unpack_from("<QIIIIQQ", b, 48)
        check_equal(file_size, len(b), "file_size")
        table = roles()
        got, last = {}, (-1, -1, -1)
        for i in range(n_tiles):
            layer, role, _, first, n, first_row, n_rows, slab, size, _, off, _ = struct.unpack_from(
                "<IHHIIIIQQQQQ", b, tiles_off + 64 * i)
            check(off % 4096 == 0 and slab % 4096 == 0, "alignment of a tile")
            place = (layer, -1 if role == 0xFFFF else role, first_row)
            check(place > last, f"tile {i} is out of order: {place} after {last}")
            last = place
            for j in range(first, first + n):
                prole, dtype, rows, cols, _, poff, psize = struct.unpack_from("<HHIIIQQ", b, parts_off + 32 * j)
                check(role == 0xFFFF or prole == role, "a part of another matrix")
                pre = f"language_model.model.layers.{layer}." if layer < n_layers else "language_model."
                key = pre + table[prole][3]
                got[key] = got.get(key, b"") + b[off + poff:off + poff + psize]
        embed_off, embed_size = struct.unpack_from("<QQ", b, 104)
        got["language_model.model.embed_tokens.weight"] = b[embed_off:embed_off + embed_size]
        want = {k: v for k, v in raw.items() if k.startswith("language_model.") and ".experts." not in k}
        check_equal(sorted(set(got) ^ set(want)), [], "tensors in the trunk file but not in the shards, or missing")
        for k in want:
            # A_log has padding after the heads; a trunk file may leave it out.
            check(got[k] == want[k] or (k.endswith("A_log") and got[k] and want[k].startswith(got[k])), f"{k} differs")
        check(len(want) > 100, "too few tensors for the check to mean something")


def same_bytes(case):
    """Packing twice gives the same file; nothing temporary is left; an existing file is replaced whole."""
    model = k3test.oracle("tiny")
    folder = case.subdir("out")
    out = os.path.join(folder, "trunk")
    pack(case, model, out)
    first = sha(out)
    pack(case, model, out)
    check_equal(sha(out), first, "digest of a second packing")
    check_equal(sorted(os.listdir(folder)), ["trunk", "trunk.sums"], "files in the folder")


def killed(case):
    """kill -9 at many points, then again: never a file under the final name that is not whole, and the
    result is the same bytes."""
    model = k3test.oracle("tiny")
    whole = case.path("whole")
    pack(case, model, whole, "--tile", "4096")
    want = sha(whole)
    folder = case.subdir("out")
    out = os.path.join(folder, "trunk")
    interrupted = 0
    for limit in (1, 3, 7, 12, 20, 33, 60, 100, 150):
        # After this many write calls: a file size limit in steps, and SIGXFSZ in place of SIGKILL is
        # as sudden; then real kills.
        size = limit * os.path.getsize(whole) // 160 + 4096
        p = subprocess.Popen([k3test.program("k3-store"), "pack", model, out, "--tile", "4096"], stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
        case.processes.append(p)
        rc = p.wait(k3test.TIMEOUT)
        check(rc != 0, "packing succeeded in a file that is too small")
        interrupted += 1
        check(not os.path.exists(out), "a file under the final name although packing did not end")
    for _ in range(12):
        p = subprocess.Popen([k3test.program("k3-store"), "pack", model, out, "--tile", "4096"], stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        case.processes.append(p)
        wait_until(lambda: p.poll() is not None or len(os.listdir(folder)) > 0, "packing to begin")
        p.kill()
        p.wait()
        if os.path.exists(out):
            check_equal(sha(out), want, "digest of a file under the final name")
    pack(case, model, out, "--tile", "4096")
    check_equal(sha(out), want, "digest after interruptions")
    check_equal(sorted(os.listdir(folder)), ["trunk", "trunk.sums"], "files in the folder")


def no_space(case):
    """A disk that is full: a clean error, no temporary file, the old file as it was."""
    model = k3test.oracle("tiny")
    folder = case.subdir("out")
    out = os.path.join(folder, "trunk")
    pack(case, model, out)
    want = sha(out)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], capture_output=True).returncode:
        raise k3test.Skip("cannot mount a small file system here")
    try:
        small = os.path.join(folder, "trunk")
        r = case.exec("k3-store", "pack", model, small)
        check_equal(r.rc, 2, f"exit code on a full disk\n{r}")
        check(re.search(r"[0-9.]+ GB are needed, but only 0\.00026[0-9]* GB are free", r.err), f"both numbers\n{r}")
        check("space" in r.err.lower() or "full" in r.err.lower(), f"no reason\n{r}")
        check_equal(os.listdir(folder), [], "files left on the full disk")
    finally:
        subprocess.run(["umount", "-l", folder])
    check_equal(sha(out), want, "digest of the old file")


def gaps(case):
    """A checkpoint with a tensor missing is refused before anything is written."""
    model = case.copy_model(k3test.oracle("tiny"))
    name = sorted(f for f in os.listdir(model) if f.endswith(".safetensors"))[4]
    raw = open(os.path.join(model, name), "rb").read()
    n = struct.unpack_from("<Q", raw)[0]
    head = json.loads(raw[8:8 + n])
    gone = "language_model.model.layers.4.self_attn.o_proj.weight"
    head[gone + "x"] = head.pop(gone)
    text = json.dumps(head).encode()
    open(os.path.join(model, name), "wb").write(struct.pack("<Q", len(text)) + text + raw[8 + n:])
    folder = case.subdir("out")
    r = case.exec("k3-store", "pack", model, os.path.join(folder, "trunk"))
    check(r.rc in (1, 2), f"exit code {r.rc}\n{r}")
    check("o_proj" in r.err, f"the tensor is not named\n{r}")
    check_equal(os.listdir(folder), [], "files in the folder")


def own_files(case):
    """A pack over a shard, a config or a vocabulary, by whatever name, is refused before anything is written."""
    model = case.copy_model(k3test.DEMO)
    before = {f: sha(os.path.join(model, f)) for f in os.listdir(model)}
    link, hard = case.path("link"), case.path("hard")
    os.symlink(os.path.join(model, "model-00003-of-000010.safetensors"), link)
    os.link(os.path.join(model, "model-00004-of-000010.safetensors"), hard)
    for name in ("model-00001-of-000010.safetensors", "config.json", "tiktoken.model", "model.safetensors.index.json"):
        r = pack(case, model, os.path.join(model, name), expect=2)
        check(name in r.err and "model itself" in r.err, f"the sentence\n{r}")
    for name in (link, hard, "", model):
        pack(case, model, name, expect=2)
    check_equal({f: sha(os.path.join(model, f)) for f in os.listdir(model)}, before, "the model's files")


def left_alone(case):
    """A name given by mistake costs nobody a file: only what packing made is replaced."""
    model = k3test.oracle("tiny")
    folder = case.subdir("out")
    out = os.path.join(folder, "trunk")
    for end in ("", ".partial", ".sums"):
        for text in ("x", "a text of mine\n" * 1000):
            with open(out + end, "w") as f:
                f.write(text)
            r = case.exec("k3-store", "pack", model, out)
            check_equal(r.rc, 2, f"exit code with a file of somebody else's at OUT{end}\n{r}")
            check(out + end in r.err and "left alone" in r.err, f"the sentence\n{r}")
            check_equal(open(out + end).read(), text, f"OUT{end}")
            check_equal(os.listdir(folder), ["trunk" + end], "files in the folder")
        os.truncate(out + end, 0)  # an empty one is nobody's loss: mktemp makes such
        pack(case, model, out)
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))


k3test.main([round_trip, same_bytes, killed, no_space, gaps, own_files, left_alone])
