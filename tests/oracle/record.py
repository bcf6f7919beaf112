"""k3-iod --record-trace: what the daemon's cache did, k3-store replay does again from its recording."""
import json
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
import reference
import trace_file
from k3test import DEMO, Daemon, Wire, check, check_equal

PROMPT, GEN = [5, 77, 300, 41], 40


def replayed(case, trace, slots):
    r = case.exec("k3-store", "replay", trace, "--json", "--slots", str(slots))
    check_equal(r.rc, 0, f"exit code of k3-store replay\n{r}")
    return json.loads(r.out)["policies"]["default"][0]


def lines_of(path):
    return [json.loads(line) for line in open(path)]


def hits_again(case):
    """One client, several sizes: as many hits, to the last one. (lru is replayed ask by ask, as its
    published figures are counted, and so is not the daemon's.)"""
    for gb in ("0.0005", "0.001", "0.002"):
        path = case.path(f"trace-{gb}")
        d = Daemon(case, DEMO, "--cache-gb", gb, "--record-trace", path)
        case.k3(None, "--prefill-rows", "1", ids=PROMPT, gen=GEN, daemon=d)
        s = d.stats()
        check_equal(d.stop(), 0, "exit code of k3-iod")
        asks = sum(len(ids) for line in lines_of(path) for ids in line["layers"])
        check_equal(asks, s["experts_served"], "experts in the recording")
        hits = replayed(case, path, s["slots"]) * asks
        print(f"{s['slots']} slots: {s['experts_hit']} hits of {asks}, replayed {hits:.1f}", flush=True)
        check(0 < s["experts_hit"] < asks, "no misses or no hits: the check shows nothing")
        check(abs(hits - s["experts_hit"]) < 0.5, f"{s['slots']} slots: {s['experts_hit']} hits, {hits} replayed")


def against_the_client(case):
    """The same experts as the client's own trace, step for step; clients are told apart."""
    path, mine = case.path("trace"), case.subdir("mine")
    d = Daemon(case, DEMO, "--cache-gb", "0.001", "--record-trace", path)
    case.k3(None, "--prefill-rows", "1", "--dump-cache-trace", mine, ids=PROMPT, gen=4, daemon=d)
    case.k3(None, ids=PROMPT, gen=2, daemon=d)
    check_equal(d.stop(), 0, "exit code of k3-iod")
    lines = lines_of(path)
    check_equal([line["step"] for line in lines], list(range(7)) + [0, 1], "steps")
    check_equal(len({line["client"] for line in lines}), 2, "clients")
    want = trace_file.read(mine, reference.Config(os.path.join(DEMO, "config.json")))
    layers = sorted({layer for _, layer in want})
    for p in range(7):
        check_equal(lines[p]["layers"], [sorted(map(int, want[p, layer])) for layer in layers], f"experts of step {p}")
    chunk = [sorted({int(e) for p in range(4) for e in want[p, layer]}) for layer in layers]
    check_equal(lines[7]["layers"], chunk, "experts of a chunk of four rows, each once")


def stopped(case):
    """A step under way when the daemon is stopped is recorded like one whose client goes."""
    path = case.path("trace")
    d = Daemon(case, DEMO, "--record-trace", path)
    with Wire(d.socket) as w:
        w.hello()
        w.send("EXPERTS", struct.pack("<IIII128H", 1, 3, 1, 0, 2, 3, 5, *[0] * 125))
        for _ in range(3):
            w.expect("EXPERT_READY")
        check_equal(d.stop(), 0, "exit code of k3-iod")
    check_equal([line["layers"][0] for line in lines_of(path)], [[2, 3, 5]], "experts of the first layer that has any")


def to_a_pipe(case):
    """A reader that is there gets every step."""
    pipe = case.path("pipe")
    os.mkfifo(pipe)
    fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    d = Daemon(case, DEMO, "--record-trace", pipe)
    case.k3(None, "--prefill-rows", "1", ids=PROMPT, gen=2, daemon=d)
    check_equal(d.stop(), 0, "exit code of k3-iod")
    got = os.read(fd, 1 << 20)
    os.close(fd)
    check_equal([json.loads(line)["step"] for line in got.splitlines()], list(range(5)), "steps")


def cannot_be_written(case):
    r = case.exec("k3-iod", "--model", DEMO, "--socket", case.path("s"), "--record-trace", case.path("none/t"))
    check(r.rc == 1 and "none/t" in r.err, f"a recording that cannot be written\n{r}")
    path = case.path("trace")
    d = Daemon(case, DEMO, "--record-trace", path)
    case.k3(None, ids=PROMPT, gen=1, daemon=d)
    r = case.exec("k3-iod", "--model", DEMO, "--socket", case.path("s"), "--record-trace", path)
    check(r.rc == 1 and path in r.err and "another k3-iod" in r.err, f"a recording of another daemon\n{r}")
    check_equal(d.stop(), 0, "exit code of k3-iod")
    check_equal(len(lines_of(path)), 1, "lines of the first daemon's recording")
    os.mkfifo(case.path("pipe"))
    r = case.exec("k3-iod", "--model", DEMO, "--socket", case.path("s"), "--record-trace", case.path("pipe"))
    check(r.rc == 1 and "pipe" in r.err, f"a pipe that nobody reads\n{r}")


k3test.main([hits_again, against_the_client, stopped, to_a_pipe, cannot_be_written])
