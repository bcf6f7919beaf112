"""The units and their companions as installed: accepted by systemd's own checkers, closed enough, and
every setting that the example configuration shows is one that the daemon knows."""
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import ROOT, check, check_equal

EXPOSURE = 1.5


def installed(case):
    """meson install into a folder: {file name: path}."""
    root = case.subdir("root")
    build = os.environ.get("K3_BUILD", "")
    if not build or not shutil.which("meson"):
        raise k3test.Skip("no build directory to install from")
    r = subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--destdir", root], capture_output=True, text=True)
    check_equal(r.returncode, 0, f"meson install\n{r.stdout[-2000:]}{r.stderr[-2000:]}")
    found = {}
    for where, _, names in os.walk(root):
        for n in names:
            found.setdefault(n, []).append(os.path.join(where, n))
    return root, found


def systemd_analyze(*args):
    if not shutil.which("systemd-analyze"):
        raise k3test.Skip("systemd-analyze is not installed")
    return subprocess.run(["systemd-analyze", *args], capture_output=True, text=True)


def units_of(case):
    """The units beside each other, with programs that exist here."""
    root, found = installed(case)
    folder = case.subdir("units")
    for n in ("k3-iod.socket", "k3-metrics.socket", "k3-iod.service", "k3-run@.service", "k3.slice"):
        check(n in found, f"{n} is not installed")
        text = open(found[n][0]).read()
        for program in ("k3-iod", "k3"):
            text = re.sub(rf"^(ExecStart=)\S*/bin/{program} ", rf"\1/bin/true ", text, flags=re.M)
            text = re.sub(rf"^(ExecStart=)\S*/bin/{program}$", rf"\1/bin/true", text, flags=re.M)
        n = n.replace("@.", "@job.")
        open(os.path.join(folder, n), "w").write(text)
    return folder


def verify(case):
    """systemd-analyze verify finds nothing to say, and does find a mistake."""
    folder = units_of(case)
    paths = sorted(os.path.join(folder, n) for n in os.listdir(folder))
    r = systemd_analyze("verify", "--man=no", *paths)
    ours = [x for x in r.stderr.splitlines() if "k3" in x]
    check(r.returncode == 0 and not ours, f"{r.returncode}\n{r.stderr}")
    name = os.path.join(folder, "k3-iod.service")
    text = open(name).read()
    open(name, "w").write(text.replace("WatchdogSec=30", "WatchdogSecs=30"))
    r = systemd_analyze("verify", "--man=no", name)
    check("WatchdogSecs" in r.stderr, f"a wrong key is not noticed: the check shows nothing\n{r.stderr}")


def exposure(case):
    folder = units_of(case)
    for n in ("k3-iod.service", "k3-run@job.service"):
        r = systemd_analyze("security", "--offline=yes", os.path.join(folder, n))
        m = re.search(r"Overall exposure level for \S+: ([0-9.]+)", r.stdout)
        check(m, f"no figure\n{r.stdout}{r.stderr}")
        print(f"exposure of {n}: {m.group(1)}")
        check(float(m.group(1)) <= EXPOSURE, f"{n}: exposure {m.group(1)}, at most {EXPOSURE} is wanted\n{r.stdout}")


def drop_ins(case):
    """Each example applies to the unit without a complaint, and stays within the bar."""
    folder = units_of(case)
    _, found = installed(case)
    examples = [n for n in sorted(os.listdir(os.path.join(ROOT, "deploy", "drop-ins")))]
    check(len(examples) >= 3, f"only {examples}")
    for n in examples:
        check(n in found, f"{n} is not installed")
        into = os.path.join(folder, "k3-iod.service.d")
        shutil.rmtree(into, ignore_errors=True)
        os.mkdir(into)
        text = open(os.path.join(ROOT, "deploy", "drop-ins", n)).read()
        check("/etc/systemd/system/k3-iod.service.d/" + n in text, f"{n} does not say where it goes")
        open(os.path.join(into, n), "w").write(text.replace("/usr/bin/k3-iod", "/bin/true"))
        r = systemd_analyze("verify", "--man=no", os.path.join(folder, "k3-iod.service"))
        ours = [x for x in r.stderr.splitlines() if "k3" in x]
        check(r.returncode == 0 and not ours, f"{n}: {r.returncode}\n{r.stderr}")


def companions(case):
    """sysusers and tmpfiles do what they say, in a folder of their own."""
    root, found = installed(case)
    paths = found["k3-iod.conf"]
    users = [p for p in paths if "sysusers.d" in p]
    files = [p for p in paths if "tmpfiles.d" in p]
    check_equal((len(users), len(files)), (1, 1), f"of {paths}")
    if not shutil.which("systemd-sysusers") or os.getuid() != 0:
        raise k3test.Skip("systemd-sysusers and root are needed")
    os.makedirs(os.path.join(root, "etc"), exist_ok=True)
    r = subprocess.run(["systemd-sysusers", f"--root={root}", users[0]], capture_output=True, text=True)
    check_equal(r.returncode, 0, r.stderr)
    check("k3-iod:" in open(os.path.join(root, "etc/passwd")).read(), "no user")
    group = open(os.path.join(root, "etc/group")).read()
    check(re.search(r"^k3:", group, re.M), "no group k3")
    check(not re.search(r"^k3:.*k3-iod", group, re.M), "the daemon's user is in the clients' group")
    r = subprocess.run(["systemd-tmpfiles", f"--root={root}", "--create", files[0]], capture_output=True, text=True)
    check_equal(r.returncode, 0, r.stderr)
    check_equal(oct(os.stat(os.path.join(root, "run/k3")).st_mode & 0o7777), "0o755", "mode of /run/k3")


def configuration(case):
    """Every line of the example, uncommented, is understood: what is missed then is the model."""
    text = open(os.path.join(ROOT, "deploy", "iod.conf")).read()
    live = [x for x in text.splitlines() if x.strip() and not x.startswith("#")]
    check_equal(live, [], "settings that are on in the example")
    settings = re.findall(r"^#([a-z-]+ = .+)$", text, re.M)
    check(len(settings) >= 6, f"only {settings}")
    # under the unit (ProtectSystem=strict, /run/k3 is root's) these would keep the daemon from starting
    made = [x for x in settings if x.split()[0] in ("socket", "metrics", "record-trace", "timeline")]
    check_equal(made, [], "settings that make a file where the unit may not write")
    wanted = [x for x in settings if not x.startswith("allow-group")] + ["allow-group = 0"]
    conf = case.path("iod.conf")
    open(conf, "w").write("\n".join(wanted) + "\n")
    r = case.exec("k3-iod", "--conf", conf, "--socket", case.path("s"))
    check(r.rc in (1, 2) and "/srv/models/k3" in r.err, f"not the model is missed\n{r}")
    open(conf, "a").write("no-such-option = 1\n")
    r = case.exec("k3-iod", "--conf", conf, "--socket", case.path("s"))
    check("no-such-option" in r.err, f"an unknown name is not noticed\n{r}")


if __name__ == "__main__":
    k3test.main([verify, exposure, drop_ins, companions, configuration])
