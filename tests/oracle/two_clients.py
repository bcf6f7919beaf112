"""Several clients on one daemon: each gets the bits it would get alone, and the daemon keeps nothing
of those that are gone."""
import json
import os
import signal
import struct
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
import reference
import trace_file
from k3test import DEMO, Daemon, Wire, check, check_equal, idle, wait_until

# Little memory, but enough for the promises to three or four connections: small tiles make the ring of
# an eighth of the trunk a dozen of them, and there are ten slots for 256 experts.
TIGHT = ["--tile", "65536", "--trunk-gb", "0.0009", "--cache-gb", "0.0003"]
GREEDY = json.load(open(os.path.join(DEMO, "golden.json")))["greedy"]


def both(case, args, n=2):
    """n different prompts alone, then all at once, on daemons of their own."""
    d = Daemon(case, DEMO, *args)
    alone, traces = [], []
    for g in GREEDY[:n]:
        alone.append(case.k3(None, ids=g["ids"], gen=24, daemon=d).run)
        check_equal(alone[-1]["generated_ids"], g["greedy_ids"][:24], f"alone: after {g['prompt']!r}")
    d.stop()
    d = Daemon(case, DEMO, *args)
    got = [None] * n

    def one(i):
        trace = case.path(f"trace{i}")
        os.makedirs(trace, exist_ok=True)
        argv, out = case.run_args(None, ["--dump-cache-trace", trace], ids=GREEDY[i]["ids"], gen=24, daemon=d)
        r = case.exec("k3", *argv)
        got[i] = r, json.load(open(os.path.join(out, "run.json"))) if r.rc == 0 else None, trace

    threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for i, (r, run, trace) in enumerate(got):
        check_equal(r.rc, 0, f"exit code of client {i}\n{r}")
        check_equal(run["logits_digest"], alone[i]["logits_digest"], f"digest of client {i}")
        check_equal(run["generated_ids"], alone[i]["generated_ids"], f"tokens of client {i}")
        traces.append(trace)
    stats = idle(d)
    check_equal(d.stop(), 0, "exit code of k3-iod")
    return stats, traces


def at_once(case):
    """Everything resident: an expert that both want is read once."""
    stats, traces = both(case, ["--cache-gb", "1", "--trunk-gb", "1"])
    config = reference.Config(os.path.join(DEMO, "config.json"))
    wanted = [{(layer, e) for (_, layer), ids in trace_file.read(t, config).items() for e in ids} for t in traces]
    check(len(wanted[0] & wanted[1]) > 20, "the two prompts hardly share an expert: the check shows nothing")
    check_equal(stats["experts_read"], len(wanted[0] | wanted[1]), "experts read, of those that either wanted")
    check_equal(stats["experts_evicted"], 0, "experts evicted from a cache of all")


def at_once_in_little(case):
    """Little memory, where every tile and every expert is contested."""
    stats, _ = both(case, TIGHT)
    check(stats["experts_evicted"] > 0, "nothing was evicted: the check shows nothing")


def three_at_once(case):
    """Three, with room for half of it."""
    both(case, ["--tile", "65536", "--cache-gb", "0.003", "--trunk-gb", "0.003"], n=3)


def refused_at_the_floor(case):
    """The least memory is for one client; a second is told so, and may come back when it is gone."""
    d = Daemon(case, DEMO, "--cache-gb", "0", "--trunk-gb", "0")
    with Wire(d.socket) as w:
        w.hello()
        r = case.exec("k3", "run", "--socket", d.socket, "--ids", "1", "--gen", "1", "--reconnect-wait", "0")
        check_equal(r.rc, 1, f"exit code beside another client\n{r}")
        check("later" in r.err and "-gb" in r.err, f"no sentence that helps\n{r}")
        code, kind = struct.unpack_from("<2I", second_hello(d.socket))
        check_equal((code, kind), (12, 1), "code and class of the refusal: busy, to be retried")
        check(w.stats()["clients"] == 1, "the refused ones are still counted")
        log = open(case.path("waiting"), "wb")
        p = case.start("k3", "run", "--socket", d.socket, "--ids", "1", "--gen", "1", stderr=log)
        log.close()
        wait_until(lambda: "trying again" in open(case.path("waiting")).read(), "k3 to say that it waits")
    check_equal(p.wait(60), 0, f"exit code of the one that waited\n{open(case.path('waiting')).read()}")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def second_hello(path):
    with Wire(path) as w:
        w.send("HELLO", struct.pack("<IIQQII32s", 1, 1, 0, 0, 1, 0, b"second"))
        return w.expect("ERROR")


def one_read(case):
    """Two connections ask for the same expert before either is answered: one read."""
    d = Daemon(case, DEMO, "--cache-gb", "1")
    with Wire(d.socket) as a, Wire(d.socket) as b:
        a.hello()
        b.hello()
        ids = [3, 7, 9]
        body = struct.pack("<IIII128H", 4, len(ids), 1, 0, *(ids + [0] * (128 - len(ids))))
        # Stopped, the daemon finds both requests when it goes on.
        os.kill(d.pid, signal.SIGSTOP)
        a.send("EXPERTS", body)
        b.send("EXPERTS", body)
        os.kill(d.pid, signal.SIGCONT)
        seen = []
        for w in (a, b):
            got = []
            while len(got) < len(ids):
                fields = struct.unpack_from("<6IQQ", w.expect("EXPERT_READY"))
                check_equal(fields[0], 4, "layer of EXPERT_READY")
                got.append(fields)
                w.send("EXPERT_DONE", struct.pack("<4I", fields[0], fields[1], fields[3], fields[4]))
            check_equal(sorted(f[1] for f in got), ids, "experts that came")
            seen.append({f[1]: (f[3], f[4], f[6]) for f in got})
        check_equal(seen[0], seen[1], "slot, generation and offset for both")
        s = a.stats()
        check_equal(s["experts_read"], len(ids), "experts read")
        check_equal(s["experts_served"], 2 * len(ids), "experts served")
        check(s["experts_shared"] + s["experts_hit"] >= len(ids), "neither shared nor resident")
    idle(d)
    check_equal(d.stop(), 0, "exit code of k3-iod")


def killed(case):
    """50 clients end by SIGKILL in a step while another one runs, again and again."""
    d = Daemon(case, DEMO, *TIGHT)
    steady, victim = GREEDY[1], GREEDY[2]
    want = case.k3(None, ids=steady["ids"], gen=12, daemon=d).run["logits_digest"]
    stop, done, wrong = threading.Event(), [0], []

    def neighbour():
        while not stop.is_set():
            argv, out = case.run_args(None, ["--threads", "1"], ids=steady["ids"], gen=12, daemon=d)
            r = case.exec("k3", *argv)
            if r.rc != 0 or json.load(open(os.path.join(out, "run.json")))["logits_digest"] != want:
                wrong.append(str(r))
                return
            done[0] += 1

    t = threading.Thread(target=neighbour)
    t.start()
    early = None
    try:
        with Wire(d.socket) as w:
            w.hello()
            for i in range(50):
                before = w.stats()
                p = case.start("k3", "run", "--socket", d.socket, "--ids", ",".join(map(str, victim["ids"])), "--gen", "4000",
                               "--threads", "1")
                # In a step: it is connected, and tiles and experts have been handed out since.
                wait_until(lambda: (s := w.stats())["clients_total"] > before["clients_total"] and p.poll() is None
                           and s["tiles_served"] > before["tiles_served"] + 5 * (i % 7)
                           and s["experts_served"] > before["experts_served"], f"victim {i} to be in a step")
                p.send_signal(signal.SIGKILL)
                p.wait()
                if i == 9:
                    early = w.stats()
            wait_until(lambda: done[0] > 0 or wrong, "the neighbour to finish a run", 120)
    finally:
        stop.set()
        t.join()
    check(not wrong, f"the neighbour was disturbed: {wrong[:1]}")
    check(done[0] > 0, "the neighbour never finished a run: the check shows nothing")
    s = idle(d)
    grown = s["private_bytes"] - early["private_bytes"]
    print(f"killed: the neighbour ran {done[0]} times; private memory after 10 kills {early['private_bytes']}, at the end "
          f"{s['private_bytes']}")
    check(k3test.INSTRUMENTED or grown <= 256 << 10, f"the daemon grew by {grown} bytes over 40 killed clients")
    check_equal(case.k3(None, ids=steady["ids"], gen=12, daemon=d).run["logits_digest"], want, "digest afterwards")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def stopped(case):
    """A client that stops in the middle of a step holds up nobody else."""
    d = Daemon(case, DEMO, *TIGHT)
    g = GREEDY[0]
    want = case.k3(None, ids=g["ids"], gen=8, daemon=d).run["logits_digest"]
    p = case.start("k3", "run", "--socket", d.socket, "--ids", ",".join(map(str, GREEDY[2]["ids"])), "--gen", "4000")
    before = d.stats()
    wait_until(lambda: d.stats()["tiles_served"] > before["tiles_served"], "the other client to be in a step")
    p.send_signal(signal.SIGSTOP)
    check_equal(case.k3(None, ids=g["ids"], gen=8, daemon=d).run["logits_digest"], want, "digest beside a stopped client")
    p.send_signal(signal.SIGKILL)
    p.wait()
    idle(d)
    check_equal(d.stop(), 0, "exit code of k3-iod")


k3test.main([at_once, at_once_in_little, three_at_once, refused_at_the_floor, one_read, killed, stopped])
