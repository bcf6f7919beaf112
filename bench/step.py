#!/usr/bin/env python3
"""A step with everything resident against what this machine can do, and where its time goes.

Decoding: a step touches every byte of the trunk and of the experts it routes to, once; it cannot be
faster than a plain read of them. Prints seconds a token / (bytes touched / memory-read rate), the
rate measured before and after with as many threads on the same memory pages: 1.0 is the machine.

Prefill: a chunk of --prompt rows does rows x MACs of a token; prints that rate as a share of the FMA
peak of as many threads.

By operation, from the timeline of the decode steps: tiles (products with weights of the trunk, the
head and the latent attention), experts, waiting, and what is none of these.

    bench/step.py MODEL --build DIR [--threads N] [--gen N] [--prompt N] [--json FILE] [--svg FILE]
"""
import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile

import plot
from overlap import busy_share

N_CHUNKS = 3  # of the prompt
EXPERT_MARK = ".block_sparse_moe.experts."


def headers(model):
    for name in sorted(os.listdir(model)):
        if name.endswith(".safetensors"):
            with open(os.path.join(model, name), "rb") as f:
                size = struct.unpack("<Q", f.read(8))[0]
                yield from json.loads(f.read(size)).items()


def work_of_token(model):
    """(bytes, MACs): trunk and head once, top_k experts in each layer that has any; of the embedding a row."""
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
    top_k = config.get("num_experts_per_token", config.get("num_experts_per_tok"))
    return trunk + top_k * expert * len(layers), macs + top_k * expert_macs * len(layers)


def memory_rate(build, threads):
    out = subprocess.run([f"{build}/bench/bench_memory", str(threads)], check=True,
                         capture_output=True, text=True).stdout.split()
    return dict(zip(out[::2], map(float, out[1::2])))


def fma_peak(build, threads):
    """MACs a second of all threads together."""
    out = subprocess.run([f"{build}/bench/bench_kernels", "--peak", "--rounds", "15", "--threads", str(threads)],
                         check=True, capture_output=True, text=True).stdout
    return float(out.split("FMA peak")[1].split()[0]) * 1e9


def run_k3(build, model, arguments):
    with tempfile.TemporaryDirectory() as d:
        out, line = os.path.join(d, "run.json"), os.path.join(d, "timeline.json")
        command = [f"{build}/compute/k3", "run", model, "--out", out, "--timeline", line] + arguments
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\nexit {done.returncode}: {done.stderr[-2000:]}")
        return json.load(open(out)), json.load(open(line))


def k3_spans(events):
    pid = next(e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == "k3")
    return [e for e in events if e["ph"] == "X" and e["pid"] == pid]


def inside(spans, begin, end):
    return [e for e in spans if begin <= e["ts"] and e["ts"] + e["dur"] <= end + 0.001]


def last_chunk(events, rows):
    """Of the last chunk of the prompt, from its embedding to the end of the step: seconds a row, share of waiting."""
    spans = k3_spans(events)
    step = next(e for e in spans if e["name"] == "step")
    begin = max(e["ts"] for e in inside(spans, step["ts"], step["ts"] + step["dur"]) if e["name"] == "embedding")
    us = step["ts"] + step["dur"] - begin
    waits = sum(e["dur"] for e in inside(spans, begin, begin + us) if e["name"].startswith("wait"))
    return us / 1e6 / rows, waits / us


def by_operation(events, wanted):
    """Seconds of the median step of each kind of span, over the steps with these numbers."""
    spans = k3_spans(events)
    steps = [e for e in spans if e["name"] == "step" and e["args"]["step"] in wanted]
    parts = {"tile": "tiles", "expert": "experts"}
    seconds = {name: [] for name in ("tiles", "experts", "waiting", "other", "step")}
    for s in steps:
        sums = dict.fromkeys(("tiles", "experts", "waiting"), 0)
        for e in inside(spans, s["ts"], s["ts"] + s["dur"]):
            part = parts.get(e["name"]) or ("waiting" if e["name"].startswith("wait") else None)
            if part:
                sums[part] += e["dur"]
        for part, us in sums.items():
            seconds[part].append(us / 1e6)
        seconds["step"].append(s["dur"] / 1e6)
        seconds["other"].append((s["dur"] - sum(sums.values())) / 1e6)
    return {name: statistics.median(v) for name, v in seconds.items()}


def measure(a):
    touched, macs = work_of_token(a.model)
    common = ["--threads", str(a.threads), "--trunk-gb", "1000", "--cache-gb", "1000"] + (["--isa", a.isa] if a.isa else [])
    result = {"busy": busy_share(), "bytes_a_token": touched, "macs_a_token": macs, "threads": a.threads}
    before, peak = memory_rate(a.build, a.threads), fma_peak(a.build, a.threads)
    # The first chunks bring (nearly) all experts in, the last is measured, then tokens one by one.
    prompt = ",".join(str(3 + 37 * i % 2000) for i in range(N_CHUNKS * a.prompt))
    report, events = run_k3(a.build, a.model, ["--ids", prompt, "--prefill-rows", str(a.prompt), "--gen", str(a.gen)] + common)
    after = memory_rate(a.build, a.threads)
    result["memory_read"] = {k: (before[k] + after[k]) / 2 for k in before}
    result["fma_peak"] = (peak + fma_peak(a.build, a.threads)) / 2
    result["kernels"] = report["kernels"]
    decode = [i for i, s in enumerate(report["steps"]) if i > 0 and s["trunk_bytes_read"] == 0 and s["expert_bytes_read"] == 0]
    if len(decode) < 3:
        sys.exit(f"only {len(decode)} decode steps read nothing: the model is not resident")
    result["decode"] = sorted(report["steps"][i]["seconds"] for i in decode)
    result["decode_seconds"] = statistics.median(result["decode"])
    result["decode_of_roofline"] = {k: touched / r / result["decode_seconds"] for k, r in result["memory_read"].items()}
    result["prefill_seconds_a_token"], result["prefill_waiting"] = last_chunk(events, a.prompt)
    result["prefill_of_fma_peak"] = macs / result["prefill_seconds_a_token"] / result["fma_peak"]
    result["operations"] = by_operation(events, set(decode))
    return result


def show(r):
    print(f"busy with other work    {r['busy']:.2f} of the processors")
    print(f"a token                 {r['bytes_a_token']} bytes, {r['macs_a_token'] / 1e9:.2f} GMAC")
    print(f"kernels                 {', '.join(r['kernels'])}; {r['threads']} threads")
    print(f"decode                  {r['decode_seconds']:.4f} s a token (median of {len(r['decode'])}, "
          f"{r['decode'][0]:.4f} to {r['decode'][-1]:.4f})")
    for pages, rate in r["memory_read"].items():
        print(f"  memory read, {pages + ' pages':12s} {rate / 1e9:.2f} GB/s: {r['bytes_a_token'] / rate:.4f} s, "
              f"decode runs at {r['decode_of_roofline'][pages]:.2f} of it")
    print(f"prefill                 {r['prefill_seconds_a_token']:.4f} s a token, "
          f"{r['prefill_of_fma_peak']:.2f} of the FMA peak, {r['fma_peak'] / 1e9:.1f} GMAC/s; "
          f"{100 * r['prefill_waiting']:.1f} % of it waiting")
    whole = r["operations"]["step"]
    for name in ("tiles", "experts", "waiting", "other"):
        print(f"  {name:21s} {r['operations'][name]:.4f} s, {100 * r['operations'][name] / whole:.1f} % of a decode step")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("model")
    p.add_argument("--build", required=True, help="meson's build directory")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--gen", type=int, default=12)
    p.add_argument("--prompt", type=int, default=128, help="rows of a prompt chunk")
    p.add_argument("--isa", default=None)
    p.add_argument("--json", help="write the same there")
    p.add_argument("--svg", help="draw the operations there")
    a = p.parse_args()
    result = measure(a)
    show(result)
    if a.json:
        json.dump(result, open(a.json, "w"), indent=1)
    if a.svg:
        ops = result["operations"]
        plot.write_bars(a.svg, f"a decode step, {result['threads']} threads", "seconds",
                        [(n, ops[n]) for n in ("tiles", "experts", "waiting", "other")]
                        + [("a plain read", result["bytes_a_token"] / result["memory_read"]["huge"])])


if __name__ == "__main__":
    main()
