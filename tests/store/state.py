"""--state-dir: the catalog of an earlier start is used as long as nothing has changed, and never otherwise."""
import json
import os
import shutil
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "harness"))
import k3test
from k3test import Daemon, check, check_equal

IDS = [5, 300, 120]
TINY = ["--trunk-gb", "0", "--cache-gb", "0", "--verbose"]


def settle():
    """What is younger than the second of a start is not saved by it."""
    time.sleep(1.1)


class Starts:
    def __init__(self, case, model, *args):
        self.case, self.model, self.args = case, model, args
        self.state = case.subdir("state")
        self.file = os.path.join(self.state, "catalog")

    def start(self, is_saved, *args, word=None, digest=None):
        """Start and run; is the saved catalog used?"""
        d = Daemon(self.case, self.model, "--state-dir", self.state, *TINY, *self.args, *args)
        r = self.case.k3(self.model, ids=IDS, gen=2, daemon=d)
        log = d.log()
        check_equal(d.stop(), 0, "exit code of k3-iod")
        check_equal("that of an earlier start" in log, is_saved, f"is the saved catalog used\n{log}")
        check(word is None or word in log, f"{word} is not in the log\n{log}")
        check(digest is None or r.run["logits_digest"] == digest, "another digest")
        return r.run["logits_digest"]


def used(case):
    """The same digest with a saved catalog, for shards and trunk file, and with other options."""
    for name in ("tiny", "odd"):
        model, trunk = case.copy_model(k3test.oracle(name)), case.path(f"{name}.trunk")
        check_equal(case.exec("k3-store", "pack", model, trunk).rc, 0, "exit code of k3-store pack")
        settle()
        for args in ([], ["--trunk", trunk], ["--trunk", trunk, "--verify-reads"], ["--tile", "16384"]):
            s = Starts(case, model, *args)
            want = s.start(False)
            s.start(True, digest=want)
            s.start(True, digest=want)
        s = Starts(case, model)
        s.start(False)
        s.start(False, "--layers", "5", word="is not used")
        s.start(True, "--layers", "5")
        s.start(False, digest=want, word="is not used")


def changed(case):
    """A shard, config.json, the index or the directory that is another one since is noticed."""
    model = case.copy_model(k3test.oracle("tiny"))
    settle()
    s = Starts(case, model)
    want = s.start(False)
    shard = os.path.join(model, sorted(n for n in os.listdir(model) if n.endswith(".safetensors"))[2])
    config = os.path.join(model, "config.json")

    def touch():
        st = os.stat(shard)
        os.utime(shard, ns=(st.st_atime_ns, st.st_mtime_ns + 1))

    def replace():
        """Another file of the same name, size and mtime."""
        shutil.copy2(shard, shard + "x")
        os.rename(shard + "x", shard)

    def rewrite():
        """In place, with the old time put back: only ctime tells."""
        st = os.stat(shard)
        with open(shard, "r+b") as f:
            b = f.read(1)
            f.seek(0)
            f.write(b)
        os.utime(shard, ns=(st.st_atime_ns, st.st_mtime_ns))

    def new_config():
        c = json.load(open(config))
        json.dump(c, open(config, "w"), indent=3)

    def another():
        open(os.path.join(model, "new.safetensors"), "wb").close()

    for change in (touch, replace, rewrite, new_config, another):
        settle()
        s.start(True, digest=want)
        change()
        settle()
        s.start(False, digest=want, word="is not used: the model has changed")
    # a shard that is cut short is refused as without a saved catalog
    os.truncate(shard, os.path.getsize(shard) - 1)
    r = case.exec("k3-iod", "--model", model, "--socket", case.path("s"), "--state-dir", s.state)
    check_equal(r.rc, 1, f"exit code with a shard cut short\n{r}")
    check(shard in r.err, f"the shard is not named\n{r}")


def not_trusted(case):
    """A file that is cut short, changed anywhere, foreign or writable by others is ignored with a line."""
    model = case.copy_model(k3test.oracle("tiny"))
    settle()
    s = Starts(case, model)
    want = s.start(False)
    good = open(s.file, "rb").read()
    bad = {"empty": b"", "cut short": good[:-1], "longer": good + b"\0", "the magic": b"x" + good[1:], "noise": os.urandom(5000)}
    for i in range(1, 20):
        at = i * len(good) // 20
        bad[f"byte {at}"] = good[:at] + bytes([good[at] ^ 1]) + good[at + 1:]
    for what, b in list(bad.items())[:12]:
        open(s.file, "wb").write(b)
        s.start(False, digest=want, word="is not used")
        check(open(s.file, "rb").read()[:8] == good[:8], f"{what}: no new file was written")
    s.start(True, digest=want)
    os.chmod(s.file, 0o666)
    s.start(False, digest=want, word="others than its owner")
    # a directory that is not there or cannot be written: a line, and the start goes on
    s.state = case.path("nothing")
    s.start(False, digest=want, word="cannot be written")


if __name__ == "__main__":
    k3test.main([used, changed, not_trusted])
