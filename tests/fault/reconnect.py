"""The daemon is killed in the middle of a step and comes back: the client goes on with the same bits
and no error. By hand on its own socket, by a service manager, and the private daemon."""
import json
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import DEMO, Daemon, check, check_equal, wait_until
from manager import Manager

GREEDY = json.load(open(os.path.join(DEMO, "golden.json")))["greedy"]
TIGHT = ["--tile", "65536", "--trunk-gb", "0.0009", "--cache-gb", "0.0003"]


def begin(case, g, gen, *args, **more):
    """A run that is under way; (process, report, standard error)."""
    out = case.subdir("run")
    err = open(os.path.join(out, "err"), "wb")
    p = case.start("k3", "run", *args, "--ids", ",".join(map(str, g["ids"])), "--gen", str(gen), "--out",
                   os.path.join(out, "run.json"), "--threads", "1", stderr=err, **more)
    err.close()
    return p, os.path.join(out, "run.json"), os.path.join(out, "err")


def finish(run, want):
    p, report, err = run
    text = lambda: open(err, errors="replace").read()
    check_equal(p.wait(300 * k3test.SLOW), 0, f"exit code\n{text()}")
    check_equal(json.load(open(report))["logits_digest"], want, f"digest\n{text()}")
    return text()


def own_socket(case):
    """Killed and started by hand: the socket is stale for a while."""
    g = GREEDY[0]
    want = case.k3(DEMO, ids=g["ids"], gen=200).run["logits_digest"]
    d = Daemon(case, DEMO, *TIGHT)
    path = d.socket
    run = begin(case, g, 200, "--socket", path)
    for i in range(4):
        wait_until(lambda: d.stats()["experts_served"] > 20 * i, "the client to be in a step")
        check_equal(d.stop(signal.SIGKILL), -9, "exit code after SIGKILL")
        check(run[0].poll() is None, f"k3 has ended\n{open(run[2]).read()}")
        d = Daemon(case, DEMO, *TIGHT, socket_path=path)
    text = finish(run, want)
    check_equal(text.count("is back"), 4, f"times that k3 came back\n{text}")
    check_equal(text.count("has gone"), 4, f"times that the daemon went\n{text}")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def other_budgets(case):
    """It comes back with more memory and other windows: the same bits."""
    g = GREEDY[1]
    want = case.k3(DEMO, ids=g["ids"], gen=100).run["logits_digest"]
    m = Manager(case, DEMO)
    m.start("--trunk-gb", "0", "--cache-gb", "0", "--tile", "65536")
    run = begin(case, g, 100, "--socket", m.socket)
    wait_until(lambda: "experts" in open(run[2]).read() or run[0].poll() is None, "the client to run")
    for args in (["--trunk-gb", "1", "--cache-gb", "1"], ["--trunk-gb", "0", "--cache-gb", "0.001"]):
        m.kill()
        m.start("--tile", "65536", *args)
    finish(run, want)
    m.close()


def other_model(case):
    """Another model on the same socket: refused, exit code 1."""
    m = Manager(case, DEMO)
    m.start()
    run = begin(case, GREEDY[0], 4000, "--socket", m.socket)
    wait_until(lambda: m.stats()["experts_served"] > 0, "the client to be in a step")
    m.kill()
    m.model = k3test.oracle("tiny")
    m.start()
    check_equal(run[0].wait(60), 1, "exit code")
    check("another model" in open(run[2]).read(), f"no sentence\n{open(run[2]).read()}")
    m.close()


def private_daemon(case):
    """A private daemon that is killed is started again, a few times."""
    g = GREEDY[2]
    want = case.k3(DEMO, ids=g["ids"], gen=1200).run["logits_digest"]
    run = begin(case, g, 1200, DEMO)

    def kill_one(before):
        found = {}

        def is_there():
            for p in filter(str.isdigit, os.listdir("/proc")):
                try:
                    rest = open(f"/proc/{p}/stat").read()
                except OSError:
                    continue
                if "(k3-iod)" in rest and int(rest.rsplit(")", 1)[1].split()[1]) == run[0].pid and int(p) != before:
                    found["pid"] = int(p)
            return "pid" in found

        wait_until(is_there, "a private daemon")
        os.kill(found["pid"], signal.SIGKILL)
        return found["pid"]

    last = 0
    for i in range(3):
        # and k3 to have heard of it: a daemon killed before that does not count
        wait_until(lambda: (log := open(run[2]).read()).count("serving one client") > i and log.count("is back") == i,
                   "the private daemon to serve")
        last = kill_one(last)
    check_equal(finish(run, want).count("is back"), 3, "times that the daemon came back")
    run = begin(case, g, 4000, DEMO)
    last = 0
    for _ in range(4):
        last = kill_one(last)
    check_equal(run[0].wait(60), 1, f"exit code after the fourth kill\n{open(run[2]).read()}")
    check("ended by a signal" in open(run[2]).read(), f"no sentence\n{open(run[2]).read()}")


if __name__ == "__main__":
    k3test.main([own_socket, other_budgets, other_model, private_daemon])
