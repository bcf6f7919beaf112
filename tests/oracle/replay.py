"""k3-store replay: lru and Belady's bound against naive ones of this file over small random traces,
the default policy against the bars it was chosen by, and the published table of the K3 trace.

Independent of the C code: the simulations here keep plain lists and look through all of them."""
import json
import os
import random
import re
import struct
import sys
import xml.dom.minidom

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import check, check_equal

EXPERT_BYTES = 17547264

# Hits after 60 tokens of trace_kimi_300.jsonl, at so many sweeps of 208 requests.
SWEEPS = (0.25, 0.5, 0.75, 1, 1.5, 2, 4)
KIMI = {
    "lru": (0, 0, 0, 0.234, 0.337, 0.414, 0.575),
    "belady": (0.232, 0.383, 0.463, 0.521, 0.596, 0.646, 0.765),
    "bar": (0.13, 0.22, 0.28, 0.32, 0.39, 0.44, 0.59),
}


def replay(case, trace, *args, **more):
    r = case.exec("k3-store", "replay", trace, "--json", *args, **more)
    check(r.rc == 0, f"k3-store replay failed\n{r}")
    check_equal(r.err, "", "standard error")
    return json.loads(r.out)


def slots_arg(slots):
    return ",".join(map(str, slots))


# ---- naive simulations: requests are (token, layer, id) -----------------------------------------

def requests(tokens):
    return [(t, l, e) for t, layers in enumerate(tokens) for l, ids in enumerate(layers) for e in ids]


def naive_lru(asks, n, warm):
    held, hits, counted = [], 0, 0  # held: least recently used first
    for token, *what in asks:
        if token >= warm:
            counted += 1
            hits += what in held
        if what in held:
            held.remove(what)
        held.append(what)
        held = held[-n:]
    return hits / counted


def naive_belady(asks, n, warm):
    """Evict what is needed last, or pass by; every use is looked up in the rest of the trace."""
    whats = [tuple(a[1:]) for a in asks]

    def next_use(what, after):
        return next((i for i in range(after + 1, len(whats)) if whats[i] == what), len(whats))

    held, hits, counted = set(), 0, 0
    for i, what in enumerate(whats):
        if asks[i][0] >= warm:
            counted += 1
            hits += what in held
        held.add(what)
        if len(held) > n:
            held.remove(max(sorted(held), key=lambda w: next_use(w, i)))
    return hits / counted


def best_possible(asks, n, warm):
    """Hits of the best of all choices: every set of experts that could be held, step by step."""
    states = {frozenset(): 0}
    counted = 0
    for token, *what in asks:
        what = tuple(what)
        counted += token >= warm
        after = {}
        for held, hits in states.items():
            hits += what in held and token >= warm
            options = [held]
            if what not in held:
                options += [held | {what}] if len(held) < n else [(held - {h}) | {what} for h in held]
            for o in options:
                after[o] = max(after.get(o, 0), hits)
        states = after
    return max(states.values()) / counted


def random_trace(seed, n_tokens, n_layers, n_ids, top):
    """Some ids are chosen more often than others."""
    rng = random.Random(seed)
    weights = [1 / (1 + i) for i in range(n_ids)]
    tokens = []
    for _ in range(n_tokens):
        layers = []
        for _ in range(n_layers):
            ids = []
            while len(ids) < top:
                e = rng.choices(range(n_ids), weights)[0]
                if e not in ids:
                    ids.append(e)
            layers.append(sorted(ids))
        tokens.append(layers)
    return tokens


def write_lines(path, tokens):
    with open(path, "w") as f:
        for t, layers in enumerate(tokens):
            f.write(json.dumps({"tok": t, "layers": layers}) + "\n")
    return path


def write_pairs(path, asks):
    with open(path, "wb") as f:
        for _, l, e in asks:
            f.write(struct.pack("<ii", l, e))
    return path


def against_naive(case):
    for seed, shape in enumerate([(20, 3, 8, 2), (30, 1, 12, 3), (12, 4, 6, 1), (15, 2, 5, 5)]):
        tokens = random_trace(seed, *shape)
        asks = requests(tokens)
        slots, warm = (1, 2, 3, 5, 8, 13, 40), seed * 3
        got = replay(case, write_lines(case.path(f"{seed}.jsonl"), tokens), "--slots", slots_arg(slots), "--warm", warm)
        check_equal(got["slots"], list(slots), "slots")
        check_equal(sorted(got["policies"]), ["belady", "default", "lru"], "policies")
        for i, n in enumerate(slots):
            for name, naive in (("lru", naive_lru), ("belady", naive_belady)):
                check(abs(got["policies"][name][i] - naive(asks, n, warm)) < 1e-6,
                      f"trace {seed}, {n} slots: {name} has {got['policies'][name][i]}, not {naive(asks, n, warm)}")
            check(got["policies"]["default"][i] <= got["policies"]["belady"][i], f"{n} slots: default above the bound")
            missed = 1 - naive_lru(asks, n, warm)
            want = missed * shape[1] * shape[3] * EXPERT_BYTES
            check(abs(got["bytes_per_token"]["lru"][i] - want) < 20, f"bytes a token at {n} slots, not {want}")


def belady_is_best(case):
    tokens = random_trace(5, 7, 2, 4, 1)
    got = replay(case, write_lines(case.path("t.jsonl"), tokens), "--slots", "1,2,3")
    for i, n in enumerate((1, 2, 3)):
        want = best_possible(requests(tokens), n, 0)
        check(abs(got["policies"]["belady"][i] - want) < 1e-6, f"{n} slots: {got['policies']['belady'][i]}, best is {want}")


def formats_agree(case):
    tokens = random_trace(9, 25, 3, 9, 2)
    args = ("--slots", "2,6,9", "--warm", "4")
    want = replay(case, write_lines(case.path("trace.jsonl"), tokens), *args)
    check_equal(replay(case, case.dir, *args), want, "a directory with trace.jsonl")
    pairs = write_pairs(case.path("pairs.bin"), requests(tokens))
    check_equal(replay(case, pairs, *args, "--top-k", "2"), want, "the same as pairs")
    # without sizes: parts and multiples of a token's 6 requests
    check_equal(replay(case, pairs, "--top-k", "2")["slots"], [2, 3, 5, 6, 9, 12, 24], "sizes chosen")


def of_a_run(case):
    trace = case.path("trace")
    case.k3(k3test.DEMO, "--dump-cache-trace", trace, prompt="In the beginning", gen=8)
    tokens = [json.loads(line)["layers"] for line in open(os.path.join(trace, "trace.jsonl"))]
    asks = requests(tokens)
    n = len(tokens[0]) * len(tokens[0][-1])
    got = replay(case, trace, "--slots", f"{n // 2},{n},{2 * n}", "--warm", 2)
    for i, slots in enumerate((n // 2, n, 2 * n)):
        check(abs(got["policies"]["lru"][i] - naive_lru(asks, slots, 2)) < 1e-6, f"lru with {slots} slots")
    check_equal(got["tokens"], len(tokens), "tokens")


def bars(case):
    trace = k3test.data("routing/trace_kimi_300.jsonl")
    slots = [round(208 * s) for s in SWEEPS]
    got = replay(case, trace, "--slots", slots_arg(slots), "--warm", 60)["policies"]
    for i, n in enumerate(slots):
        for name in ("lru", "belady"):
            check(abs(got[name][i] - KIMI[name][i]) < 0.00055, f"{name} at {n} slots: {got[name][i]}, not {KIMI[name][i]}")
        check(got["default"][i] >= KIMI["bar"][i], f"{n} slots: {got['default'][i]} is below the bar {KIMI['bar'][i]}")
        check(got["lru"][i] < got["default"][i] <= got["belady"][i], f"{n} slots: default is not between lru and the bound")


def never_below_lru(case):
    """Every trace, 16 sizes: at least lru's hits, and some below one sweep."""
    for name, sweep, warm in (("trace_kimi_300", 208, 60), ("trace_olmoe_299", 128, 60), ("trace_olmoe_299", 128, 0),
                              ("k3_routing_12tok", 1472, 0), ("k3_routing_12tok", 1472, 4)):
        trace = k3test.data(f"routing/{name}.jsonl")
        slots = [sweep * k // 8 for k in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 32, 48, 64)]
        got = replay(case, trace, "--slots", slots_arg(slots), "--warm", warm)["policies"]
        for i, n in enumerate(slots):
            check(got["default"][i] >= got["lru"][i] - 0.01, f"{name}, {n} slots: {got['default'][i]}, lru {got['lru'][i]}")
            check(got["default"][i] > 0, f"{name}, {n} slots: no hits")
            check(got["default"][i] <= got["belady"][i], f"{name}, {n} slots: above the bound")


def two_clients(case):
    """Side by side with 1.2 sweeps, each has at least the hits it has alone with 0.6."""
    for name, sweep, warms in (("trace_kimi_300", 208, (0, 60)), ("trace_olmoe_299", 128, (0, 60)),
                               ("k3_routing_12tok", 1472, (0, 2))):
        lines = open(k3test.data(f"routing/{name}.jsonl")).readlines()
        half = len(lines) // 2
        for warm in warms:
            both = replay(case, k3test.data(f"routing/{name}.jsonl"), "--slots", int(1.2 * sweep), "--warm", warm,
                          "--clients", 2)["clients"]
            for c, part in enumerate((lines[:half], lines[half:])):
                path = case.path("half.jsonl")
                open(path, "w").writelines(part)
                alone = replay(case, path, "--slots", round(0.6 * sweep), "--warm", warm)["policies"]["default"][0]
                check(both[c]["default"][0] >= alone,
                      f"{name}, client {c + 1}, warm {warm}: {both[c]['default'][0]}, alone {alone}")


def sides_by_side_is_exact(case):
    """--clients: the parts of the trace, layer by layer in turn, are one sequence for lru and Belady."""
    tokens = random_trace(3, 20, 3, 9, 2)
    got = replay(case, write_lines(case.path("t.jsonl"), tokens), "--slots", "4,9", "--clients", 2)
    merged = [(t, l, e) for t in range(10) for l in range(3) for c in range(2) for e in tokens[10 * c + t][l]]
    for i, n in enumerate((4, 9)):
        check(abs(got["policies"]["lru"][i] - naive_lru(merged, n, 0)) < 1e-6, f"lru of both, {n} slots")
        check(abs(got["policies"]["belady"][i] - naive_belady(merged, n, 0)) < 1e-6, f"Belady of both, {n} slots")
        each = sum(c["lru"][i] for c in got["clients"]) / 2
        check(abs(each - got["policies"]["lru"][i]) < 1e-6, "the mean of the clients is that of both")


def published_table(case):
    """Every row of the published table: cache, slots, hits of lru, Belady and pin+lru, GB read a token."""
    text = open(k3test.data("published/expert-cache-capacity.txt")).read()
    rows = re.findall(r"^(\d+) GB +(\d+) +([\d.]+)% +([\d.]+)% +([\d.]+)% +([\d.]+) +[\d.]+$", text, re.M)
    check_equal(len(rows), 12, "rows of the published table")
    trace = k3test.data("routing/expert_trace.bin")
    r = case.exec("k3-store", "replay", trace, "--cache-gb", ",".join(row[0] for row in rows))
    check(r.rc == 0, f"k3-store replay failed\n{r}")
    got = re.findall(r"^ *(\d+) GB +(\d+) +([\d.]+)% +[\d.]+% +([\d.]+)% +([\d.]+)% +\| +([\d.]+) ", r.out, re.M)
    check_equal(got, rows, "the table")
    check("100096 requests, 68 tokens in 8 steps, 92 layers" in r.out, f"the first line\n{r.out}")
    check("if nothing were cached: 25.83 GB a token" in r.out, f"the bytes without a cache\n{r.out}")


def picture(case):
    tokens = random_trace(1, 20, 3, 8, 2)
    path = case.path("hits.svg")
    replay(case, write_lines(case.path("t.jsonl"), tokens), "--slots", "1,4,16", "--plot", path)
    svg = xml.dom.minidom.parse(path)
    lines = svg.getElementsByTagName("polyline")
    check_equal(len(lines), 4, "lines in the picture")
    for line in lines:
        check_equal(len(line.getAttribute("points").split()), 3, "points of a line")
    r = case.exec("k3-store", "replay", case.path("t.jsonl"), "--plot", "/dev/full")
    check(r.rc == 1 and "/dev/full" in r.err, f"a picture that cannot be written\n{r}")


REFUSED = (
    ('{"layers": [[1], [2]]}\n{"layers": [[1]]}\n', ":2: 1 layers; the lines before have 2"),
    ('{"layers": [[1]]}\n\n{"layers": [[1]\n', ":3: not JSON"),
    ('{"layers": [[1, 2, 1]]}\n', ":1: layers[0] has expert 1 twice"),
    ('{"layers": [[0], [-1]]}\n', ":1: layers[1][0] is no expert id"),
    ('{"layers": [[0], [1.0]]}\n', ":1: layers[1][0] is no expert id"),
    ('{"layers": [[0], 7]}\n', ":1: layers[1] is no list"),
    ('{"tok": 1}\n', ':1: no "layers"'),
    ('{"layers": []}\n', ':1: no "layers"'),
    ('{"layers": [[], []]}\n', ": no experts"),
    ("", ": no experts"),
    (struct.pack("<iii", 1, 2, 1), "ends within a pair at byte 8"),
    (struct.pack("<iiii", 1, 2, -1, 3), "at byte 8 stand layer -1 and expert 3"),
    ("[[1, 2]]\n", "neither a trace of int32 pairs nor one of JSON"),
)


def refused(case):
    path = case.path("trace")
    for content, want in REFUSED:
        with open(path, "wb") as f:
            f.write(content if isinstance(content, bytes) else content.encode())
        r = case.exec("k3-store", "replay", path)
        check(r.rc == 2 and path in r.err and want in r.err and not r.out, f"{content!r}: '{want}' is expected\n{r}")
    good = write_lines(case.path("good"), random_trace(1, 4, 2, 5, 2))
    for args, want in ((("--slots", "4,x"), "'x' is no number of slots"), (("--slots", "0"), "'0' is no"),
                       (("--slots", "1.5"), "'1.5' is no"), (("--slots", "4,"), "'' is no"),
                       (("--slots", "nan"), "'nan' is no"), (("--cache-gb", "0.001"), "holds an expert"),
                       (("--slots", ",".join(["4"] * 65)), "at most 64"),
                       (("--warm", "4"), "the trace has 4 tokens"), (("--clients", "5"), "has 4 steps"),
                       (("--warm", "2", "--clients", "2"), "2 tokens a client"), (("more",), "takes one trace")):
        r = case.exec("k3-store", "replay", good, *args)
        check(r.rc == 2 and want in r.err and not r.out, f"{args}: '{want}' is expected\n{r}")
    r = case.exec("k3-store", "replay", "/dev/zero")
    check(r.rc == 2 and "no regular file" in r.err, f"a device was read as a trace\n{r}")
    r = case.exec("k3-store", "replay", case.path("none"))
    check(r.rc == 1 and "none: No such file" in r.err, f"no file\n{r}")


k3test.main([against_naive, belady_is_best, formats_agree, of_a_run, bars, never_below_lru, two_clients,
             sides_by_side_is_exact, published_table, picture, refused])
