#!/usr/bin/env python3
"""Trunk against cache: seconds a token when one budget is split in different ways.

    bench/split.py MODEL --build DIR --total 32 [--points 6] [--over trunk-cache-split.tsv]
"""
import k3bench


def main():
    p = k3bench.options(__doc__)
    p.add_argument("--total", type=float, required=True, help="trunk and cache together, in 10^9 bytes")
    p.add_argument("--points", type=int, default=6)
    a = p.parse_args()
    rows = []
    for i in range(a.points):
        trunk = a.total * (0.1 + 0.85 * i / max(1, a.points - 1))
        if not k3bench.plan(a, "--trunk-gb", trunk, "--cache-gb", a.total - trunk, "--disk-rate", "3", "--memory-rate", "20",
                            )["memory"]["fits"]:
            print(f"{trunk:.3f} + {a.total - trunk:.3f} GB: does not fit")
            continue
        report = k3bench.run(a, "--trunk-gb", trunk, "--cache-gb", a.total - trunk)
        rows.append({"total_gb": a.total, "trunk_gb": f"{trunk:.3f}", "cache_gb": f"{a.total - trunk:.3f}",
                     **k3bench.figures(report)})
        print("  ".join(f"{k} {v}" for k, v in rows[-1].items() if k != "ids"), flush=True)
    k3bench.finish(a, "split", list(rows[0]), rows, f"{a.total:g} GB split between trunk and cache", "trunk_gb", "of it trunk, GB")


if __name__ == "__main__":
    main()
