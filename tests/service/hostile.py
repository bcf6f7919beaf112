"""64 clients at once on one daemon, half of them hostile: garbage, floods, half messages, wrong
descriptors, never reading, coming and going. The others' bits are equal, and the daemon's memory is
bounded. 15 seconds; K3_HOSTILE_SECONDS says otherwise.
"""
import json
import os
import random
import re
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "daemon"))
import k3test
from k3test import DEMO, Daemon, Wire, check, check_equal
from view import Shards, View

SECONDS = float(os.environ.get("K3_HOSTILE_SECONDS", "15"))
GREEDY = json.load(open(os.path.join(DEMO, "golden.json")))["greedy"]
N_RUNS, N_VIEWS, N_HOSTILE = 2, 30, 32
# Queued messages of all connections at their limit, and what a busy daemon has anyway.
MEMORY = 160 << 20


def anonymous(pid):
    text = open(f"/proc/{pid}/status").read()
    return int(re.search(r"RssAnon:\s+(\d+)", text).group(1)) * 1024


# ---- hostile ones: each gets a fresh connection and does one bad thing until it is thrown out

def garbage(s, rng):
    while True:
        s.send(rng.randbytes(rng.randrange(1, 3000)))


def half_messages(s, rng):
    while True:
        body = rng.randbytes(rng.randrange(0, 600))
        s.send(struct.pack("<IHH", rng.choice((len(body) + 8, 4, 1 << 31)), rng.randrange(20), 0) + body[:rng.randrange(600)])


def flood(s, rng):
    """Well formed, never read: counters, pictures, rows, experts."""
    greet(s)
    kind = rng.randrange(4)
    while True:
        if kind == 0:
            s.send(struct.pack("<IHHQ", 16, 12, 0, 0))
        elif kind == 1:
            s.send(struct.pack("<IHHQ", 16, 15, 0, 0))
        elif kind == 2:
            s.send(struct.pack("<IHHII", 528, 6, 0, 1, 128) + struct.pack("<128I", *range(128)))
        else:
            ids = struct.pack("<128H", *range(32), *[0] * 96)
            s.send(struct.pack("<IHH4I", 280, 8, 0, rng.randrange(1, 9), 32, 1, 0) + ids)


def descriptors(s, rng):
    """Descriptors where none belong, as many as fit."""
    f = os.open("/dev/null", os.O_RDONLY)
    try:
        while True:
            socket.send_fds(s, [struct.pack("<IHHQ", 16, 12, 0, 0)], [f] * rng.choice((1, 5, 6, 200)))
    finally:
        os.close(f)


def silence(s, rng):
    time.sleep(rng.random() * 3)


def nonsense(s, rng):
    """A greeting, then numbers that no model has."""
    greet(s)
    while True:
        kind, size = rng.choice(((3, 16), (5, 8), (6, 520), (8, 272), (10, 16), (11, 272)))
        s.send(struct.pack("<IHH", 8 + size, kind, 0) + rng.randbytes(8) + bytes(size - 8))


def comes_and_goes(s, rng):
    greet(s)


def greet(s):
    s.send(struct.pack("<IHH", 72, 1, 0) + struct.pack("<IIQQII32s", 1, 1, 0, 0, 1, 0, b"friend"))


ATTACKS = [garbage, half_messages, flood, descriptors, silence, nonsense, comes_and_goes]


def hostile(path, seed, end, count):
    rng = random.Random(seed)
    while time.monotonic() < end:
        attack = rng.choice(ATTACKS)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.settimeout(2)
            try:
                s.connect(path)
                attack(s, rng)
            except OSError:
                pass  # thrown out, or full: that is what is wanted
        count[attack.__name__] = count.get(attack.__name__, 0) + 1


# ---- good ones

def good_view(path, seed, end, count, bad):
    """Connects, asks for experts, and compares each with the shards."""
    rng, shards = random.Random(seed), Shards(DEMO)
    try:
        while time.monotonic() < end:
            try:
                with View(path) as v:
                    for step in range(1, 6):
                        layer, ids = rng.randrange(1, v.n_layers), rng.sample(range(32), 3)
                        v.ask(layer, ids, step)
                        for _ in ids:
                            g = v.expert_ready()
                            v.expert_is_right(layer, g[1], g[6], g[8:14], shards)
                            check_equal(v.slot(g[3])[0], g[4], "generation after use")
                            v.expert_done(g)
                        count["experts"] = count.get("experts", 0) + len(ids)
            except k3test.Failure as e:
                if "serves at most" not in str(e):
                    raise
            except (ConnectionResetError, ConnectionRefusedError, BrokenPipeError):
                count["full"] = count.get("full", 0) + 1  # the most connections there may be
    except Exception as e:
        bad.append(f"a good client: {e!r}")


def good_runs(case, d, seed, end, count, bad):
    rng = random.Random(seed)
    try:
        while time.monotonic() < end:
            g = rng.choice(GREEDY)
            r = case.exec("k3", "run", "--socket", d.socket, "--prompt", g["prompt"], "--gen", len(g["greedy_ids"]), "--out",
                          case.path(f"run{seed}.json"))
            if r.rc != 0 and "serves at most" in r.err:
                continue
            check_equal(r.rc, 0, f"exit code\n{r}")
            got = json.load(open(case.path(f"run{seed}.json")))["generated_ids"]
            check_equal(got, g["greedy_ids"], "tokens")
            count["runs"] = count.get("runs", 0) + 1
    except Exception as e:
        bad.append(f"a run: {e!r}")


def half_hostile(case):
    env = {}
    if "ASAN_OPTIONS" in os.environ:
        env["ASAN_OPTIONS"] = os.environ["ASAN_OPTIONS"] + ":quarantine_size_mb=8"
    d = Daemon(case, DEMO, env=env)
    case.k3(None, prompt=GREEDY[0]["prompt"], gen=4, daemon=d)
    before = anonymous(d.pid)
    fds = len(os.listdir(f"/proc/{d.pid}/fd"))
    end = time.monotonic() + SECONDS
    count, bad, most = {}, [], before
    threads = [threading.Thread(target=hostile, args=(d.socket, n, end, count)) for n in range(N_HOSTILE)]
    threads += [threading.Thread(target=good_view, args=(d.socket, 100 + n, end, count, bad)) for n in range(N_VIEWS)]
    threads += [threading.Thread(target=good_runs, args=(case, d, 200 + n, end, count, bad)) for n in range(N_RUNS)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        if d.process.poll() is None:
            most = max(most, anonymous(d.pid))
        time.sleep(0.05)
    for t in threads:
        t.join()
    print(f"hostile: {dict(sorted(count.items()))}; memory {before >> 20} MB before, {most >> 20} MB at most")
    check(d.process.poll() is None, f"k3-iod ended with {d.process.poll()}")
    check_equal(bad, [], "what went wrong for the good ones")
    check(count.get("runs", 0) >= 1 and count.get("experts", 0) >= 50, f"the good ones got hardly anything: {count}")
    check(all(count.get(a.__name__, 0) > 0 for a in ATTACKS), f"not every attack was made: {count}")
    check(most - before < MEMORY, f"the daemon grew by {(most - before) >> 20} MB")
    k3test.wait_until(lambda: len(os.listdir(f"/proc/{d.pid}/fd")) <= fds, "the descriptors of those that have gone to be closed")
    s = d.stats()
    check_equal((s["clients"], s["expert_leases"], s["tile_leases"]), (1, 0, 0), "clients and leases at the end")
    r = case.k3(None, prompt=GREEDY[0]["prompt"], gen=24, daemon=d)
    check_equal(r.run["generated_ids"], GREEDY[0]["greedy_ids"][:24], "tokens of a run after all that")
    check_equal(d.stop(), 0, "exit code")


if __name__ == "__main__":
    k3test.main([half_hostile])
