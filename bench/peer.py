#!/usr/bin/env python3
"""Our products beside llama.cpp's on the CPU, run one after the other, in turn.

DIR is a checkout of llama.cpp with its tests built (build/bin/test-backend-ops). Its "perf" mode
multiplies matrices of its own choice, 4096 x 14336, on all threads; bench_kernels takes those of the
model, out of cache for one row and in cache for more. Only rates compare, and only roughly: with 2
rows and more the peer's weights come from memory as well. The peer rounds activations to 8 bits or
bf16; ours are not rounded.

    bench/peer.py --peer DIR --build BUILD [--threads N] [--rounds N]
"""
import argparse
import os
import re
import statistics
import subprocess
import sys

from built import add_build

BITS = {"bf16": 16, "mxfp4": 4.25}  # a weight, its share of the scale included
THEIRS = re.compile(r"MUL_MAT\(type_a=(bf16|mxfp4),type_b=f32,m=(\d+),n=(\d+),k=(\d+),[^)]*\):\s+\d+ runs -\s+([\d.]+) us/run")
OURS = re.compile(r"^(\w+)\s+(bf16|mxfp4)\s+(\d+) rows (cold|cache)\s+([\d.]+) GB/s\s+([\d.]+) GMAC/s", re.M)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nexit {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return COLOURS.sub("", done.stdout)


def theirs(program):
    """{(format, rows): (GB/s, GMAC/s)}"""
    found = {}
    for fmt, m, n, k, us in THEIRS.findall(run([program, "perf", "-o", "MUL_MAT", "-b", "CPU", "-p", "type_a=(bf16|mxfp4),"])):
        macs, seconds = int(m) * int(n) * int(k), float(us) / 1e6
        found[fmt, int(n)] = (int(m) * int(k) * BITS[fmt] / 8 / seconds / 1e9, macs / seconds / 1e9)
    return found


def ours(build, threads):
    """The same of the last instruction set that is printed: the widest. One row: out of cache."""
    found = {}
    for _, fmt, n, where, gbytes, gmacs in OURS.findall(run([f"{build}/bench/bench_kernels", "--quick", "--threads", str(threads)])):
        if int(n) > 1 or where == "cold":
            found[fmt, int(n)] = (float(gbytes), float(gmacs))
    return found


def medians(rounds):
    keys = set.intersection(*(set(r) for r in rounds))
    return {k: tuple(statistics.median(r[k][i] for r in rounds) for i in (0, 1)) for k in keys}


def show(a, b):
    """The rows that both have."""
    print(f"{'':13s} {'ours':>20s} {'peer':>20s}")
    print(f"{'':13s} {'GB/s':>9s} {'GMAC/s':>10s} {'GB/s':>9s} {'GMAC/s':>10s}")
    for key in sorted(set(a) & set(b)):
        print(f"{key[0]:6s}{key[1]:2d} rows {a[key][0]:9.2f} {a[key][1]:10.2f} {b[key][0]:9.2f} {b[key][1]:10.2f}  "
              f"{a[key][1] / b[key][1]:5.2f} x")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--peer", required=True, metavar="DIR", help="a checkout of llama.cpp, built")
    add_build(p, "bench/bench_kernels")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="ours; the peer takes all")
    p.add_argument("--rounds", type=int, default=2)
    a = p.parse_args()
    program = os.path.join(a.peer, "build", "bin", "test-backend-ops")
    if not os.access(program, os.X_OK):
        sys.exit(f"{program} is not there: build it with cmake -B build && cmake --build build --target test-backend-ops in {a.peer}")
    rounds = [(ours(a.build, a.threads), theirs(program)) for _ in range(a.rounds)]
    us, them = (medians([r[i] for r in rounds]) for i in (0, 1))
    if not set(us) & set(them):
        sys.exit(f"{program} printed no product of bf16 or mxfp4 with f32 that bench_kernels has, too; it may be of another version")
    show(us, them)


if __name__ == "__main__":
    main()
