#!/usr/bin/env python3
"""Does k3-iod read as fast as the disks give? Each line is a ratio and its bar.

    experts     cold experts through daemon and socket, 16 in flight, to fio's random reads
    trunk       a sweep with nothing pinned, every page touched, to fio's sequential reads
    two disks   experts spread over two devices of an injected rate, to all on one
    striped     a sweep of a trunk in two files on them, to one of a trunk file
    cpu         core-seconds of the daemon per GB in the first two

fio reads the same files in the same run: a grid of block sizes and depths first, then its best point in
turn with the daemon, which has the profile that k3-store bench writes. Disks of shared machines wander, so only the medians of the ratios mean something.

    bench/devices.py MODEL --build DIR [--rounds N] [--only NAME,...] [--scratch DIR --scratch2 DIR]

MODEL: with experts of the released size and more of them than memory caches, e.g. a slice by k3-store
synth. The two scratch directories lie on different file systems; the small model of the last checks is
made there.
"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from built import PROGRAMS, add_build

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "harness"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "daemon"))
from view import View

IN_FLIGHT = 16
TURN_BYTES = 1200 << 20
GRID_BYTES = 192 << 20
RATE = 150 << 20  # injected, bytes a second of each device
results = []


def say(name, values, bar, is_least=True):
    m = statistics.median(values)
    ok = m >= bar if is_least else m <= bar
    results.append(ok)
    print(f"{name:10} {m:6.3f}  bar {'>=' if is_least else '<='} {bar}  {'ok' if ok else 'MISSED'}   "
          f"({' '.join(f'{v:.3f}' for v in values)})", flush=True)


# ---- fio

def fio(files, rw, bs, depth, size):
    """10^9 bytes a second."""
    r = subprocess.run(["fio", "--name=x", "--filename=" + ":".join(files), "--readonly", "--direct=1", "--ioengine=io_uring",
                        "--fixedbufs=1", "--registerfiles=1", f"--rw={rw}", f"--bs={bs}k", f"--iodepth={depth}",
                        f"--io_size={size}", "--randrepeat=0", "--norandommap", "--output-format=json"],
                       capture_output=True, text=True, check=True)
    return json.loads(r.stdout[r.stdout.index("{"):])["jobs"][0]["read"]["bw_bytes"] / 1e9


def best_point(files, rw):
    points = [(fio(files, rw, bs, depth, GRID_BYTES), bs, depth) for bs in (256, 512, 1024, 2048) for depth in (8, 16, 32)]
    best = max(points)
    print(f"  fio {rw}: best of {len(points)} points {best[0]:.2f} GB/s with {best[1]} KiB, depth {best[2]}", flush=True)
    return best[1:]


# ---- the daemon

class Iod:
    def __init__(self, build, models, *args, fault=None):
        self.dir = tempfile.mkdtemp(prefix="k3-bench-devices-")
        self.socket = os.path.join(self.dir, "s")
        argv = [os.path.join(build, "iod", "k3-iod"), "--socket", self.socket, *args]
        for m in models:
            argv += ["--model", m]
        env = dict(os.environ, K3_IOD_FAULT=fault) if fault else None
        self.log = open(os.path.join(self.dir, "log"), "w+")
        self.process = subprocess.Popen(argv, env=env, stderr=self.log)
        self.wait_for("serving")
        # Memory that is still being had costs the daemon's time beside the reads, once in its life.
        if "still to be had" in self.text():
            self.wait_for("of the slab are resident")
        while not os.path.exists(self.socket):
            time.sleep(0.01)

    def text(self):
        with open(self.log.name) as f:
            return f.read()

    def wait_for(self, words):
        while words not in self.text():
            if self.process.poll() is not None:
                raise SystemExit(self.text())
            time.sleep(0.05)

    def __enter__(self):
        self.view = View(self.socket)
        return self

    def __exit__(self, *_):
        self.view.close()
        self.process.terminate()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.dir)

    def cpu(self):
        f = open(f"/proc/{self.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")


def experts_of(view, model):
    config = json.load(open(os.path.join(model, "config.json")))["text_config"]
    layers = range(config["first_k_dense_replace"], view.n_layers)
    return [(layer, e) for layer in layers for e in range(view.n_experts)]


def read_experts(iod, order, size):
    """Ask for experts in this order, IN_FLIGHT at a time, until so many bytes have come; (GB/s, bytes)."""
    v, start, done, n = iod.view, time.monotonic(), 0, 0
    todo = iter(order)
    for _ in range(IN_FLIGHT):
        layer, e = next(todo)
        v.ask(layer, [e])
        n += 1
    while n:
        ready = v.expert_ready()
        n -= 1
        done += ready[7]
        v.expert_done(ready)
        following = next(todo, None) if done < size else None
        if following:
            v.ask(following[0], [following[1]])
            n += 1
    return done / (time.monotonic() - start) / 1e9, done


def read_trunk(iod):
    """One sweep, a byte of each page touched."""
    v, start, touched = iod.view, time.monotonic(), [0]

    def touch(tile, offset, _):
        size = v.tiles[tile]["slab_size"]
        touched[0] += len(v.slab[offset:offset + size:4096]) * 4096

    v.sweep()
    v.walk(range(v.n_tiles), touch)
    return touched[0] / (time.monotonic() - start) / 1e9, touched[0]


# ---- checks

def tuned(a):
    """As k3-store bench finds best for this disk, once: what fio's grid is for fio."""
    if not hasattr(a, "profile"):
        a.profile = os.path.join(tempfile.gettempdir(), f"k3-bench-devices-profile-{os.getpid()}")
        subprocess.run([a.store, "bench", a.model, "--write-profile", a.profile, "--seconds", "10", "--quiet"], check=True,
                       stdout=subprocess.DEVNULL)
        with open(a.profile) as f:
            print("  " + "; ".join(line.strip() for line in f if line.strip() and line[0] != "#"), flush=True)
    return ["--profile", a.profile]


def against_fio(name, a, files, rw, turn, *args):
    point = best_point(files, rw)
    ratios, cpus = [], []
    with Iod(a.build, [a.model], "--trunk-gb", "0", *tuned(a), *args) as iod:
        for _ in range(a.rounds):
            cpu = iod.cpu()
            rate, size = turn(iod)
            cpus.append((iod.cpu() - cpu) / (size / 1e9))
            ratios.append(rate / fio(files, rw, *point, size))
            print(f"  {name}: {rate:.2f} GB/s, {cpus[-1]:.3f} core-seconds/GB", flush=True)
    say(name, ratios, 0.97)
    say(name[:5] + " cpu", cpus, 0.05, is_least=False)


def big_files(model):
    paths = [os.path.join(model, f) for f in sorted(os.listdir(model)) if f.endswith(".safetensors")]
    return [p for p in paths if os.path.getsize(p) > 64 << 20]


def experts(a):
    rng = random.Random(1)
    order = []

    def turn(iod):
        # Each is asked for again only after all others: a cache of a few slots never has it.
        all_of_them = experts_of(iod.view, a.model)
        if not order:
            order.extend(rng.sample(all_of_them, len(all_of_them)))
        n = min(len(order), TURN_BYTES // iod.view.expert_size)
        mine, order[:n] = order[:n], []
        return read_experts(iod, mine, TURN_BYTES)

    against_fio("experts", a, big_files(a.model), "randread", turn, "--cache-gb", "0.6", "--policy", "lru")


def trunk(a):
    against_fio("trunk", a, big_files(a.model), "read", read_trunk, "--cache-gb", "0")


def small_model(a):
    """Shards of one model: all in one directory, and alternately in two on different devices."""
    one, first, second = (os.path.join(d, "k3-bench-devices-" + n) for d, n in
                          ((a.scratch, "one"), (a.scratch, "first"), (a.scratch2, "second")))
    for d in (one, first, second):
        shutil.rmtree(d, ignore_errors=True)
    subprocess.run([a.store, "synth", one, "--layers", "7", "--hidden", "1024", "--experts", "64", "--expert", "512",
                    "--latent", "1024", "--dense", "4096", "--vocab", "4096"], check=True, stderr=subprocess.DEVNULL)
    os.mkdir(first)
    os.mkdir(second)
    for i, f in enumerate(sorted(os.listdir(one))):
        if f.endswith(".safetensors"):
            shutil.copy(os.path.join(one, f), first if i % 2 else second)
        else:
            shutil.copy(os.path.join(one, f), first)
    if os.stat(first).st_dev == os.stat(second).st_dev:
        raise SystemExit("--scratch and --scratch2 are on one device")
    return one, first, second


def alternately(order, first, index):
    """As many experts of each device as the device with fewer has, in turn: what is compared is two devices at
    work with one, not how evenly a model was spread or how a shuffle falls."""
    where = {}
    for name, shard in json.load(open(index))["weight_map"].items():
        if ".experts." in name and ".layers." in name:
            where[int(name.split(".layers.")[1].split(".")[0])] = os.path.exists(os.path.join(first, shard))
    halves = [[e for e in order if where[e[0]] is here] for here in (True, False)]
    return [e for pair in zip(*halves) for e in pair]


def one_and_two(a, name, models, arguments, turn):
    """The rate of a turn with two devices to that with one, each of the injected rate: models and arguments of both."""
    ratios = []
    for r in range(a.rounds):
        rates = []
        for dirs, args in zip(models, arguments):
            with Iod(a.build, dirs, "--trunk-gb", "0", *args, fault=f"slow={RATE}") as iod:
                rates.append(turn(iod, r)[0])
        ratios.append(rates[1] / rates[0])
        print(f"  one {rates[0]:.3f} GB/s, two {rates[1]:.3f} GB/s", flush=True)
    say(name, ratios, 1.9)


def two_disks(a, one, first, second):
    """Half of the experts of every turn lie on each device."""
    def turn(iod, r):
        order = experts_of(iod.view, one)
        random.Random(r).shuffle(order)
        return read_experts(iod, alternately(order, first, os.path.join(one, "model.safetensors.index.json")), 1 << 40)

    one_and_two(a, "two disks", ([one], [first, second]), [["--cache-gb", "0.03"]] * 2, turn)


def striped(a, one, first, second):
    """Half of the tiles of a sweep lie on each device."""
    sets = [[os.path.join(one, "trunk")], [os.path.join(d, "trunk") for d in (first, second)]]
    for outs in sets:
        subprocess.run([a.store, "pack", one, *outs, "--tile", "1M", "--no-sums", "--quiet"], check=True)
    arguments = [["--cache-gb", "0"] + [w for o in outs for w in ("--trunk", o)] for outs in sets]
    one_and_two(a, "striped", ([one], [one]), arguments, lambda iod, _: read_trunk(iod))


def on_two(a, check):
    """A check over the small model, which is made for it."""
    dirs = small_model(a)
    try:
        check(a, *dirs)
    finally:
        for d in dirs:
            shutil.rmtree(d, ignore_errors=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    add_build(p, *PROGRAMS, "iod/store/k3-store")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--only", default="experts,trunk,two_disks,striped")
    p.add_argument("--scratch", default="/var/tmp")
    p.add_argument("--scratch2", default="/dev/shm")
    a = p.parse_args()
    a.store = os.path.join(a.build, "iod", "store", "k3-store")
    for name in a.only.split(","):
        {"experts": experts, "trunk": trunk, "two_disks": lambda a: on_two(a, two_disks),
         "striped": lambda a: on_two(a, striped)}[name](a)
    if hasattr(a, "profile"):
        os.unlink(a.profile)
    sys.exit(0 if all(results) else 1)


main()
