"""The bundled model against golden.json: the vendor's modeling file in fp64 on the exported files."""
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
import reference
import trace_file
from k3test import DEMO, check, check_equal

GOLDEN = json.load(open(os.path.join(DEMO, "golden.json")))
CONFIG = reference.Config(os.path.join(DEMO, "config.json"))
VOCAB = CONFIG.vocab


def greedy(case):
    for g in GOLDEN["greedy"]:
        n = len(g["greedy_ids"])
        r = case.k3(DEMO, prompt=g["prompt"], gen=n)
        check_equal(r.run["prompt_ids"], g["ids"], f"ids of {g['prompt']!r}")
        check_equal(r.run["generated_ids"], g["greedy_ids"], f"after {g['prompt']!r}")
        check_equal(r.run["text"], g["continuation"], f"text after {g['prompt']!r}")


def first_prompt(case):
    g = GOLDEN["greedy"][0]
    trace = case.subdir("trace")
    r = case.k3(DEMO, "--dump-cache-trace", trace, prompt=g["prompt"], gen=1, logits=True)
    got = r.logits.reshape(-1, VOCAB)[-1]
    off = np.abs(got - np.array(GOLDEN["first_prompt_logits"])).max()
    # fp32 of the trainer lies within 2.8e-5 of fp64 (README.md there).
    check(off <= 1e-4, f"first_prompt_logits: off by {off:.3g}")
    routing = trace_file.read(trace, CONFIG)
    for e in GOLDEN["first_prompt_routing"]:
        check_equal(routing[len(g["ids"]) - 1, e["layer"]], sorted(e["experts"]), f"experts of layer {e['layer']}")
    one = case.path("one.f32")
    case.k3(DEMO, "--dump-logits", one, prompt=g["prompt"], gen=3)
    check_equal(np.fromfile(one, "<f4").tobytes(), got.tobytes(), "--dump-logits: the last prompt position")


def teacher_forced(case):
    t = GOLDEN["teacher_forced"]
    r = case.k3(DEMO, ids=t["ids"][:-1], gen=0, logits=True)
    rows = r.logits.reshape(-1, VOCAB).astype(np.float64)
    check_equal(len(rows), len(t["ids"]) - 1, "rows of logits")
    high = rows.max(1)
    nll = high + np.log(np.exp(rows - high[:, None]).sum(1)) - rows[np.arange(len(rows)), t["ids"][1:]]
    off = np.abs(nll - np.array(t["token_nll"])).max()
    mean = abs(nll.mean() - t["mean_nll"])
    print(f"teacher_forced: a token's loss off by at most {off:.3g}, the mean by {mean:.3g}")
    check(off <= 3e-5, f"loss of token {np.abs(nll - np.array(t['token_nll'])).argmax()} off by {off:.3g}")
    check(mean <= 1e-6, f"mean loss off by {mean:.3g}")


def chat(case):
    for c in GOLDEN["chat"]:
        r = case.k3(DEMO, "--stop-id", "eos", ids=c["ids"], gen=300)
        check_equal(r.run["generated_ids"], c["greedy_ids"], f"answer to {c['user']!r}")


def tokenizer(case):
    """k3 tokenize: goldens, and back."""
    lines = case.path("in.jsonl")
    with open(lines, "w") as f:
        for g in GOLDEN["tokenizer"]:
            f.write(json.dumps(g["text"]) + "\n")
    r = case.exec("k3", "tokenize", "--tok", DEMO, "--jsonl", lines)
    check_equal(r.rc, 0, f"exit code of k3 tokenize\n{r}")
    got = [json.loads(line) for line in r.out.splitlines()]
    check_equal(len(got), len(GOLDEN["tokenizer"]), "lines")
    for g, ids in zip(GOLDEN["tokenizer"], got):
        check_equal(ids, g["ids"], f"ids of {g['text']!r}")
        if g["text"].strip():
            back = case.exec("k3", "tokenize", "--tok", DEMO, "--decode", ",".join(map(str, ids)))
            check_equal(back.rc, 0, f"exit code of --decode\n{back}")
            check_equal(back.out.rstrip("\n"), g["text"].rstrip("\n"), "decoded text")


def bad_text(case):
    """Invalid UTF-8 is refused with the offset of its first bad byte."""
    path = case.path("bad.txt")
    for text, offset in ((b"abc\xff", 3), (b"\xc3", 0), (b"In the beginning \xed\xa0\x80", 17), (b"\xf4\x90\x80\x80", 0)):
        open(path, "wb").write(text)
        for args in (("tokenize", "--tok", DEMO, "--file", path), ("run", DEMO, "--prompt-file", path, "--gen", "1")):
            r = case.exec("k3", *args)
            check_equal(r.rc, 2, f"exit code for {text!r}\n{r}")
            check(str(offset) in r.err, f"offset {offset} is not named for {text!r}:\n{r.err}")
            check_equal(r.out, "", "standard output")


def streams(case):
    """Standard output is the text and nothing else; the short form is k3 run."""
    g = GOLDEN["greedy"][0]
    r = case.k3(DEMO, prompt=g["prompt"], gen=24)
    check(r.out in (g["continuation"], g["continuation"] + "\n"), f"standard output is {r.out!r}")
    short = case.exec("k3", DEMO, "--prompt", g["prompt"], "--gen", "24", "--incremental")
    check_equal((short.rc, short.out), (0, r.out), "k3 MODEL")
    path = case.path("prompt.txt")
    open(path, "w").write(g["prompt"])
    check_equal(case.k3(DEMO, "--prompt-file", path, gen=24).out, r.out, "--prompt-file")
    ids = case.path("ids.txt")
    open(ids, "w").write(",".join(map(str, g["ids"])))
    check_equal(case.k3(DEMO, "--ids-file", ids, gen=24).out, r.out, "--ids-file")
    check_equal(case.k3(DEMO, prompt=g["prompt"]).run["generated_ids"], g["greedy_ids"][:8], "--gen is 8 by default")
    for key in "prompt_ids generated_ids text logits_digest steps memory kernels backend exit_code".split():
        check(key in r.run, f"run.json has no {key}")
    for key in "seconds wait_seconds trunk_bytes_read expert_bytes_read experts_resident experts_read".split():
        check(key in r.run["steps"][0], f"a step in run.json has no {key}")
    for key in "slab_bytes client_peak_rss_bytes daemon_peak_rss_bytes plan".split():
        check(key in r.run["memory"], f"memory in run.json has no {key}")


k3test.main([greedy, first_prompt, teacher_forced, chat, tokenizer, bad_text, streams])
