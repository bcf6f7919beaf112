#!/usr/bin/env python3
"""The trunk as a dial: does a step take no longer than it must, whatever share of the trunk is pinned?

Decoding steps with a share of the trunk pinned and the smallest cache of experts, while the disk is
held at a rate (a blkio cgroup: needs root and cgroup v1). A step cannot be shorter than the longest of

    compute   everything resident, the same step
    reading   the bytes that it read, by a plain loop of direct reads at the same rate, the better of
              two: choose a rate that the disk holds while others use it, too
    chain     what waits for each other: in every layer attention, router, then the missed experts
              at that rate, then the projection back; and the head

Compute and the parts of the chain are taken from a run with everything resident and its timeline.
Prints wall / max of the three for each share, medians of rounds.

    bench/dial.py MODEL --build DIR [--pinned 0,0.5,0.95,1] [--rate BYTES] [--threads N] [--rounds N]
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from overlap import Throttle, busy_line, busy_share, options, read_plainly

IDS = "3,17,1999"
GEN = 6  # the first step has the prompt, and fills what can be filled


def run(a, *more):
    """Medians over the decoding steps of one run: seconds, waited, trunk bytes, expert bytes."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [f"{a.build}/compute/k3", "run", "--ids", IDS, "--gen", str(GEN), "--threads", str(a.threads),
                   "--out", out.name, *more]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr[-2000:]}")
        report = json.load(open(out.name))
    steps = report["steps"][2:]
    keys = ("seconds", "wait_seconds", "trunk_bytes_read", "expert_bytes_read")
    return [statistics.median(s[k] for s in steps) for k in keys], report["memory"]["plan"]


def chain_of(path):
    """Seconds of a resident step in which nothing else can be done, and of all of it, from its timeline."""
    events = [e for e in json.load(open(path)) if e["ph"] == "X"]
    steps = [e for e in events if e["name"] == "step"][2:]

    def total(name, step):
        return sum(e["dur"] for e in events
                   if e["name"] == name and step["ts"] <= e["ts"] <= step["ts"] + step["dur"]) / 1e6

    def chain(s):
        # In feed-forward all but what hides behind the reading of experts: the shared experts with
        # the experts that are computed between their tiles, and what is left of these.
        hidden = total("shared experts", s) + total("routed experts", s)
        return total("attention", s) + total("feed-forward", s) - hidden + total("head", s)

    return statistics.median(chain(s) for s in steps)


def run_resident(a):
    """(compute alone, chain alone, bytes of the trunk): the second run on a daemon that has all of it."""
    with tempfile.TemporaryDirectory() as d:
        path, timeline = os.path.join(d, "socket"), os.path.join(d, "timeline")
        iod = subprocess.Popen([f"{a.build}/iod/k3-iod", "--model", a.model, "--socket", path, "--trunk-gb", "1000",
                                "--cache-gb", str(a.cache_gb)], stderr=subprocess.DEVNULL)
        try:
            while not os.path.exists(path) and iod.poll() is None:
                time.sleep(0.05)
            _, plan = run(a, "--socket", path)
            (compute, _, read, experts), _ = run(a, "--socket", path, "--timeline", timeline)
        finally:
            iod.terminate()
            iod.wait()
        if read + experts > 0:
            sys.exit(f"the model is not resident: {read + experts} bytes were read in a step; give a larger --cache-gb")
        return compute, chain_of(timeline), plan["daemon_pinned_tiles"]


def measure(a, throttle, share):
    """One round: wall and the three bounds."""
    compute, chain, trunk = run_resident(a)
    throttle.enter()
    (wall, wait, read, experts), plan = run(a, a.model, "--trunk-gb", str(share * trunk / 1e9), "--cache-gb", "0")
    reading = min(read_plainly(a.model, read + experts) for _ in range(2))
    throttle.leave()
    chain += reading * experts / (read + experts)
    pinned = plan["daemon_pinned_tiles"] / trunk
    print(f"  {share:.2f} (pinned {pinned:.2f}, ring {plan['daemon_tile_ring'] / 1e6:.0f} MB): wall {wall:.3f} (waited "
          f"{wait:.3f}), compute {compute:.3f}, reading {reading:.3f} (trunk {read / 1e6:.0f} MB, experts "
          f"{experts / 1e6:.0f} MB), chain {chain:.3f}: {wall / max(compute, reading, chain):.3f}", flush=True)
    return wall / max(compute, reading, chain)


def main():
    p = options(__doc__, 800_000_000, 3)
    p.add_argument("--pinned", default="0.5,0.95", help="shares of the trunk, ring included")
    p.add_argument("--cache-gb", type=float, default=1000, help="for the resident run, when all experts are too many")
    a = p.parse_args()
    print(busy_line(busy_share()), flush=True)
    throttle = Throttle(a.model, a.rate)
    try:
        for share in map(float, a.pinned.split(",")):
            ratios = [measure(a, throttle, share) for _ in range(a.rounds)]
            print(f"{share:.2f} of the trunk: wall / max of compute, reading, chain  {statistics.median(ratios):.3f}", flush=True)
    finally:
        throttle.remove()


if __name__ == "__main__":
    main()
