"""Clients that stop in the middle of a step: what they hold comes back after --lease-limit when others
wait for it, and they themselves lose time only. And the floor: as many clients as the least memory
promises to, each in the middle of a layer's experts."""
import json
import mmap
import os
import signal
import struct
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import DEMO, Daemon, Wire, check, check_equal, wait_until
from reconnect import begin, finish

GREEDY = json.load(open(os.path.join(DEMO, "golden.json")))["greedy"]
TWO = ["--tile", "65536", "--trunk-gb", "0.0005", "--cache-gb", "0"]
FOUR = ["--tile", "32768", "--trunk-gb", "0.0005", "--cache-gb", "0.00014"]


def seats(d):
    """How many clients the daemon takes at once."""
    held = []
    try:
        while True:
            held.append(Wire(d.socket))
            held[-1].hello()
    except k3test.Failure:
        return len(held) - 1
    finally:
        for w in held:
            w.close()
        wait_until(lambda: d.stats()["clients"] == 1, "the daemon to see that they are gone")


def refilled(case):
    """Stopped with tiles or experts in its hands, until another client has used every place again."""
    want = [case.k3(DEMO, ids=g["ids"], gen=60).run["logits_digest"] for g in GREEDY[:2]]
    d = Daemon(case, DEMO, *TWO, "--lease-limit", "1")
    check_equal(seats(d), 2, "seats")
    with Wire(d.socket) as w:
        w.hello()
        victim = begin(case, GREEDY[0], 60, "--socket", d.socket, "--isa", "ref")
        wait_until(lambda: w.stats()["experts_served"] > 0, "the victim to be in a step")
        victim[0].send_signal(signal.SIGSTOP)
        while (s := w.stats())["tile_leases"] + s["expert_leases"] == 0:  # it waited: again
            victim[0].send_signal(signal.SIGCONT)
            wait_until(lambda: w.stats()["tiles_served"] > s["tiles_served"], "the victim to go on")
            victim[0].send_signal(signal.SIGSTOP)
        check_equal(w.stats()["clients_dropped"], s["clients_dropped"], "dropped while nobody wanted to come")
        other = begin(case, GREEDY[1], 60, "--socket", d.socket)
        finish(other, want[1])
        check("without a sign" in d.log(), f"nobody was dropped: the check shows nothing\n{d.log()}")
        check(victim[0].poll() is None, "the victim has ended")
        victim[0].send_signal(signal.SIGCONT)
        text = finish(victim, want[0])
        check("connecting again" in text or "has gone" in text, f"the victim noticed nothing\n{text}")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def generations(case):
    """The place that was taken back has another generation once it is filled again: that is what a client
    goes by."""
    d = Daemon(case, DEMO, *TWO, "--lease-limit", "1")
    with Wire(d.socket) as w, Wire(d.socket) as holder:
        w.hello()
        holder.hello()
        holder.send("SWEEP", struct.pack("<4I", 1, 0, 4, 1))
        _, tile, generation, flags, offset, _ = struct.unpack_from("<4I2Q", holder.expect("TILE_READY"))
        holder.send("EXPERTS", struct.pack("<IIII128H", 1, 1, 1, 0, *([3] + [0] * 127)))
        while (got := holder.receive())[0] != "EXPERT_READY":
            pass
        slot, slot_generation = struct.unpack_from("<6I", got[1])[3:5]
        slab = mmap.mmap(holder.fds[0], 4096 + 32 * 4096, prot=mmap.PROT_READ)
        tiles, slots = struct.unpack_from("<2Q", slab, 64)
        now = lambda: (struct.unpack_from("<I", slab, tiles + 32 * tile)[0], struct.unpack_from("<I", slab, slots + 32 * slot)[0])
        check_equal(now(), (generation, slot_generation), "generations under the lease")
        check_equal(flags, 0, "flags of the first tile, which is not to be pinned")
        # A third comes; holder has to go.
        r = case.k3(None, ids=GREEDY[0]["ids"], gen=8, daemon=d)
        check_equal(r.run["generated_ids"], GREEDY[0]["greedy_ids"][:8], "tokens of the third")
        check(now()[0] > generation and now()[1] > slot_generation, f"generations {now()} after {generation}, {slot_generation}")
        while (got := holder.receive()) is not None and got[0] != "ERROR":
            pass
        check(got, "no reason came")
        code, kind = struct.unpack_from("<2I", got[1])
        check_equal((code, kind), (20, 1), "code and class: stale, to be retried")
        slab.close()
    check_equal(d.stop(), 0, "exit code of k3-iod")


def run_all(case, d, prompts, want):
    got = [None] * len(prompts)

    def one(i):
        got[i] = case.k3(None, "--threads", "1", ids=GREEDY[prompts[i]]["ids"], gen=24, daemon=d, expect=None)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for i, r in zip(prompts, got):
        check_equal(r.rc, 0, f"exit code\n{r}")
        check_equal(r.run["logits_digest"], want[i], f"digest of prompt {i}")


def four_at_the_floor(case):
    """Four with the least memory for four: all finish. Then one stops for good, and the others go on."""
    n = min(3, len(GREEDY))
    want = [case.k3(DEMO, ids=g["ids"], gen=24).run["logits_digest"] for g in GREEDY[:n]]
    d = Daemon(case, DEMO, *FOUR, "--lease-limit", "1")
    check_equal(seats(d), 4, "seats")
    run_all(case, d, [i % n for i in range(4)], want)
    before = d.stats()
    victim = begin(case, GREEDY[0], 4000, "--socket", d.socket)
    wait_until(lambda: d.stats()["experts_served"] > before["experts_served"], "the victim to be in a step")
    victim[0].send_signal(signal.SIGSTOP)
    run_all(case, d, [i % n for i in range(4)], want)  # one more than there are seats beside it
    victim[0].kill()
    victim[0].wait()
    wait_until(lambda: (s := d.stats())["clients"] == 1 and s["tile_leases"] + s["expert_leases"] == 0, "leases to be back")
    check_equal(d.stop(), 0, "exit code of k3-iod")


if __name__ == "__main__":
    k3test.main([refilled, generations, four_at_the_floor])
