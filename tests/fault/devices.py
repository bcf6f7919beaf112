"""Depth and chunk of each device: from options, from a profile, and changed while clients work."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import Daemon, check, check_equal

LEAST = ("--trunk-gb", "0", "--cache-gb", "0")


def profile(case):
    """A profile of two disks, one of which the model does not lie on; what is given beside it wins."""
    model, f = k3test.oracle("tiny"), case.path("profile")
    open(f, "w").write(f"# measured\nqueue-depth = {model}=5\nchunk = {model}=8K\nqueue-depth = /proc=7\n")
    for args, want in (((), "depth 5, chunk 8 KiB"), (("--queue-depth", "3"), "depth 3, chunk 8 KiB"),
                       (("--chunk", f"{model}=16K"), "depth 5, chunk 16 KiB")):
        d = Daemon(case, model, *LEAST, "--profile", f, *args)
        check(want in d.log(), f"no {want!r} with {args}\n{d.log()}")
        check_equal(d.stop(), 0, "exit code of k3-iod")
    r = case.k3(model, "--profile", f, "--queue-depth", model + "=2", ids=[1, 2], gen=1)
    check("depth 2, chunk 8 KiB" in r.err, f"k3 run does not hand it on\n{r}")
    for line, words in (("trunk-gb = 1", ("profile:1", "trunk-gb")), ("chunk = /x=77", ("--chunk", "/x=77"))):
        open(f, "w").write(line + "\n")
        r = case.exec("k3-iod", "--model", model, "--socket", case.path("s"), "--profile", f)
        check(r.rc == 2 and all(w in r.err for w in words), f"{line}\n{r}")
    r = case.exec("k3-iod", "--model", model, "--socket", case.path("s"), "--queue-depth", "/proc=3")
    check(r.rc == 2 and "/proc" in r.err, f"a device that the model does not lie on\n{r}")



k3test.main([profile])
