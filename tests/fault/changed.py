"""A model directory that changes under a running daemon: nothing more is read of a file that is not the
one whose headers and digest were read at the start."""
import json
import os
import shutil
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import DEMO, Daemon, check, check_equal, wait_until
from reconnect import TIGHT, begin, finish

GREEDY = json.load(open(os.path.join(DEMO, "golden.json")))["greedy"]


def change_byte(path):
    with open(path, "r+b") as f:
        f.seek(-1, os.SEEK_END)
        b = f.read(1)
        f.seek(-1, os.SEEK_END)
        f.write(bytes([b[0] ^ 1]))


def grow(path):
    with open(path, "ab") as f:
        f.write(b"x")


def touch(path):
    os.utime(path)


def shards(model):
    return sorted(os.path.join(model, f) for f in os.listdir(model) if f.endswith(".safetensors"))


def while_reading(case):
    """A client whose reads reach the file gets no byte of it: an error that names it, and no token after."""
    for change in (change_byte, grow, touch):
        model = case.copy_model(DEMO)
        d = Daemon(case, model, *TIGHT)
        run = begin(case, GREEDY[0], 4000, "--socket", d.socket)
        wait_until(lambda: d.stats()["experts_served"] > 0, "the client to be in a step")
        for s in shards(model):
            change(s)
        rc = run[0].wait(60)
        text = open(run[2]).read()
        check(rc in (1, 4), f"{change.__name__}: exit code {rc}\n{text}")
        check("has changed" in text and "restart k3-iod" in text and ".safetensors" in text, f"{change.__name__}: no sentence\n{text}")
        r = case.exec("k3", "run", "--socket", d.socket, "--ids", "1", "--gen", "1")
        check_equal(r.rc, 1, f"{change.__name__}: exit code of a new client\n{r}")
        check("has changed" in r.err and model in r.err, f"{change.__name__}: the file is not named\n{r}")
        wait_until(lambda: "has changed" in d.log(), "the daemon to log it")
        check_equal(d.stop(), 0, "exit code of k3-iod")


def all_in_memory(case):
    """What was read before the change is right, and a client that needs nothing more goes on."""
    want = case.k3(DEMO, ids=GREEDY[0]["ids"], gen=300).run["logits_digest"]
    model = case.copy_model(DEMO)
    d = Daemon(case, model, "--trunk-gb", "1", "--cache-gb", "1")
    check_equal(case.k3(None, ids=GREEDY[0]["ids"], gen=300, daemon=d).run["logits_digest"], want, "digest before")
    wait_until(lambda: (s := d.stats())["tiles_pinned"] == s["tiles_to_pin"], "all tiles to be pinned")
    run = begin(case, GREEDY[0], 300, "--socket", d.socket)
    wait_until(lambda: d.stats()["clients"] == 2, "the client to be there")
    rows = [s for s in shards(model) if b"embed_tokens" in open(s, "rb").read(1 << 20)]
    for s in shards(model):
        if s not in rows:  # embedding rows are read anew each time
            change_byte(s)
    finish(run, want)
    check_equal(d.stop(), 0, "exit code of k3-iod")


def refuses(case, d, path, what):
    """The daemon's log, and a new client's error, name the file."""
    wait_until(lambda: f"{path}: the file has changed" in d.log(), f"{what}: the daemon to name {path}\n{d.log()}")
    r = case.exec("k3", "run", "--socket", d.socket, "--ids", "1", "--gen", "1")
    check_equal(r.rc, 1, f"{what}: exit code of a client\n{r}")
    check("has changed" in r.err and path in r.err, f"{what}: the file is not named\n{r}")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def replaced(case):
    """Another file under the old name, the same bytes or not; the old one gone, linked elsewhere or behind a link."""
    def rename_over(s):
        shutil.copy(s, s + ".new")
        os.rename(s + ".new", s)

    def rename_over_linked(s):
        os.link(s, s + ".kept")
        rename_over(s)

    def lead_elsewhere(s):  # as a hub cache does
        os.symlink(s + ".other", s + ".link")
        os.rename(s + ".link", s)

    for change in (rename_over, rename_over_linked, os.unlink, lead_elsewhere):
        model = case.copy_model(DEMO)
        if change is lead_elsewhere:
            for s in shards(model):
                shutil.copy(s, s + ".other")
                os.rename(s, s + ".blob")
                os.symlink(s + ".blob", s)
        d = Daemon(case, model, *TIGHT)
        victim = next(s for s in shards(model) if b"embed_tokens" in open(s, "rb").read(1 << 20))
        change(victim)
        refuses(case, d, victim, change.__name__)


def moved(case):
    """A directory under another name has the same files: nothing is wrong."""
    model = case.copy_model(DEMO)
    want = case.k3(DEMO, ids=GREEDY[0]["ids"], gen=20).run["logits_digest"]
    d = Daemon(case, model, *TIGHT)
    os.rename(model, model + "-moved")
    time.sleep(1.5)  # the daemon looks once a second
    check_equal(case.k3(None, ids=GREEDY[0]["ids"], gen=20, daemon=d).run["logits_digest"], want, "digest")
    check_equal(d.stop(), 0, "exit code of k3-iod")


if __name__ == "__main__":
    k3test.main([while_reading, all_in_memory, replaced, moved])
