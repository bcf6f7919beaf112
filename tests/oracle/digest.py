"""One digest: every way of running a prompt gives the same bits.

Factors of the daemon: trunk budget (none, half, all pinned), cache (the least, all experts), back
end, O_DIRECT, trunk file or shards, size of tiles. Of the client: threads, instruction set,
incremental or full recompute, rows of a prompt chunk. Each checkpoint runs a set of combinations in
which every pair of values of any two factors occurs; the smallest one runs the full product.
"""
import itertools
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
import reference
import trace_file
from k3test import DEMO, Daemon, check, check_equal
from xxh3 import xxh3_128

DAEMON = {
    "trunk": ("none", "half", "all"),
    "cache": ("least", "all"),
    "backend": ("io_uring", "threads"),
    "direct": ("on", "off"),
    "source": ("shards", "file"),
    "tile": ("large", "small"),
}
CLIENT = {
    "threads": ("1", "2", "3"),
    "isa": ("ref", "avx2", "avx512"),
    "mode": ("incremental", "recompute"),
    "rows": ("1", "7", "all"),
}


def machine_isas():
    flags = open("/proc/cpuinfo").read()
    return [i for i, f in (("ref", ""), ("avx2", " avx2 "), ("avx512", " avx512f ")) if f in flags]


def factors():
    out = dict(DAEMON, **CLIENT)
    out["isa"] = tuple(machine_isas())
    return out


def covering(f):
    """Rows such that each pair of values of two factors occurs in one: greedy, deterministic."""
    names = list(f)
    open_pairs = {((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in f[a] for y in f[b]}
    rows = []
    while open_pairs:
        row = dict(min(open_pairs))
        for n in names:
            if n not in row:
                def gain(v):
                    return sum(1 for m in row if ((m, row[m]), (n, v)) in open_pairs or ((n, v), (m, row[m])) in open_pairs)
                row[n] = max(f[n], key=gain)
        done = {((a, row[a]), (b, row[b])) for a, b in itertools.combinations(names, 2)}
        open_pairs -= done
        rows.append({n: row[n] for n in names})
    return rows


class Bench:
    """A checkpoint with its trunk files, and a daemon for a set of daemon factors."""

    def __init__(self, case, model, ids, gen):
        self.case, self.model, self.ids, self.gen = case, model, ids, gen
        # Large: the matrices of these models whole, or nearly; small: a few rows of them.
        self.tiles = {"large": "262144", "small": "8192"}
        self.files = {}
        d = Daemon(case, model, "--trunk-gb", "1", "--tile", self.tiles["large"])
        with k3test.Wire(d.socket) as w:
            self.trunk_bytes = w.hello()["trunk_pinned_size"]
        d.stop()

    def trunk_file(self, tile):
        if tile not in self.files:
            path = self.case.path(f"trunk-{tile}")
            r = self.case.exec("k3-store", "pack", self.model, path, "--tile", self.tiles[tile])
            check(r.rc == 0, f"k3-store pack failed:\n{r}")
            self.files[tile] = path
        return self.files[tile]

    def daemon(self, row):
        args = ["--trunk-gb", {"none": "0", "half": f"{self.trunk_bytes / 2e9:.9f}", "all": "1"}[row["trunk"]],
                "--cache-gb", {"least": "0", "all": "1"}[row["cache"]],
                "--backend", row["backend"], "--direct", row["direct"]]
        if row["source"] == "file":
            args += ["--trunk", self.trunk_file(row["tile"])]
        else:
            args += ["--tile", self.tiles[row["tile"]]]
        return Daemon(self.case, self.model, *args)

    def client(self, row, daemon):
        args = ["--threads", row["threads"], "--isa", row["isa"], "--" + row["mode"]]
        args += ["--prefill-rows", row["rows"] if row["rows"] != "all" else str(len(self.ids) + self.gen)]
        r = self.case.k3(None, *args, ids=self.ids, gen=self.gen, daemon=daemon)
        check(("io_uring" if row["backend"] == "io_uring" else "threads") in r.run["backend"],
              f"asked for {row['backend']}, run.json says {r.run['backend']}")
        return r.run["logits_digest"], tuple(r.run["generated_ids"])


def same(case, model, ids, gen, want=None):
    """All pairs. want: the greedy ids of another implementation."""
    b, seen = Bench(case, model, ids, gen), {}
    rows = covering(factors())
    for row in sorted(rows, key=lambda r: [r[n] for n in DAEMON]):
        d = b.daemon(row)
        got = b.client(row, d)
        check_equal(d.stop(), 0, "exit code of k3-iod")
        seen.setdefault(got, row)
        if len(seen) > 1:
            (x, rx), (y, ry) = list(seen.items())
            differ = {k: (rx[k], ry[k]) for k in rx if rx[k] != ry[k]}
            raise k3test.Failure(f"digest {x[0]} and {y[0]}; the two runs differ in {differ}")
    if want is not None:
        check_equal(list(next(iter(seen))[1]), want, "generated_ids")
    print(f"{os.path.basename(model)}: {len(rows)} combinations, one digest {next(iter(seen))[0]}")


def golden_case(name, i, gen):
    path = k3test.oracle(name)
    c = json.load(open(os.path.join(path, "golden.json")))["cases"][i]
    return path, c["ids"], min(gen, len(c["greedy"])), c["greedy"][:gen]


def tiny(case):
    path, ids, gen, want = golden_case("tiny", 2, 4)
    same(case, path, ids, gen, want)


def demo(case):
    g = json.load(open(os.path.join(DEMO, "golden.json")))["greedy"][1]
    same(case, DEMO, g["ids"], 6, g["greedy_ids"][:6])


def odd(case):
    path, ids, gen, want = golden_case("odd", 2, 3)
    same(case, path, ids, gen, want)


def product(case):
    """Every daemon against every client, on the smallest checkpoint: of the clients a third for each
    daemon, in turn."""
    path, ids, gen, want = golden_case("ties", 1, 3)
    b, seen, n = Bench(case, path, ids, gen), {}, 0
    f = factors()
    clients = list(itertools.product(*(f[k] for k in CLIENT)))
    for i, values in enumerate(itertools.product(*(f[k] for k in DAEMON))):
        d = b.daemon(dict(zip(DAEMON, values)))
        for more in clients[i % 3::3]:
            row = dict(zip(DAEMON, values), **dict(zip(CLIENT, more)))
            seen.setdefault(b.client(row, d), row)
            n += 1
            check(len(seen) < 2, f"two digests: {seen}")
        check_equal(d.stop(), 0, "exit code of k3-iod")
    check_equal(list(next(iter(seen))[1]), want, "generated_ids")
    print(f"ties: {n} combinations, one digest {next(iter(seen))[0]}")


def one_digest(case, daemon, ids, ways):
    """Of the choice and of all rows, whatever the instruction set, threads and rows of a chunk."""
    seen = {}
    for isa, threads, rows in ways:
        r = case.k3(None, "--isa", isa, "--threads", threads, "--prefill-rows", rows, ids=ids, gen=2, logits=True, daemon=daemon)
        seen.setdefault((r.run["logits_digest"], xxh3_128(r.logits.tobytes())), (isa, threads, rows))
    check_equal(daemon.stop(), 0, "exit code of k3-iod")
    check(len(seen) == 1, f"digests of the choice and of all rows: {seen}")


def many_rows(case):
    """Chunks of a prompt for which the rows are turned before they meet weights: those of the matrices, and those
    of the experts that enough of them chose. With all rows in a chunk, a part of them, a few."""
    ids = [(7 * i * i + 3 * i + 11) % 256 for i in range(200)]
    d = Daemon(case, DEMO)
    folder = case.subdir("trace")
    case.k3(None, "--dump-cache-trace", folder, ids=ids, gen=1, daemon=d)
    config = reference.Config(os.path.join(DEMO, "config.json"))
    trace = trace_file.read(folder, config)
    fullest = max(np.bincount(np.concatenate([trace[p, 4] for p in range(len(ids))])))
    check(fullest >= 48, f"no expert of layer 4 meets more than {fullest} rows, too few to be turned")
    one_digest(case, d, ids, itertools.product(machine_isas(), ("1", "3"), ("200", "130", "7")))


def long_chunks(case, names):
    """Instruction sets x threads x rows of a chunk, on prompts long enough to be turned, for the bits of the reference."""
    for name in names:
        model = k3test.oracle(name)
        vocab = reference.Config(os.path.join(model, "config.json")).vocab
        ids = [(7 * i * i + 3 * i + 11) % vocab for i in range(70)]
        ways = [("ref", "2", "70")] + list(itertools.product(machine_isas()[1:], ("1", "2", "5"), ("1", "7", "70")))
        one_digest(case, Daemon(case, model), ids, ways)
        print(f"{name}: {len(ways)} ways, one digest")


def long_chunks_here(case):
    long_chunks(case, ("tiny", "range", "ties"))


def long_chunks_elsewhere(case):
    long_chunks(case, ("odd", "blocks", "shape", "tiny13", "wide"))


def embedded(case):
    """The private daemon of `k3 run MODEL` gives the same digest as one on a socket."""
    path, ids, gen, _ = golden_case("tiny", 2, 4)
    d = Daemon(case, path)
    want = case.k3(None, ids=ids, gen=gen, daemon=d).run["logits_digest"]
    d.stop()
    trunk = case.path("trunk")
    check_equal(case.exec("k3-store", "pack", path, trunk).rc, 0, "k3-store pack")
    for args in ([], ["--trunk-gb", "0", "--cache-gb", "0"], ["--trunk", trunk], ["--trunk", trunk, "--trunk-gb", "0.0005"]):
        check_equal(case.k3(path, *args, ids=ids, gen=gen).run["logits_digest"], want, f"digest with {args}")


def what_it_covers(case):
    """logits_digest is XXH3-128 over the rows that chose the tokens."""
    path, ids, gen, _ = golden_case("tiny", 1, 5)
    vocab = reference.Config(os.path.join(path, "config.json")).vocab
    for n in (0, 1, gen):
        r = case.k3(path, ids=ids, gen=n, logits=True)
        rows = r.logits.reshape(-1, vocab)[len(ids) - 1:]
        check_equal(len(rows), max(n, 1), "rows from the last prompt position on")
        check_equal(r.run["logits_digest"], xxh3_128(np.ascontiguousarray(rows).tobytes()), f"digest with --gen {n}")
        check_equal(r.run["generated_ids"], [int(x) for x in rows.argmax(1)][:n], "greedy choice")


def flip(model, name, at, bit):
    """Invert one bit of the tensor's byte at."""
    for f in sorted(os.listdir(model)):
        if f.endswith(".safetensors"):
            head, base = reference.read_header(os.path.join(model, f))
            if name in head:
                with open(os.path.join(model, f), "r+b") as shard:
                    shard.seek(base + head[name]["data_offsets"][0] + at)
                    byte = shard.read(1)[0]
                    shard.seek(-1, 1)
                    shard.write(bytes([byte ^ bit]))
                return
    raise k3test.Failure(f"no tensor {name}")


def can_fail(case):
    """One bit of one weight, in the trunk or in an expert that is chosen, gives another digest."""
    path, ids, gen, _ = golden_case("tiny", 2, 2)
    trace = case.subdir("trace")
    want = case.k3(path, "--dump-cache-trace", trace, ids=ids, gen=gen).run["logits_digest"]
    config = reference.Config(os.path.join(path, "config.json"))
    expert = trace_file.read(trace, config)[len(ids) - 1, 5][0]
    p = "language_model.model.layers."
    for name, at, bit in ((p + "2.self_attn.q_proj.weight", 101, 0x01), (p + "4.self_attn.A_log", 2, 0x40),
                          (f"{p}5.block_sparse_moe.experts.{expert}.w2.weight_packed", 77, 0x01),
                          (f"{p}5.block_sparse_moe.experts.{expert}.w1.weight_scale", 3, 0x01),
                          ("language_model.lm_head.weight", 4, 0x01)):
        model = case.copy_model(path)
        flip(model, name, at, bit)
        got = case.k3(model, ids=ids, gen=gen).run["logits_digest"]
        check(got != want, f"a changed bit of {name} does not change the digest")


k3test.main([tiny, demo, odd, product, many_rows, long_chunks_here, long_chunks_elsewhere, embedded, what_it_covers, can_fail])
