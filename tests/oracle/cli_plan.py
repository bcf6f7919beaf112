"""k3 plan: figures of the released model against published ones, seconds against the documented formula,
refusals with both numbers, and a plan that is k3 run's."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import DEMO, check, check_equal

RATES = ["--disk-rate", "3.2", "--memory-rate", "20"]


def plan(case, *args, rc=0):
    r = case.exec("k3", "plan", *args, "--json")
    check_equal(r.rc, rc, f"exit code\n{r}")
    return json.loads(r.out), r


def released():
    return ["--config", k3test.data("checkpoint/config.json")] + RATES


def figures_of_the_released_model(case):
    p, _ = plan(case, *released(), "--memory-gb", "8", "--context", "2048")
    m, step = p["model"], p["step"]
    # k3-architecture.md: 93 layers 108,811,877,376 bytes on disk, of which 69 x 32 F32 pad A_log
    check_equal(m["layers_bytes"], 108_811_877_376 - 69 * 32 * 4, "bytes of the trunk's layers")
    check_equal(m["head_bytes"], 163840 * 7168 * 2 + 3 * 7168 * 2, "bytes of the head")
    check_equal(m["expert_bytes"], 17_547_264, "bytes of an expert")
    check_equal(m["experts"], 82_432, "routed experts")
    check_equal(m["experts"] * m["expert_bytes"], 1_446_456_066_048, "bytes of all experts")
    check_equal(step["expert_bytes_used"], 25_829_572_608, "bytes of experts a token")
    check_equal(m["position_bytes"], 24 * (512 + 64) * 4, "bytes of a position")
    check_equal(m["state_bytes"], 434_110_464 + 7_630_848 * 4, "bytes of state")
    for value, text in ((m["layers_bytes"], "108.8"), (m["head_bytes"], "2.3"), (step["expert_bytes_used"], "25.8")):
        check(f"{value / 1e9:.3f}".startswith(text), f"{value} is not {text} GB")
    check_equal(p["memory"]["plan"]["client_state_mla"], 2048 * 55_296, "latents of the context")
    check(p["memory"]["total"] <= 8e9, "more than the limit is planned")


def seconds_follow_from_the_rates(case):
    """experts read + max(trunk read, compute not hidden behind experts), computed here again."""
    for budget in ("2", "16", "64", "130", "400"):
        p, _ = plan(case, *released(), "--memory-gb", budget)
        s, layer = p["step"], 3 * 7168 * 6144 * 2
        pinned = p["memory"]["plan"]["daemon_pinned_tiles"]
        work = 1 / (20e9 * 0.75)
        compute = (s["layers_bytes_used"] + s["head_bytes_used"] + s["expert_bytes_used"]) * work
        experts, trunk = s["expert_bytes_read"] / 3.2e9, s["trunk_bytes_read"] / 3.2e9
        hidden = min((s["expert_bytes_used"] + 92 * layer) * work, experts)
        want = experts + max(trunk, compute - hidden)
        check(abs(s["seconds"] - want) < 1e-6 * want, f"{s['seconds']} s with {budget} GB, {want} by hand")
        check(abs(s["fill_seconds"] - pinned / 3.2e9) < 1e-6, "seconds to fill")
        check(s["trunk_bytes_read"] + pinned >= s["layers_bytes_used"] + s["head_bytes_used"], "trunk bytes are missing")


def ladder_is_monotone(case):
    p, _ = plan(case, *released(), "--memory-gb", "8")
    rows = p["ladder"]
    check(len(rows) >= 15, f"{len(rows)} rows")
    check(rows[0]["total"] <= 1e9, f"the first row takes {rows[0]['total']} bytes")
    for a, b in zip(rows, rows[1:]):
        check(b["total"] > a["total"], "totals do not grow")
        check(b["step"]["seconds"] <= a["step"]["seconds"] * 1.0001, f"more memory is slower: {a} {b}")
    last = rows[-1]["step"]
    check_equal((last["trunk_bytes_read"], last["expert_bytes_read"]), (0, 0), "bytes read with everything resident")


def batch_and_clients_multiply(case):
    one, _ = plan(case, *released(), "--memory-gb", "40")
    four, _ = plan(case, *released(), "--memory-gb", "40", "--batch", "4")
    two, _ = plan(case, *released(), "--memory-gb", "40", "--clients", "2")
    check_equal(four["memory"]["plan"]["client_state_kda"], 4 * one["memory"]["plan"]["client_state_kda"], "state of four")
    check_equal(two["memory"]["plan"]["client_state_kda"], 2 * one["memory"]["plan"]["client_state_kda"], "state of two")
    check_equal(two["memory"]["plan"]["client_scratch"], 2 * one["memory"]["plan"]["client_scratch"], "scratch of two")
    check_equal((four["step"]["tokens"], two["step"]["tokens"]), (4, 2), "tokens of a step")
    check(one["step"]["expert_bytes_read"] < four["step"]["expert_bytes_read"] < 4 * one["step"]["expert_bytes_read"],
          "experts of four rows are partly the same")
    # What both read of the trunk does not grow but by the pinned memory that their state takes.
    check(four["step"]["trunk_bytes_read"] < 1.1 * one["step"]["trunk_bytes_read"], "the trunk is read once for all")
    r = case.exec("k3", "plan", *released(), "--memory-gb", "8", "--trunk-gb", "0", "--clients", "2")
    check_equal(r.rc, 2, f"two clients on the least ring\n{r}")
    check("2 clients need" in r.err and "leaves 0.13" in r.err, f"the ring's two numbers\n{r}")


def refused_with_both_numbers(case):
    for args, words in ((["--preset", "server", "--memory-gb", "100"], ["this run would take ", "only 100.000 GB"]),
                        (["--memory-gb", "0.5"], ["GB, but only 0.500 GB", "the least"]),
                        (["--context", "2000000", "--memory-gb", "9"], ["2000000", "1048576"]),
                        (["--context", "1000000", "--memory-gb", "9", "--trunk-gb", "0", "--cache-gb", "0"],
                         ["take 56.", "only 9.000 GB"]),
                        (["--layers", "94"], ["94", "93"]), (["--memory-gb", "0"], ["--memory-gb 0"]),
                        (["--measure"], ["MODEL"])):
        r = case.exec("k3", "plan", *released(), *args)
        check_equal(r.rc, 2, f"exit code\n{r}")
        for w in words:
            check(w in r.err, f"no {w!r}\n{r}")
    r = case.exec("k3", "plan")
    check(r.rc == 2 and "--config" in r.err, f"nothing to plan for\n{r}")


def is_the_plan_of_a_run(case):
    """Item by item, but for the program's own size, which is looked up anew."""
    for args in (["--trunk-gb", "0.0035", "--cache-gb", "0.001"], ["--preset", "laptop"], []):
        run = case.k3(DEMO, *args, prompt="Thus saith the LORD", gen=8).run
        n = len(run["prompt_ids"])
        p, _ = plan(case, DEMO, *args, *RATES, "--context", str(n + 7), "--prefill-rows", str(n))
        for name, value in run["memory"]["plan"].items():
            if name.startswith("client_") and name != "client_program":
                check_equal(p["memory"]["plan"][name], value, f"{name} with {args}")
        for name in ("daemon_private", "client_program"):
            check(abs(p["memory"]["plan"][name] - run["memory"]["plan"][name]) < 4e6, f"{name}: {p} {run['memory']}")


def ring_is_that_of_a_run(case):
    """What the ring rests on stands in the plan and in the start line of the daemon, in the same words."""
    args = ["--trunk-gb", "0.004", "--cache-gb", "0", "--tile", "16384", "--disk-rate", "0.5", "--memory-rate", "2"]
    said = [f"({r.split('(the ring is for ')[1].split(')')[0]})" for r in
            (case.exec("k3", "plan", DEMO, *args, "--context", "8").out, case.exec("k3", "run", DEMO, *args, "--ids", "1", "--gen", "1").err)]
    check_equal(said[0], said[1], "the ring in k3 plan and in k3 run")
    check(said[0].startswith("(disk 0.500 GB/s x ") and "assumed" not in said[0], said[0])
    start = case.exec("k3", "run", DEMO, *args, "--ids", "1", "--gen", "1").err
    check(f"MB for {said[0][1:-1]};" in start, f"the start line says another\n{said[0]}\n{start}")


def profile_gives_the_rate(case):
    """What k3-store bench has written is the plan's disk, and sizes the ring of a daemon."""
    profile = case.path("profile")
    with open(profile, "w") as f:
        f.write(f"queue-depth = {DEMO}=8\nchunk = {DEMO}=128K\nrate = {DEMO}=1500000000\n")
    p, r = plan(case, DEMO, "--profile", profile)
    check_equal((p["disk"]["bytes_per_second"], p["disk"]["source"]), (1.5e9, "from the profile"), "disk of the plan")
    d = k3test.Daemon(case, DEMO, "--trunk-gb", "0.004", "--cache-gb", "0", "--tile", "16384", "--profile", profile)
    check("for disk 1.500 GB/s x " in d.log(), f"the daemon's ring\n{d.log()}")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def measures_the_disk(case):
    p, r = plan(case, DEMO, "--measure")
    check(p["disk"]["source"].startswith("measured") and p["disk"]["bytes_per_second"] > 1e6, f"{p['disk']}")
    check(p["memory_rate"]["source"].startswith("measured"), f"{p['memory_rate']}")
    p, r = plan(case, DEMO)
    check("assumed" in p["disk"]["source"], f"{p['disk']}")


k3test.main([figures_of_the_released_model, seconds_follow_from_the_rates, ladder_is_monotone, batch_and_clients_multiply,
             refused_with_both_numbers, is_the_plan_of_a_run, ring_is_that_of_a_run,
             profile_gives_the_rate, measures_the_disk])
