"""Every fault that K3_IOD_FAULT knows, with both ways of reading: what a client gets, that its bits are right or
none, that nothing stays leased, and that the daemon lives on and serves the next one."""
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import DEMO, Daemon, check, check_equal, wait_until
from victim import expert_page, two_prompts

# The least memory: a slot or a piece of the ring that leaked would be missed by the next client.
LEAST = ("--trunk-gb", "0", "--cache-gb", "0")
ROOM_FOR_TWO = ("--tile", "32768", "--trunk-gb", "0.0031", "--cache-gb", "0.01")


class Bench:
    """Two prompts, their digests without faults, and the expert that only the first needs."""

    def __init__(self, case):
        self.case = case
        self.runs, self.layer, self.expert = two_prompts(case)
        self.file, self.offset = expert_page(DEMO, self.layer, self.expert)
        self.range = f"{self.file}:{self.offset}+4096"

    def daemon(self, backend, fault, *args):
        return Daemon(self.case, DEMO, *LEAST, "--backend", backend, *args, env={"K3_IOD_FAULT": fault})

    def run(self, d, which, expect=0):
        r = self.case.k3(None, ids=self.runs[which]["prompt_ids"], gen=4, daemon=d, expect=expect)
        if expect == 0:
            check_equal(r.run["logits_digest"], self.runs[which]["logits_digest"], f"digest\n{d.log()}")
        return r

    def is_whole(self, d):
        """Nothing is leased, and both prompts pass through the same few slots once more."""
        check_equal([d.stats()[n] for n in ("tile_leases", "expert_leases")], [0, 0], "leases")
        check(d.process.poll() is None, f"k3-iod has ended\n{d.log()}")


# name of the fault, its text (R: the range of the expert), counters that must have grown, words of the log
SURVIVED = [
    ("none", "slow=1000G", (), ()),
    ("short reads", "short=1", ("reads_short",), ()),
    ("some short reads", "short=3", ("reads_short",), ()),
    ("EIO once", "eio=R:1", ("reads_retried",), ()),
    ("EIO three times", "eio=R:3", ("reads_retried",), ()),
    ("EAGAIN", "again=7", ("reads_retried",), ()),
    ("a slow device", "slow=20M", (), ()),
    ("ENOMEM on registration", "no_register=1", (), ()),
    ("no O_DIRECT", "no_direct=1", (), ("buffered",)),
    ("all at once", "short=5;again=11;eio=R:2;slow=60M", ("reads_short", "reads_retried"), ()),
]


def survived(case, backend):
    b = Bench(case)
    for name, fault, grown, words in SURVIVED:
        d = b.daemon(backend, fault.replace("R", b.range))
        for which in (0, 1):
            b.run(d, which)
        s = d.stats()
        for counter in grown:
            check(s[counter] > 0, f"{name}: {counter} is 0: the fault was not met")
        check_equal(s["reads_failed"], 0, f"{name}: reads given up")
        check(all(w in d.log() for w in words), f"{name}: {words} not in\n{d.log()}")
        if "registration" in name and backend == "io_uring":
            check("buffers registered" in d.log(), f"the log does not say that nothing is registered\n{d.log()}")
        b.is_whole(d)
        check_equal(d.stop(), 0, f"{name}: exit code of k3-iod")


def eio_always(case, backend):
    """A named error for the client that wants the expert, twice; the other goes on in between."""
    b = Bench(case)
    d = b.daemon(backend, f"eio={b.range}:always")
    for _ in range(2):
        r = b.run(d, 0, expect=4)
        check(f"layer {b.layer}" in r.err and str(b.expert) in r.err, f"expert and layer are not named\n{r}")
        b.run(d, 1)
        b.is_whole(d)
    check(d.stats()["reads_failed"] > 0, "no read was given up")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def drain(d):
    """A manager reads what it is told: a full socket would stop the daemon's watchdog messages."""
    while d.read_notify(0.01):
        pass
    return True


def stuck(case, backend):
    """A read that never comes back: reported with file and offset, the watchdog is fed, another client
    goes on, and whoever waits may leave."""
    b = Bench(case)
    d = Daemon(case, DEMO, *ROOM_FOR_TWO, "--backend", backend, "--io-timeout", "1",
               env={"K3_IOD_FAULT": f"stuck={b.range}", "WATCHDOG_USEC": "2000000"})
    argv, _ = b.case.run_args(None, [], ids=b.runs[0]["prompt_ids"], gen=4, daemon=d)
    waiting = case.start("k3", *argv)
    wait_until(lambda: drain(d) and d.stats()["reads_stalled"] > 0, "the stall to be counted")
    line = next((x for x in d.log().splitlines() if "not over" in x), "")
    name = sorted(f for f in os.listdir(DEMO) if f.endswith(".safetensors"))[b.file]
    check(name in line and any(c.isdigit() for c in line), f"file and offset are not named: {line!r}\n{d.log()}")
    check(waiting.poll() is None, "the client that waits has ended")
    b.run(d, 1)
    drain(d)
    d.messages = []
    d.wait_notify(lambda x: x == "WATCHDOG=1")
    waiting.send_signal(signal.SIGKILL)
    waiting.wait()
    wait_until(lambda: drain(d) and d.stats()["clients"] == 1, "the client that left to be gone")
    b.run(d, 1)
    b.is_whole(d)
    check_equal(d.log().count("not over"), 1, "lines about one stalled read")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def survived_uring(case):
    survived(case, "io_uring")


def survived_threads(case):
    survived(case, "threads")


def eio_always_uring(case):
    eio_always(case, "io_uring")


def eio_always_threads(case):
    eio_always(case, "threads")


def stuck_uring(case):
    stuck(case, "io_uring")


def stuck_threads(case):
    stuck(case, "threads")


k3test.main([survived_uring, survived_threads, eio_always_uring, eio_always_threads, stuck_uring, stuck_threads])
