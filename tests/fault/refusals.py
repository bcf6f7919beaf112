"""What does not fit is refused before anything is started: one sentence with both numbers, exit code 2."""
import os
import re
import resource
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import DEMO, check, check_equal


def refused(case, program, args, *words, **more):
    """The daemon that would be started leaves a mark when it is."""
    mark = case.path("started")
    starter = case.path("starter")
    with open(starter, "w") as f:
        f.write(f"#!/bin/sh\n: > {mark}\nexit 1\n")
    os.chmod(starter, 0o755)
    r = case.exec(program, *args, env={"K3_IOD": starter}, **more)
    check_equal(r.rc, 2, f"exit code\n{r}")
    check_equal(r.out, "", "standard output of a refusal")
    for w in words:
        check(re.search(w, r.err), f"no {w!r}\n{r}")
    check(not os.path.exists(mark), f"a daemon was started\n{r}")
    return r


def run(*args):
    return ["run", DEMO, "--ids", "1,2,3", "--gen", "2", *args]


def budgets_too_small(case):
    refused(case, "k3", run("--trunk-gb", "0.000001"), r"trunk budget of 0\.000001 GB", r"least that works, 0\.\d+ GB")
    refused(case, "k3", run("--cache-gb", "0.000001"), r"cache of 0\.000001 GB", r"least that works, 0\.\d+ GB")


def context_too_long(case):
    limit = 4096  # max_position_embeddings of deploy/demo
    refused(case, "k3", run("--context", "1000000"), "1000000", str(limit))
    refused(case, "k3", ["run", DEMO, "--ids", "1", "--gen", "999999"], "999999", str(limit))


def control_group(case):
    with k3test.MemoryGroup(12_000_000) as group:
        refused(case, "k3", run(), r"would take 0\.\d+ GB", r"only 0\.\d+ GB may be allocated", "cgroup", preexec=group.enter)


def preset_of_a_larger_machine(case):
    model = case.subdir("model")
    refused(case, "k3", ["run", model, "--config", k3test.data("checkpoint/config.json"), "--preset", "max", "--ids", "1"],
            r"would take 219\.\d+ GB", r"only \d+\.\d+ GB may be allocated", "the least is 0.")


def no_room_for_a_trunk_file(case):
    folder = case.subdir("small")
    k3test.mount_tmpfs(folder, "1m")
    try:
        r = refused(case, "k3-store", ["pack", DEMO, os.path.join(folder, "trunk")], r"0\.01\d* GB are needed|0\.00\d* GB are needed",
                    r"only 0\.001\d* GB are free")
        check_equal(os.listdir(folder), [], f"left behind\n{r}")
    finally:
        k3test.unmount(folder)


def locked_memory_is_said_with_both_numbers(case):
    """Not refused: the slab is then unlocked and its buffers unregistered; one line says so."""
    r = case.exec("k3", *run(), **little_locked_memory())
    check_equal(r.rc, 0, f"exit code\n{r}")
    check(re.search(r"not locked \(.*1024 KiB", r.err), f"nothing about locked memory\n{r}")


def little_locked_memory():
    """How to start a program that may lock 1 MiB: root is above the limit unless it loses the capability."""
    wrap = ["setpriv", "--bounding-set=-ipc_lock"] if os.geteuid() == 0 else []
    return {"wrap": wrap, "preexec": lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))}


def locked_memory_that_is_asked_for(case):
    words = r"slab of 0\.\d+ GB is to be locked", r"ulimit -l\) is 0\.001049 GB", "LimitMEMLOCK=", "--lock auto"
    refused(case, "k3", run("--lock", "yes"), *words, **little_locked_memory())
    r = case.exec("k3", "plan", DEMO, "--context", "64", "--lock", "yes", **little_locked_memory())
    check_equal(r.rc, 2, f"exit code of k3 plan\n{r}")
    check(re.search(words[0], r.err), f"k3 plan refuses otherwise\n{r}")
    check("will not be locked" in r.out, f"k3 plan does not say it\n{r}")
    d = k3test.Daemon(case, DEMO, "--trunk-gb", "0", "--cache-gb", "0", "--lock", "yes", wait=False, **little_locked_memory())
    check_equal(d.process.wait(k3test.TIMEOUT), 2, f"exit code of k3-iod\n{d.log()}")
    for w in words:
        check(re.search(w, d.log()), f"no {w!r}\n{d.log()}")
    check(not os.path.exists(d.socket), "the socket of a refused daemon is left")


def locked_memory_at_will(case):
    """Where the limit allows it yes is as auto, and no takes none; the tokens are the same."""
    raised = {"preexec": lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.getrlimit(resource.RLIMIT_MEMLOCK)[1],) * 2)}
    runs = {way: case.exec("k3", *run("--trunk-gb", "0", "--cache-gb", "0", "--lock", way), **raised) for way in ("auto", "yes", "no")}
    if re.search("not locked", runs["auto"].err):
        raise k3test.Skip("not even the least slab may be locked here")
    for way, said in ("auto", ", locked"), ("yes", ", locked"), ("no", r"not locked \(--lock no\)"):
        check_equal(runs[way].rc, 0, f"exit code\n{runs[way]}")
        check(re.search(said, runs[way].err), f"--lock {way}\n{runs[way]}")
        check_equal(runs[way].out, runs["auto"].out, f"text with --lock {way}")


def small_stack(case):
    """A sentence, not a death by SIGSEGV in the first kernel that needs more."""
    kib = lambda n: {"preexec": lambda: resource.setrlimit(resource.RLIMIT_STACK, (n << 10, resource.getrlimit(resource.RLIMIT_STACK)[1]))}
    words = "grow to 64 KiB, 1024 KiB are the least", "ulimit -s 8192", "LimitSTACK="
    refused(case, "k3", run(), *words, **kib(64))
    refused(case, "k3-iod", ["--model", DEMO, "--socket", case.path("s")], *words, **kib(64))
    refused(case, "k3-store", ["census", DEMO], *words, **kib(64))
    # Long enough for the panels of every thread.
    long = ["run", DEMO, "--ids", ",".join(["1"] * 400), "--gen", "1", "--threads", "4"]
    r = case.exec("k3", *long, **kib(1024))
    check_equal(r.rc, 0, f"exit code with the least\n{r}")
    r = case.exec("k3", *long, env={"OMP_STACKSIZE": "64k"})
    check_equal(r.rc, 2, f"exit code with a small stack for threads alone\n{r}")
    check("smaller than 1024 KiB" in r.err and "unset OMP_STACKSIZE" in r.err, f"the sentence\n{r}")


def few_descriptors(case):
    """Whatever is the first that does not get one: what was to be opened, the limit and the remedy, until they are enough."""
    allowed = lambda n: {"preexec": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n))}
    first, last = 6, 60  # the loader of libraries needs some as well
    for backend in ("auto", "threads"):
        for n in range(first, last + 1):
            r = case.exec("k3", *run("--backend", backend), **allowed(n))
            if r.rc == 0:
                break
            check(r.rc in (1, 2), f"exit code with {n}\n{r}")
            for w in ("too many open files", "RLIMIT_NOFILE", "ulimit -n 4096", "LimitNOFILE="):
                check(w in r.err, f"no {w!r} with {n}\n{r}")
        check(first < n < last, f"the first run that goes well is that with {n}")


k3test.main([budgets_too_small, context_too_long, control_group, preset_of_a_larger_machine, no_room_for_a_trunk_file,
             locked_memory_is_said_with_both_numbers, locked_memory_that_is_asked_for, locked_memory_at_will, small_stack, few_descriptors])
