"""Who may connect: --allow-group against real users and groups. Needs root, to become somebody else."""
import os
import shutil
import socket
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import DEMO, Daemon, Wire, check, check_equal

NOBODY, STRANGERS, CLIENTS, OTHERS = 65534, 65533, 47001, 47002  # numbers without names do


def as_user(uid, gid, groups, work):
    """work() in a child of that user; its text."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = "nothing"
        try:
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
            text = work()
        except Exception as e:
            text = f"exception: {e!r}"
        os.write(w, text.encode()[:4000])
        os._exit(0)
    os.close(w)
    text = b""
    while chunk := os.read(r, 4096):
        text += chunk
    os.close(r)
    os.waitpid(pid, 0)
    return text.decode()


def greet(path):
    def work():
        w = Wire(path)
        try:
            w.send("HELLO", struct.pack("<IIQQII32s", 1, 1, 0, 0, os.getpid(), 0, b"k3test"))
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before it could say so
        name, body = w.receive()
        if name == "ERROR":
            code, kind, _, flags = struct.unpack_from("<4I", body)
            return f"ERROR {code} {kind} {flags} {body[32:].decode()}"
        return name

    return work


def daemon(case, *args):
    if os.getuid() != 0:
        raise k3test.Skip("only root can become another user")
    d = Daemon(case, DEMO, *args)
    os.chmod(case.dir, 0o755)
    os.chmod(d.dir, 0o755)
    os.chmod(d.socket, 0o666)
    return d


ACCESS = [r[1] for r in k3test.table("shared/err.def", "ERR") if r[0] == "ACCESS"][0]


def groups(case):
    """The primary group or a supplementary one opens; others hear a sentence; root may always."""
    d = daemon(case, "--allow-group", CLIENTS, "--allow-group", STRANGERS)
    many = list(range(50000, 50200))  # more than any buffer somebody might have thought enough
    for gid, more in ((CLIENTS, []), (OTHERS, [CLIENTS]), (OTHERS, many + [STRANGERS]), (STRANGERS, many)):
        check_equal(as_user(NOBODY, gid, more, greet(d.socket)), "WELCOME", f"user in groups {gid}, {more[-1:]}")
    for gid, more in ((OTHERS, []), (OTHERS, many), (0, [])):
        text = as_user(NOBODY, gid, more, greet(d.socket))
        check(text.startswith(f"ERROR {ACCESS} 0 1 "), f"group {gid}: {text}")
        check("--allow-group" in text and str(NOBODY) in text, f"the sentence does not say what is wrong: {text}")
    check_equal(as_user(0, OTHERS, [], greet(d.socket)), "WELCOME", "root")
    check("refused" in d.log(), d.log())
    s = d.stats()
    check_equal((s["clients"], s["clients_dropped"]), (1, 3), "connections, refused ones")
    check_equal(d.stop(), 0, "exit code")


def everyone(case):
    """Without the option the socket's mode decides alone."""
    d = daemon(case)
    check_equal(as_user(NOBODY, OTHERS, [], greet(d.socket)), "WELCOME", "a stranger")
    os.chmod(d.socket, 0o660)
    text = as_user(NOBODY, OTHERS, [], greet(d.socket))
    check("PermissionError" in text, f"mode 0660 does not keep a stranger out: {text}")
    check_equal(d.stop(), 0, "exit code")


def sentence(case):
    """What k3 says when it is refused, as another user than the daemon; and when it is let in."""
    d = daemon(case, "--allow-group", CLIENTS)
    k3 = case.path("k3")
    shutil.copy(k3test.program("k3"), k3)
    for gid, code in ((OTHERS, 1), (CLIENTS, 0)):
        def work():
            r = case.exec("k3", "run", "--socket", d.socket, "--ids", "1,2,3", "--gen", "2")
            return f"{r.rc} {r.err}"

        os.environ["K3"] = k3
        text = as_user(NOBODY, gid, [], work)
        check(text.startswith(f"{code} "), f"group {gid}: {text}")
        check(("--allow-group" in text) == (code == 1), f"group {gid}: {text}")
    check_equal(d.stop(), 0, "exit code")


def no_such_group(case):
    r = case.exec("k3-iod", "--model", DEMO, "--socket", case.path("s"), "--allow-group", "no-such-group")
    check_equal(r.rc, 2, f"exit code\n{r}")
    check("no-such-group" in r.err and "groupadd" in r.err, f"the message\n{r}")


def turned_away(case):
    """A daemon that cannot start tells those whose connection has started it, and does not leave the
    connection to start it again and again."""
    for args, word in ((["--modell", DEMO], "modell"), (["--model", DEMO, "--trunk-gb", "0.0000001"], "trunk-gb")):
        path = case.path("s" + word)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.bind(path)
            s.listen(8)
            first = Wire(path)
            first.send("HELLO", struct.pack("<IIQQII32s", 1, 1, 0, 0, os.getpid(), 0, b"k3test"))

            argv = ["/bin/sh", "-c", 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"', "sh", k3test.program("k3-iod"), *args]
            p = subprocess.run(argv, pass_fds=(3,), preexec_fn=lambda: os.dup2(s.fileno(), 3), capture_output=True,
                               stdin=subprocess.DEVNULL, timeout=k3test.TIMEOUT)
            check_equal(p.returncode, 2, f"exit code\n{p.stderr.decode()}")
            try:
                name, body = first.receive()
            except ConnectionResetError:  # its HELLO was not read; the reason is there all the same
                name, body = first.receive()
            check_equal(name, "ERROR", "answer")
            check(word in body[32:].decode(), f"the sentence is {body[32:]!r}")
            s.setblocking(False)
            try:
                s.accept()
                raise k3test.Failure("the connection still waits to be accepted")
            except BlockingIOError:
                pass
            first.close()


if __name__ == "__main__":
    k3test.main([groups, everyone, sentence, no_such_group, turned_away])
