"""What the benches over a model share: their options, running k3 and k3 plan, tables and overlays."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

import plot
from built import add_build
from overlap import Throttle

IDS = "1008,10484,318,15383,387"  # "The capital of France is", the prompt of the published figures


def options(doc, gen=4):
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    add_build(p)
    p.add_argument("--trunk", help="trunk file; without it the shards")
    p.add_argument("--layers", type=int, help="only the first N layers")
    p.add_argument("--ids", default=IDS)
    p.add_argument("--gen", type=int, default=gen, help="tokens; the first step, which also fills the memory, does not count")
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--rate", type=float, default=0, help="hold the model's disk to so many bytes a second (root, cgroup v1)")
    p.add_argument("--out", help="write NAME.tsv and NAME.svg; default: the bench's name")
    p.add_argument("--over", action="append", default=[], metavar="FILE.tsv",
                   help="lay the same columns of another table over the plot: an earlier one, or a published one")
    return p


def model_args(a):
    return [a.model] + (["--trunk", a.trunk] if a.trunk else []) + (["--layers", str(a.layers)] if a.layers else [])


def text(x):
    """An argument; k3 takes no exponents."""
    return f"{x:.9f}" if isinstance(x, float) else str(x)


def json_of(argv, accept=(0,)):
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode not in accept:
        sys.exit(f"{' '.join(argv)}\nexit {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout) if done.stdout else {"memory": {"fits": False}}


def plan(a, *args):
    """k3 plan's object; .memory.fits says whether it would run."""
    return json_of([f"{a.build}/compute/k3", "plan", *model_args(a), "--json", "--threads", str(a.threads), *map(text, args)],
                   accept=(0, 2))


def fitting_ids(a):
    """The ids, folded into a small model's vocabulary."""
    config = json.load(open(os.path.join(a.model, "config.json")))
    vocabulary = config.get("text_config", config)["vocab_size"]
    return ",".join(str(int(i) % vocabulary) for i in a.ids.split(","))


def run(a, *args):
    """One k3 run: its run.json."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        argv = [f"{a.build}/compute/k3", "run", *model_args(a), "--ids", fitting_ids(a), "--gen", str(a.gen), "--threads", str(a.threads),
                "--out", out.name, *map(text, args)]
        throttle = Throttle(a.model, int(a.rate))
        try:
            done = subprocess.run(argv, capture_output=True, text=True, preexec_fn=throttle.enter)
        finally:
            if throttle.group:
                throttle.remove()
        if done.returncode != 0:
            sys.exit(f"{' '.join(argv)}\nexit {done.returncode}: {done.stderr[-2000:]}")
        return json.load(open(out.name))


def figures(report):
    """A run in the columns of the published tables, and some more."""
    steps = report["steps"][1:] or report["steps"]
    n = len(steps)
    resident, read = sum(s["experts_resident"] for s in steps), sum(s["experts_read"] for s in steps)
    memory = report["memory"]
    return {"s_per_tok": f"{statistics.median(s['seconds'] for s in steps):.4f}",
            "slowest": f"{max(s['seconds'] for s in steps):.4f}",
            "hit_pct": f"{100 * resident / (resident + read) if resident + read else 0:.2f}",
            "gb_read": f"{sum(s['trunk_bytes_read'] + s['expert_bytes_read'] for s in steps) / n / 1e9:.3f}",
            "wait_pct": f"{100 * sum(s['wait_seconds'] for s in steps) / sum(s['seconds'] for s in steps):.1f}",
            "peak_rss_gb": f"{(memory['client_peak_rss_bytes'] + memory['daemon_peak_rss_bytes']) / 1e9:.3f}",
            "ids": ",".join(map(str, report["generated_ids"]))}


def finish(a, name, columns, rows, title, x, x_label):
    """Table and picture; every row must have given the same tokens."""
    base = a.out or name
    plot.write_tsv(base + ".tsv", columns, rows, comment=f"{title}: {a.model}, {a.gen} tokens"
                   + (f", disk held to {a.rate / 1e6:.0f} MB/s" if a.rate else ""))
    lines = [plot.series(rows, x, "s_per_tok", "k3")]
    for path in a.over:
        lines.append(plot.series(plot.read_tsv(path), x, "s_per_tok", os.path.basename(path)))
    plot.write_svg(base + ".svg", title, x_label, "seconds a token", lines)
    print(f"{base}.tsv and {base}.svg are written")
    if len({r["ids"] for r in rows}) > 1:
        sys.exit("the runs gave different tokens: that is a fault of the engine")
