"""What daemon and client really take, against the plan that was printed before anything was allocated."""
import json
import os
import re
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import DEMO, Daemon, check, check_equal, wait_until

MARGIN = 20_000_000


def near(got, plan, text):
    allowed = max(MARGIN, plan * 0.05)
    print(f"{text}: {got / 1e6:.1f} MB, planned {plan / 1e6:.1f} MB")
    check(abs(got - plan) <= allowed, f"{text}: {got} bytes, planned {plan}")


def plan_of(run):
    """(client, daemon beside the slab, slab) in bytes, from run.json; the slab it names must agree."""
    plan = run["memory"]["plan"]
    items = {k: v for k, v in plan.items() if k.startswith(("client_", "daemon_"))}
    check(len(items) >= 10, f"the plan has only {sorted(items)}")
    client = sum(v for k, v in items.items() if k.startswith("client_"))
    slab = sum(v for k, v in items.items() if k.startswith("daemon_") and k != "daemon_private")
    near(run["memory"]["slab_bytes"], slab, "slab")
    return client, items["daemon_private"], run["memory"]["slab_bytes"]


def private(pid):
    """Bytes that are resident for this process and not part of the slab."""
    kib = 0
    for line in open(f"/proc/{pid}/status"):
        if line.startswith(("RssAnon:", "RssFile:")):
            kib += int(line.split()[1])
    return kib * 1024


def measure(case, model, iod, ids, gen):
    """Private memory of a client that has done its prompt and of its daemon, both stopped in a step."""
    d = Daemon(case, model, *iod)
    run = case.k3(None, ids=ids, gen=gen, daemon=d).run
    before = d.stats()
    p = case.start("k3", "run", "--socket", d.socket, "--ids", ",".join(map(str, ids)), "--gen", str(gen))
    # As many experts have been served as the first run took, but for its last tokens.
    enough = before["experts_served"] * 2 - before["experts_served"] // 20
    wait_until(lambda: p.poll() is not None or d.stats()["experts_served"] >= enough, "the client to have worked", 300)
    check(p.poll() is None, "the client ended before it was measured")
    p.send_signal(signal.SIGSTOP)
    client = private(p.pid)
    daemon = private(d.pid)
    p.kill()
    p.wait()
    counted = d.stats()["private_bytes"]
    check_equal(d.stop(), 0, "exit code of k3-iod")
    return run, client, daemon, counted


def model_of(case):
    """A checkpoint large enough for five percent to mean something: 0.46 GB."""
    model = case.path("model")
    r = case.exec("k3-store", "synth", model, "--hidden", "1536", "--layers", "6", "--dense", "6144", "--experts", "32",
                  "--vocab", "8192", "--heads", "12", "--kda-heads", "12", "--kda-dim", "128", "--q-lora", "512", "--kv-lora",
                  "256", "--nope", "128", "--rope", "64", "--v", "128", "--latent", "768", "--expert", "768", "--top-k", "8",
                  "--shared", "2", "--quiet")
    check(r.rc == 0, f"k3-store synth failed\n{r}")
    return model


def against_the_plan(case):
    model = model_of(case)
    ids = [(7 * i * i + 3 * i) % 8192 for i in range(300)]
    for iod in (["--tile", "1M", "--trunk-gb", "0.07", "--cache-gb", "0.006"],
                ["--tile", "1M", "--trunk-gb", "0.3", "--cache-gb", "0.05"]):
        run, client, daemon, counted = measure(case, model, iod, ids, 24)
        plan_client, plan_daemon, slab = plan_of(run)
        near(client, plan_client, f"client with {' '.join(iod)}")
        near(daemon, plan_daemon, f"daemon beside the slab with {' '.join(iod)}")
        near(counted, plan_daemon, f"private_bytes with {' '.join(iod)}")
        near(run["memory"]["daemon_peak_rss_bytes"], plan_daemon + slab, f"peak of the daemon with {' '.join(iod)}")
        near(run["memory"]["client_peak_rss_bytes"], plan_client, f"peak of the client, beside the slab, with {' '.join(iod)}")


def embedded(case):
    """The private daemon's budget is what was asked for, and the plan is printed."""
    r = case.k3(DEMO, "--trunk-gb", "0.0035", "--cache-gb", "0.001", prompt="Thus saith the LORD", gen=8)
    check(r.run["memory"]["slab_bytes"] <= 0.0035e9 + 0.001e9 + 4e6, f"the slab takes {r.run['memory']['slab_bytes']} bytes")
    check(re.search(r"[0-9] ?[MG]B", r.err), f"no plan on standard error\n{r}")
    plan_client, plan_daemon, slab = plan_of(r.run)
    near(r.run["memory"]["client_peak_rss_bytes"], plan_client, "peak of the client, beside the slab")
    near(r.run["memory"]["daemon_peak_rss_bytes"], plan_daemon + slab, "peak of the daemon")


k3test.main([against_the_plan, embedded])
