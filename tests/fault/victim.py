"""What the fault tests break: an expert that one prompt wants and another does not, and a page of it."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "oracle"))
import k3test
import reference
import trace_file
from k3test import DEMO, check


def expert_page(path, layer, expert):
    """A page that is the expert's alone: number of the file and offset. Its other pages are read for
    its neighbours too."""
    names = sorted(f for f in os.listdir(path) if f.endswith(".safetensors"))
    for i, f in enumerate(names):
        head, base = reference.read_header(os.path.join(path, f))
        ends = [e["data_offsets"] for n, e in head.items() if f"layers.{layer}.block_sparse_moe.experts.{expert}." in n]
        if ends:
            lo, hi = min(a for a, _ in ends), max(b for _, b in ends)
            page = -(-(base + lo) // 4096) * 4096
            check(page + 4096 <= base + hi, "the expert is too small to have a page of its own")
            return i, page
    raise k3test.Failure("no such expert")


def page_of(path, tensor):
    """The first byte of the tensor whose name ends so: number of the file and offset."""
    names = sorted(f for f in os.listdir(path) if f.endswith(".safetensors"))
    for i, f in enumerate(names):
        head, base = reference.read_header(os.path.join(path, f))
        for name, e in head.items():
            if name.endswith(tensor):
                return i, base + e["data_offsets"][0]
    raise k3test.Failure(f"no tensor {tensor}")


def two_prompts(case):
    """Two prompts of the demo, and an expert that the first wants and the second does not."""
    g = json.load(open(os.path.join(DEMO, "golden.json")))["greedy"]
    config = reference.Config(os.path.join(DEMO, "config.json"))
    wanted, runs = [], []
    for i in (0, 2):
        trace = case.subdir("trace")
        runs.append(case.k3(DEMO, "--dump-cache-trace", trace, ids=g[i]["ids"], gen=4).run)
        wanted.append({(l, e) for (_, l), ids in trace_file.read(trace, config).items() for e in ids})
    only = sorted(wanted[0] - wanted[1])
    check(only, "the prompts want the same experts")
    layer, expert = next(x for x in only if x[0] >= 3)
    return runs, layer, expert
