"""Mixed load for a while, with faults on: clients that finish, clients that are killed, clients that
break the protocol, all on one daemon with little memory whose disk gives short reads, EAGAIN and
EIO. Every answer has the right bits, and at the end nothing is left: no lease, no descriptor, no
memory. K3_SOAK_SECONDS says how long (tests/soak SECONDS sets it)."""
import json
import os
import random
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import DEMO, Daemon, Wire, check, check_equal, idle, wait_until

SECONDS = float(os.environ.get("K3_SOAK_SECONDS", "60"))
TIGHT = ["--tile", "65536", "--trunk-gb", "0.0012", "--cache-gb", "0.0006"]
# Every file's pages once in a while: "always" would be no soak but an end.
FAULTS = "short=13;again=17;" + ";".join(f"eio={f}:{o}+4096:2" for f in range(4) for o in (65536, 262144, 524288))
# Growth that is no leak: what the allocator keeps when clients come and go. A sanitizer keeps more.
GROWTH = 64 << 20 if k3test.INSTRUMENTED else 512 << 10
GREEDY = json.load(open(os.path.join(DEMO, "golden.json")))["greedy"]


class Soak:
    def __init__(self, case, daemon):
        self.case, self.daemon = case, daemon
        self.end = time.monotonic() + SECONDS
        self.wrong, self.done = [], {}
        self.seed = int(os.environ.get("K3_SOAK_SEED", random.randrange(1 << 30)))

    def is_over(self):
        return self.wrong or time.monotonic() > self.end

    def steadily(self, worker):
        """worker(rng) again and again, until the time is over or something was wrong."""
        def go():
            rng = random.Random(f"{self.seed} {worker.__name__}")
            while not self.is_over():
                try:
                    worker(rng)
                    self.done[worker.__name__] = self.done.get(worker.__name__, 0) + 1
                except Exception as e:
                    self.wrong.append(f"{worker.__name__}: {e}")
        return threading.Thread(target=go)

    def finishes(self, rng):
        """A prompt to the end, in some way: the tokens are those of the other implementation."""
        g, n = rng.choice(GREEDY), rng.randrange(1, 24)
        r = self.run(g["ids"], n, "--prefill-rows", str(rng.choice([1, 3, 64])))
        check(r.rc == 0, f"exit code {r.rc}\n{r}")
        check_equal(json.load(open(r.report))["generated_ids"], g["greedy_ids"][:n], f"tokens after {g['prompt']!r}")

    def is_killed(self, rng):
        p = self.case.start("k3", "run", "--socket", self.daemon.socket, "--ids", "5,77,300", "--gen", "4000", "--threads", "1")
        time.sleep(rng.random())
        check(p.poll() is None or p.returncode == 1, f"a client that was to be killed ended by itself with {p.returncode}")
        p.send_signal(signal.SIGKILL)
        p.wait()
        self.case.processes.remove(p)

    def breaks_the_protocol(self, rng):
        with Wire(self.daemon.socket) as w:
            w.s.settimeout(60 * k3test.SLOW)
            w.send("HELLO" if rng.random() < 0.5 else "EXPERTS", rng.randbytes(rng.randrange(200)))
            while w.receive():
                pass
        time.sleep(0.05)

    def run(self, ids, gen, *args):
        argv, out = self.case.run_args(None, args, ids=ids, gen=gen, daemon=self.daemon)
        r = self.case.exec("k3", *argv, "--threads", "1")
        while r.rc == 1 and "later" in r.err and not self.is_over():
            time.sleep(0.05)  # busy: there is no room for one client more just now
            r = self.case.exec("k3", *argv, "--threads", "1")
        r.report = os.path.join(out, "run.json")
        return r


def descriptors(daemon):
    """Once the connection that asked for the counters is closed there too."""
    seen = []

    def is_settled():
        seen.append(len(os.listdir(f"/proc/{daemon.pid}/fd")))
        return len(seen) > 20 and min(seen[-20:]) == max(seen[-20:])

    wait_until(is_settled, "the daemon's descriptors to stay the same")
    return seen[-1]


def mixed_load(case):
    d = Daemon(case, DEMO, *TIGHT, env={"K3_IOD_FAULT": FAULTS})
    soak = Soak(case, d)
    print(f"{SECONDS:.0f} seconds, seed {soak.seed}", flush=True)
    # What every client makes the allocator take, before anything is compared.
    for g in GREEDY[:3]:
        soak.run(g["ids"], 8)
    early, early_fds = idle(d), descriptors(d)
    threads = [soak.steadily(w) for w in (soak.finishes, soak.is_killed, soak.breaks_the_protocol)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    check(not soak.wrong, f"with K3_SOAK_SEED={soak.seed}: {soak.wrong[:2]}")
    late, late_fds = idle(d), descriptors(d)
    grown = late["private_bytes"] - early["private_bytes"]
    print(f"{soak.done}; {late['reads']} reads, {late['reads_short']} short, {late['reads_retried']} retried, "
          f"{late['experts_evicted']} experts evicted; private memory grew by {grown} bytes", flush=True)
    check(len(soak.done) == 3, f"some load did nothing: {soak.done}")
    check(late["reads_short"] > 10 and late["reads_retried"] > 0, "hardly a fault: this shows nothing")
    check_equal(late["reads_failed"], 0, "reads given up")
    check_equal(late_fds, early_fds, "descriptors of the daemon")
    check(grown <= GROWTH, f"the daemon grew by {grown} bytes")
    check_equal(d.stop(), 0, "exit code of k3-iod")


k3test.main([mixed_load])
