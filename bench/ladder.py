#!/usr/bin/env python3
"""Seconds a token over total memory, each total split as --preset auto splits it.

    bench/ladder.py MODEL --build DIR [--totals 8,16,32] [--over memory-ladder.tsv]

Without --totals: those of k3 plan's ladder that fit this machine.
"""
import k3bench


def main():
    p = k3bench.options(__doc__)
    p.add_argument("--totals", help="in 10^9 bytes, separated by commas")
    a = p.parse_args()
    whole, rows = k3bench.plan(a, "--disk-rate", "3", "--memory-rate", "20"), []
    if a.totals:
        totals = [float(t) for t in a.totals.split(",")]
    else:
        totals = [r["total"] / 1e9 for r in whole["ladder"] if r["total"] <= (whole["memory"]["limit"] or 0) * 0.95]
    for total in totals:
        part = k3bench.plan(a, "--memory-gb", total, "--disk-rate", "3", "--memory-rate", "20")["memory"]
        if not part["fits"]:
            print(f"{total:.3f} GB: too small")
            continue
        report = k3bench.run(a, "--trunk-gb", part["trunk_gb"], "--cache-gb", part["cache_gb"], "--prefill-rows", part["rows"])
        rows.append({"total_gb": f"{total:.3f}", "trunk_gb": f"{part['trunk_gb']:.3f}", "cache_gb": f"{part['cache_gb']:.3f}",
                     **k3bench.figures(report)})
        print("  ".join(f"{k} {v}" for k, v in rows[-1].items() if k != "ids"), flush=True)
    k3bench.finish(a, "ladder", list(rows[0]), rows, "Seconds a token over memory", "total_gb", "memory in all, GB")


if __name__ == "__main__":
    main()
