"""A daemon that keeps a model, or its trunk alone, in memory, and runs of k3 on it: what bench/step.py and
bench/experts.py share."""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

STARTED_BY = 300  # seconds: 100 GB are made and read in that time


def medians(rows):
    """Key by key, of dicts with the same keys."""
    rows = list(rows)
    return {k: statistics.median(r[k] for r in rows) for k in rows[0]}


class Daemon:
    """k3-iod over a model; with: ends it. cache_gb: 1000 is all experts, 0 the least that works."""

    def __init__(self, build, model, cache_gb="1000", environment=None):
        self.build = build
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "socket")
        self.log = open(os.path.join(self.folder.name, "log"), "w+")
        self.iod = subprocess.Popen([f"{build}/iod/k3-iod", "--model", model, "--socket", self.path, "--trunk-gb", "1000",
                                     "--cache-gb", str(cache_gb)], stderr=self.log,
                                    env=dict(os.environ, **(environment or {})))
        end = time.monotonic() + STARTED_BY
        while not os.path.exists(self.path):
            if self.iod.poll() is not None or time.monotonic() > end:
                self.close()
                sys.exit(f"the daemon does not start: {self.said()}")
            time.sleep(0.05)

    def said(self):
        self.log.seek(0)
        return self.log.read()[-2000:]

    def run(self, *more):
        """One k3 run: (run.json, its timeline's events)."""
        out, line = (os.path.join(self.folder.name, n) for n in ("run.json", "timeline.json"))
        command = [f"{self.build}/compute/k3", "run", "--socket", self.path, "--out", out, "--timeline", line, *map(str, more)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\nexit {done.returncode}: {done.stderr[-2000:]}")
        return json.load(open(out)), json.load(open(line))

    def close(self):
        self.iod.terminate()
        self.iod.wait()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()
        self.log.close()
        self.folder.cleanup()


def spans_of_k3(events):
    pid = next(e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == "k3")
    return sorted((e for e in events if e["ph"] == "X" and e["pid"] == pid), key=lambda e: e["ts"])


def inside(spans, begin, end):
    return [e for e in spans if begin <= e["ts"] and e["ts"] + e["dur"] <= end + 0.001]


def seconds_of(spans, *names):
    return sum(e["dur"] for e in spans if e["name"] in names) / 1e6


def steps_of(spans):
    """(seconds, what lies in it) of each step; of a prompt in chunks, of each chunk: one begins with its embedding."""
    for step in (e for e in spans if e["name"] == "step"):
        within = inside(spans, step["ts"], step["ts"] + step["dur"])
        begins = [e["ts"] for e in within if e["name"] == "embedding"] or [step["ts"]]
        begins[0] = step["ts"]
        for begin, end in zip(begins, begins[1:] + [step["ts"] + step["dur"]]):
            yield (end - begin) / 1e6, inside(within, begin, end)


def ids(n):
    return ",".join(str(3 + 37 * i % 2000) for i in range(n))
