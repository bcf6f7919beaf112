#!/usr/bin/env python3
"""A step with everything resident against what this machine can do, and where its time goes.

Decoding: a step touches every byte of the trunk and of the experts it routes to, once; it cannot be
faster than a plain read of them. Prints seconds a token, and (bytes touched / memory-read rate) as a
share of them, the rate measured in turn with the runs, with as many threads: 1.0 is the machine.

Prefill: a chunk of --prompt rows does rows x MACs of a token; prints that rate as a share of the FMA
peak of as many threads.

Of both by operation, from the timeline: tiles (products with weights of the trunk, the head and the latent
attention), experts, the heads of linear attention, waiting, and what is none of these.

--neighbour: the same decoding while a busy loop has the last of the CPUs that this process may use.

    bench/step.py MODEL --build DIR [--threads N] [--gen N] [--prompt N] [--rounds N] [--neighbour]
                  [--json FILE] [--svg FILE]
"""
import argparse
import contextlib
import json
import os
import statistics
import struct
import subprocess
import sys

sys.dont_write_bytecode = True
import plot
from built import PROGRAMS, add_build
from overlap import busy_line, busy_share
from resident import Daemon, ids, medians, spans_of_k3, steps_of

N_CHUNKS = 3  # of the prompt
N_FIRST = 2   # steps of a run that do not count: the prompt's, and one to warm up
EXPERT_MARK = ".block_sparse_moe.experts."
# What spans of the timeline are called here; all that begin with "wait" are waiting.
PARTS = {"tile": "tiles", "expert": "experts", "linear attention": "heads"}
OPERATIONS = ("tiles", "experts", "heads", "waiting", "other")


def headers(model):
    for name in sorted(os.listdir(model)):
        if name.endswith(".safetensors"):
            with open(os.path.join(model, name), "rb") as f:
                size = struct.unpack("<Q", f.read(8))[0]
                yield from json.loads(f.read(size)).items()


def work_of_token(model):
    """{"bytes", "macs"} of "tiles" and "experts": trunk and head once (of the embedding a row; the head's products are
    of the last row alone and not counted as MACs), top_k experts in each layer that has any."""
    config = json.load(open(os.path.join(model, "config.json")))
    config = config.get("text_config", config)
    trunk, expert, macs, expert_macs, layers = 0, 0, 0, 0, set()
    for name, tensor in headers(model):
        if name == "__metadata__" or "language_model" not in name:
            continue
        size = tensor["data_offsets"][1] - tensor["data_offsets"][0]
        if "embed_tokens" in name:
            trunk += size // tensor["shape"][0]
        elif EXPERT_MARK in name:
            where, rest = name.split(EXPERT_MARK)
            layers.add(where)
            if rest.startswith("0.") and len(layers) == 1:
                expert += size
                expert_macs += 2 * size if "packed" in name else 0
        else:
            trunk += size
            macs += size // 2 if len(tensor["shape"]) == 2 and "lm_head" not in name else 0
    n = config.get("num_experts_per_token", config.get("num_experts_per_tok")) * len(layers)
    return {"bytes": {"tiles": trunk, "experts": n * expert}, "macs": {"tiles": macs, "experts": n * expert_macs}}


def memory_rate(a):
    out = subprocess.run([f"{a.build}/bench/bench_memory", str(a.threads)], check=True,
                         capture_output=True, text=True).stdout.split()
    return dict(zip(out[::2], map(float, out[1::2])))


def fma_peak(a):
    """MACs a second of all threads together."""
    out = subprocess.run([f"{a.build}/bench/bench_kernels", "--peak", "--rounds", "15", "--threads", str(a.threads)],
                         check=True, capture_output=True, text=True).stdout
    return float(out.split("FMA peak")[1].split()[0]) * 1e9


@contextlib.contextmanager
def neighbour():
    """A busy loop on the last CPU that this process may use."""
    cpu = max(os.sched_getaffinity(0))
    loop = subprocess.Popen(["sh", "-c", "while :; do :; done"], preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


def operations(seconds, spans):
    """Seconds of one step by operation."""
    ret = dict.fromkeys(OPERATIONS, 0)
    for s in spans:
        part = "waiting" if s["name"].startswith("wait") else PARTS.get(s["name"])
        if part:
            ret[part] += s["dur"] / 1e6
    return {**ret, "other": seconds - sum(ret.values()), "step": seconds}


def run_decode(a, daemon):
    """Operations of each decode step of one run that read nothing."""
    report, events = daemon.run("--ids", "3,17,1999", "--gen", a.gen, *a.common)
    reads = [s["trunk_bytes_read"] + s["expert_bytes_read"] for s in report["steps"]]
    steps = [operations(*s) for s in steps_of(spans_of_k3(events))]
    return [s for s, n in zip(steps[N_FIRST:], reads[N_FIRST:]) if n == 0], report["kernels"]


def run_prefill(a, daemon):
    """Operations of each chunk of a prompt."""
    _, events = daemon.run("--ids", ids(N_CHUNKS * a.prompt), "--prefill-rows", a.prompt, "--gen", 1, *a.common)
    return [operations(*s) for s in steps_of(spans_of_k3(events))]


def measure(a):
    r = {"busy": busy_share(), "threads": a.threads, "rows": a.prompt, **work_of_token(a.model)}
    memory, peaks, decode, prefill, beside = [], [], [], [], []
    with Daemon(a.build, a.model) as daemon:
        run_prefill(a, daemon)  # brings the experts in
        for _ in range(a.rounds):
            memory.append(memory_rate(a))
            steps, r["kernels"] = run_decode(a, daemon)
            decode += steps
            if a.neighbour:
                with neighbour():
                    beside += run_decode(a, daemon)[0]
            peaks.append(fma_peak(a))
            prefill += run_prefill(a, daemon)
    memory.append(memory_rate(a))
    peaks.append(fma_peak(a))
    if len(decode) < 3:
        sys.exit(f"only {len(decode)} decode steps read nothing: the model is not resident")
    r["bytes_a_token"], r["macs_a_token"] = sum(r["bytes"].values()), sum(r["macs"].values())
    r["memory_read"], r["fma_peak"] = medians(memory), statistics.median(peaks)
    r["fma_peaks"] = sorted(peaks)
    r["decode"] = sorted(s["step"] for s in decode)
    r["decode_seconds"] = statistics.median(r["decode"])
    r["decode_of_roofline"] = {k: r["bytes_a_token"] / v / r["decode_seconds"] for k, v in r["memory_read"].items()}
    r["operations"], r["prefill_operations"] = medians(decode), medians(prefill)
    r["prefill_seconds_a_token"] = r["prefill_operations"]["step"] / a.prompt
    r["prefill_of_fma_peak"] = r["macs_a_token"] / r["prefill_seconds_a_token"] / r["fma_peak"]
    if beside:
        r["neighbour_operations"] = medians(beside)
        r["neighbour_times_slower"] = r["neighbour_operations"]["step"] / r["decode_seconds"]
    return r


def show_operations(ops, work, of_what):
    """work: operation -> its share of the machine's limit."""
    for name in OPERATIONS:
        print(f"  {name:21s} {ops[name]:.4f} s, {100 * ops[name] / ops['step']:.1f} %"
              + (f", at {work[name] / ops[name]:.2f} of {of_what}" if name in work and ops[name] else ""))


def show(r):
    print(busy_line(r["busy"]))
    print(f"a token                 {r['bytes_a_token']} bytes, {r['macs_a_token'] / 1e9:.2f} GMAC")
    print(f"kernels                 {', '.join(r['kernels'])}; {r['threads']} threads")
    print(f"decode                  {r['decode_seconds']:.4f} s a token (median of {len(r['decode'])}, "
          f"{r['decode'][0]:.4f} to {r['decode'][-1]:.4f})")
    for pages, rate in r["memory_read"].items():
        print(f"  memory read, {pages + ' pages':12s} {rate / 1e9:.2f} GB/s: {r['bytes_a_token'] / rate:.4f} s, "
              f"decode runs at {r['decode_of_roofline'][pages]:.2f} of it")
    show_operations(r["operations"], {k: v / r["memory_read"]["huge"] for k, v in r["bytes"].items()}, "that read")
    if "neighbour_times_slower" in r:
        print(f"with a neighbour        {r['neighbour_operations']['step']:.4f} s a token, "
              f"{r['neighbour_times_slower']:.2f} times slower")
    print(f"prefill                 {r['prefill_seconds_a_token']:.4f} s a token, "
          f"{r['prefill_of_fma_peak']:.2f} of the FMA peak, {r['fma_peak'] / 1e9:.1f} GMAC/s "
          f"({r['fma_peaks'][0] / 1e9:.1f} to {r['fma_peaks'][-1] / 1e9:.1f})")
    show_operations(r["prefill_operations"], {k: v * r["rows"] / r["fma_peak"] for k, v in r["macs"].items()}, "that peak")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("    bench/step.py")[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", help="a folder with config.json and shards, all of which must fit the memory")
    add_build(p, *PROGRAMS, "bench/bench_memory", "bench/bench_kernels")
    p.add_argument("--threads", type=int, default=2, help="of k3, of the read and of the FMA loops (default 2)")
    p.add_argument("--gen", type=int, default=12, help="tokens of each run that decodes (default 12)")
    p.add_argument("--prompt", type=int, default=128, help="rows of a prompt chunk (default 128)")
    p.add_argument("--rounds", type=int, default=2, help="of a run that decodes and one of a prompt (default 2)")
    p.add_argument("--isa", default=None, help="ref, avx2 or avx512 (default: the best of this CPU)")
    p.add_argument("--neighbour", action="store_true", help="decode beside a busy loop, too")
    p.add_argument("--json", help="write the figures there")
    p.add_argument("--svg", help="draw the operations there")
    a = p.parse_args()
    a.common = ["--threads", str(a.threads)] + (["--isa", a.isa] if a.isa else [])
    result = measure(a)
    show(result)
    if a.json:
        json.dump(result, open(a.json, "w"), indent=1)
    if a.svg:
        ops = result["operations"]
        plot.write_bars(a.svg, f"a decode step, {result['threads']} threads", "seconds",
                        [(n, ops[n]) for n in OPERATIONS]
                        + [("a plain read", result["bytes_a_token"] / result["memory_read"]["huge"])])


if __name__ == "__main__":
    main()
