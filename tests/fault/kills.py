"""kill -9 of the daemon and of clients, again and again, while others work: no wrong token, no lost slot,
no client error. By default 20 daemons and 50 clients; kills.py --daemons N --clients N for more."""
import json
import os
import random
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import DEMO, check, check_equal, wait_until
from manager import Manager
from restart import LOADING, READY, Throttle, states

GREEDY = json.load(open(os.path.join(DEMO, "golden.json")))["greedy"]
# Seven seats and 18 slots for 256 experts: every slot is filled again and again.
MEMORY = ["--tile", "32768", "--trunk-gb", "0.0009", "--cache-gb", "0.0003"]
GEN = 8
USUAL, CRAWL = 20 << 20, 1 << 18  # bytes a second


def count(name, default):
    return int(sys.argv.pop(sys.argv.index(name) + 1)) if name in sys.argv else default


N_DAEMONS, N_CLIENTS = count("--daemons", 20), count("--clients", 50)
sys.argv = [a for a in sys.argv if a not in ("--daemons", "--clients")]


class Disk:
    """Two control groups, for this daemon and the next, so that a dead one's reads crawl while the next
    one's run. Where there are none, reads are only reported late."""

    def __init__(self):
        self.groups, self.env, self.n = [], {}, 0
        try:
            self.groups = [Throttle(USUAL), Throttle(USUAL)]
        except k3test.Skip as e:
            print(f"kills: {e}: reads are only reported late")
            self.env = {"K3_IOD_FAULT": "slow=20M"}

    def set(self, rate):
        if self.groups:
            self.groups[self.n % 2].set(rate)

    def next(self):
        """Put before the next daemon's command; its group runs again."""
        self.n += 1
        self.set(USUAL)
        return self.groups[self.n % 2].wrap() if self.groups else []

    def end(self, managers):
        for g in self.groups:
            g.end(managers)


class Neighbours:
    """Clients that are never killed: each runs its prompt over and over and knows what must come out."""

    def __init__(self, case, m, n):
        self.case, self.m, self.wrong, self.done, self.stop = case, m, [], 0, False
        self.want = [case.k3(DEMO, ids=g["ids"], gen=GEN).run["logits_digest"] for g in GREEDY[:n]]
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(n)]
        [t.start() for t in self.threads]

    def run(self, i):
        while not self.stop and not self.wrong:
            r = self.case.k3(None, "--threads", "1", ids=GREEDY[i]["ids"], gen=GEN, daemon=self.m, expect=None)
            if r.rc != 0 or r.run["logits_digest"] != self.want[i]:
                self.wrong.append(str(r))
            self.done += 1

    def end(self):
        self.stop = True
        [t.join() for t in self.threads]


def kill_daemons(m, neighbours, disk, in_flight):
    rng = random.Random(1)
    for i in range(N_DAEMONS):
        time.sleep(rng.uniform(0.05, 0.4))
        # Half of them at least in the middle of reads, which then take their time.
        disk.set(CRAWL)
        end = time.monotonic() + 2
        while (n := sum(s.count(LOADING) for s in states(m))) == 0 and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(0.02)
        m.kill()
        in_flight.append(sum(s.count(LOADING) for s in states(m)))
        if neighbours.wrong:
            return
        m.start("--backend", ("io_uring", "threads")[i % 2], wrap=disk.next())


def kill_clients(case, m, neighbours, killed):
    rng = random.Random(2)
    ids = ",".join(map(str, GREEDY[2]["ids"]))
    for _ in range(N_CLIENTS):
        p = case.start("k3", "run", "--socket", m.socket, "--ids", ids, "--gen", "4000", "--threads", "1")
        time.sleep(rng.uniform(0.02, 0.25))
        check(p.poll() is None, f"a client ended by itself with {p.poll()}")
        p.kill()
        p.wait()
        case.processes.remove(p)
        killed.append(p.pid)
        if neighbours.wrong:
            return


def kills(case):
    disk = Disk()
    m = Manager(case, DEMO, *MEMORY, env=disk.env)
    failed = []

    def guard(f, *args):
        try:
            f(*args)
        except BaseException as e:
            failed.append(repr(e))

    try:
        m.start(wrap=disk.next())
        neighbours = Neighbours(case, m, 2)
        in_flight, killed, start = [], [], time.monotonic()
        workers = [threading.Thread(target=guard, args=(kill_daemons, m, neighbours, disk, in_flight)),
                   threading.Thread(target=guard, args=(kill_clients, case, m, neighbours, killed))]
        [t.start() for t in workers]
        [t.join() for t in workers]
        neighbours.end()
        busy = sum(n > 0 for n in in_flight)
        print(f"kills: {len(in_flight)} daemons, {busy} of them with reads in flight ({sum(in_flight)} tiles and experts), "
              f"{len(killed)} clients in {time.monotonic() - start:.0f} s; {neighbours.done} runs beside them; kept slabs "
              f"{m.log().count('kept from the daemon before:')}, cold starts {m.log().count('starting cold')}")
        check(not failed, f"{failed}\n{m.log()[-2000:]}")
        check(not neighbours.wrong, f"a client was wrong or failed:\n{neighbours.wrong[:1]}\n{m.log()[-2000:]}")
        check(neighbours.done >= 2, "no neighbour finished a run: the check shows nothing")
        check_equal((len(in_flight), len(killed)), (N_DAEMONS, N_CLIENTS), "daemons and clients killed")
        check(busy * 2 >= N_DAEMONS, f"only {busy} daemons were killed in the middle of a read")
        check(m.log().count("starting cold") == 0, f"slabs were lost\n{m.log()[-3000:]}")
        # Nothing is lost: all leases back, every slot can be filled.
        wait_until(lambda: (s := m.stats())["clients"] == 1 and s["tile_leases"] + s["expert_leases"] == 0, "leases to be back")
        for g, want in zip(GREEDY, neighbours.want):
            check_equal(case.k3(None, ids=g["ids"], gen=GEN, daemon=m).run["logits_digest"], want, "digest afterwards")
        s = m.stats()
        check_equal(s["experts_resident"], s["slots"], "experts resident, of all slots")
        tiles, slots = states(m)
        check_equal((tiles.count(LOADING), slots.count(READY)), (0, s["slots"]), "tiles LOADING and slots READY at the end")
        check_equal(m.stop(), 0, "exit code of k3-iod")
        m.close()
    finally:
        disk.end(case.managers)


if __name__ == "__main__":
    k3test.main([kills])
