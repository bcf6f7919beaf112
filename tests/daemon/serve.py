"""The real daemon over its socket: every byte it hands out against the shards, in any memory and by any
way of reading; windows, leases, generations, hints; clients that break rules; sockets."""
import fcntl
import os
import resource
import signal
import socket
import stat
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import k3test
from k3test import DEMO, Daemon, Wire, check, check_equal, wait_until
from view import READY, ROLES, Shards, View

TIGHT = ["--tile", "16384", "--trunk-gb", "0", "--cache-gb", "0"]


def moe_layers(v, shards):
    return [n for n in range(v.n_layers) if f"language_model.model.layers.{n}.block_sparse_moe.gate.weight" in shards.where]


def all_tiles(v, shards):
    """Every tile, in two sweeps; returns the bytes of weights seen in one."""
    seen = []
    for again in (True, False):
        v.sweep(again=again)
        size = [0]

        def use(tile, offset, generation):
            size[0] += v.tile_is_right(tile, offset, shards)

        v.walk(range(v.n_tiles), use)
        seen.append(size[0])
    check_equal(seen[0], seen[1], "bytes of weights in the second sweep")
    return seen[0]


def all_experts(v, shards, n_experts, at_once=64):
    """Every expert, as many at a time as the window allows, released in reverse order."""
    step, at_once = 0, min(v.welcome["expert_window"], at_once)
    for layer in moe_layers(v, shards):
        for first in range(0, n_experts, at_once):
            ids = list(range(first, min(first + at_once, n_experts)))
            step += 1
            v.ask(layer, ids, step)
            got = [v.expert_ready() for _ in ids]
            check_equal(sorted(g[1] for g in got), ids, "experts that came")
            for g in reversed(got):
                check_equal((g[0], g[2]), (layer, step), "layer and step")
                check_equal(v.slot(g[3])[:5], (g[4], READY, layer, g[1], g[6]), "the slot's entry in the directory")
                v.expert_is_right(layer, g[1], g[6], g[8:14], shards)
                check_equal(v.slot(g[3])[0], g[4], "generation after use")
                v.expert_done(g)


def all_rows(v, shards):
    """Every embedding row, in several requests at a time."""
    embed = shards.get("language_model.model.embed_tokens.weight")
    size = len(embed) // v.embed_rows
    for first in range(0, v.embed_rows, 256):
        ids = list(range(first, min(first + 256, v.embed_rows)))
        for serial, part in enumerate((ids[:128], ids[128:])):
            if part:
                v.rows(part, serial)
        for _ in ids:
            body = v.expect("ROW")
            serial, index, token, n = struct.unpack_from("<4I", body)
            check_equal(token, ids[serial * 128 + index], "token of a row")
            check_equal((n, len(body)), (size, 16 + size), "size of a row")
            check(body[16:] == embed[token * size:(token + 1) * size], f"row {token}: other bytes than in the shard")


def bytes_of(case, model, *args):
    d = Daemon(case, model, *args)
    shards = Shards(model)
    with View(d.socket) as v:
        size = all_tiles(v, shards)
        used = {n for n in shards.where if n.startswith("language_model.") and ".experts." not in n and "embed_tokens" not in n}
        check_equal(size <= sum(shards.where[n][2] for n in used), True, "more bytes of weights than the shards have")
        check(size > 0.98 * sum(shards.where[n][2] for n in used), f"only {size} bytes of weights are in tiles")
        all_experts(v, shards, v.n_experts)
        all_rows(v, shards)
        stats = v.stats()
        check_equal((stats["tile_leases"], stats["expert_leases"]), (0, 0), "leases left")
        check_equal(stats["reads_failed"], 0, "failed reads")
    check_equal(d.stop(), 0, "exit code of k3-iod")
    return stats


def bytes_least(case):
    """Nothing pinned, four tiles and four slots: everything goes through the ring again and again."""
    s = bytes_of(case, k3test.oracle("tiny"), *TIGHT)
    check_equal((s["tiles_pinned"], s["slots"]), (0, 4), "pinned tiles and slots")
    check(s["experts_evicted"] > 100, "hardly an expert was evicted: the check shows nothing")


def bytes_demo(case):
    bytes_of(case, DEMO, "--trunk-gb", "0", "--cache-gb", "0")


def bytes_half(case):
    """Half pinned, spread over the sweep."""
    s = bytes_of(case, DEMO, "--tile", "32768", "--trunk-gb", "0.0031", "--cache-gb", "0.001")
    check(0 < s["tiles_pinned"] < 300, f"{s['tiles_pinned']} tiles are pinned")


def bytes_all(case):
    s = bytes_of(case, k3test.oracle("tiny"), "--trunk-gb", "1", "--cache-gb", "1")
    check_equal(s["tiles_pinned"], s["tiles_to_pin"], "pinned tiles")
    check_equal(s["experts_evicted"], 0, "experts evicted from a cache of all")


def bytes_generous(case):
    """What one budget has too much is left to the other."""
    for budget in (["--trunk-gb", "1000"], ["--cache-gb", "1000"]):
        s = bytes_of(case, k3test.oracle("tiny"), *budget)
        check_equal(s["tiles_pinned"], s["tiles_to_pin"], "pinned tiles")
        check(s["tiles_to_pin"] > 0, f"nothing is pinned with {budget}")
        check_equal(s["experts_evicted"], 0, f"experts evicted with {budget}")


def bytes_ways(case):
    """The other ways of reading."""
    for args in (["--backend", "threads"], ["--direct", "off"], ["--backend", "threads", "--direct", "off"],
                 ["--chunk", "4096", "--queue-depth", "1"],
                 ["--chunk", "4096", "--queue-depth", "1", "--queue-depth", k3test.oracle("tiny") + "=3"]):
        bytes_of(case, k3test.oracle("tiny"), *TIGHT, *args)


def bytes_trunk_file(case):
    model, trunk = k3test.oracle("tiny"), case.path("trunk")
    r = case.exec("k3-store", "pack", model, trunk)
    check_equal(r.rc, 0, f"k3-store pack\n{r}")
    bytes_of(case, model, "--trunk", trunk, "--trunk-gb", "0", "--cache-gb", "0")
    bytes_of(case, model, "--trunk", trunk, "--trunk-gb", "1", "--cache-gb", "0")


def damaged_trunk_file(case):
    """--verify-reads: a tile with one wrong byte is not handed out; without it nothing looks."""
    model, trunk = k3test.oracle("tiny"), case.path("trunk")
    check_equal(case.exec("k3-store", "pack", model, trunk).rc, 0, "exit code of k3-store pack")
    size = os.path.getsize(trunk)
    with open(trunk, "r+b") as f:
        f.seek(size // 2)
        byte = f.read(1)[0]
        f.seek(size // 2)
        f.write(bytes([byte ^ 1]))
    for pinned in ("0", "1"):
        d = Daemon(case, model, "--trunk", trunk, "--verify-reads", "--trunk-gb", pinned, "--cache-gb", "0")
        with View(d.socket) as v:
            v.sweep()
            try:
                v.walk(range(v.n_tiles), lambda *_: None)
                raise k3test.Failure("the damaged tile was handed out")
            except k3test.Failure as e:
                check("ERROR" in str(e) and "checksum" in str(e) and trunk in str(e), f"not the error that was wanted: {e}")
            # the client and the daemon live on
            check_equal(v.stats()["clients"], 1, "clients")
        check_equal(d.stop(), 0, "exit code of k3-iod")
    r = case.exec("k3-iod", "--model", model, "--verify-reads", "--socket", case.path("s"))
    check_equal(r.rc, 2, f"--verify-reads without checksums\n{r}")


def deaf_manager(case):
    """A service manager that reads nothing, its socket full of lines: the daemon serves on."""
    model = case.path("model")
    r = case.exec("k3-store", "synth", model, "--hidden", "512", "--layers", "4", "--dense", "1024", "--experts", "4",
                  "--vocab", "4096")
    check_equal(r.rc, 0, f"exit code of k3-store synth\n{r}")
    size = sum(os.path.getsize(os.path.join(model, n)) for n in os.listdir(model))
    d = Daemon(case, model, "--trunk-gb", "10", "--cache-gb", "0", env={"K3_IOD_FAULT": f"slow={size // 8}"})
    full = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    full.setblocking(False)
    try:
        while True:
            full.sendto(b"STATUS=noise", d.notify_path)
    except BlockingIOError:
        pass
    full.close()
    with View(d.socket) as v:
        seen = set()
        wait_until(lambda: seen.add(v.stats()["tiles_pinned"]) or len(seen) > 10, "pinned tiles to come in")
        time.sleep(2.5)  # at least two turns of the timer that reports
        check_equal(v.stats()["clients"], 1, "clients")
    d.process.send_signal(signal.SIGKILL)
    d.process.wait()


def order_of_tiles(case):
    """Layer by layer, in a layer the bundle and then the matrices as in roles.def, the head last."""
    d = Daemon(case, k3test.oracle("tiny"), *TIGHT)
    with View(d.socket) as v:
        keys = [(t["layer"], -1 if t["role"] == 0xffff else t["role"], t["first_row"]) for t in v.tiles]
        check_equal(keys, sorted(keys), "order of tiles")
        check_equal(keys[-1][0], v.n_layers, "layer of the last tile")
        check_equal(ROLES[keys[-1][1]][0], "LM_HEAD", "role of the last tile")
        # part of a model: fewer layers, with and without the head
        for n_layers, head in ((3, True), (3, False), (1, True)):
            tiles = [i for i, t in enumerate(v.tiles) if t["layer"] < n_layers or (head and t["layer"] == v.n_layers)]
            got = []
            v.sweep(n_layers=n_layers, head=head)
            v.walk(tiles, lambda tile, *_: got.append(tile))
            check_equal(got, tiles, f"tiles of {n_layers} layers, head {head}")
        # from the middle
        v.sweep(first=40)
        v.walk(range(40, v.n_tiles), lambda *_: None)
    check_equal(d.stop(), 0, "exit code of k3-iod")


def pinned_evenly(case):
    """Each fifth of the sweep has its share of what is pinned."""
    d = Daemon(case, DEMO, "--tile", "16384", "--trunk-gb", "0.0031", "--cache-gb", "0")
    with View(d.socket) as v:
        wait_until(lambda: (s := v.stats())["tiles_pinned"] == s["tiles_to_pin"], "pinned tiles to be loaded without a sweep")
        total = sum(t["slab_size"] for t in v.tiles)
        share = sum(t["slab_size"] for i, t in enumerate(v.tiles) if v.is_pinned(i)) / total
        check(0.2 < share < 0.6, f"{share:.2f} of the trunk is pinned")
        at, parts = 0, [0.0] * 5
        for i, t in enumerate(v.tiles):
            if v.is_pinned(i):
                parts[min(4, 5 * at // total)] += t["slab_size"] / (total / 5)
            at += t["slab_size"]
        check(all(abs(p - share) < 0.15 for p in parts), f"pinned shares of the fifths: {parts}, of all {share:.2f}")
        check_equal(v.welcome["trunk_pinned_size"], sum(t["slab_size"] for i, t in enumerate(v.tiles) if v.is_pinned(i)), "budget")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def read_ahead(case):
    """The disk works before the client asks on: with one tile taken, the next ones arrive by themselves."""
    d = Daemon(case, DEMO, "--tile", "16384", "--trunk-gb", "0.001", "--cache-gb", "0")
    with View(d.socket) as v:
        wait_until(lambda: (s := v.stats())["tiles_pinned"] == s["tiles_to_pin"], "pinned tiles to be loaded")
        before = v.stats()["tiles_read"]
        v.sweep()
        ring = v.welcome["ring_size"]

        def ahead():
            return sum(t["slab_size"] for i, t in enumerate(v.tiles) if v.entry(i)[1] == READY and not v.is_pinned(i)) > 0.8 * ring

        wait_until(ahead, "the ring to fill by itself")
        # without a client that goes on, reading stops: nothing is thrown away to read further ahead
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            pass
        read = d.stats()["tiles_read"] - before
        check(read * 16384 <= 1.5 * ring + 65536, f"{read} tiles were read ahead into a ring of {ring} bytes")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def windows(case):
    """A client that gives nothing back gets its windows and no more; another goes on beside it."""
    d = Daemon(case, DEMO, "--tile", "16384", "--trunk-gb", "0.002", "--cache-gb", "0.0001")
    with View(d.socket) as v, View(d.socket) as other:
        n = v.welcome["tile_window"]
        v.sweep()
        held = []
        v.s.settimeout(0.5)
        try:
            while True:
                t = v.tile_ready()
                if t[3] == 0:
                    held.append(t[1])
        except (socket.timeout, TimeoutError):
            pass
        v.s.settimeout(60)
        check(3 <= len(held) <= n, f"{len(held)} tiles leased, window {n}")
        check_equal(other.stats()["tile_leases"], len(held), "tile leases")
        # the other client sees every byte while these are held
        shards = Shards(DEMO)
        all_tiles(other, shards)
        ids = list(range(min(v.welcome["expert_window"], 32)))
        v.ask(1, ids)
        all_experts(other, shards, 8, at_once=2)
        # a new sweep takes the old leases back
        v.sweep()
        wait_until(lambda: other.stats()["tile_leases"] <= n, "the old leases to go")
    wait_until(lambda: d.stats()["clients"] == 1, "both to be gone")
    s = d.stats()
    check_equal((s["tile_leases"], s["expert_leases"]), (0, 0), "leases without clients")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def generations(case):
    """Before a slot or a tile's place is used again its generation rises; a leased one stays."""
    d = Daemon(case, k3test.oracle("tiny"), *TIGHT, "--policy", "lru")  # which says what has to go
    shards = Shards(k3test.oracle("tiny"))
    with View(d.socket) as v:
        v.ask(1, [0])
        held = v.expert_ready()
        v.ask(1, [1])
        loose = v.expert_ready()
        v.expert_done(loose)
        for expert in range(2, 20):
            v.ask(2, [expert])
            v.expert_done(v.expert_ready())
        check_equal(v.slot(held[3])[0], held[4], "generation of a leased slot")
        v.expert_is_right(1, 0, held[6], held[8:14], shards)
        check(v.slot(loose[3])[0] > loose[4], "the slot was used again under the same generation")
        v.expert_done(held)
        v.ask(1, [0, 1])
        got = [v.expert_ready() for _ in range(2)]
        check_equal([g[7] > 0 for g in sorted(got, key=lambda g: g[1])], [False, True], "read again: the one that had to go")
        v.sweep()
        first = []
        v.walk(range(v.n_tiles), lambda tile, offset, generation: first.append(generation))
        v.sweep()
        second = []
        v.walk(range(v.n_tiles), lambda tile, offset, generation: second.append(generation))
        check(all(b >= a for a, b in zip(first, second)) and sum(second) > sum(first), "generations of tiles do not rise")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def hints(case):
    """Hinted experts are there when they are asked for; they push out nothing that is leased, nor each other."""
    d = Daemon(case, DEMO, "--trunk-gb", "1", "--cache-gb", "0.0002")
    with View(d.socket) as v:
        wait_until(lambda: (s := v.stats())["tiles_pinned"] == s["tiles_to_pin"], "the disk to be idle")
        slots = v.welcome["n_slots"]
        v.ask(1, [0, 1])
        held = [v.expert_ready() for _ in range(2)]
        v.hint(2, [5, 6, 7])
        wait_until(lambda: v.stats()["hints_read"] == 3 and v.stats()["experts_resident"] == 5, "the hints to be read")
        v.ask(2, [5, 6, 7])
        for _ in range(3):
            g = v.expert_ready()
            check_equal(g[7], 0, "bytes read for a hinted expert")
            v.expert_done(g)
        v.hint(3, list(range(20)))
        wait_until(lambda: v.stats()["hints_read"] == 3 + slots - 2, "hints in all slots but those held")
        v.hint(4, list(range(20)))  # those before count no more
        wait_until(lambda: v.stats()["hints_read"] == 3 + 2 * (slots - 2), "the next hints in their place")
        v.ask(4, [0, 1, 2])
        for _ in range(3):
            g = v.expert_ready()
            check_equal(g[7], 0, "bytes read for one of the first hinted at")
            v.expert_done(g)
        v.ask(3, [0])  # a request is served though hints hold every slot that is left
        v.expert_done(v.expert_ready())
        for g in held:
            check_equal(v.slot(g[3])[0], g[4], "generation of a leased slot")
        check(v.stats()["experts_resident"] <= slots, "more experts than slots")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def take(v, n):
    """n experts as they come, given back at once: [(expert, bytes read)]."""
    out = []
    for _ in range(n):
        g = v.expert_ready()
        v.expert_done(g)
        out.append((g[1], g[7]))
    return out


def announced(case):
    """What is asked for stays until it is used, however many others are read for the same request."""
    for policy in ("decay", "lru"):
        d = Daemon(case, DEMO, "--trunk-gb", "1", "--cache-gb", "0.0002", "--policy", policy)
        with View(d.socket) as v, View(d.socket) as other:
            n = v.welcome["n_slots"]
            check(n >= 8 and v.welcome["expert_window"] >= n, f"{n} slots, window {v.welcome['expert_window']}")
            stay = list(range(n - 4))
            v.ask(1, stay)  # used longest ago
            take(v, n - 4)
            v.ask(2, [0, 1, 2, 3])
            take(v, 4)
            v.ask(1, [16, 17, 18, 19] + stay)
            got = dict(take(v, n))
            check_equal([got[e] for e in stay], [0] * len(stay), f"{policy}: bytes read for what was there and asked for")
            check(all(got[e] > 0 for e in (16, 17, 18, 19)), f"{policy}: the others were not read")
            # all slots announced or held: what is there is used first, and makes room
            other.ask(1, [16])
            kept = other.expert_ready()
            check_equal(kept[7], 0, "bytes read for a resident expert")
            v.ask(1, [20, 17, 18, 19] + stay)
            got = take(v, n)
            check(all(size == 0 for e, size in got if e != 20), f"{policy}: {got}")
            check(dict(got)[20] > 0, f"{policy}: {got}")
            other.expert_done(kept)
            # a client that has stopped keeps nobody from being served
            v.ask(1, [20, 17, 18, 19] + stay)
            other.ask(2, [8, 9, 10])
            check(all(size > 0 for _, size in take(other, 3)), f"{policy}: beside a stopped client")
            take(v, n)
        check_equal(d.stop(), 0, "exit code of k3-iod")


def files_handed_out(case):
    """config.json and tokenizer files come as copies that nobody can change; the slab is read-only."""
    d = Daemon(case, DEMO, "--trunk-gb", "0", "--cache-gb", "0")
    with View(d.socket) as v:
        check_equal(v.welcome["has"], 3, "has")
        for fd, name in zip(v.fds[2:], ("config.json", "tiktoken.model", "tokenizer_config.json")):
            want = open(os.path.join(DEMO, name), "rb").read()
            check_equal(os.fstat(fd).st_size, len(want), f"size of {name}")
            check(os.pread(fd, len(want), 0) == want, f"{name}: other bytes")
        for fd in v.fds:
            check_equal(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE, os.O_RDONLY, "access mode of a descriptor")
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            check_equal(seals & (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW), fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW, "seals")
            if fd != v.fds[0]:
                check(seals & fcntl.F_SEAL_WRITE, "a copy that can be written")
            try:
                os.ftruncate(fd, 0)
                raise k3test.Failure("a descriptor could be truncated")
            except OSError:
                pass
        check_equal(stat.S_IMODE(os.fstat(v.fds[0]).st_mode), 0o600, "mode of the slab")
    check_equal(d.stop(), 0, "exit code of k3-iod")
    d = Daemon(case, k3test.oracle("tiny"), "--tok", DEMO, "--trunk-gb", "0", "--cache-gb", "0")
    with Wire(d.socket) as w:
        check_equal(w.hello()["has"], 3, "has with --tok")
    check_equal(d.stop(), 0, "exit code of k3-iod")
    r = case.exec("k3-iod", "--model", DEMO, "--tok", case.subdir("empty"), "--socket", case.path("s"))
    check_equal(r.rc, 2, f"exit code without a vocabulary\n{r}")
    check("tiktoken.model" in r.err, f"the file is not named\n{r}")


def closing_error(w):
    """The sentence of the ERROR that ends the connection."""
    while True:
        got = w.receive()
        check(got is not None, "the connection ended without an ERROR")
        if got[0] == "ERROR":
            code, kind, request, flags = struct.unpack_from("<4I", got[1])
            if flags & 1:
                check(w.receive() is None, "messages after a closing ERROR")
                return code, got[1][32:].decode()


def broken_rules(case):
    """Numbers that the model or the window does not allow: told why, dropped, logged."""
    d = Daemon(case, k3test.oracle("tiny"), "--trunk-gb", "1", "--cache-gb", "0")

    def after(f, *words):
        with View(d.socket) as v:
            try:
                f(v)
            except BrokenPipeError:
                pass  # dropped before it had broken the rule for the last time
            code, text = closing_error(v)
            check_equal(code, 10, f"code of '{text}'")
            for w in words:
                check(w in text, f"'{text}' does not say {w!r}")
            wait_until(lambda: text[:60] in d.log(), "the reason to be in the log")

    after(lambda v: v.rows([511, 512]), "512")
    after(lambda v: v.hint(0, [1]), "HINT", "layer 0")
    after(lambda v: (v.sweep(), v.send("SWEEP", struct.pack("<4I", 1, 0, 1, 1))), "SWEEP", "1")
    after(lambda v: v.sweep(n_layers=10), "n_layers", "10")
    after(lambda v: v.sweep(first=v.n_tiles - 1, head=False), "first_tile")
    after(lambda v: v.sweep(first=60, n_layers=1), "first_tile")
    after(lambda v: v.send("TILE_DONE", struct.pack("<2I", 7, 0)), "TILE_DONE", "7")

    def twice(v):
        v.ask(1, [3])
        g = v.expert_ready()
        v.expert_done(g)
        v.expert_done(g)

    after(twice, "EXPERT_DONE")
    check(d.stats()["clients_dropped"] >= 8, "dropped clients are not counted")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def beyond_the_quota(case):
    """What exceeds the window is refused, worth asking again; the rest is served and the client stays."""
    d = Daemon(case, k3test.oracle("tiny"), "--trunk-gb", "1", "--cache-gb", "0")
    with View(d.socket) as v:

        def refusal():
            code, kind, request, flags, a, b = struct.unpack_from("<6I", v.expect("ERROR"))
            check_equal((code, kind, flags), (12, 1, 0), "code BUSY, class RETRY, connection kept")
            return request, a, b

        v.ask(1, range(5))
        check_equal(refusal(), (v.numbers["EXPERTS"], 1, 4), "the expert beyond the window of 4")
        held = [v.expert_ready() for _ in range(4)]
        check_equal(sorted(h[1] for h in held), [0, 1, 2, 3], "the experts within it")
        v.expert_done(held[0])
        v.ask(1, [4])
        check_equal(v.expert_ready()[1], 4, "asked for again after one was returned")
        for serial in range(40):
            v.rows([1] * 128, serial)
        served, refused = {}, []
        while sum(served.values()) + 128 * len(refused) < 40 * 128:
            name, body = v.receive()
            if name == "ERROR":
                code, kind, request, flags, a, b = struct.unpack_from("<6I", body)
                check_equal((code, kind, request, flags, b), (12, 1, v.numbers["ROWS"], 0, 0), "refusal of rows")
                refused.append(a)
            else:
                check_equal(name, "ROW", "answer to ROWS")
                serial = struct.unpack_from("<I", body)[0]
                served[serial] = served.get(serial, 0) + 1
        check(len(served) >= 4 and not set(served) & set(refused), f"served {sorted(served)}, refused {refused}")
        check_equal(v.stats()["requests_refused"], 1 + len(refused), "requests_refused")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def floods(case):
    """A client that asks without reading is dropped; the daemon's memory does not grow with it."""
    d = Daemon(case, DEMO, "--trunk-gb", "1", "--cache-gb", "0")
    with Wire(d.socket) as w:
        w.hello()
        base = w.stats()["private_bytes"]
    for _ in range(3):
        with Wire(d.socket) as w:
            w.hello()
            try:
                for _ in range(20000):
                    w.send("STATS", bytes(8))
            except (BrokenPipeError, ConnectionResetError):
                pass
            else:
                raise k3test.Failure("20000 requests without reading an answer, and not dropped")
    wait_until(lambda: "does not read" in d.log(), "the reason to be in the log")
    s = d.stats()
    check_equal(s["clients_dropped"], 3, "dropped clients")
    # checkers of memory (which make everything slow) keep freed memory back
    check(s["private_bytes"] - base < (4 << 20 if k3test.SLOW == 1 else 256 << 20), f"memory grew from {base} to {s['private_bytes']}")
    # connections that say nothing are held off by their number alone
    idle = [Wire(d.socket) for _ in range(200)]
    wait_until(lambda: "were not printed" in d.log() or "a connection was closed" in d.log(), "connections to be refused")
    for w in idle:
        w.close()
    wait_until(lambda: d.stats()["clients"] == 1, "them to be gone")
    # a reader that is slow but reads is served to the last answer
    with Wire(d.socket) as w:
        w.hello()
        for _ in range(300):
            w.send("STATS", bytes(8))
        for _ in range(300):
            w.expect("STATS_REPLY")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def sockets(case):
    """What stands at --socket: a live daemon and foreign files are left alone, dead sockets replaced."""
    model = k3test.oracle("tiny")
    args = ("--trunk-gb", "0", "--cache-gb", "0")
    d = Daemon(case, model, *args)
    check_equal(stat.S_IMODE(os.stat(d.socket).st_mode), 0o660, "mode of the socket")
    inode = os.stat(d.socket).st_ino
    for _ in range(3):
        r = case.exec("k3-iod", "--model", model, "--socket", d.socket)
        check_equal(r.rc, 1, f"exit code of a second daemon\n{r}")
        check(d.socket in r.err and "another" in r.err, f"no sentence\n{r}")
    check_equal(os.stat(d.socket).st_ino, inode, "the socket file")
    # the same when the lock file is gone: the socket itself answers
    os.unlink(d.socket + ".lock")
    r = case.exec("k3-iod", "--model", model, "--socket", d.socket)
    check_equal(r.rc, 1, f"exit code without a lock file\n{r}")
    check_equal(os.stat(d.socket).st_ino, inode, "the socket file")
    check_equal(d.stats()["clients"], 1, "clients")
    check_equal(d.stop(), 0, "exit code")
    check(not os.path.exists(d.socket), "the socket stays behind")
    # a file that is no socket
    plain = case.path("plain")
    open(plain, "w").write("mine")
    r = case.exec("k3-iod", "--model", model, "--socket", plain)
    check_equal((r.rc, open(plain).read()), (1, "mine"), f"a plain file at --socket\n{r}")
    check("no socket" in r.err, f"no sentence\n{r}")
    # a path that is too long, a folder that is not there
    for path in (case.path("x" * 120), case.path("no/such/folder")):
        r = case.exec("k3-iod", "--model", model, "--socket", path)
        check(r.rc in (1, 2) and "socket" in r.err or "No such" in r.err, f"{path}\n{r}")
    # dead sockets, again and again
    path = case.path("again")
    for _ in range(3):
        d = Daemon(case, model, *args, socket_path=path)
        check_equal(d.stats()["clients"], 1, "clients")
        d.stop(signal.SIGKILL)
        check(os.path.exists(path), "the socket is gone")


def configuration_file(case):
    """Options from a file: as on the command line, which wins; nonsense is refused with its line."""
    conf = case.path("iod.conf")
    open(conf, "w").write(f"# what to serve\nmodel = {k3test.oracle('tiny')}\ntrunk-gb = 0\ncache-gb = 1\n")
    d = Daemon(case, [], "--conf", conf, "--cache-gb", "0")
    check_equal((d.stats()["slots"], d.stats()["tiles_to_pin"]), (4, 0), "slots and pinned tiles")
    check_equal(d.stop(), 0, "exit code")
    for text in ("trunk-gb = much\n", "\nno-such = 1\n", "model\n"):
        open(conf, "w").write(text)
        r = case.exec("k3-iod", "--conf", conf, "--socket", case.path("s"))
        check_equal(r.rc, 2, f"{text!r}\n{r}")
        check(f"{conf}:{text.count(chr(10))}" in r.err, f"{text!r}: file and line are not named\n{r}")
    open(conf, "w").write("help = yes\n")
    r = case.exec("k3-iod", "--conf", conf, "--socket", case.path("s"))
    check(r.rc == 2 and f"{conf}: help" in r.err and not r.out, f"help in a file\n{r}")


def log_lines(case):
    """What a name holds cannot make lines of its own in the log, nor speak to a terminal."""
    r = case.exec("k3-iod", "--model", "/no\x1b[2Jsuch\n<3>k3-iod: model", "--socket", case.path("s"))
    check_equal(r.rc, 2, f"exit code\n{r}")
    check_equal(r.err.count("\n"), 1, f"lines\n{r}")
    check("\x1b" not in r.err and "such" in r.err, f"the name is not as it should be\n{r!r}")


def no_descriptors(case):
    """Out of descriptors: said once a second, not as often as the loop can turn; then it goes on."""
    d = Daemon(case, k3test.oracle("tiny"), "--trunk-gb", "1", "--cache-gb", "0")
    soft, hard = resource.prlimit(d.pid, resource.RLIMIT_NOFILE)
    with View(d.socket) as v:
        v.stats()  # whatever it opened to start is closed again
        fds = set(map(int, os.listdir(f"/proc/{d.pid}/fd")))
        used = min(set(range(len(fds) + 1)) - fds)  # the number that the next one would get
        resource.prlimit(d.pid, resource.RLIMIT_NOFILE, (used, hard))
        with Wire(d.socket) as w:
            wait_until(lambda: d.log().count("could not be accepted") > 2, "three attempts to accept")
            check_equal(v.stats()["log_lines_dropped"], 0, "complaints beyond ten a second")
            resource.prlimit(d.pid, resource.RLIMIT_NOFILE, (soft, hard))
            w.hello()
    check_equal(d.stop(), 0, "exit code of k3-iod")


def stop_at_start(case):
    """A signal ends the daemon while it still takes memory, not after all of it is there."""
    def pending():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        os.kill(os.getpid(), signal.SIGTERM)

    d = Daemon(case, k3test.oracle("tiny"), *TIGHT, wait=False, preexec=pending)
    check_equal(d.process.wait(k3test.TIMEOUT), 0, f"exit code\n{d.log()}")
    check("stopping" in d.log(), f"it does not say that it stops\n{d.log()}")
    check("slab" not in d.log(), f"it took all memory first\n{d.log()}")


k3test.main([bytes_least, bytes_demo, bytes_half, bytes_all, bytes_generous, bytes_ways, bytes_trunk_file, damaged_trunk_file, deaf_manager, order_of_tiles, pinned_evenly,
             read_ahead, windows, generations, hints, announced, files_handed_out, broken_rules, beyond_the_quota, floods, sockets, configuration_file, log_lines, no_descriptors,
             stop_at_start])
