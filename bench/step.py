#!/usr/bin/env python3
"""Decoding with everything resident against reading the same bytes from memory.

A decode step touches every byte of the trunk and of the experts it routes to, once; it cannot be
faster than a plain read of them. Prints seconds a token / (bytes touched / memory-read rate), the
rate measured before and after with as many threads on the same memory pages: 1.0 is the machine.

    bench/step.py MODEL --build DIR [--threads N] [--gen N]
"""
import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile

from overlap import busy_share

EXPERT_MARK = ".block_sparse_moe.experts."


def headers(model):
    for name in sorted(os.listdir(model)):
        if name.endswith(".safetensors"):
            with open(os.path.join(model, name), "rb") as f:
                size = struct.unpack("<Q", f.read(8))[0]
                yield from json.loads(f.read(size)).items()


def bytes_touched(model):
    """Trunk and head once, top_k experts in each layer that has any; of the embedding a row."""
    config = json.load(open(os.path.join(model, "config.json")))
    config = config.get("text_config", config)
    trunk, expert, layers = 0, 0, set()
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
        else:
            trunk += size
    top_k = config.get("num_experts_per_token", config.get("num_experts_per_tok"))
    return trunk + top_k * expert * len(layers)


def memory_rate(build, threads):
    out = subprocess.run([f"{build}/bench/bench_memory", str(threads)], check=True,
                         capture_output=True, text=True).stdout.split()
    return dict(zip(out[::2], map(float, out[1::2])))


def run_k3(build, model, arguments):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [f"{build}/compute/k3", "run", model, "--out", out.name] + arguments
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\nexit {done.returncode}: {done.stderr[-2000:]}")
        return json.load(open(out.name))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("model")
    p.add_argument("--build", required=True, help="meson's build directory")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--gen", type=int, default=12)
    p.add_argument("--isa", default=None)
    a = p.parse_args()
    touched = bytes_touched(a.model)
    print(f"busy with other work    {busy_share():.2f} of the processors", flush=True)
    before = memory_rate(a.build, a.threads)
    # A prompt long enough to bring (nearly) all experts in.
    prompt = ",".join(str(3 + 37 * i % 2000) for i in range(64))
    report = run_k3(a.build, a.model,
                    ["--ids", prompt, "--gen", str(a.gen), "--threads", str(a.threads),
                     "--trunk-gb", "1000", "--cache-gb", "1000"]
                    + (["--isa", a.isa] if a.isa else []))
    after = memory_rate(a.build, a.threads)
    steps = [s for s in report["steps"][1:]
             if s["trunk_bytes_read"] == 0 and s["expert_bytes_read"] == 0]
    if len(steps) < 3:
        sys.exit(f"only {len(steps)} decode steps read nothing: the model is not resident")
    seconds = statistics.median(s["seconds"] for s in steps)
    print(f"bytes touched a token   {touched}")
    print(f"kernels                 {', '.join(report['kernels'])}")
    print(f"seconds a token         {seconds:.4f} (median of {len(steps)}, "
          f"{min(s['seconds'] for s in steps):.4f} to {max(s['seconds'] for s in steps):.4f})")
    for pages in ("huge", "small"):
        rate = (before[pages] + after[pages]) / 2
        print(f"memory read, {pages + ' pages':12s} {rate / 1e9:.2f} GB/s "
              f"({before[pages] / 1e9:.2f} before, {after[pages] / 1e9:.2f} after): "
              f"{touched / rate:.4f} s, ratio {seconds / (touched / rate):.2f}")


if __name__ == "__main__":
    main()
