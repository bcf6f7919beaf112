"""A small Debian with a real systemd, booted by systemd-nspawn for tests/service/boot.py.

The root comes from debootstrap and is kept between runs, by the list of packages, under
$XDG_CACHE_HOME/k3-tests or /var/tmp/k3-tests; each run works on a copy. Commands run inside by
nsenter, since no machined is there.
"""
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test

SUITE = "bookworm"
# What the packages of the tree depend on: inside there is no network to fetch it.
PACKAGES = ("systemd,systemd-sysv,dbus,init-system-helpers,libgomp1,libjansson4,libpcre2-8-0,libssl3,libsystemd0,liburing2,"
            "libxxhash0").split(",")


def need(*programs):
    if os.getuid() != 0:
        raise k3test.Skip("only root can boot a container")
    for p in programs:
        if not shutil.which(p):
            raise k3test.Skip(f"{p} is not installed")


def mirror():
    """That of the machine's own apt, else Debian's."""
    r = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages"],
                       capture_output=True, text=True)
    for line in r.stdout.splitlines():
        uri, _, name = line.partition(" ")
        if name == SUITE:
            return uri
    return "http://deb.debian.org/debian"


def cached_root():
    """A root that nobody changes. Made when there is none; half-made ones have another name."""
    key = hashlib.sha256(" ".join([SUITE, *PACKAGES]).encode()).hexdigest()[:12]
    base = os.path.join(os.environ.get("XDG_CACHE_HOME") or "/var/tmp", "k3-tests")
    root = os.path.join(base, f"root-{key}")
    if os.path.isdir(root):
        return root
    os.makedirs(base, exist_ok=True)
    work = f"{root}.{os.getpid()}"
    log = work + ".log"
    r = subprocess.run(["debootstrap", "--variant=minbase", "--include=" + ",".join(PACKAGES), SUITE, work, mirror()],
                       stdin=subprocess.DEVNULL, stdout=open(log, "w"), stderr=subprocess.STDOUT)
    text = open(log).read()
    os.unlink(log)
    if r.returncode != 0:
        shutil.rmtree(work, ignore_errors=True)
        raise k3test.Skip("debootstrap failed, perhaps for want of a network: " + " / ".join(text.splitlines()[-2:]))
    shutil.rmtree(os.path.join(work, "var/cache/apt/archives"), ignore_errors=True)
    os.rename(work, root)
    return root


class Machine:
    def __init__(self, case):
        need("debootstrap", "systemd-nspawn", "nsenter", "mount")
        self.root = case.path("root")
        subprocess.run(["cp", "-a", "--reflink=auto", cached_root(), self.root], check=True)
        self.console = case.path("console")
        self.leader = None
        self.process = None
        self.is_mounted = False

    def path(self, name):
        return os.path.join(self.root, name.lstrip("/"))

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w") as f:
            f.write(text)

    def boot(self):
        if not os.path.ismount("/run") and not os.path.ismount("/run/systemd/nspawn"):
            os.makedirs("/run/systemd/nspawn", exist_ok=True)
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run/systemd/nspawn"], check=True)
            self.is_mounted = True
        argv = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--capability=CAP_IPC_LOCK", "--private-network",
                "--console=pipe", "--link-journal=no", "-b", "-D", self.root]
        with open(self.console, "wb") as out:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        k3test.wait_until(self._find_leader, "systemd of the container to start", 60)
        k3test.wait_until(lambda: self.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded"),
                          "the container to come up", 120)

    def _find_leader(self):
        if self.process.poll() is not None:
            raise k3test.Skip("systemd-nspawn does not run here: " + " / ".join(open(self.console, errors="replace").read().splitlines()[-3:]))
        r = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(self.process.pid)], capture_output=True, text=True)
        for line in r.stdout.splitlines():
            pid, comm = line.split(None, 1)
            if comm.strip() == "systemd":
                self.leader = int(pid)
        return self.leader is not None

    def argv(self, *command, user=None, groups=()):
        inside = ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-r", "-w", "--", "env", "-i",
                  "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"]
        if user:
            inside += ["runuser", "-u", user, "--"]
        return inside + [str(c) for c in command]

    def run(self, *command, user=None, check=True, timeout=120, stdin=None):
        r = subprocess.run(self.argv(*command, user=user), capture_output=True, text=True, timeout=timeout * k3test.SLOW,
                           input=stdin, stdin=subprocess.DEVNULL if stdin is None else None)
        if check and r.returncode != 0:
            raise k3test.Failure(f"{' '.join(map(str, command))} -> {r.returncode}\n{r.stdout[-3000:]}\n{r.stderr[-3000:]}")
        return r

    def start(self, *command, user=None):
        return subprocess.Popen(self.argv(*command, user=user), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def show(self, unit, *names):
        """Properties of a unit."""
        r = self.run("systemctl", "show", unit, *(f"--property={n}" for n in names))
        return dict(line.split("=", 1) for line in r.stdout.splitlines())

    def journal(self, *match):
        """Entries as dictionaries."""
        r = self.run("journalctl", "--no-pager", "-o", "json", *match)
        return [json.loads(line) for line in r.stdout.splitlines()]

    def files(self):
        """Every path but those of the package database, logs and of what runs."""
        out = set()
        leave = tuple(self.path(p) for p in ("var/lib/dpkg", "var/log", "var/cache", "proc", "sys", "dev", "tmp", "run/systemd",
                                             "var/lib/systemd", "etc/ld.so.cache"))
        for where, dirs, names in os.walk(self.root):
            dirs[:] = [d for d in dirs if not os.path.join(where, d).startswith(leave)]
            for n in names + dirs:
                p = os.path.join(where, n)
                if not p.startswith(leave):
                    out.add(os.path.relpath(p, self.root))
        r = self.run("find", "/run", "-not", "-path", "/run/systemd/*", "-not", "-path", "/run/log/*")
        return out | set(r.stdout.split())

    def end(self):
        if self.process:
            if self.process.poll() is None:
                # the container's systemd powers off on this signal
                os.kill(self.leader or self.process.pid, signal.SIGRTMIN + 4)
                try:
                    self.process.wait(30)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
            time.sleep(0.1)
        if self.is_mounted:
            subprocess.run(["umount", "-l", "/run/systemd/nspawn"], check=False)
