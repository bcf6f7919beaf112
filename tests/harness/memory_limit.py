"""A hard limit for all processes of a run together: a memory control group where one can be made
(v1 or v2, needs root). What they take is sampled in any case: private memory of each process, huge
pages among it, and the shared slab once.
"""
import os
import threading
import time

V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
count = 0


def fields(pid):
    """Kilobytes of /proc/PID/status by name; {} when the process is gone."""
    try:
        lines = open(f"/proc/{pid}/status").read().splitlines()
    except OSError:
        return {}
    return {k: int(v.split()[0]) for k, v in (s.split(":", 1) for s in lines) if v.endswith(" kB")}


def descendants(pid):
    """The process and all below it."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        found = [int(c) for t in tasks for c in open(f"/proc/{pid}/task/{t}/children").read().split()]
    except OSError:
        return [pid]
    return [pid] + [d for c in found for d in descendants(c)]


def taken(pid):
    """Bytes that the process and all below it take now."""
    all_of_them = [fields(p) for p in descendants(pid)]
    private = sum(f.get("RssAnon", 0) + f.get("RssFile", 0) for f in all_of_them)
    # The daemon faults all of the slab, a client maps the same pages; huge pages are counted apart.
    shared = max(f.get("RssShmem", 0) + f.get("HugetlbPages", 0) for f in all_of_them)
    return (private + shared) * 1024


class MemoryLimit:
    def __init__(self, limit):
        global count
        count += 1
        self.limit, self.sampled, self.group = limit, 0, None
        name = f"k3-test-{os.getpid()}-{count}"
        for root, knob in ((V1, "memory.limit_in_bytes"), (V2, "memory.max")):
            group = os.path.join(root, name)
            try:
                os.mkdir(group)
            except OSError:
                continue
            try:
                with open(os.path.join(group, knob), "w") as f:
                    f.write(str(limit))
                self.group = group
                return
            except OSError:
                os.rmdir(group)

    def enter(self):
        """In the child, before it becomes the program."""
        if self.group:
            with open(os.path.join(self.group, "cgroup.procs"), "w") as f:
                f.write(str(os.getpid()))

    def wait(self, process):
        """Until the process has ended, looking at what it takes every 20 ms. Its exit code."""
        def look():
            while process.poll() is None:
                self.sampled = max(self.sampled, taken(process.pid))
                time.sleep(0.02)

        t = threading.Thread(target=look)
        t.start()
        t.join()
        return process.wait()

    def close(self):
        """Remove the group; its processes have ended."""
        group, self.group = self.group, None
        for _ in range(100):
            try:
                if group:
                    os.rmdir(group)
                return
            except OSError:
                time.sleep(0.02)

    def __str__(self):
        kind = "enforced by a control group" if self.group else "no control group can be made here: sampled"
        return f"at most {self.sampled / 1e6:.1f} MB of {self.limit / 1e6:.0f} ({kind})"
