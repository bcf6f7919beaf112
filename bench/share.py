#!/usr/bin/env python3
"""What sharing gives and costs, in rates, with a device of a fixed rate (K3_IOD_FAULT=slow=...).

    together   tokens a second of four clients together against one, beside the bound
               4 (T + E) / (T + U): T trunk bytes of a token, E expert bytes of one client, U of
               the union of the four
    modest     the time of a client beside one that asks for as many experts as its window takes and
               hints at others with every message, against its time beside its equal

    bench/share.py MODEL --build DIR [--rate BYTES] [--gen N] [--trunk-gb X] [--cache-gb X]
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time

from built import add_build

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "harness"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "daemon"))


def parse():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("model")
    add_build(p)
    p.add_argument("--rate", default="8M", help="of each device, bytes a second; K, M and G: 1024")
    p.add_argument("--gen", type=int, default=12)
    p.add_argument("--tile", default="32768")
    p.add_argument("--trunk-gb", default="0.001")
    p.add_argument("--cache-gb", default="0.0005")
    return p.parse_args()


A = parse()
for name, path in (("K3", "compute/k3"), ("K3_IOD", "iod/k3-iod"), ("K3_STORE", "iod/store/k3-store")):
    os.environ[name] = os.path.join(A.build, path)
import k3test  # needs the environment
from view import View

CASE = k3test.Case()


def daemon():
    return k3test.Daemon(CASE, A.model, "--tile", A.tile, "--trunk-gb", A.trunk_gb, "--cache-gb", A.cache_gb,
                         env={"K3_IOD_FAULT": f"slow={A.rate}"})


def run_clients(d, prompts):
    """Tokens a second and bytes a token of clients that start together; the first step is left out."""
    reports = []

    def one(ids):
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            done = subprocess.run([os.environ["K3"], "run", "--socket", d.socket, "--ids", ids, "--gen", str(A.gen),
                                   "--threads", "1", "--out", out.name], capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"k3 run: exit {done.returncode}: {done.stderr[-2000:]}")
            reports.append(json.load(open(out.name)))

    threads = [threading.Thread(target=one, args=(ids,)) for ids in prompts]
    [t.start() for t in threads]
    [t.join() for t in threads]
    steps = [r["steps"][1:] for r in reports]
    rate = sum(len(s) / sum(x["seconds"] for x in s) for s in steps)
    n = len(steps[0])
    return rate, *(sum(x[k] for s in steps for x in s) / n for k in ("trunk_bytes_read", "expert_bytes_read"))


def together():
    prompts = [",".join(str(3 + 37 * (i + 11 * c) % 2000) for i in range(6)) for c in range(4)]
    d = daemon()
    one, trunk, experts = run_clients(d, prompts[:1])
    d.stop()
    d = daemon()
    four, _, union = run_clients(d, prompts)
    d.stop()
    bound = 4 * (trunk + experts) / (trunk + union)
    print(f"one client              {one:.3f} tokens/s, {trunk / 1e6:.2f} MB of trunk and {experts / 1e6:.2f} MB of experts a token")
    print(f"four together           {four:.3f} tokens/s, {union / 1e6:.2f} MB of experts for all four")
    print(f"four / one              {four / one:.2f}; the bound is {bound:.2f}: {four / one / bound:.3f} of it")


def use(view, n_sweeps, greedy=False, stop=None):
    """Sweeps with four experts of a layer each; greedy: as many requests and hints as fit, no pause."""
    start = time.monotonic()
    for k in range(n_sweeps):
        if stop and stop.is_set():
            break
        view.sweep(again=True)
        left = {t for t in range(view.n_tiles) if not view.is_pinned(t)}
        wanted = min(view.welcome["expert_window"], 16) if greedy else 4
        ask = [(17 * k + i) % view.n_experts for i in range(wanted)]
        view.ask(1, ask)
        while left or wanted:
            if greedy:
                view.hint(2, [(k + i) % view.n_experts for i in range(16)])
            kind, body = view.receive()
            number = int.from_bytes(body[4:8], "little")
            if kind == "TILE_READY" and body[12] == 0:
                view.tile_done(number)
            if kind == "TILE_READY":
                left.discard(number)
            if kind == "EXPERT_READY":
                f = struct.unpack("<6I2Q6I", body)
                view.expert_done(f)
                wanted -= 1
    return time.monotonic() - start


def beside(greedy):
    d = daemon()
    stop = threading.Event()
    with View(d.socket) as modest, View(d.socket) as other:
        t = threading.Thread(target=use, args=(other, 1000, greedy, stop))
        t.start()
        seconds = use(modest, 6)
        stop.set()
        t.join()
    d.stop()
    return seconds


def main():
    together()
    equal, greedy = beside(False), beside(True)
    print(f"modest beside greedy    {greedy:.2f} s, beside its equal {equal:.2f} s: {greedy / equal:.2f} x")


main()
