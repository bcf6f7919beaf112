"""How long k3-iod takes from exec to READY on the released headers, which are in the page cache: without a saved catalog
(bar 0.3 s) and with the one that an earlier start has saved (bar 0.03 s), in absolute time. Budgets are 0: the least memory.

    bench/start.py [--build build] [--runs 7]
"""
import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from built import add_build

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "harness"))
import hollow


def start(iod, model, folder, *args):
    """Seconds to READY."""
    path = os.path.join(folder, "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(path)
        notify.settimeout(120)
        began = time.monotonic()
        p = subprocess.Popen([iod, "--model", model, "--socket", os.path.join(folder, "socket"), "--trunk-gb", "0", "--cache-gb", "0",
                              *args], env=dict(os.environ, NOTIFY_SOCKET=path), stderr=subprocess.DEVNULL)
        while b"READY=1" not in notify.recv(65536).split(b"\n"):
            pass
        seconds = time.monotonic() - began
        p.terminate()
        p.wait()
    os.unlink(path)
    return seconds


def main():
    p = argparse.ArgumentParser()
    add_build(p, "iod/k3-iod", default="build")
    p.add_argument("--runs", type=int, default=7)
    args = p.parse_args()
    iod = os.path.join(args.build, "iod", "k3-iod")
    folder = tempfile.mkdtemp(dir="/var/tmp")
    try:
        model = hollow.make(os.path.join(folder, "k3"))
        state = os.path.join(folder, "state")
        os.mkdir(state, 0o700)
        time.sleep(2)  # what was written in this second is not saved
        start(iod, model, folder, "--state-dir", state)
        rows = {"headers in the page cache": (0.3, ()), "saved catalog": (0.03, ("--state-dir", state))}
        times = {name: [] for name in rows}
        for _ in range(args.runs):  # in turn, so that a slow moment meets both
            for name, (_, more) in rows.items():
                times[name].append(start(iod, model, folder, *more))
        for name, t in times.items():
            print(f"{name:28} {statistics.median(t):.3f} s from exec to READY (least {min(t):.3f}, most {max(t):.3f}; bar {rows[name][0]})")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
