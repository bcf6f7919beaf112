#!/usr/bin/env python3
"""A disk as the engine reads it: direct reads at random places of a file, over depths.

    bench/devbw.py FILE [FILE...] [--chunk 524288] [--depths 1,2,4,8,16,32] [--seconds 1] [--out NAME]

Several files: one on each disk, read at once. Writes NAME.tsv and NAME.svg (devbw). The daemon keeps
16 reads of 512 KiB in flight on each device; k3-store bench looks for better numbers.
"""
import argparse
import mmap
import os
import random
import threading
import time

import plot


def reader(fd, n_chunks, chunk, end, counts, which):
    buffer, dice = mmap.mmap(-1, chunk), random.Random(time.monotonic_ns() + which)
    while time.monotonic() < end:
        counts[which] += os.preadv(fd, [buffer], dice.randrange(n_chunks) * chunk)


def rate(files, chunk, depth, seconds):
    counts, threads, start = [0] * (depth * len(files)), [], time.monotonic()
    for i, (fd, size) in enumerate(files):
        for j in range(depth):
            threads.append(threading.Thread(target=reader, args=(fd, size // chunk, chunk, start + seconds, counts, i * depth + j)))
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return sum(counts) / (time.monotonic() - start)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("files", nargs="+")
    p.add_argument("--chunk", type=int, default=512 << 10)
    p.add_argument("--depths", default="1,2,4,8,16,32")
    p.add_argument("--seconds", type=float, default=1)
    p.add_argument("--out", default="devbw")
    p.add_argument("--over", action="append", default=[], metavar="FILE.tsv")
    a = p.parse_args()
    files = [(os.open(f, os.O_RDONLY | os.O_DIRECT), os.path.getsize(f)) for f in a.files]
    rows = []
    for depth in map(int, a.depths.split(",")):
        rows.append({"depth": depth, "chunk": a.chunk, "mb_per_s": f"{rate(files, a.chunk, depth, a.seconds) / 1e6:.1f}"})
        print(f"depth {depth:3d}  {rows[-1]['mb_per_s']:>9s} MB/s", flush=True)
    plot.write_tsv(a.out + ".tsv", list(rows[0]), rows, comment="direct reads at random places: " + " ".join(a.files))
    lines = [plot.series(rows, "depth", "mb_per_s", "this disk")]
    lines += [plot.series(plot.read_tsv(f), "depth", "mb_per_s", os.path.basename(f)) for f in a.over]
    plot.write_svg(a.out + ".svg", f"Direct reads of {a.chunk >> 10} KiB", "reads in flight on each disk", "MB/s", lines)


if __name__ == "__main__":
    main()
