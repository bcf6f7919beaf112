"""Clients share the reading of the trunk (docs/sharing.md): how much is read for several of them, and
that waiting for each other has an end. Clients of the protocol stand for consumers of any speed; the
device is slowed down, so that all of them are faster than it, as with a model larger than memory."""
import json
import os
import random
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "daemon"))
import k3test
from k3test import DEMO, Daemon, check, check_equal, wait_until
from view import View

# Nothing pinned but for a little; a ring of an eighth of the trunk, with room for four clients.
BUDGET = ["--tile", "32768", "--trunk-gb", "0.001", "--cache-gb", "0.001"]
SLOW = {"K3_IOD_FAULT": "slow=10M"}  # a sweep takes 0.7 s
GREEDY = json.load(open(os.path.join(DEMO, "golden.json")))["greedy"]


def daemon(case, *args, env=None):
    d = Daemon(case, DEMO, *(args or BUDGET), env=env or SLOW)
    wait_until(lambda: (s := d.stats())["tiles_pinned"] == s["tiles_to_pin"], "pinned tiles to be loaded")
    return d


def ride(view, n_sweeps, tile_seconds, stop=lambda: False, has_begun=False):
    """What a client does: sweep after sweep, with so much computing for each tile. has_begun: the first is asked for."""
    due = [0.0]

    def compute(tile, offset, generation):
        now = time.monotonic()
        due[0] = max(due[0], now - 0.002) + tile_seconds
        if due[0] - now > 0.001:
            time.sleep(due[0] - now)

    for k in range(n_sweeps):
        if k > 0 or not has_begun:
            view.sweep(again=k + 1 < n_sweeps)
        view.walk(range(view.n_tiles), compute)
        if stop():
            return


def bytes_read(case, starts, speeds, n_sweeps, *args):
    """Trunk bytes read for clients that start at these times, and the counters."""
    d = daemon(case, *args)
    before = d.stats()
    first, wrong = [], []

    def begin():
        """Those that start at 0 ask one right after the other, however late a busy machine wakes their threads."""
        for v in first:
            v.sweep(again=n_sweeps > 1)

    together = threading.Barrier(len(starts), action=begin)

    def one(start, speed):
        try:
            with View(d.socket) as v:
                if start == 0:
                    first.append(v)
                together.wait()
                time.sleep(start)
                ride(v, n_sweeps, speed, has_begun=start == 0)
        except Exception as e:
            wrong.append(e)
            together.abort()

    threads = [threading.Thread(target=one, args=a) for a in zip(starts, speeds)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    check(not wrong, f"a client failed: {wrong[:1]}")
    s = d.stats()
    check_equal(d.stop(), 0, "exit code of k3-iod")
    return s["trunk_bytes_read"] - before["trunk_bytes_read"], s


def in_lock_step(case):
    """Two and four that start together: the bytes of one, and a tenth at most."""
    one, _ = bytes_read(case, [0], [0], 5)
    for n in (2, 4):
        several, s = bytes_read(case, [0] * n, [0] * n, 5)
        print(f"{n} in lock step: {several / one:.3f} of the trunk bytes of one")
        check(several <= 1.1 * one, f"{n} clients read {several} bytes, one {one}")
        check(s["tiles_shared"] > (n - 1) * 4 * 240, f"only {s['tiles_shared']} tiles were shared")


def out_of_step(case):
    """Starts and speeds at random, speeds differing by two: they come together, and stay so."""
    rng = random.Random(3)
    one, _ = bytes_read(case, [0], [0], 10)
    for n in (2, 4):
        starts = [0] + [rng.uniform(0, 1) for _ in range(n - 1)]
        speeds = [0.0005, 0.001] + [rng.uniform(0.0005, 0.001) for _ in range(n - 2)]
        several, s = bytes_read(case, starts, speeds, 10)
        print(f"{n} out of step: {several / one:.3f} of the trunk bytes of one; {s['share_holds']} holds")
        check(several <= 1.4 * one, f"{n} clients read {several} bytes, one {one}")
    # and without waiting they do not: the figures above are the policy's
    apart, s = bytes_read(case, [0, 0.35], [0.0005, 0.001], 5, *BUDGET, "--share-wait", "0")
    check(apart > 1.4 * one / 2 and s["share_holds"] == 0, f"{apart} bytes without sharing, one {one // 2}")


def partner_leaves(case):
    """A client held for another goes on when that one is gone, though it would wait for an hour."""
    d = daemon(case, *BUDGET, "--share-wait", "3600")
    with View(d.socket) as late:
        with View(d.socket) as early:
            early.sweep(again=True)
            for _ in range(early.n_tiles // 3):
                t = early.tile_ready()
                if t[3] == 0:
                    early.tile_done(t[1])
            late.sweep(again=True)
            wait_until(lambda: late.stats()["clients_held"] == 1, "the newcomer to be held")
        late.tile_ready()
        check_equal(late.stats()["clients_held"], 0, "clients held")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def slow_rider(case):
    """A client that stops in its sweep falls off; the others go on, and it too when it wakes."""
    d = daemon(case, env={"K3_IOD_FAULT": "slow=40M"})
    with View(d.socket) as quick, View(d.socket) as slow:
        quick.sweep(again=True)
        slow.sweep()
        held = {t[1] for t in (slow.tile_ready() for _ in range(6)) if t[3] == 0}
        quick.walk(range(quick.n_tiles), lambda *_: None)
        ride(quick, 2, 0)
        s = quick.stats()
        check(s["share_falls"] >= 1, f"nobody fell off: {s}")
        for tile in held:
            slow.tile_done(tile)
        last = max(held)
        rest = [i for i in range(last + 1, slow.n_tiles) if not slow.is_pinned(i)]
        for tile in rest:
            got = slow.tile_ready()
            check_equal((got[1], got[3]), (tile, 0), "the next tile")
            slow.tile_done(tile)
    check_equal(d.stop(), 0, "exit code of k3-iod")


def bits(case):
    """Real clients, one after the other joining in: digests as alone."""
    want = {}
    for wait in (None, "0", "5"):
        args = [*BUDGET, *(["--share-wait", wait] if wait else [])]
        d = daemon(case, *args, env={"K3_IOD_FAULT": "slow=60M"})
        if not want:
            for i in range(3):
                want[i] = case.k3(None, ids=GREEDY[i]["ids"], gen=8, daemon=d).run["logits_digest"]
        got = {}

        def one(i):
            time.sleep(0.15 * i)
            got[i] = case.k3(None, "--threads", "1", ids=GREEDY[i]["ids"], gen=8, daemon=d).run["logits_digest"]

        threads = [threading.Thread(target=one, args=(i,)) for i in range(3)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        check_equal(got, want, f"--share-wait {wait}: digests")
        check_equal(d.stop(), 0, "exit code of k3-iod")


def four_at_the_floor(case):
    """Four clients with no more than what they were promised, each in the middle of a layer's experts."""
    d = daemon(case, *BUDGET[:-1], "0.00014", env={"K3_IOD_FAULT": "slow=60M"})
    views = [View(d.socket) for _ in range(4)]
    check_equal(views[0].welcome["n_slots"], 8, "slots: two for each")
    tiles = [[] for _ in views]

    def experts(i, n):
        """n EXPERT_READYs; tiles that come between are kept."""
        got = []
        while len(got) < n:
            kind, body = views[i].receive()
            if kind == "TILE_READY":
                tiles[i].append(struct.unpack("<4I2Q", body))
            else:
                check_equal(kind, "EXPERT_READY", "message")
                got.append(struct.unpack("<6I2Q6I", body))
        return got

    held = []
    for i, v in enumerate(views):
        v.sweep()
        v.ask(1, list(range(8 * i, 8 * i + 2)))
        held.append(experts(i, 2))
    # all hold two experts and the tiles they got; each goes on, and gets two more
    for i, v in enumerate(views):
        for e in held[i]:
            v.expert_done(e)
        v.ask(1, list(range(8 * i + 2, 8 * i + 4)))
        held[i] = experts(i, 2)
    # and to the end of the sweep, one after the other
    for i, v in enumerate(views):
        for e in held[i]:
            v.expert_done(e)
        tile, last = -1, max(t for t in range(v.n_tiles) if not v.is_pinned(t))
        while tile != last:
            _, tile, _, flags, _, _ = tiles[i].pop(0) if tiles[i] else v.tile_ready()
            if flags == 0:
                v.tile_done(tile)
    [v.close() for v in views]
    check_equal(d.stop(), 0, "exit code of k3-iod")


k3test.main([in_lock_step, out_of_step, partner_leaves, slow_rider, bits, four_at_the_floor])
