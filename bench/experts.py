#!/usr/bin/env python3
"""Experts from the disk, the trunk in memory: does everything that can hide behind the reading hide there?

Decoding steps with the whole trunk resident and the smallest cache of experts, while the daemon holds
each device to a rate (K3_IOD_FAULT: no root needed, and no disk wanders). No step can be shorter than

    reading   the bytes of the experts that were read in it, at that rate
  + chain     what must have ended before they can be asked for, or begins when they are there:
              attention, router, the product of the layers without experts, the head

The chain is taken from the same steps, in which nothing is read meanwhile; --alone also from a run with
everything resident, which must not be shorter by more than the machine wanders. Shared experts, the
projections into the latent space and out of it and the experts' own products are not in the sum. Prints
wall / (reading + chain), the median of rounds, and what was left to do after a layer's last expert.

    bench/experts.py MODEL --build DIR [--rate BYTES] [--threads N] [--gen N] [--rounds N] [--alone]
"""
import statistics
import sys

sys.dont_write_bytecode = True
from overlap import busy_line, busy_share, options
from resident import Daemon, ids, medians, seconds_of, spans_of_k3, steps_of

N_FIRST = 2  # steps of a run that do not count: the prompt's, and one to warm up


def inside_of(spans, e):
    return [s for s in spans if e["ts"] <= s["ts"] < e["ts"] + e["dur"]]


def dense_layers(spans):
    """Seconds of the feed-forward spans without a router."""
    return sum(e["dur"] for e in spans if e["name"] == "feed-forward"
               and all(s["name"] != "router" for s in inside_of(spans, e))) / 1e6


def tail_of(spans):
    """Seconds from the last landing in each layer to the end of its feed-forward."""
    total = 0
    for e in spans:
        if e["name"] == "feed-forward":
            waits = [w["ts"] + w["dur"] for w in inside_of(spans, e) if w["name"].startswith("wait")]
            total += e["ts"] + e["dur"] - max(waits) if waits else 0
    return total / 1e6


def decode(a, daemon):
    """Of the steps of one run that count: seconds by part, and bytes read."""
    report, events = daemon.run("--ids", "3,17,1999", "--gen", a.gen, "--threads", a.threads)
    for (wall, spans), s in list(zip(steps_of(spans_of_k3(events)), report["steps"]))[N_FIRST:]:
        if s["trunk_bytes_read"]:
            sys.exit("the trunk is not resident: a step read some of it")
        chain = {"attention": seconds_of(spans, "attention"), "router": seconds_of(spans, "router"),
                 "dense": dense_layers(spans), "head": seconds_of(spans, "head")}
        yield {"wall": wall, "bytes": s["expert_bytes_read"], "tail": tail_of(spans), "waited": s["wait_seconds"],
               **chain, "chain": sum(chain.values())}


def chain_alone(a):
    with Daemon(a.build, a.model) as daemon:
        daemon.run("--ids", ids(256), "--prefill-rows", 128, "--gen", 2, "--threads", a.threads)
        return medians(decode(a, daemon))["chain"]


def measure(a, daemon):
    m = medians(decode(a, daemon))
    reading = m["bytes"] / a.rate
    ratio = m["wall"] / (reading + m["chain"])
    print(f"  wall {m['wall']:.4f} s (waited {m['waited']:.4f}, after the last expert of each layer {m['tail']:.4f}); reading "
          f"{reading:.4f} ({m['bytes'] / 1e6:.0f} MB), attention {m['attention']:.4f}, router {m['router']:.4f}, dense "
          f"{m['dense']:.4f}, head {m['head']:.4f}: {ratio:.3f}", flush=True)
    return ratio


def main():
    p = options(__doc__, 1_000_000_000, 5)
    p.add_argument("--gen", type=int, default=10)
    p.add_argument("--alone", action="store_true", help="the chain also with everything resident")
    a = p.parse_args()
    if a.rate <= 0:
        p.error("--rate: reading is reckoned at this rate, so it must be more than 0")
    print(busy_line(busy_share()), flush=True)
    if a.alone:
        print(f"chain, all resident     {chain_alone(a):.4f} s")
    with Daemon(a.build, a.model, cache_gb=0, environment={"K3_IOD_FAULT": f"slow={a.rate}"}) as daemon:
        ratios = [measure(a, daemon) for _ in range(a.rounds)]
    print(f"wall / (reading + chain)  {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
