"""The command line of k3 run as design section 7 promises it: options, outputs, exit codes, run.json."""
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import DEMO, Daemon, check, check_equal

GOLDEN = json.load(open(os.path.join(DEMO, "golden.json")))
FIRST = GOLDEN["greedy"][0]
FIELDS = {"prompt_ids", "generated_ids", "text", "logits_digest", "steps", "summary", "memory", "kernels", "backend", "exit_code"}
STEP = {"seconds", "wait_seconds", "trunk_bytes_read", "expert_bytes_read", "experts_resident", "experts_read"}
MEMORY = {"slab_bytes", "client_peak_rss_bytes", "daemon_peak_rss_bytes", "prefill_rows", "plan"}


def refused(case, args, *words):
    r = case.exec("k3", *args)
    check_equal(r.rc, 2, f"exit code of k3 {' '.join(args)}\n{r}")
    check_equal(r.out, "", "standard output of a refusal")
    for w in words:
        check(w in r.err, f"no {w!r} in the sentence\n{r}")


def report_fields(case):
    r = case.k3(DEMO, prompt=FIRST["prompt"], gen=3)
    check_equal(set(r.run), FIELDS, "fields of run.json")
    check_equal(len(r.run["steps"]), 3, "steps")
    for s in r.run["steps"]:
        check_equal(set(s), STEP, "fields of a step")
        check(s["seconds"] > 0 and 0 <= s["wait_seconds"] <= s["seconds"] * 1.01, f"times of a step {s}")
    check_equal(set(r.run["memory"]), MEMORY, "fields of memory")
    plan = r.run["memory"]["plan"]
    check(all(k.startswith(("client_", "daemon_")) and v >= 0 for k, v in plan.items()), f"items of the plan {plan}")
    check_equal(len(r.run["logits_digest"]), 32, "hex digits of the digest")
    check(r.run["kernels"] and all(isinstance(k, str) for k in r.run["kernels"]), "kernels are not named")
    check(r.run["backend"], "the back end is not named")


def summary_adds_up(case):
    """run.json's summary against its own steps, computed here; and the same figures on standard error."""
    r = case.k3(DEMO, "--trunk-gb", "0.0035", "--cache-gb", "0.001", prompt=FIRST["prompt"], gen=6)
    s, steps = r.run["summary"], r.run["steps"]
    decode = steps[1:]
    resident, read = sum(t["experts_resident"] for t in decode), sum(t["experts_read"] for t in decode)
    for name, want in (("seconds_per_token", sum(t["seconds"] for t in decode) / 5), ("first_seconds", steps[0]["seconds"]),
                       ("resident_hit_rate", resident / (resident + read)),
                       ("wait_share", sum(t["wait_seconds"] for t in decode) / sum(t["seconds"] for t in decode)),
                       ("trunk_bytes_read", sum(t["trunk_bytes_read"] for t in steps)),
                       ("expert_bytes_read", sum(t["expert_bytes_read"] for t in steps))):
        check(abs(s[name] - want) <= 1e-6 * max(1e-3, abs(want)), f"{name}: {s[name]}, {want} by the steps")
    check(s["row_bytes_read"] > 0 and s["advice"], f"rows and advice: {s}")
    for text in (f"true resident hit rate {100 * s['resident_hit_rate']:.1f} %", "of the time waiting", "peaks: k3 ", s["advice"]):
        check(text in r.err, f"no {text!r}\n{r}")


def experts_add_up(case):
    """Every routed expert of a step is counted once: 8 MoE layers of 4 for one row."""
    r = case.k3(DEMO, prompt=FIRST["prompt"], gen=4)
    for s in r.run["steps"][1:]:
        check_equal(s["experts_resident"] + s["experts_read"], 8 * 4, "experts of a step of one row")


def output_is_the_text(case):
    r = case.k3(DEMO, prompt=FIRST["prompt"], gen=len(FIRST["greedy_ids"]))
    check_equal(r.out, FIRST["continuation"], "standard output")
    short = case.exec("k3", DEMO, "--prompt", FIRST["prompt"], "--gen", "24")
    check_equal((short.rc, short.out), (0, FIRST["continuation"]), "the short form")
    path = case.path("prompt")
    open(path, "w").write(FIRST["prompt"])
    check_equal(case.exec("k3", "run", DEMO, "--prompt-file", path, "--gen", "24").out, FIRST["continuation"], "--prompt-file")
    check_equal(case.exec("k3", "run", DEMO, "--prompt-file", "-", "--gen", "24", stdin=FIRST["prompt"].encode()).out,
                FIRST["continuation"], "--prompt-file -")
    open(path, "w").write("\n".join(map(str, FIRST["ids"])))
    check_equal(case.exec("k3", "run", DEMO, "--ids-file", path, "--gen", "24").out, FIRST["continuation"], "--ids-file")


def prompt_only(case):
    one = case.k3(DEMO, prompt=FIRST["prompt"], gen=1).run
    none = case.k3(DEMO, prompt=FIRST["prompt"], gen=0)
    check_equal((none.run["generated_ids"], none.run["text"], none.out, len(none.run["steps"])), ([], "", "", 1), "--gen 0")
    check_equal(none.run["logits_digest"], one["logits_digest"], "digest of the row that chooses the first token")


def default_is_eight(case):
    r = case.k3(DEMO, prompt=FIRST["prompt"])
    check_equal(r.run["generated_ids"], FIRST["greedy_ids"][:8], "without --gen")


def stops(case):
    third = FIRST["greedy_ids"][2]
    r = case.k3(DEMO, "--stop-id", "5", "--stop-id", third, prompt=FIRST["prompt"], gen=20)
    check_equal(r.run["generated_ids"], FIRST["greedy_ids"][:3], "ids up to the stop id")
    whole = case.k3(DEMO, prompt=FIRST["prompt"], gen=2)
    check_equal(r.run["text"], whole.run["text"], "text without the stop id's own")
    check_equal(r.out, r.run["text"], "standard output")
    c = GOLDEN["chat"][0]
    r = case.k3(DEMO, "--stop-id", "eos", ids=c["ids"], gen=300)
    check_equal(r.run["generated_ids"], c["greedy_ids"], "eos ends a turn")


def without_a_tokenizer(case):
    tiny = k3test.oracle("tiny")
    r = case.k3(tiny, ids=[160], gen=3)
    check_equal((r.run["text"], r.out), (None, ""), "text of a model without a vocabulary")
    refused(case, ["run", tiny, "--prompt", "a"], "tiktoken.model", "--ids")
    refused(case, ["run", tiny, "--ids", "1", "--stop-id", "eos", "--tok", case.subdir("empty")], "tiktoken.model")


def prompts_are_checked(case):
    refused(case, ["run", DEMO], "--prompt")
    refused(case, ["run", DEMO, "--prompt", "a", "--ids", "1"], "only one")
    refused(case, ["run", DEMO, "--ids", "1;2"], "byte 1")
    refused(case, ["run", DEMO, "--ids", "2048"], "2048")
    refused(case, ["run", DEMO, "--prompt", ""], "empty")
    refused(case, ["run", DEMO, "--ids", "1", "--gen", "4097"], "4096")
    bad = case.path("bad")
    open(bad, "wb").write(b"In the \xff")
    refused(case, ["run", DEMO, "--prompt-file", bad], "7")


def options_that_mean_nothing(case):
    s = case.path("nobody")
    for option, value in (("trunk", "f"), ("trunk-gb", "1"), ("cache-gb", "1"), ("preset", "laptop"), ("config", "f"),
                          ("backend", "threads"), ("direct", "off"), ("chunk", "1M"), ("tile", "1M"), ("queue-depth", "4"),
                          ("lock", "no"), ("disk-rate", "1"), ("memory-rate", "10")):
        refused(case, ["run", "--socket", s, "--ids", "1", f"--{option}", value], f"--{option}", "--socket")
    refused(case, ["run", DEMO, "--socket", s, "--ids", "1"], "--socket")
    refused(case, ["run", "--socket", s, "--ids", "1", "--profile", "f"], "--profile", "--socket")
    refused(case, ["run", "--ids", "1"], "MODEL")
    refused(case, ["run", DEMO, "--ids", "1", "--incremental", "--recompute"], "--recompute")
    refused(case, ["run", DEMO, "--ids", "1", "--gen", "0", "--stop-id", "eos"], "--stop-id")
    refused(case, ["run", DEMO, "--ids", "1", "--stop-id", "999999999,5"], "--stop-id", "2048")
    refused(case, ["run", DEMO, "--ids", "1", "--control"], "--control")
    refused(case, ["run", DEMO, "--ids", "1", "--prefil-rows", "1"], "--prefill-rows")
    for name in ("plot", "chat", "serve"):
        refused(case, [name], name)
        check(f"k3 {name}" not in case.exec("k3", "--help").out, f"--help lists {name}, which is not built")


def nobody_at_the_socket(case):
    r = case.exec("k3", "run", "--socket", case.path("nobody"), "--ids", "1")
    check_equal(r.rc, 1, "exit code without a daemon")
    check("k3-iod" in r.err and "nobody" in r.err, f"the sentence\n{r}")


def no_daemon_program(case):
    r = case.exec("k3", "run", DEMO, "--ids", "1", env={"K3_IOD": "/nowhere/k3-iod"})
    check_equal(r.rc, 2, "exit code without k3-iod")
    check("/nowhere/k3-iod" in r.err and "K3_IOD" in r.err, f"the sentence\n{r}")


def presets(case):
    r = case.exec("k3", "run", "--list-presets")
    check_equal(r.rc, 0, "exit code of --list-presets")
    for name in ("laptop", "desktop", "workstation", "server", "max", "auto"):
        check(name in r.out, f"no {name}\n{r}")
        run = case.k3(DEMO, "--preset", name, "--trunk-gb", "0", prompt=FIRST["prompt"], gen=2).run
        check_equal(run["generated_ids"], FIRST["greedy_ids"][:2], f"--preset {name}")
        check(run["memory"]["plan"]["daemon_tile_ring"] > 0, "an explicit --trunk-gb does not win over the preset")
    # as published: what comes later wins
    tight = ["--trunk-gb", "0", "--cache-gb", "0.0005"]
    later = case.k3(DEMO, "--preset", "max", *tight, prompt=FIRST["prompt"], gen=2).run["memory"]["plan"]
    earlier = case.k3(DEMO, *tight, "--preset", "max", prompt=FIRST["prompt"], gen=2).run["memory"]["plan"]
    check(later["daemon_tile_ring"] > 0 and later["daemon_expert_slots"] <= 500_000, f"budgets after the preset: {later}")
    check(earlier["daemon_tile_ring"] == 0 and earlier["daemon_expert_slots"] > 500_000, f"budgets before it: {earlier}")
    for name, trunk, cache in (("laptop", "3.0", "1.0"), ("desktop", "16.0", "10.0"), ("workstation", "60.0", "30.0"),
                               ("server", "110.0", "13.0"), ("max", "110.0", "109.0")):
        check([name, trunk, cache] in [line.split()[:3] for line in r.out.splitlines()], f"{name} is not as published\n{r}")
    everything = case.k3(DEMO, prompt=FIRST["prompt"], gen=2).run["memory"]["plan"]
    check_equal(everything["daemon_tile_ring"], 0, "ring when all of a small model fits")


def recompute(case):
    a = case.k3(DEMO, prompt=FIRST["prompt"], gen=6, logits=True)
    b = case.k3(DEMO, "--recompute", "--prefill-rows", "4", prompt=FIRST["prompt"], gen=6, logits=True)
    check_equal(a.run["logits_digest"], b.run["logits_digest"], "digest with --recompute")
    check_equal(len(a.logits), (len(FIRST["ids"]) + 5) * 2048, "rows of --dump-logits-all")
    check_equal(a.logits.tobytes(), b.logits.tobytes(), "--dump-logits-all with --recompute")


def trace(case):
    where = case.path("trace")  # made when it does not exist
    case.k3(DEMO, "--dump-cache-trace", where, prompt=FIRST["prompt"], gen=3)
    rows = [json.loads(line) for line in open(os.path.join(where, "trace.jsonl"))]
    check_equal([r["tok"] for r in rows], list(range(len(FIRST["ids"]) + 2)), "positions in the trace")
    for r in rows:
        check_equal([len(x) for x in r["layers"]], [4] * 8, "experts of a position")
        check(all(x == sorted(set(x)) for x in r["layers"]), "ids are not ascending")


def layers(case):
    r = case.k3(DEMO, "--layers", "3", ids=[1, 2, 3], gen=2).run
    check_equal(len(r["generated_ids"]), 2, "tokens of the first three layers")
    d = Daemon(case, DEMO)
    same = case.k3(None, "--layers", "3", ids=[1, 2, 3], gen=2, daemon=d).run
    check_equal(same["logits_digest"], r["logits_digest"], "--layers at a daemon that has all")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def with_a_daemon(case):
    d = Daemon(case, DEMO)
    r = case.k3(None, prompt=FIRST["prompt"], gen=24, daemon=d)
    check_equal(r.out, FIRST["continuation"], "text through a daemon")
    s = case.exec("k3", "stats", "--socket", d.socket)
    check_equal(s.rc, 0, "exit code of k3 stats")
    values = {m[1]: int(m[2]) for m in re.finditer(r"^([a-z_]+) +(\d+) +[a-z]+ +[a-z]", s.out, re.M)}
    check(values["tiles_served"] > 0 or values["tiles_pinned"] > 0, f"counters\n{s}")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def unwritable_report(case):
    r = case.exec("k3", "run", DEMO, "--ids", "1", "--gen", "1", "--out", "/nowhere/run.json")
    check_equal(r.rc, 1, "exit code when run.json cannot be written")
    check_equal(r.err.count("/nowhere/run.json"), 1, f"times that the file is named\n{r}")
    check("k3-iod" not in r.err and r.out == "", f"a run whose report cannot be written was begun\n{r}")
    r = case.exec("k3", "run", DEMO, "--ids", "1", "--gen", "1", "--out", "/dev/full")
    check_equal(r.rc, 1, "exit code when the disk is full")
    for option in ("--out", "--timeline", "--dump-logits"):
        r = case.exec("k3", "run", DEMO, "--ids", "1", "--gen", "1", option, "")
        check_equal((r.rc, r.out), (2, ""), f"exit code and text with an empty name\n{r}")
        check(option in r.err and "k3-iod" not in r.err, f"the option is named, and nothing started\n{r}")


def neighbours_of_the_report(case):
    """Files that lie beside the report are not the run's, whatever their names are."""
    folder = case.subdir("results")
    beside = [os.path.join(folder, "run.json" + end) for end in (".tmp", ".new", "~")]
    for path in beside:
        with open(path, "w") as f:
            f.write("mine")
    out = os.path.join(folder, "run.json")
    r = case.exec("k3", "run", DEMO, "--ids", "1", "--gen", "1", "--out", out, preexec=lambda: os.umask(0o027))
    check_equal(r.rc, 0, f"exit code\n{r}")
    check_equal([open(path).read() for path in beside], ["mine"] * 3, "files beside the report")
    check_equal(sorted(os.listdir(folder)), ["run.json", "run.json.new", "run.json.tmp", "run.json~"], "what is there afterwards")
    check_equal(os.stat(out).st_mode & 0o777, 0o640, "mode of the report")


def prompt_and_report(case):
    """A report that would go where the prompt comes from: refused, and the prompt is what it was."""
    path = case.path("prompt")
    for option, text in (("--prompt-file", FIRST["prompt"]), ("--ids-file", "1,2,3")):
        open(path, "w").write(text)
        r = case.exec("k3", "run", DEMO, option, path, "--gen", "1", "--out", path)
        check(r.rc == 2 and "name the same file" in r.err, f"exit code and sentence\n{r}")
        check_equal(open(path).read(), text, "the prompt")


def files_of_the_model(case):
    """A result over a shard, a config or the trunk file, by whatever name, is refused before anything is touched."""
    model, trunk, link = case.copy_model(DEMO), case.path("trunk"), case.path("link")
    check_equal(case.exec("k3-store", "pack", model, trunk).rc, 0, "exit code of k3-store pack")
    os.symlink(os.path.join(model, "config.json"), link)
    names = [os.path.join(model, n) for n in ("model-00003-of-000010.safetensors", "tiktoken.model", "model.safetensors.index.json")]
    before = {n: open(n, "rb").read() for n in names + [trunk, link]}
    for name in before:
        for option in ("--out", "--timeline", "--dump-logits", "--dump-logits-all"):
            r = case.exec("k3", "run", model, "--trunk", trunk, "--ids", "1", "--gen", "1", option, name)
            check_equal((r.rc, r.out), (2, ""), f"exit code and text\n{r}")
            check(option in r.err and name in r.err and "k3-iod" not in r.err, f"the sentence\n{r}")
    check_equal({n: open(n, "rb").read() for n in before}, before, "files of the model")
    r = case.exec("k3", "run", model, "--ids", "1", "--gen", "1", "--out", os.path.join(model, "run.json"))
    check_equal(r.rc, 0, f"a report beside the shards\n{r}")


def standard_input(case):
    """A prompt from standard input that has no name to open: a socket, as some programs give to their children."""
    ours, theirs = socket.socketpair()
    ours.sendall(FIRST["prompt"].encode())
    ours.close()
    p = subprocess.run([k3test.program("k3"), "run", DEMO, "--prompt-file", "-", "--gen", "2"], stdin=theirs, capture_output=True)
    check_equal(p.returncode, 0, f"exit code\n{p.stderr.decode()}")
    check(FIRST["continuation"].startswith(p.stdout.decode()) and p.stdout, f"text {p.stdout}")


def file_size_limit(case):
    """A limit on the size of files gives a sentence, not a death by SIGXFSZ."""
    r = case.exec("k3", "run", DEMO, "--ids", "1", "--gen", "1", preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
    check(r.rc in (1, 2), f"exit code {r.rc}\n{r}")
    check("File too large" in r.err, f"the sentence\n{r}")


def closed_descriptors(case):
    """A closed standard descriptor is not taken by a socket or a file: no text goes astray."""
    want = case.k3(DEMO, prompt=FIRST["prompt"], gen=3).run["logits_digest"]
    for backend in ("io_uring", "threads"):
        for gone in ((0,), (1,), (2,), (0, 1), (0, 2), (0, 1, 2)):
            r = case.k3(DEMO, "--backend", backend, prompt=FIRST["prompt"], gen=3, expect=1 if 1 in gone else 0,
                        preexec=lambda: [os.close(fd) for fd in gone])
            if 1 in gone and 2 not in gone:
                check("standard output" in r.err, f"the sentence without {gone}\n{r}")
            if 1 not in gone:
                check_equal(r.run["logits_digest"], want, f"digest without {gone}")


def full_output(case):
    """Help and lists that cannot be written are not a success."""
    for name, *args in (("k3", "--help"), ("k3", "--man"), ("k3", "run", "--list-presets"), ("k3-iod", "--help"),
                        ("k3-store", "--help"), ("k3", "tokenize", "--tok", DEMO, "In")):
        p = case.start(name, *args, stdout=open("/dev/full", "wb"))
        check_equal(p.wait(60), 1, f"exit code of {name} {' '.join(args)} > /dev/full")


def interrupted(case):
    """Ctrl-C, or a terminal that goes: exit 1 after the step under way, run.json tells what there is, the daemon goes too."""
    def heeding():
        """Though the tests themselves may run under nohup."""
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    out = case.path("run.json")
    for number in (signal.SIGINT, signal.SIGHUP):
        open(case.path("text"), "w").close()
        p = case.start("k3", "run", DEMO, "--ids", "1,2,3", "--gen", "4000", "--out", out, "--prefill-rows", "1",
                       stdout=open(case.path("text"), "wb"), start_new_session=True, preexec_fn=heeding)
        k3test.wait_until(lambda: os.path.getsize(case.path("text")) > 0, "text")
        os.killpg(p.pid, number)
        check_equal(p.wait(60), 1, f"exit code after {number}")
        run = json.load(open(out))
        check_equal(run["exit_code"], 1, "exit_code in run.json")
        check(0 < len(run["generated_ids"]) < 4000, "tokens generated before")
        os.unlink(out)


def not_interrupted(case):
    """nohup, and a shell's background: what a run was started to ignore does not end it."""
    def ignoring():
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    p = case.start("k3", "run", DEMO, "--ids", "1,2,3", "--gen", "300", stdout=open(case.path("text"), "wb"), start_new_session=True,
                   preexec_fn=ignoring)
    k3test.wait_until(lambda: os.path.getsize(case.path("text")) > 0, "text")
    for number in (signal.SIGHUP, signal.SIGINT):
        os.killpg(p.pid, number)
    check_equal(p.wait(60), 0, "exit code")


def interrupted_prompt(case):
    """Ctrl-C does not wait for the end of a long prompt."""
    out, log = case.path("run.json"), case.path("log")
    p = case.start("k3", "run", DEMO, "--ids", ",".join(["5"] * 4000), "--gen", "1", "--out", out, "--prefill-rows", "1",
                   stderr=open(log, "wb"))
    k3test.wait_until(lambda: "of 4000 tokens" in open(log).read(), "progress of the prompt")
    p.send_signal(signal.SIGINT)
    check_equal(p.wait(60), 1, "exit code after SIGINT")
    check("interrupted after" in open(log).read(), f"the sentence\n{open(log).read()}")
    run = json.load(open(out))
    check_equal((run["exit_code"], run["generated_ids"]), (1, []), "run.json")


def killed(case):
    """k3 dies: its private daemon ends by itself (the harness notices what is left)."""
    p = case.start("k3", "run", DEMO, "--ids", "1,2,3", "--gen", "4000", stdout=open(case.path("text"), "wb"))
    k3test.wait_until(lambda: os.path.getsize(case.path("text")) > 0, "text")
    p.kill()
    p.wait()


if __name__ == "__main__":
    k3test.main([report_fields, summary_adds_up, experts_add_up, output_is_the_text, prompt_only, default_is_eight, stops, without_a_tokenizer,
                 prompts_are_checked, options_that_mean_nothing, nobody_at_the_socket, no_daemon_program, presets, recompute,
                 trace, layers, with_a_daemon, unwritable_report, neighbours_of_the_report, prompt_and_report, files_of_the_model,
                 standard_input, file_size_limit,
                 closed_descriptors, full_output, interrupted, not_interrupted, interrupted_prompt, killed])
