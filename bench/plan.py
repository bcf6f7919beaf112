#!/usr/bin/env python3
"""Does k3 plan say what k3 run then takes? Memory over budgets, seconds at a disk rate that is held.

    bench/plan.py MODEL --build DIR [--trunk-gbs 0,1,2] [--cache-gbs 0,0.5] [--rate BYTES]

For every pair of budgets: planned memory against the peaks of both processes; with --rate (root,
cgroup v1), planned against measured seconds a token. The memory rate of the plan is measured before.
"""
import itertools

import k3bench


def main():
    p = k3bench.options(__doc__, gen=3)
    p.add_argument("--trunk-gbs", default="0,0.6,1.2,1.8")
    p.add_argument("--cache-gbs", default="0,0.2,0.5")
    a = p.parse_args()
    rows = []
    n_ids = len(a.ids.split(","))
    for trunk, cache in itertools.product(a.trunk_gbs.split(","), a.cache_gbs.split(",")):
        budgets = ["--trunk-gb", trunk, "--cache-gb", cache, "--prefill-rows", n_ids]
        disk = ["--disk-rate", a.rate / 1e9 if a.rate else 3]
        planned = k3bench.plan(a, *budgets, *disk, "--context", n_ids + a.gen - 1)
        report = k3bench.run(a, *budgets)
        got = k3bench.figures(report)
        memory = report["memory"]["client_peak_rss_bytes"] + report["memory"]["daemon_peak_rss_bytes"]
        total = planned["memory"]["total"]
        row = {"trunk_gb": trunk, "cache_gb": cache, "planned_gb": f"{total / 1e9:.4f}", "peak_gb": f"{memory / 1e9:.4f}",
               "memory_off_mb": f"{(memory - total) / 1e6:.1f}", "memory_off_pct": f"{100 * (memory - total) / total:.2f}"}
        if a.rate:
            seconds = planned["step"]["seconds"]
            row.update({"planned_s": f"{seconds:.3f}", "s_per_tok": got["s_per_tok"],
                        "seconds_off_pct": f"{100 * (float(got['s_per_tok']) - seconds) / seconds:.1f}",
                        "planned_hit_pct": f"{100 * planned['step']['hit_rate']:.1f}", "hit_pct": got["hit_pct"],
                        "planned_gb_read": f"{(planned['step']['trunk_bytes_read'] + planned['step']['expert_bytes_read']) / 1e9:.3f}",
                        "gb_read": got["gb_read"]})
        rows.append(row)
        print("  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    worst = max(rows, key=lambda r: abs(float(r["memory_off_pct"])))
    print(f"memory off by at most {worst['memory_off_pct']} % ({worst['memory_off_mb']} MB)")
    if a.rate:
        print(f"seconds off by at most {max((r['seconds_off_pct'] for r in rows), key=lambda x: abs(float(x)))} %")
    k3bench.plot.write_tsv((a.out or "plan") + ".tsv", list(rows[0]), rows)


if __name__ == "__main__":
    main()
