#!/usr/bin/env python3
"""Do the disk and the cores work at the same time?

One step of a prompt chunk is run with nothing pinned and the smallest cache, so that all weights
are read in it, and compared with computing alone (everything resident) and reading alone (the same
number of bytes of the same files by a plain loop of direct reads). Prints

    wall / max(compute alone, reading alone)

1.0 is perfect, one after the other would give up to 2.0. That only means something where compute
alone is 0.8 to 1.25 times reading alone: the number of rows in the step is chosen so. Shared disks
wander, so all reading happens in a blkio cgroup with a fixed rate (needs root and cgroup v1);
--rate 0 leaves the disk as it is. On four layers of the released size choosing takes a minute and a
round another one.

    bench/overlap.py MODEL --build DIR [--threads N] [--rate BYTES] [--rows N] [--rounds N]
"""
import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from built import add_build

CHUNK = 1 << 20
READERS = 8
FEW, MANY = 32, 128  # rows to choose from
ROWS_MAX = 4096  # more is not a chunk that anybody computes


class Throttle:
    """A blkio cgroup that reads the model's device at a rate; run() starts programs in it."""

    def __init__(self, model, rate):
        self.group = None
        if rate == 0:
            return
        device = os.stat(model).st_dev
        self.group = f"/sys/fs/cgroup/blkio/k3-overlap-{os.getpid()}"
        os.mkdir(self.group)
        self.write("blkio.throttle.read_bps_device",
                   f"{os.major(device)}:{os.minor(device)} {rate}")

    def write(self, name, text):
        with open(os.path.join(self.group, name), "w") as f:
            f.write(text)

    def enter(self):
        if self.group:
            self.write("cgroup.procs", str(os.getpid()))

    def leave(self):
        if self.group:
            with open("/sys/fs/cgroup/blkio/cgroup.procs", "w") as f:
                f.write(str(os.getpid()))

    def remove(self):
        self.leave()
        if self.group:
            os.rmdir(self.group)


def busy_share():
    """What strangers take of the processors now: numbers of a busy machine mean little."""
    def look():
        fields = list(map(int, open("/proc/stat").readline().split()[1:9]))
        return sum(fields) - fields[3] - fields[4], sum(fields)

    before = look()
    time.sleep(2)
    after = look()
    return (after[0] - before[0]) / max(after[1] - before[1], 1)


def busy_line(share):
    return f"busy with other work    {share:.2f} of the processors" + ("; no figure below is to be believed" if share > 0.1 else "")


def options(doc, rate, rounds):
    """What the benches of a step beside a disk of a known rate have in common."""
    p = argparse.ArgumentParser(description=doc.split("\n\n")[0])
    p.add_argument("model")
    add_build(p)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rate", type=int, default=rate, help="bytes that the disk delivers a second; 0: as it is")
    p.add_argument("--rounds", type=int, default=rounds)
    return p


def read_plainly(model, n_bytes):
    """Seconds that READERS threads of direct reads need for n_bytes of the shards."""
    chunks, left = [], n_bytes
    files = [os.open(os.path.join(model, n), os.O_RDONLY | os.O_DIRECT)
             for n in sorted(os.listdir(model)) if n.endswith(".safetensors")]
    for fd in files:
        for offset in range(0, os.fstat(fd).st_size - CHUNK, CHUNK):
            if left > 0:
                chunks.append((fd, offset))
                left -= CHUNK
    scale = n_bytes / (len(chunks) * CHUNK)
    at = iter(chunks)
    lock = threading.Lock()

    def work():
        buffer = mmap.mmap(-1, CHUNK)
        while True:
            with lock:
                chunk = next(at, None)
            if chunk is None:
                return
            os.preadv(chunk[0], [buffer], chunk[1])

    threads = [threading.Thread(target=work) for _ in range(READERS)]
    start = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    seconds = (time.monotonic() - start) * scale
    for fd in files:
        os.close(fd)
    return seconds


def last_step(a, rows, resident):
    """A step of rows as one chunk: the second, which --recompute runs over the prefix and one
    token more; the first warms what can be warm."""
    ids = ",".join(str(3 + 37 * i % 2000) for i in range(rows - 1))
    size = "1000" if resident else "0"
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [f"{a.build}/compute/k3", "run", a.model, "--ids", ids, "--gen", "2",
                   "--recompute", "--prefill-rows", str(rows), "--threads", str(a.threads),
                   "--out", out.name, "--trunk-gb", size, "--cache-gb", size]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command[:3])} ...: exit {done.returncode}: {done.stderr[-2000:]}")
        step = json.load(open(out.name))["steps"][1]
    return step["seconds"], step["trunk_bytes_read"] + step["expert_bytes_read"], step["wait_seconds"]


def compute_alone(a, rows, n_bytes):
    """Seconds of a step with everything resident, but for experts that only its last row wants."""
    seconds, n_read, wait = last_step(a, rows, True)
    if n_read > n_bytes / 20:
        sys.exit(f"the model is not resident: {n_read} bytes were read in the second step")
    return seconds - wait


def choose_rows(a, reading, n_bytes):
    """Rows whose computing takes about as long as reading. Seconds are linear in rows once reading
    the weights from memory takes less than multiplying them."""
    few, many = (compute_alone(a, rows, n_bytes) for rows in (FEW, MANY))
    per_row = max((many - few) / (MANY - FEW), 1e-6)
    print(f"compute alone: {FEW} rows {few:.3f} s, {MANY} rows {many:.3f} s", flush=True)
    rows = max(2, round(FEW + (reading - few) / per_row))
    if rows > ROWS_MAX:
        sys.exit(f"this model is too small to measure: reading it takes as long as computing {rows} rows; "
                 "k3-store synth makes larger ones")
    return rows


def main():
    p = options(__doc__, 800_000_000, 3)
    p.add_argument("--rows", type=int, default=0, help="0: choose")
    a = p.parse_args()
    throttle = Throttle(a.model, a.rate)

    def reading_alone(n_bytes):
        throttle.enter()
        seconds = read_plainly(a.model, n_bytes)
        throttle.leave()
        return seconds

    def run_rounds(rows):
        walls, computes, readings = [], [], []
        for _ in range(a.rounds):
            throttle.enter()
            wall, n_bytes, wait = last_step(a, rows, False)
            throttle.leave()
            walls.append(wall)
            readings.append(reading_alone(n_bytes))
            computes.append(compute_alone(a, rows, n_bytes))
            print(f"  {rows} rows: wall {wall:.3f} (waited {wait:.3f}), reading alone "
                  f"{readings[-1]:.3f}, compute alone {computes[-1]:.3f}", flush=True)
            if not 0.8 <= computes[-1] / readings[-1] <= 1.25 and not a.rows:
                break
        return walls, computes, readings

    print(busy_line(busy_share()), flush=True)
    try:
        n_bytes = last_step(a, 8, False)[1]
        print(f"bytes read in a step    {n_bytes}", flush=True)
        rows = a.rows or choose_rows(a, reading_alone(n_bytes), n_bytes)
        for _ in range(4):
            walls, computes, readings = run_rounds(rows)
            if len(walls) == a.rounds:
                break
            rows = max(2, round(rows * readings[-1] / computes[-1]))
    finally:
        throttle.remove()
    wall, compute, reading = map(statistics.median, (walls, computes, readings))
    print(f"rows in the step        {rows}")
    print(f"compute / reading       {compute / reading:.2f} (wanted: 0.8 to 1.25)")
    print(f"wall / max of the two   {wall / max(compute, reading):.3f} "
          f"(one after the other: {(compute + reading) / max(compute, reading):.2f})")
    if not 0.8 <= compute / reading <= 1.25:
        sys.exit("the two are too unlike for this to show anything: give --rows or --rate")


if __name__ == "__main__":
    main()
