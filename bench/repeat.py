#!/usr/bin/env python3
"""The noise floor: the same run again and again. Prints mean, standard deviation and spread.

    bench/repeat.py MODEL --build DIR [--runs 5] [--trunk-gb X] [--cache-gb X] [--over replication.tsv]
"""
import statistics

import k3bench


def main():
    p = k3bench.options(__doc__)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--trunk-gb", default="0")
    p.add_argument("--cache-gb", default="0")
    a = p.parse_args()
    rows = []
    for i in range(a.runs):
        report = k3bench.run(a, "--trunk-gb", a.trunk_gb, "--cache-gb", a.cache_gb)
        rows.append({"run": i + 1, **k3bench.figures(report)})
        print("  ".join(f"{k} {v}" for k, v in rows[-1].items() if k != "ids"), flush=True)
    times = [float(r["s_per_tok"]) for r in rows]
    mean = statistics.mean(times)
    print(f"mean {mean:.4f} s, standard deviation {statistics.stdev(times) if len(times) > 1 else 0:.4f}, "
          f"spread {100 * (max(times) - min(times)) / mean:.1f} % of the mean")
    k3bench.finish(a, "repeat", list(rows[0]), rows, f"The same run {a.runs} times", "run", "run")


if __name__ == "__main__":
    main()
