"""The packages in a small Debian with a real systemd: from installing them to purging them, with what an
administrator and her users do in between. Steps build upon each other and run in order; the first
that fails ends the run.
"""
import ctypes
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
import machine
from k3test import DEMO, ROOT, check, check_equal, wait_until

GREEDY = json.load(open(os.path.join(DEMO, "golden.json")))["greedy"]
SOCKET = "/run/k3/iod.socket"


LONG = 800  # tokens: some seconds


class State:
    """What steps leave for those after them."""

    def __init__(self):
        self.case = k3test.Case()
        self.machine = None
        self.debs = self.case.path("debs")
        self.before = None
        self.undisturbed = None


def run_k3(g=GREEDY[0]):
    """A run whose tokens another implementation has chosen (golden.json)."""
    return ["k3", "run", "--socket", SOCKET, "--prompt", g["prompt"], "--gen", len(g["greedy_ids"])]


def check_tokens(m, report, g):
    got = json.loads(m.run("cat", report).stdout)
    check_equal(got["generated_ids"], g["greedy_ids"], f"tokens in {report}")


def check_run(m, user, g=GREEDY[0]):
    """A run by user is served, and right."""
    out = f"/tmp/run-{user}.json"
    m.run(*run_k3(g), "--out", out, user=user)
    check_tokens(m, out, g)


def main_pid(m):
    return int(m.show("k3-iod.service", "MainPID")["MainPID"])


def packages(s):
    """Built by debhelper, without an error of lintian."""
    machine.need("dpkg-buildpackage", "dh", "lintian")
    r = subprocess.run([os.path.join(ROOT, "deploy", "build-deb"), s.debs], capture_output=True, text=True)
    check_equal(r.returncode, 0, f"deploy/build-deb\n{r.stdout[-2000:]}{r.stderr[-4000:]}")
    names = sorted(os.path.basename(p).split("_")[0] for p in glob.glob(s.debs + "/*.deb"))
    check_equal(names, ["k3", "k3-doc", "k3-iod"], "packages")
    changes = glob.glob(s.debs + "/*.changes")
    r = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", *changes], capture_output=True, text=True)
    check_equal(r.returncode, 0, f"lintian\n{r.stdout}{r.stderr}")


def newer(deb, into):
    """The same package under a later version."""
    work = into + "/work"
    subprocess.run(["dpkg-deb", "-R", deb, work], check=True)
    control = os.path.join(work, "DEBIAN", "control")
    text = re.sub(r"^(Version: \S+)$", r"\1+later", open(control).read(), flags=re.M)
    open(control, "w").write(re.sub(r"\(= ([^)]+)\)", r"(= \1+later)", text))
    subprocess.run(["dpkg-deb", "-Znone", "-b", "--root-owner-group", work, into], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(work)


def boot(s):
    s.machine = machine.Machine(s.case)
    m = s.machine
    os.makedirs(m.path("srv/models"))
    shutil.copytree(DEMO, m.path("srv/models/demo"))
    os.makedirs(m.path("srv/debs"))
    os.makedirs(m.path("srv/newer"))
    m.boot()
    m.run("useradd", "alice")
    m.run("useradd", "bob")
    m.run("useradd", "mallory")
    s.before = m.files()


def install(s):
    """The socket listens, the daemon does not run, the unit is closed."""
    m = s.machine
    for p in glob.glob(s.debs + "/*.deb"):
        shutil.copy(p, m.path("srv/debs"))
        newer(p, m.path("srv/newer"))
    m.run("sh", "-c", "dpkg -i /srv/debs/*.deb")
    check_equal(m.show("k3-iod.socket", "ActiveState", "UnitFileState"), {"ActiveState": "active", "UnitFileState": "enabled"},
                "the socket")
    check_equal(m.show("k3-iod.service", "ActiveState")["ActiveState"], "inactive", "the service")
    r = m.run("stat", "-c", "%a %U %G", SOCKET)
    check_equal(r.stdout.strip(), "660 root k3", "the socket's mode")
    r = m.run("systemd-analyze", "security", "--no-pager", "k3-iod.service", check=False)
    found = re.search(r"exposure level for \S+: ([0-9.]+)", r.stdout)
    check(found and float(found.group(1)) <= 1.5, f"exposure\n{r.stdout[-600:]}")
    print(f"exposure of the installed unit: {found.group(1)}")
    m.run("systemd-analyze", "verify", "--man=no", "k3-iod.service", "k3-iod.socket", "k3-run@x.service", "k3.slice")
    for user in ("alice", "bob"):
        m.run("usermod", "-aG", "k3", user)


def unconfigured(s):
    """A client hears what is missing, once, and the socket goes on listening."""
    m = s.machine
    r = m.run(*run_k3(), user="alice", check=False)
    check_equal(r.returncode, 2, f"exit code\n{r.stderr}")
    check("--model" in r.stderr, f"the sentence\n{r.stderr}")
    wait_until(lambda: m.show("k3-iod.service", "ActiveState")["ActiveState"] == "failed", "the service to rest")
    check_equal(m.show("k3-iod.socket", "ActiveState")["ActiveState"], "active", "the socket")
    check(len(m.journal("MESSAGE_ID=ba17068fa41341a5bce54e6899e73e55")) == 1, "not one line NOT_STARTED in the journal")


def activation(s):
    """Two clients at once start it; both have the right tokens; the daemon is who it should be."""
    m = s.machine
    m.write("etc/k3/iod.conf", "model = /srv/models/demo\nallow-group = k3\nqueue-depth = 8\n")
    runs = [m.start(*run_k3(g), "--out", f"/tmp/{u}.json", user=u) for u, g in zip(("alice", "bob"), GREEDY)]
    for u, g, p in zip(("alice", "bob"), GREEDY, runs):
        out, err = p.communicate(timeout=120 * k3test.SLOW)
        check_equal(p.returncode, 0, f"exit code of {u}\n{err}")
        check_tokens(m, f"/tmp/{u}.json", g)
    shown = m.show("k3-iod.service", "ActiveState", "User", "Slice", "StatusText", "NRestarts")
    check_equal((shown["ActiveState"], shown["User"], shown["Slice"]), ("active", "k3-iod", "k3.slice"), "the service")
    check("serving" in shown["StatusText"], f"status {shown['StatusText']}")
    lines = m.journal("MESSAGE_ID=923158f3df384108b015f81b0529ae93")
    check_equal(len(lines), 1, "lines SERVING in the journal")
    check_equal((lines[0]["_SYSTEMD_UNIT"], lines[0]["PRIORITY"]), ("k3-iod.service", "6"), "unit and priority of that line")


def refused(s):
    """The wrong group: by the socket's mode, and where that lets everyone in, by a sentence."""
    m = s.machine
    r = m.run(*run_k3(), user="mallory", check=False)
    check(r.returncode == 1 and "Permission denied" in r.stderr, f"{r.returncode}\n{r.stderr}")
    m.run("chmod", "666", SOCKET)
    r = m.run(*run_k3(), user="mallory", check=False)
    check(r.returncode == 1 and "--allow-group" in r.stderr, f"{r.returncode}\n{r.stderr}")
    check_run(m, "alice")
    m.run("chmod", "660", SOCKET)
    uid = m.run("id", "-u", "mallory").stdout.strip()
    lines = m.journal("MESSAGE_ID=17c1b43e856a424ab8726eb722d14808", f"K3_CLIENT_UID={uid}")
    check_equal(len(lines), 1, "lines CLIENT_REFUSED of that user")


def job(s):
    """k3-run@: a user of its own, no file of the model, results in its own folder."""
    m = s.machine
    g = GREEDY[1]
    m.write("etc/k3/jobs/story.prompt", g["prompt"])
    m.write("etc/k3/jobs/story.conf", f"K3_OPTIONS=--gen {len(g['greedy_ids'])}\n")
    os.chmod(m.path("etc/k3/jobs/story.prompt"), 0o600)
    r = m.run("systemctl", "start", "k3-run@story", check=False)
    check_equal(r.returncode, 0, m.run("journalctl", "--no-pager", "-u", "k3-run@story").stdout)
    check_tokens(m, "/var/lib/k3-run/story/run.json", g)


def reload(s):
    """New depths and groups at once, with a client running; nonsense changes nothing."""
    m = s.machine
    old = main_pid(m)
    runs = long_runs(s)
    conf = "model = /srv/models/demo\nallow-group = k3\n"
    m.write("etc/k3/iod.conf", conf + "allow-group = mallory\nqueue-depth = 32\n")
    m.run("systemctl", "reload", "k3-iod")
    told = "MESSAGE_ID=099c6ad445ab4720a345bf9bd1f6111d"
    wait_until(lambda: len(m.journal(told)) == 1, "a line RELOADED in the journal")
    text = m.journal(told)[0]["MESSAGE"]
    check("32" in text and "allow-group" in text, f"the line is {text}")
    m.run("chmod", "666", SOCKET)
    check_run(m, "mallory")
    m.write("etc/k3/iod.conf", conf + "queue-depth = many\n")
    m.run("systemctl", "reload", "k3-iod")
    wait_until(lambda: len(m.journal(told)) == 2, "a second line")
    line = m.journal(told)[1]
    check("queue-depth" in line["MESSAGE"] and line["PRIORITY"] == "3", f"the line is {line['MESSAGE']}")
    check_run(m, "mallory")
    m.write("etc/k3/iod.conf", conf + "queue-depth = 8\n")
    m.run("systemctl", "reload", "k3-iod")
    wait_until(lambda: len(m.journal(told)) == 3, "a third line")
    r = m.run(*run_k3(), user="mallory", check=False)
    check(r.returncode == 1 and "--allow-group" in r.stderr, f"{r.returncode}\n{r.stderr}")
    m.run("chmod", "660", SOCKET)
    check(all(p.poll() is None for p, _ in runs), "the runs were over before the reloads: the step shows nothing")
    check_long_runs(s, runs)
    check_equal(main_pid(m), old, "the daemon's pid")


def watchdog(s):
    """A stuck loop is noticed and the daemon started again; then it serves."""
    m = s.machine
    m.write("etc/systemd/system/k3-iod.service.d/watchdog.conf", "[Service]\nWatchdogSec=2\n")
    m.run("systemctl", "daemon-reload")
    m.run("systemctl", "restart", "k3-iod")
    check_run(m, "alice")
    old = main_pid(m)
    m.run("sh", "-c", f"kill -STOP {old}")
    wait_until(lambda: main_pid(m) not in (0, old), "the manager to start another daemon", 60)
    check_run(m, "alice")
    check(int(m.show("k3-iod.service", "NRestarts")["NRestarts"]) >= 1, "no restart counted")
    text = m.run("journalctl", "--no-pager", "-u", "k3-iod").stdout
    check("atchdog timeout" in text, "the journal does not speak of the watchdog")
    os.unlink(m.path("etc/systemd/system/k3-iod.service.d/watchdog.conf"))
    os.rmdir(m.path("etc/systemd/system/k3-iod.service.d"))
    m.run("systemctl", "daemon-reload")


def long_runs(s):
    """Runs of alice and bob under way, and what they must come to: [(process, report)], the report of
    the same run undisturbed."""
    m = s.machine
    g = GREEDY[0]
    argv = ["k3", "run", "--socket", SOCKET, "--prompt", g["prompt"], "--gen", LONG]
    if not s.undisturbed:
        m.run(*argv, "--out", "/tmp/undisturbed.json", user="alice")
        s.undisturbed = json.loads(m.run("cat", "/tmp/undisturbed.json").stdout)
        n = len(g["greedy_ids"])
        check_equal(s.undisturbed["generated_ids"][:n], g["greedy_ids"], "tokens of the undisturbed run")
    runs = [(m.start(*argv, "--out", f"/tmp/long-{u}.json", user=u), f"/tmp/long-{u}.json") for u in ("alice", "bob")]
    for p, _ in runs:
        check(p.stdout.read(20), "no text")  # it is in the middle of its work
    return runs


def check_long_runs(s, runs):
    for p, report in runs:
        _, err = p.communicate(timeout=300 * k3test.SLOW)
        check_equal(p.returncode, 0, f"exit code\n{err}")
        got = json.loads(s.machine.run("cat", report).stdout)
        for k in ("generated_ids", "logits_digest"):
            check_equal(got[k], s.undisturbed[k], f"{k} in {report}")


def killed(s):
    """kill -9 with clients running, more often than a start limit would bear: the same bits, no error."""
    m = s.machine
    runs = long_runs(s)
    for _ in range(6):
        old = main_pid(m)
        m.run("sh", "-c", f"kill -KILL {old}")
        wait_until(lambda: main_pid(m) not in (0, old), "the manager to start another daemon")
        wait_until(lambda: m.show("k3-iod.service", "ActiveState")["ActiveState"] == "active", "the daemon to be ready")
    check(all(p.poll() is None for p, _ in runs), "the runs were over before the daemon was killed: the step shows nothing")
    check_long_runs(s, runs)


def upgrade(s):
    """A newer package with clients running: another daemon, the same bits, no error."""
    m = s.machine
    runs = long_runs(s)
    old = main_pid(m)
    m.run("sh", "-c", "dpkg -i /srv/newer/*.deb")
    check(main_pid(m) not in (0, old), "the daemon is still the old one")
    check_equal(m.show("k3-iod.socket", "ActiveState")["ActiveState"], "active", "the socket")
    check(all(p.poll() is None for p, _ in runs), "the runs were over before the upgrade: the step shows nothing")
    check_long_runs(s, runs)


def remove(s):
    """Nothing runs any more; the configuration stays."""
    m = s.machine
    check_run(m, "alice")
    m.run("dpkg", "-r", "k3", "k3-iod", "k3-doc")
    units = m.run("systemctl", "list-units", "--no-legend", "--plain", "k3-*").stdout
    check_equal(units, "", "units that still run")
    check(os.path.exists(m.path("etc/k3/iod.conf")), "the configuration is gone already")
    check("k3-iod" not in m.run("sh", "-c", "cat /proc/[0-9]*/comm").stdout.split(), "the daemon still runs")


def purge(s):
    """What was there before the packages is there after them, and nothing else."""
    m = s.machine
    m.run("dpkg", "--purge", "k3", "k3-iod", "k3-doc")
    left = {p for p in m.files() - s.before if not p.startswith(("srv/", "tmp", "/run/user"))}
    accounts = {"etc/" + n + d for n in ("passwd", "group", "shadow", "gshadow", "subuid", "subgid") for d in ("", "-")}
    check_equal(sorted(left - accounts), [], "left behind")


STEPS = [packages, boot, install, unconfigured, activation, refused, job, reload, watchdog, killed, upgrade, remove, purge]


def main():
    """Like k3test.main, but the steps share one container."""
    ctypes.CDLL(None).prctl(k3test.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    s = State()
    passed, failed, skipped, why = 0, 0, 0, ""
    try:
        for step in STEPS:
            try:
                step(s)
                passed += 1
                print(f"ok: {step.__name__}", flush=True)
            except k3test.Skip as e:
                print(f"NOT RUN: {step.__name__} and what follows it: {e}", flush=True)
                skipped = len(STEPS) - passed
                break
            except Exception as e:
                why = str(e) if isinstance(e, k3test.Failure) else traceback.format_exc()
                failed = 1
                print(f"FAILED: {step.__name__}: {why}", flush=True)
                if s.machine and s.machine.leader:
                    print(s.machine.run("journalctl", "--no-pager", "-n", "60", check=False).stdout)
                break
    finally:
        if s.machine:
            s.machine.end()
        s.case.end()
    print(f"cases: {passed} passed, {failed} failed, {skipped} not run")
    sys.exit(1 if failed else 0 if passed else 77)


if __name__ == "__main__":
    main()
