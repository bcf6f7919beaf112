"""Several prompts through each step together (k3 run --batch-file): the bits of runs of their own, an eighth
of the reading, and what a wrong line gets."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import DEMO, Daemon, check, check_equal

GOLDEN = json.load(open(os.path.join(DEMO, "golden.json")))
GREEDY = GOLDEN["greedy"]
TINY = k3test.oracle("tiny")
# Nothing pinned, the smallest ring: every sweep reads the whole trunk.
LEAST = ["--trunk-gb", "0", "--cache-gb", "0"]
FIELDS = ["id", "prompt_ids", "generated_ids", "text", "logits_digest"]


def batch(case, model, lines, *args, daemon=None, expect=0):
    """Results of a run of these lines by id, and the program's Result."""
    path = os.path.join(case.subdir("batch"), "in.jsonl")
    with open(path, "w") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)
    where = ["--socket", daemon.socket] if daemon else [model]
    r = case.exec("k3", "run", *where, "--batch-file", path, *args)
    check_equal(r.rc, expect, f"exit code\n{r}")
    rows = [json.loads(line) for line in r.out.splitlines()]
    for row in rows:
        check_equal(list(row), FIELDS, "fields of a result")
    check_equal(len({row["id"] for row in rows}), len(rows), "different ids among the results")
    return {row["id"]: row for row in rows}, r


def same_as_alone(case, model, lines, *args):
    """Each line against a run of its own, over several ways of going together."""
    alone = []
    for line in lines:
        run = case.k3(model, *[a for i in line.get("stop_ids", []) for a in ("--stop-id", i)],
                      ids=line.get("ids"), prompt=line.get("prompt"), gen=line["gen"]).run
        alone.append(run)
    for way in (args, (*args, "--batch-max", "3"), (*args, "--batch-max", "1", "--threads", "1"),
                (*args, "--prefill-rows", "1"), (*args, "--prefill-rows", "11", *LEAST)):
        got, _ = batch(case, model, lines, *way)
        check_equal(set(got), set(range(1, len(lines) + 1)), f"{way}: ids of the results")
        for i, run in enumerate(alone, 1):
            for field in FIELDS[1:]:
                check_equal(got[i][field], run[field], f"{way}: {field} of line {i}")
    return alone


def demo_bits(case):
    """Prompts and answers of different lengths, as text and as ids, with a stop id and without a token."""
    lines = [{"prompt": g["prompt"], "gen": n} for g, n in zip(GREEDY, (24, 3, 17, 1, 9))]
    lines += [{"ids": c["ids"], "gen": n} for c, n in zip(GOLDEN["chat"], (5, 28))]
    lines += [{"ids": GREEDY[1]["ids"], "gen": 40, "stop_ids": [GREEDY[1]["greedy_ids"][6]]},
              {"ids": GREEDY[0]["ids"], "gen": 0}]
    alone = same_as_alone(case, DEMO, lines)
    check_equal(alone[0]["generated_ids"], GREEDY[0]["greedy_ids"], "tokens of the other implementation")
    check_equal(alone[6]["generated_ids"], GOLDEN["chat"][1]["greedy_ids"], "tokens of the other implementation")
    check_equal(len(alone[7]["generated_ids"]), 7, "tokens up to the stop id")
    check_equal(alone[8]["generated_ids"], [], "tokens of gen 0")


def tiny_bits(case):
    cases = json.load(open(os.path.join(TINY, "golden.json")))["cases"]
    lines = [{"ids": c["ids"], "gen": len(c["greedy"])} for c in cases]
    for run, c in zip(same_as_alone(case, TINY, lines), cases):
        check_equal(run["generated_ids"], c["greedy"], "tokens of the other implementation")


def many_together(case):
    """More rows in a step than turned products begin with, each of a sequence of its own, all with logits."""
    lines = [{"ids": [(37 * i + 11 * j + 5) % 256 for j in range(1 + i % 4)], "gen": 3} for i in range(60)]
    together, _ = batch(case, DEMO, lines, "--batch-max", "64", "--prefill-rows", "200")
    alone, _ = batch(case, DEMO, lines, "--batch-max", "1", "--isa", "ref")
    check_equal(together, alone, "results")


def an_eighth_is_read(case):
    """Eight sequences in one step against eight runs: trunk bytes, on a daemon that pins nothing."""
    lines = [{"ids": GREEDY[i % 5]["ids"][:2 + i], "gen": 12, "id": f"s{i}"} for i in range(8)]
    d = Daemon(case, DEMO, *LEAST)

    def trunk_bytes(work):
        before = d.stats()["trunk_bytes_read"]
        work()
        return d.stats()["trunk_bytes_read"] - before

    alone = {}

    def one_by_one():
        for line in lines:
            alone[line["id"]] = case.k3(None, ids=line["ids"], gen=12, daemon=d).run

    got = {}
    apart = trunk_bytes(one_by_one)
    together = trunk_bytes(lambda: got.update(batch(case, None, lines, daemon=d)[0]))
    print(f"trunk bytes of eight sequences: {together} together, {apart} one by one: {together / apart:.4f}")
    check(together <= 0.15 * apart, f"{together} bytes together, {apart} one by one")
    for i, run in alone.items():
        check_equal(got[i]["logits_digest"], run["logits_digest"], f"digest of {i}")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def results_in_a_file(case):
    """--out takes the lines, standard output stays empty; --gen and --stop-id are for lines without their own."""
    out = case.path("out.jsonl")
    third = GREEDY[2]["greedy_ids"][2]
    lines = [{"ids": GREEDY[2]["ids"]}, {"ids": GREEDY[2]["ids"], "gen": 5, "stop_ids": [], "id": "own"}]
    rows, r = batch(case, DEMO, lines, "--gen", "9", "--stop-id", third, "--out", out)
    check_equal((rows, r.out), ({}, ""), "standard output")
    rows = {row["id"]: row["generated_ids"] for row in map(json.loads, open(out))}
    check_equal(rows, {1: GREEDY[2]["greedy_ids"][:3], "own": GREEDY[2]["greedy_ids"][:5]}, "tokens")


def one_file_twice(case):
    """Results do not go where the prompts come from, nor two results into one file."""
    path, other = case.path("lines.jsonl"), case.path("link.jsonl")
    text = json.dumps({"ids": [1, 2], "gen": 0}) + "\n"
    open(path, "w").write(text)
    os.symlink(path, other)
    for args in (["--out", path], ["--out", other], ["--timeline", other],
                 ["--out", case.path("new"), "--timeline", case.path("new")]):
        r = case.exec("k3", "run", DEMO, "--batch-file", path, *args)
        check(r.rc == 2 and "name the same file" in r.err and args[0] in r.err, f"{args}\n{r}")
    check_equal(open(path).read(), text, "the prompts")


def wrong_lines(case):
    """A sentence with file, line and field, exit 2, before anything is started."""
    good = json.dumps({"ids": [1, 2]})
    path = case.path("wrong.jsonl")
    for bad, word in (('{"ids": [1,}', "JSON"), ("[1]", "object"), ("{}", "prompt"), ('{"prompt": "a", "ids": [1]}', "both"),
                      ('{"prompt": 3}', "prompt"), ('{"prompt": ""}', "prompt"), ('{"ids": []}', "ids"), ('{"ids": 3}', "ids"),
                      ('{"ids": [1, 99999]}', "ids: element 1"), ('{"ids": [1, "2"]}', "ids: element 1"),
                      ('{"ids": [-1]}', "ids: element 0"), ('{"ids": [1], "gen": -1}', "gen"), ('{"ids": [1], "gen": "8"}', "gen"),
                      ('{"ids": [1], "gen": 5000}', "gen: 1 tokens"), ('{"ids": [1], "stop_ids": 5}', "stop_ids"),
                      ('{"ids": [1], "id": {}}', "id"), ('{"ids": [1], "generate": 3}', "generate"),
                      ('{"ids": [1], "ids": [2]}', "ids")):
        open(path, "w").write(f"{good}\n\n{bad}\n{good}\n")
        r = case.exec("k3", "run", DEMO, "--batch-file", path)
        check_equal(r.rc, 2, f"exit code for {bad}\n{r}")
        check(f"{path} line 3: " in r.err and word in r.err, f"{bad}: file, line and {word!r} are not named\n{r}")
        check("k3-iod" not in r.err and r.out == "", f"{bad}: something was started\n{r}")
    open(path, "w").write("\n \n")
    r = case.exec("k3", "run", DEMO, "--batch-file", path)
    check_equal(r.rc, 2, f"exit code of an empty file\n{r}")
    for args, word in ((["--batch-max", "2", "--ids", "1"], "--batch-file"), (["--batch-file", path, "--ids", "1"], "only one"),
                       (["--batch-file", path, "--recompute"], "--recompute"), (["--batch-file", case.path("none")], "none"),
                       (["--batch-file", path, "--dump-logits", "f"], "--dump-logits")):
        r = case.exec("k3", "run", DEMO, *args)
        check_equal(r.rc, 2, f"exit code of {args}\n{r}")
        check(word in r.err, f"{args}: no {word!r}\n{r}")


k3test.main([demo_bits, tiny_bits, many_together, an_eighth_is_read, results_in_a_file, one_file_twice, wrong_lines])
