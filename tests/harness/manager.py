"""A service manager for one k3-iod: it holds the listening socket, keeps the descriptors that the
daemon stores (FDSTORE=1 with FDNAME=, FDSTOREREMOVE=1), and passes all of them to the next start, as
systemd does. A stop empties the store; a kill does not."""
import array
import fcntl
import os
import socket
import subprocess
import threading

import k3test
from k3test import SLOW, WRAP, Failure, check, wait_until

HIGH = 200  # numbers that no descriptor of a test has


class Manager:
    def __init__(self, case, model, *args, env=None, wrap=()):
        self.case, self.model, self.args, self.env, self.wrap = case, model, list(args), dict(env or {}), list(wrap)
        self.dir = case.subdir("manager")
        self.socket = os.path.join(self.dir, "socket")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self.listener.bind(self.socket)
        self.listener.listen(128)
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self.notify_path = os.path.join(self.dir, "notify")
        self.notify.bind(self.notify_path)
        self.store = []  # (name, descriptor)
        self.lines = []
        self.n_ready = 0
        self.lock = threading.Lock()
        self.log_path = os.path.join(self.dir, "log")
        self.process = None
        case.managers = getattr(case, "managers", []) + [self]
        threading.Thread(target=self.listen, daemon=True).start()

    # ---- what the daemon says

    def listen(self):
        while True:
            try:
                data, control, _, _ = self.notify.recvmsg(65536, socket.CMSG_SPACE(16 * 4))
            except OSError:
                return
            fds = array.array("i")
            for level, kind, body in control:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(body[:len(body) - len(body) % 4])
            if data:
                self.heard(data.decode().splitlines(), list(fds))

    def heard(self, lines, fds):
        name = next((x[7:] for x in lines if x.startswith("FDNAME=")), "stored")
        with self.lock:
            self.lines += lines
            if "FDSTORE=1" in lines:
                for fd in fds:
                    os.set_inheritable(fd, False)
                    self.store.append((name, fd))
                fds = []
            if "FDSTOREREMOVE=1" in lines:
                for n, fd in self.store:
                    if n == name:
                        os.close(fd)
                self.store = [x for x in self.store if x[0] != name]
            self.n_ready += lines.count("READY=1")
        for fd in fds:
            os.close(fd)

    def stored(self, name):
        with self.lock:
            return [fd for n, fd in self.store if n == name]

    # ---- its life

    def start(self, *args, env=None, wait=True, wrap=None):
        with self.lock:
            passed = [("k3-iod.socket", self.listener.fileno())] + self.store
            fds = [fcntl.fcntl(fd, fcntl.F_DUPFD, HIGH) for _, fd in passed]
        moves = " ".join(f"{3 + i}<&{fd}" for i, fd in enumerate(fds)) + " " + " ".join(f"{fd}<&-" for fd in fds)
        argv = WRAP + list(wrap if wrap is not None else self.wrap) + [k3test.program("k3-iod"), "--model", self.model] + [str(a) for a in self.args + list(args)]
        environ = dict(os.environ, NOTIFY_SOCKET=self.notify_path, LISTEN_FDS=str(len(fds)),
                       LISTEN_FDNAMES=":".join(n for n, _ in passed), **self.env)
        environ.update(env or {})
        environ.pop("WATCHDOG_USEC", None)
        before = self.n_ready
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(["bash", "-c", f'exec {moves}; export LISTEN_PID=$$; exec "$@"', "k3-iod"] + argv,
                                            env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=fds)
        for fd in fds:
            os.close(fd)
        self.case.processes.append(self.process)
        if wait:
            self.wait_ready(before)
        return self

    def wait_ready(self, before):
        def is_ready():
            if self.process.poll() is not None:
                raise Failure(f"k3-iod ended with {self.process.returncode}\n{self.log()}")
            return self.n_ready > before

        wait_until(is_ready, "READY=1", 120)

    @property
    def pid(self):
        return self.process.pid

    def log(self):
        return open(self.log_path, errors="replace").read()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.case.processes.remove(self.process)

    def stop(self):
        """As systemctl stop: the store is emptied."""
        self.process.terminate()
        rc = self.process.wait(60 * SLOW)
        self.empty()
        return rc

    def empty(self):
        with self.lock:
            for _, fd in self.store:
                os.close(fd)
            self.store = []

    def stats(self):
        with k3test.Wire(self.socket) as w:
            w.hello()
            return w.stats()

    def close(self):
        self.empty()
        self.listener.close()
        self.notify.close()
