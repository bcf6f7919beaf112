"""k3 run --timeline: a JSON array that says where a step's time went, and what was read."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import DEMO, Daemon, check, check_equal

IDS = [5, 77, 300, 41]


def read(path):
    """Events by process name: {"k3": [...], "k3-iod": [...]}; every one well formed."""
    events = json.load(open(path))
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    out = {n: [] for n in names.values()}
    for e in events:
        if e["ph"] == "X":
            check(e["dur"] >= 0 and e["ts"] > 0, f"a span with odd times: {e}")
        if e["ph"] != "M":
            out[names[e["pid"]]].append(e)
    return out


def end(e):
    return e["ts"] + e["dur"]


def named(events, name):
    return [e for e in events if e["name"] == name]


def bytes_of(events, *names):
    return sum(e["args"]["bytes"] for n in names for e in named(events, n))


def check_nesting(events):
    """Two spans of a track are apart, or one lies within the other."""
    tracks = {}
    for e in events:
        if e["ph"] == "X":
            tracks.setdefault(e["tid"], []).append(e)
    for spans in tracks.values():
        stack = []
        for e in sorted(spans, key=lambda e: (e["ts"], -e["dur"])):
            while stack and end(stack[-1]) <= e["ts"] + 0.0005:
                stack.pop()
            check(not stack or end(e) <= end(stack[-1]) + 0.0005, f"{e} crosses {stack[-1] if stack else None}")
            stack.append(e)


def covered(outer, spans):
    """Share of a span's time that others cover."""
    at, total = outer["ts"], 0
    for e in sorted(spans, key=lambda e: e["ts"]):
        if e["ts"] < outer["ts"] or end(e) > end(outer) + 0.0005 or end(e) <= at:
            continue
        total += end(e) - max(at, e["ts"])
        at = end(e)
    return total / outer["dur"]


def one_run(case):
    path = case.path("timeline.json")
    r = case.k3(DEMO, "--timeline", path, "--trunk-gb", "0", "--cache-gb", "0", ids=IDS, gen=4)
    plain = case.k3(DEMO, "--trunk-gb", "0", "--cache-gb", "0", ids=IDS, gen=4)
    check_equal(r.run["logits_digest"], plain.run["logits_digest"], "digest with a timeline")
    both = read(path)
    check_equal(sorted(both), ["k3", "k3-iod"], "processes")
    k3, iod = both["k3"], both["k3-iod"]
    check_nesting(k3)
    check_nesting(iod)

    steps = named(k3, "step")
    check_equal(len(steps), 4, "spans of steps")
    config = json.load(open(os.path.join(DEMO, "config.json")))
    config = config.get("text_config", config)
    n_layers, n_dense = config["num_hidden_layers"], config["first_k_dense_replace"]
    parts = [e for n in ("embedding", "layer", "head", "sampling") for e in named(k3, n)]
    for step, report in zip(steps, r.run["steps"]):
        inside = [e for e in named(k3, "layer") if step["ts"] <= e["ts"] and end(e) <= end(step)]
        check_equal([e["args"]["layer"] for e in inside], list(range(n_layers)), "layers of a step")
        check(covered(step, parts) >= 0.95, f"only {covered(step, parts):.3f} of a step is covered")
        check(step["dur"] <= report["seconds"] * 1e6 + 1, "the span of a step is longer than the step")
        check(step["dur"] >= 0.95 * report["seconds"] * 1e6, "the span of a step is shorter than 0.95 of it")
    check_equal(len(named(k3, "attention")), 4 * n_layers, "spans of attention")
    check_equal(len(named(k3, "router")), 4 * (n_layers - n_dense), "spans of routers")
    waits = sum(e["dur"] for e in k3 if e["name"].startswith("wait for"))
    counted = sum(s["wait_seconds"] for s in r.run["steps"]) * 1e6
    check(0.9 * counted <= waits, f"spans of waits make {waits:.0f} us, {counted:.0f} were counted")

    experts = sum(s["experts_read"] + s["experts_resident"] for s in r.run["steps"])
    check_equal(len(named(k3, "expert")), experts, "spans of experts")
    total = {k: sum(s[k] for s in r.run["steps"]) for k in ("trunk_bytes_read", "expert_bytes_read")}
    check_equal(bytes_of(iod, "trunk read"), total["trunk_bytes_read"], "bytes of tiles")
    # Embedding rows are demanded too, and no part of a step's report: a page or two each.
    rows = len(IDS) + 3
    rest = bytes_of(iod, "demanded read") - total["expert_bytes_read"]
    check(rows * 4096 <= rest <= rows * 8192, f"{rest} bytes beside the experts, for {rows} rows")
    ring = [e["args"]["bytes"] for e in named(iod, "ring")]
    check(ring and 0 < max(ring) <= r.run["memory"]["plan"]["daemon_tile_ring"], f"the ring held up to {max(ring)} bytes")
    # One clock: what was read in the last step was read after the first had begun.
    check(steps[0]["ts"] < named(iod, "demanded read")[0]["ts"] < end(steps[-1]), "the clocks differ")


def of_a_daemon(case):
    """A daemon by itself writes a file of its own; a client of it has its own spans alone."""
    path, mine = case.path("iod.json"), case.path("k3.json")
    d = Daemon(case, DEMO, "--timeline", path, "--trunk-gb", "0.0035", "--cache-gb", "0.001")
    case.k3(None, "--timeline", mine, ids=IDS, gen=2, daemon=d)
    counters = d.stats()
    check_equal(d.stop(), 0, "exit code of k3-iod")
    both = read(path)
    check_equal(list(both), ["k3-iod"], "processes in the daemon's file")
    check_equal(list(read(mine)), ["k3"], "processes in the client's file")
    reads = both["k3-iod"]
    check_equal(bytes_of(reads, "trunk read", "background read"), counters["trunk_bytes_read"], "bytes of tiles")
    check_equal(bytes_of(reads, "demanded read"), counters["expert_bytes_read"] + counters["row_bytes_read"],
                "bytes of experts and embedding rows")


def several_prompts(case):
    """--batch-file: one file for k3 and its daemon as well."""
    lines, path = case.path("in.jsonl"), case.path("timeline.json")
    with open(lines, "w") as f:
        f.writelines(json.dumps({"ids": IDS, "gen": n}) + "\n" for n in (2, 4))
    r = case.exec("k3", "run", DEMO, "--batch-file", lines, "--timeline", path)
    check_equal(r.rc, 0, f"exit code\n{r}")
    both = read(path)
    check_equal(sorted(both), ["k3", "k3-iod"], "processes")
    check(named(both["k3"], "layer"), "no layer of k3")
    check(named(both["k3-iod"], "demanded read"), "no read of the daemon")


def cannot_be_written(case):
    r = case.k3(DEMO, "--timeline", case.path("none/x.json"), ids=IDS, gen=1, expect=None)
    check(r.rc in (1, 2) and "none/x.json" in r.err, f"a timeline that cannot be written\n{r}")
    r = case.exec("k3", "run", DEMO, "--ids", "5,77", "--gen", "2", "--timeline", "/dev/full")
    check(r.rc != 0 and "cannot write /dev/full" in r.err, f"a timeline on a full disk\n{r}")


k3test.main([one_run, of_a_daemon, several_prompts, cannot_be_written])
