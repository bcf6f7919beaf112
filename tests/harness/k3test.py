"""Runs the real programs for the end-to-end tests.

A test file defines functions and ends with k3test.main([...]). Each function is a case: it gets a
Case with a temporary directory, and prints "ok", "FAILED" or "NOT RUN" with the reason. The exit
code is 0 (all passed), 1 (some failed) or 77 (none could run), as tests/harness/test.h has it.

The test process is the reaper of everything it starts, directly or not: a case that leaves a
process behind fails, and the process is ended. No case depends on how long anything takes; the
timeouts here only end what hangs.

Programs come from the environment (K3, K3_IOD, K3_STORE: set by meson). K3_WRAP is put before each
of them (valgrind), K3_IOD_ARGS and K3_RUN_ARGS are put behind the arguments of daemons and of runs
with a private daemon (tests/sanitize). Data are in K3_DATA or in ../shared/data beside the tree.
"""
import ctypes
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.environ.get("K3_DATA", os.path.join(ROOT, "..", "shared", "data"))
DEMO = os.path.join(ROOT, "deploy", "demo")
WRAP = os.environ.get("K3_WRAP", "").split()
SLOW = float(os.environ.get("K3_SLOW", "1"))  # timeouts are multiplied by it (valgrind)
TIMEOUT = 300 * SLOW
# Sanitizers and valgrind keep memory of their own: figures of memory then say nothing.
INSTRUMENTED = bool(WRAP) or any(k in os.environ for k in ("ASAN_OPTIONS", "TSAN_OPTIONS"))
PR_SET_CHILD_SUBREAPER = 36


class Skip(Exception):
    """The case cannot run here; the text says why."""


class Failure(Exception):
    pass


def check(ok, text):
    if not ok:
        raise Failure(text)


def check_equal(a, b, text):
    if a != b:
        raise Failure(f"{text}: {short(a)} instead of {short(b)}")


def short(x):
    s = str(x)
    return s if len(s) < 400 else s[:400] + "..."


def program(name):
    path = os.environ.get({"k3": "K3", "k3-iod": "K3_IOD", "k3-store": "K3_STORE"}[name])
    if not path or not os.access(path, os.X_OK):
        raise Skip(f"{name} is not built")
    return path


def data(name):
    path = os.path.join(DATA, name)
    if not os.path.exists(path):
        raise Skip(f"{path} is not here")
    return path


def oracle(name):
    """A small checkpoint: from the tree, or from the data folder, or the case does not run."""
    inside = os.path.join(ROOT, "tests", "oracle", name)
    if os.path.exists(os.path.join(inside, "golden.json")):
        return inside
    return data(os.path.join("oracle", name))


def children():
    """Live processes whose parent is this one, with their command names."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = open(f"/proc/{pid}/stat").read()
        except OSError:
            continue
        name, rest = stat[stat.index("(") + 1:].rsplit(")", 1)
        state, parent = rest.split()[:2]
        if int(parent) == os.getpid() and state != "Z":
            found[int(pid)] = name
    return found


def reap_strangers(known):
    """Collect zombies that were handed to us because their parent died."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            rest = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(rest[1]) == os.getpid() and rest[0] == "Z" and int(pid) not in known:
            try:
                os.waitpid(int(pid), os.WNOHANG)
            except ChildProcessError:
                pass


def wait_until(condition, text, timeout=60):
    """Poll; a condition that never comes is a failure."""
    end = time.monotonic() + timeout * SLOW
    while not condition():
        if time.monotonic() > end:
            raise Failure(f"waited in vain: {text}")
        time.sleep(0.01)


def mount_tmpfs(path, size):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], capture_output=True).returncode:
        raise Skip("a tmpfs cannot be mounted here")


def unmount(path):
    subprocess.run(["umount", path], check=True)


class MemoryGroup:
    """A control group with a memory limit below this process' own; enter is a preexec function."""

    def __init__(self, limit):
        self.limit = limit

    def __enter__(self):
        v1 = "/sys/fs/cgroup/memory"
        top, name = (v1, "memory.limit_in_bytes") if os.path.isdir(v1) else ("/sys/fs/cgroup", "memory.max")
        self.path = os.path.join(top, f"k3-test-{os.getpid()}-{self.limit}")
        try:
            os.mkdir(self.path)
            with open(os.path.join(self.path, name), "w") as f:
                f.write(str(self.limit))
        except OSError as e:
            if os.path.isdir(self.path):
                os.rmdir(self.path)
            raise Skip(f"no control group for memory can be made here: {e}")
        return self

    def enter(self):
        with open(os.path.join(self.path, "cgroup.procs"), "w") as f:
            f.write(str(os.getpid()))

    def __exit__(self, *_):
        wait_until(lambda: not open(os.path.join(self.path, "cgroup.procs")).read(), "a control group to be empty")
        os.rmdir(self.path)


class Result:
    """A program that has ended: rc, out, err (text), and what a run left behind."""

    def __init__(self, argv, rc, out, err, run=None, logits=None):
        self.argv, self.rc, self.out, self.err = argv, rc, out, err
        self.run, self.logits = run, logits

    def __str__(self):
        return f"{' '.join(self.argv)}\n-> {self.rc}\n{self.out[-2000:]}\n{self.err[-4000:]}"


class Daemon:
    """A k3-iod on its own socket. Waits for READY=1 on a notify socket of the test."""

    def __init__(self, case, model, *args, env=None, wrap=(), wait=True, preexec=None, socket_path=None):
        self.case = case
        self.dir = case.subdir("iod")
        self.socket = socket_path or os.path.join(self.dir, "socket")
        self.notify_path = os.path.join(self.dir, "notify")
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self.notify.bind(self.notify_path)
        self.messages = []
        self.log_path = os.path.join(self.dir, "log")
        models = [model] if isinstance(model, str) else list(model)
        self.argv = WRAP + list(wrap) + [program("k3-iod")]
        for m in models:
            self.argv += ["--model", m]
        self.argv += ["--socket", self.socket] + [str(a) for a in args]
        if "--backend" not in args:
            self.argv += os.environ.get("K3_IOD_ARGS", "").split()
        environ = dict(os.environ, NOTIFY_SOCKET=self.notify_path, **(env or {}))
        if "WATCHDOG_USEC" not in (env or {}):
            environ.pop("WATCHDOG_USEC", None)
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(self.argv, env=environ, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, preexec_fn=preexec)
        case.daemons.append(self)
        if wait:
            self.wait_ready()

    @property
    def pid(self):
        return self.process.pid

    def log(self):
        return open(self.log_path, errors="replace").read()

    def read_notify(self, timeout):
        self.notify.settimeout(timeout)
        try:
            self.messages += self.notify.recv(65536).decode().splitlines()
            return True
        except (socket.timeout, BlockingIOError):
            return False

    def wait_notify(self, want, timeout=60):
        """Until a line for which want(line) holds has come; returns it."""
        end = time.monotonic() + timeout * SLOW
        seen = 0
        while True:
            for line in self.messages[seen:]:
                if want(line):
                    return line
            seen = len(self.messages)
            if self.process.poll() is not None and not self.read_notify(0.01):
                raise Failure(f"k3-iod ended with {self.process.returncode} before it said so:\n{self.log()}")
            if time.monotonic() > end:
                raise Failure(f"k3-iod did not notify in time; so far {self.messages}\n{self.log()}")
            self.read_notify(0.2)

    def wait_ready(self):
        self.wait_notify(lambda line: line == "READY=1")

    def stats(self):
        with Wire(self.socket) as w:
            w.hello()
            return w.stats()

    def memory(self):
        """Kilobytes of smaps_rollup."""
        return smaps(self.pid)

    def stop(self, sig=signal.SIGTERM):
        """End it and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            rc = self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Failure(f"k3-iod did not end on {sig}\n{self.log()}")
        self.notify.close()
        return rc


def smaps(pid):
    out = {}
    for line in open(f"/proc/{pid}/smaps_rollup"):
        f = line.split()
        if len(f) == 3 and f[2] == "kB":
            out[f[0].rstrip(":")] = int(f[1])
    return out


def table(path, macro):
    """The argument lists of an X-macro table: [["HELLO", ...], ...] without the macro's name."""
    rows, text = [], open(os.path.join(ROOT, path)).read()
    for line in text.splitlines():
        line = line.strip()
        if line.startswith(macro + "(") and line.endswith(")"):
            rows.append([f.strip() for f in line[len(macro) + 1:-1].split(",")])
    return rows


def idle(daemon):
    """The counters when no client but this one is connected, and none has left a lease."""
    got = {}

    def alone():
        got.update(daemon.stats())
        return got["clients"] == 1

    wait_until(alone, "the daemon to see that its clients are gone")
    check_equal((got["tile_leases"], got["expert_leases"]), (0, 0), "leases of tiles and experts without a client")
    return got


class Wire:
    """A client of the protocol that shares no code with the programs (docs/protocol.md)."""

    def __init__(self, path):
        self.numbers = {r[1]: int(r[0]) for r in table("proto/messages.def", "PROTO_MSG")}
        self.names = {v: k for k, v in self.numbers.items()}
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self.s.settimeout(TIMEOUT)
        self.s.connect(path)
        self.fds = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for fd in self.fds:
            os.close(fd)
        self.fds = []
        self.s.close()

    def send(self, name, body):
        self.s.sendall(struct.pack("<IHH", 8 + len(body), self.numbers[name], 0) + body)

    def receive(self):
        """(name, body); None when the daemon has closed the connection."""
        packet, fds, _, _ = socket.recv_fds(self.s, 1 << 20, 8)
        self.fds += fds
        if not packet:
            return None
        size, kind, reserved = struct.unpack_from("<IHH", packet)
        check_equal(size, len(packet), "size in a header from the daemon")
        check_equal(reserved, 0, "reserved word in a header from the daemon")
        return self.names[kind], packet[8:]

    def expect(self, name):
        got = self.receive()
        check(got is not None, f"the daemon closed the connection instead of sending {name}")
        check(got[0] == name, f"{got[0]} {got[1]!r} instead of {name}")
        return got[1]

    def hello(self, version=(1, 1), compat=0, incompat=0):
        self.send("HELLO", struct.pack("<IIQQII32s", *version, compat, incompat, os.getpid(), 0, b"k3test"))
        b = self.expect("WELCOME")
        keys = "version has compat incompat".split()
        self.welcome = dict(zip(keys, struct.unpack_from("<IIQQ", b)))
        self.welcome["model_digest"] = b[24:40]
        names = "slab_size catalog_size trunk_pinned_size ring_size slots_size daemon_private_size"
        self.welcome.update(zip(names.split(), struct.unpack_from("<6Q", b, 40)))
        self.welcome.update(zip("n_slots tile_window expert_window client".split(), struct.unpack_from("<4I", b, 88)))
        self.welcome["backend"] = b[104:136].split(b"\0")[0].decode()
        return self.welcome

    def stats(self):
        self.send("STATS", struct.pack("<Q", 0))
        b = self.expect("STATS_REPLY")
        n = struct.unpack_from("<I", b)[0]
        names = [r[0] for r in table("proto/stats.def", "STAT")]
        check_equal(n, len(names), "number of counters in STATS_REPLY")
        return dict(zip(names, struct.unpack_from(f"<{n}Q", b, 8)))


class Case:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="k3-test-", dir="/var/tmp")
        self.daemons, self.processes, self.n = [], [], 0

    def path(self, name):
        return os.path.join(self.dir, name)

    def subdir(self, name):
        self.n += 1
        path = os.path.join(self.dir, f"{name}{self.n}")
        os.mkdir(path)
        return path

    def copy_model(self, source, name="model"):
        """A writable copy of a checkpoint's files."""
        out = self.subdir(name)
        for n in os.listdir(source):
            if not n.startswith("golden") and os.path.isfile(os.path.join(source, n)):
                shutil.copyfile(os.path.join(source, n), os.path.join(out, n))
        return out

    def exec(self, name, *args, env=None, wrap=(), timeout=None, stdin=None, preexec=None):
        """Run a program to its end."""
        argv = WRAP + list(wrap) + [program(name)] + [str(a) for a in args]
        # The test's own notify socket must never leak into what it starts.
        environ = {k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "WATCHDOG_USEC")}
        environ.update(env or {})
        try:
            p = subprocess.run(argv, env=environ, input=stdin or b"", capture_output=True,
                               timeout=timeout or TIMEOUT, preexec_fn=preexec)
        except subprocess.TimeoutExpired as e:
            raise Failure(f"hung: {' '.join(argv)}\n{(e.stderr or b'').decode(errors='replace')}")
        return Result(argv, p.returncode, p.stdout.decode(errors="replace"), p.stderr.decode(errors="replace"))

    def start(self, name, *args, env=None, **more):
        """Start a program; it is ended with the case."""
        argv = WRAP + [program(name)] + [str(a) for a in args]
        environ = {k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "WATCHDOG_USEC")}
        environ.update(env or {})
        p = subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL, stdout=more.pop("stdout", subprocess.DEVNULL),
                             stderr=more.pop("stderr", subprocess.DEVNULL), **more)
        self.processes.append(p)
        return p

    def run_args(self, model, args, ids=None, prompt=None, gen=None, daemon=None):
        """argv of `k3 run` after the program's name, and where its results go."""
        out = self.subdir("run")
        argv = ["run"]
        argv += ["--socket", daemon.socket] if daemon else [model]
        if ids is not None:
            argv += ["--ids", ",".join(map(str, ids))]
        if prompt is not None:
            argv += ["--prompt", prompt]
        if gen is not None:
            argv += ["--gen", str(gen)]
        argv += ["--out", os.path.join(out, "run.json")] + [str(a) for a in args]
        if not daemon:
            argv += os.environ.get("K3_RUN_ARGS", "").split()
        return argv, out

    def k3(self, model, *args, ids=None, prompt=None, gen=None, daemon=None, expect=0, logits=False, env=None, **more):
        """One `k3 run`. expect: the exit code it must have (None: any). logits: all rows in .logits."""
        argv, out = self.run_args(model, args, ids, prompt, gen, daemon)
        rows = os.path.join(out, "rows.f32")
        if logits:
            argv += ["--dump-logits-all", rows]
        r = self.exec("k3", *argv, env=env, **more)
        report = os.path.join(out, "run.json")
        if os.path.exists(report):
            r.run = json.load(open(report))
        if logits and os.path.exists(rows):
            r.logits = np.fromfile(rows, "<f4")
        if expect is not None:
            check(r.rc == expect, f"exit code {r.rc} instead of {expect}:\n{r}")
            if r.run is not None:
                check_equal(r.run["exit_code"], expect, "exit_code in run.json")
            elif expect == 0:
                raise Failure(f"no run.json\n{r}")
        return r

    def end(self):
        """End whatever the case started; the names of processes that had no business to live."""
        for p in self.processes:
            if p.poll() is None:
                p.kill()
            p.wait()
        for d in self.daemons:
            if d.process.poll() is None:
                d.process.kill()
            d.process.wait()
            d.notify.close()
        known = [p.pid for p in self.processes]
        end = time.monotonic() + 10 * SLOW
        while children() and time.monotonic() < end:
            reap_strangers(known)
            time.sleep(0.02)
        left = children()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass
        reap_strangers(known)
        shutil.rmtree(self.dir, ignore_errors=True)
        return sorted(left.values())


def run_case(name, function):
    case = Case()
    status, why = "ok", ""
    try:
        function(case)
    except Skip as e:
        status, why = "NOT RUN", str(e)
    except Failure as e:
        status, why = "FAILED", str(e)
        for d in case.daemons:
            why += f"\n--- log of k3-iod {d.pid}\n{d.log()[-3000:]}"
    except Exception:
        status, why = "FAILED", traceback.format_exc()
    finally:
        left = case.end()
    if left and status != "FAILED":
        status, why = "FAILED", f"left running: {' '.join(left)}"
    print(f"{status}: {name}" + (f": {why}" if why else ""), flush=True)
    return status


def main(cases):
    """cases: functions, or (name, function). Arguments choose cases by name."""
    named = [(c.__name__, c) if callable(c) else c for c in cases]
    if "--list" in sys.argv[1:]:
        print("\n".join(n for n, _ in named))
        sys.exit(0)
    wanted = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A test stopped by its runner still ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    count = {"ok": 0, "FAILED": 0, "NOT RUN": 0}
    for name, function in named:
        if not wanted or name in wanted:
            count[run_case(name, function)] += 1
    print(f"cases: {count['ok']} passed, {count['FAILED']} failed, {count['NOT RUN']} not run")
    if count["FAILED"]:
        sys.exit(1)
    if not count["ok"]:
        sys.exit(77 if count["NOT RUN"] else 99)
    sys.exit(0)
