"""Which processors k3 computes on, how many threads it starts, and that waiting costs none of their time."""
import json
import os
import resource
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import DEMO, Daemon, check, check_equal

ALLOWED = sorted(os.sched_getaffinity(0))
RATES = ["--disk-rate", "3", "--memory-rate", "20"]
CPU_GROUP = "/sys/fs/cgroup/cpu"


def as_list(cpus):
    """A set as the kernel writes it."""
    runs = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in runs)


def plan(case, *args, **more):
    r = case.exec("k3", "plan", DEMO, *RATES, "--json", *args, **more)
    check_equal(r.rc, 0, f"exit code\n{r}")
    p = json.loads(r.out)
    return p["threads"], p["cpus"]


def lists(case):
    last = ALLOWED[-1]
    check_equal(plan(case, "--cpus", str(last)), (1, str(last)), "threads and CPUs of plan with one")
    check_equal(plan(case, "--threads", "3")[0], 3, "threads of plan with --threads 3")
    check_equal(plan(case)[1], as_list(ALLOWED), "CPUs without --cpus")
    r = case.exec("k3", "doctor", "--cpus", str(last))
    check(f"threads that will compute: 1 (1 CPUs allowed of {os.cpu_count()}: {last})" in r.out, f"doctor\n{r}")
    free = next(i for i in range(1024) if i not in ALLOWED)
    for command in (["run", DEMO, "--ids", "1"], ["plan", DEMO], ["doctor"]):
        r = case.exec("k3", *command, "--cpus", f"{last},{free}")
        check_equal(r.rc, 2, f"a CPU that is not there\n{r}")
        check(f"cpu {free} is not among those allowed: {as_list(ALLOWED)}" in r.err, f"the sentence\n{r}")
        r = case.exec("k3", *command, "--cpus", "0-")
        check(r.rc == 2 and "not a list of CPUs" in r.err, f"no list\n{r}")


def affinity(case):
    """A mask that was set outside is all that is allowed."""
    one = ALLOWED[0]
    check_equal(plan(case, preexec=lambda: os.sched_setaffinity(0, {one})), (1, str(one)), "in a mask of one CPU")
    if len(ALLOWED) > 1:
        r = case.exec("k3", "plan", DEMO, "--cpus", str(ALLOWED[1]), preexec=lambda: os.sched_setaffinity(0, {one}))
        check(r.rc == 2 and f"allowed: {one}\n" in r.err, f"a CPU outside of the mask\n{r}")


def masks(pid):
    """Of all threads of a process."""
    return {next(line.split()[1] for line in open(f"/proc/{pid}/task/{t}/status") if line.startswith("Cpus_allowed_list:"))
            for t in os.listdir(f"/proc/{pid}/task")}


def run_keeps_to_them(case):
    """All threads of k3 do; its private daemon, also one that was started again, has the mask of before."""
    if len(ALLOWED) < 2:
        raise k3test.Skip("one CPU is allowed")
    last = ALLOWED[-1]
    p = case.start("k3", "run", DEMO, "--ids", "1,2,3", "--gen", "4000", "--threads", "2", "--cpus", str(last),
                   stdout=open(case.path("text"), "wb"), stderr=open(case.path("log"), "wb"))
    try:
        k3test.wait_until(lambda: os.path.getsize(case.path("text")) > 0, "text")
        check_equal(masks(p.pid), {str(last)}, "CPUs of k3's threads")
        daemon = [int(c) for c in open(f"/proc/{p.pid}/task/{p.pid}/children").read().split()]
        check_equal(masks(daemon[0]), {as_list(ALLOWED)}, "CPUs of the private daemon")
    finally:
        p.kill()
        p.wait()


def grant(group, usec):
    with open(f"{group}/cpu.cfs_quota_us", "w") as f:
        f.write(str(usec))


def quota(case):
    """A control group that grants the time of one CPU, and of about a CPU and a half."""
    group = f"{CPU_GROUP}/k3-test-{os.getpid()}"
    try:
        os.mkdir(group)
        grant(group, 100000)
    except OSError as e:
        raise k3test.Skip(f"no control group with a CPU quota can be made: {e}")

    def enter():
        with open(f"{group}/cgroup.procs", "w") as f:
            f.write(str(os.getpid()))

    try:
        check_equal(plan(case, preexec=enter)[0], 1, "threads with the time of one CPU")
        r = case.exec("k3", "doctor", preexec=enter)
        check("a control group grants the time of 1" in r.out, f"doctor\n{r}")
        check_equal(plan(case, "--threads", "2", preexec=enter)[0], 2, "what is asked for goes before the quota")
        free = plan(case)[0]
        for usec, most in (149999, 1), (150000, 2):
            grant(group, usec)
            check_equal(plan(case, preexec=enter)[0], min(free, most), f"threads with a quota of {usec} of 100000")
    finally:
        os.rmdir(group)


def waiting_burns_nothing(case):
    """A client whose experts and tiles come from a slow device: its processor time is that of its arithmetic."""
    d = Daemon(case, DEMO, "--trunk-gb", "0", "--cache-gb", "0", env={"K3_IOD_FAULT": "slow=2M"})
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    run = case.k3(DEMO, "--threads", "2", ids=[1, 2, 3], gen=3, daemon=d).run
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    waited = sum(s["wait_seconds"] for s in run["steps"])
    check(waited > 3, f"the device was not slow enough to show anything: waited {waited:.2f} of {wall:.2f} s")
    check(spent < 0.15 * wall, f"{spent:.2f} s of processor time in {wall:.2f} s, of which it waited {waited:.2f}")


if __name__ == "__main__":
    k3test.main([lists, affinity, run_keeps_to_them, quota, waiting_burns_nothing])
