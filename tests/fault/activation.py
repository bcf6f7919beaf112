"""What a service manager sees: the inherited socket, READY, STATUS, EXTEND_TIMEOUT, WATCHDOG, and how
a daemon ends. A private daemon ends with its client, however that ends."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import DEMO, Daemon, check, check_equal, wait_until

GREEDY = json.load(open(os.path.join(DEMO, "golden.json")))["greedy"]


def ready(case):
    """READY comes once, after a probe read, with a status; STOPPING on SIGTERM."""
    d = Daemon(case, DEMO)
    check_equal(d.messages.count("READY=1"), 1, "READY=1 lines")
    status = [x for x in d.messages if x.startswith("STATUS=")]
    check(status, f"no STATUS in {d.messages}")
    check("clients" in d.stats(), "it does not answer although it is ready")
    d.process.send_signal(signal.SIGTERM)
    d.wait_notify(lambda x: x == "STOPPING=1")
    check_equal(d.process.wait(60), 0, "exit code on SIGTERM")
    check(not os.path.exists(d.socket), "the socket file stays after a clean end")
    d = Daemon(case, DEMO)
    check_equal(d.stop(signal.SIGINT), 0, "exit code on SIGINT")


def not_ready(case):
    """READY is a promise: it does not come when the model cannot be read."""
    path = case.copy_model(DEMO)
    for n in sorted(os.listdir(path)):
        if n.startswith("model-"):
            os.truncate(os.path.join(path, n), 100)
    d = Daemon(case, path, wait=False)
    d.process.wait(60)
    while d.read_notify(0.05):
        pass
    check(d.process.returncode in (1, 2), f"exit code {d.process.returncode}")
    check("READY=1" not in d.messages, f"READY although nothing can be read: {d.messages}")


def watchdog(case):
    """WATCHDOG=1 comes from the loop at least twice in the interval that is asked for."""
    pid_free = {"WATCHDOG_USEC": "200000"}
    d = Daemon(case, DEMO, env=pid_free)
    for _ in range(5):
        d.messages = [x for x in d.messages if x != "WATCHDOG=1"]
        d.wait_notify(lambda x: x == "WATCHDOG=1")
    # A loop that does not run does not feed it.
    os.kill(d.pid, signal.SIGSTOP)
    while d.read_notify(0.05):
        pass
    d.messages = []
    check(not d.read_notify(0.6), f"messages from a stopped process: {d.messages}")
    os.kill(d.pid, signal.SIGCONT)
    d.wait_notify(lambda x: x == "WATCHDOG=1")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def synth(case):
    model = case.path("model")
    r = case.exec("k3-store", "synth", model, "--hidden", "1024", "--layers", "4", "--dense", "4096", "--experts", "8",
                  "--vocab", "4096")
    if r.rc != 0:
        raise k3test.Failure(f"k3-store synth failed\n{r}")
    return model


def memory_after_ready(case):
    """A large slab is served from while it is still being made resident; the second line says what became of it."""
    d = Daemon(case, synth(case), "--trunk-gb", "0", "--cache-gb", "2")
    check(re.search(r"still to be had, (locked|not locked)", d.log()), f"all of the slab was taken before READY\n{d.log()}")
    runs = [case.k3(None, ids=[5, 6, 7], gen=4, daemon=d, logits=True)]
    wait_until(lambda: re.search(r"all \d+\.\d+ MB of the slab are resident: \S", d.log()), "the line about memory")
    runs.append(case.k3(None, ids=[5, 6, 7], gen=4, daemon=d, logits=True))
    check_equal(*[r.logits.tobytes() for r in runs], "logits before and after")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def pinning(case):
    """A long start says how far it is and asks for time, and the watchdog is fed all along."""
    model = synth(case)
    d = Daemon(case, model, "--trunk-gb", "10", "--cache-gb", "0", env={"K3_IOD_FAULT": "slow=40M", "WATCHDOG_USEC": "2000000"},
               wait=False)
    extend = d.wait_notify(lambda x: x.startswith("EXTEND_TIMEOUT_USEC="), 120)
    check(int(extend.split("=")[1]) >= 10_000_000, f"{extend} is hardly an extension")
    d.wait_notify(lambda x: x == "WATCHDOG=1", 120)
    status = d.wait_notify(lambda x: x.startswith("STATUS=") and re.search(r"pin|load", x), 120)
    check(re.search(r"\d", status), f"the status has no figure: {status}")
    d.wait_notify(lambda x: x == "READY=1", 300)
    s = d.stats()
    check(s["tiles_to_pin"] > 0, "nothing to pin: the check shows nothing")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def socket_activation(case):
    """systemd-socket-activate hands over the listening socket; the client needs to know nothing."""
    if not shutil.which("systemd-socket-activate"):
        raise k3test.Skip("systemd-socket-activate is not installed")
    path = case.path("activated")
    notify = case.path("notify")
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    receiver.bind(notify)
    log = open(case.path("log"), "wb")
    p = subprocess.Popen(["systemd-socket-activate", "--seqpacket", "--listen", path, "--setenv", f"NOTIFY_SOCKET={notify}",
                          k3test.program("k3-iod"), "--model", DEMO], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    case.processes.append(p)
    log.close()
    wait_until(lambda: os.path.exists(path), "the socket to be there")
    receiver.settimeout(0.3)
    try:
        raise k3test.Failure(f"something ran before a client came: {receiver.recv(4096)}")
    except socket.timeout:
        pass
    g = GREEDY[0]
    out = case.path("run.json")
    for _ in range(2):
        r = case.exec("k3", "run", "--socket", path, "--prompt", g["prompt"], "--gen", "24", "--out", out)
        check_equal(r.rc, 0, f"exit code\n{r}\n{open(case.path('log')).read()}")
        check_equal(json.load(open(out))["generated_ids"], g["greedy_ids"], "tokens")
    receiver.settimeout(30)
    lines = []
    while "READY=1" not in lines:
        lines += receiver.recv(4096).decode().splitlines()
    receiver.close()
    p.send_signal(signal.SIGTERM)
    check_equal(p.wait(60), 0, "exit code of the activated daemon")
    check(os.path.exists(path), "the daemon removed a socket that is not its own")


def foreign_environment(case):
    """LISTEN_FDS for another process is not taken, and a wrong kind of socket is refused."""
    d = Daemon(case, DEMO, env={"LISTEN_FDS": "1", "LISTEN_PID": "1"})
    check_equal(d.stats()["clients"], 1, "clients")
    check_equal(d.stop(), 0, "exit code")


def own_daemon(pid):
    """The k3-iod whose parent is pid."""
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            rest = open(f"/proc/{p}/stat").read()
        except OSError:
            continue
        if f"(k3-iod)" in rest and int(rest.rsplit(")", 1)[1].split()[1]) == pid:
            return int(p)
    return None


def ends_with_its_client(case):
    """The private daemon is gone when k3 is, on every kind of end."""
    for sig in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        p = case.start("k3", "run", DEMO, "--prompt", "Thus saith the LORD", "--gen", "4000", stdout=subprocess.PIPE)
        check(p.stdout.read(1), "k3 wrote no text")
        iod = own_daemon(p.pid)
        check(iod, "k3 has no daemon of its own")
        p.send_signal(sig)
        p.stdout.close()
        p.wait()

        def gone():
            k3test.reap_strangers([p.pid])
            return not os.path.exists(f"/proc/{iod}/stat") or open(f"/proc/{iod}/stat").read().rsplit(")", 1)[1].split()[0] == "Z"

        wait_until(gone, f"the private daemon to end after signal {sig}")
    r = case.k3(DEMO, prompt="Thus saith the LORD", gen=2)
    check_equal(k3test.children(), {}, f"processes after a run\n{r}")


def daemon_dies(case):
    """A client whose daemon is killed and does not come back ends with a sentence and does not hang."""
    d = Daemon(case, DEMO)
    p = case.start("k3", "run", "--socket", d.socket, "--prompt", "Thus saith the LORD", "--gen", "4000", "--reconnect-wait", "1",
                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    check(p.stdout.read(1), "k3 wrote no text")
    check_equal(d.stop(signal.SIGKILL), -9, "exit code after SIGKILL")
    p.stdout.read()
    text = p.stderr.read().decode()
    check_equal(p.wait(), 1, f"exit code of k3\n{text}")
    check("daemon" in text or "k3-iod" in text, f"no sentence\n{text}")
    p.stdout.close()
    p.stderr.close()
    r = case.exec("k3", "run", "--socket", case.path("nothing"), "--ids", "1")
    check_equal(r.rc, 1, f"exit code without a daemon\n{r}")
    check(case.path("nothing") in r.err, f"the socket is not named\n{r}")


k3test.main([ready, not_ready, watchdog, memory_after_ready, pinning, socket_activation, foreign_environment, ends_with_its_client, daemon_dies])
