"""Looking at a daemon: k3 stats, and the answer for Prometheus, read by a parser of the format that
shares nothing with the daemon."""
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import DEMO, Daemon, Wire, check, check_equal, wait_until

STATS = k3test.table("proto/stats.def", "STAT")


def scrape(path, request=b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"):
    """(status line, headers, body)."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(k3test.TIMEOUT)
        s.connect(path)
        s.sendall(request)
        data = b""
        while chunk := s.recv(65536):
            data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(x.split(": ", 1) for x in lines[1:])
    check_equal(int(headers["Content-Length"]), len(body), "Content-Length")
    return lines[0], headers, body.decode()


LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{({LABEL}(?:,{LABEL})*)\}})? ([0-9.eE+-]+|NaN|[+-]Inf)")


def parse(text):
    """Text format 0.0.4: {name: (type, {labels: value})}. A breach of the format is a failure."""
    check(text.endswith("\n"), "the last line has no end")
    families, seen = {}, set()
    for line in text.splitlines():
        if line.startswith("# "):
            word, name, rest = line[2:].split(" ", 2)
            check(word in ("HELP", "TYPE"), f"a comment of another kind: {line}")
            if word == "HELP":
                check(name not in families, f"{name} comes twice")
                families[name] = [None, {}]
            else:
                check(name in families and not families[name][1], f"TYPE after samples: {line}")
                check(rest in ("counter", "gauge"), line)
                families[name][0] = rest
            continue
        m = SAMPLE.fullmatch(line)
        check(m, f"no sample: {line!r}")
        name, labels, value = m.groups()
        check(list(families)[-1] == name, f"{name} stands among others")
        check((name, labels) not in seen, f"{line} comes twice")
        seen.add((name, labels))
        families[name][1][labels] = float(value)
    for name, (kind, samples) in families.items():
        check(kind, f"{name} has no TYPE")
        check((kind == "counter") == name.endswith("_total"), f"{name} is a {kind}")
    return families


def prometheus(case):
    """Every counter of stats.def, with the value that STATS has, devices and clients."""
    path = case.path("metrics")
    d = Daemon(case, DEMO, "--trunk-gb", "0", "--cache-gb", "0", "--metrics", path)
    case.k3(None, prompt="Thus saith the LORD", gen=8, daemon=d)
    with Wire(d.socket) as w:
        w.hello()
        status, headers, body = scrape(path)
        stats = w.stats()
    check_equal(status, "HTTP/1.0 200 OK", "status")
    check("version=0.0.4" in headers["Content-Type"], headers)
    families = parse(body)
    fixed = 0
    for name, _, kind, *_ in STATS:
        full = f"k3_{name}" + ("_total" if kind == "C" else "")
        check(full in families, f"{full} is missing")
        check_equal(families[full][0], "counter" if kind == "C" else "gauge", full)
        if name not in ("peak_rss_bytes", "private_bytes", "clients"):
            check_equal(families[full][1][None], stats[name], full)
            fixed += stats[name] > 0
    check(fixed > 5, "hardly a counter has moved: the check shows little")
    read = families["k3_device_read_bytes_total"][1]
    check_equal(len(read), 4, f"classes of one device: {read}")
    total = stats["trunk_bytes_read"] + stats["expert_bytes_read"] + stats["row_bytes_read"]
    check(sum(read.values()) >= total > 0, f"{read} do not cover the {total} bytes that were used")
    check_equal(len(families["k3_client_wait_seconds_total"][1]), 1, "clients")
    check_equal(d.stop(), 0, "exit code")
    check(not os.path.exists(path), "the socket of the metrics stays")


def parser(case):
    """The parser itself notices what is wrong."""
    good = "# HELP a_total x\n# TYPE a_total counter\na_total{p=\"\\\"\"} 1\n"
    parse(good)
    for bad in (good[:-1], good + 'a_total{p="\\""} 1\n', good.replace("counter", "gauge"), good.replace("1\n", "one\n"),
                good.replace("# TYPE", "# KIND"), good.replace('\\"', '"')):
        try:
            parse(bad)
        except k3test.Failure:
            continue
        raise k3test.Failure(f"not noticed: {bad!r}")


def visitors(case):
    """Those that ask for nothing, for something else, or do not read hold nobody up, and go."""
    path = case.path("metrics")
    d = Daemon(case, DEMO, "--metrics", path)
    check_equal(scrape(path, b"GET /elsewhere HTTP/1.0\r\n\r\n")[0], "HTTP/1.0 404 Not Found", "another page")
    check_equal(scrape(path, b"POST /metrics HTTP/1.0\r\n\r\n")[0], "HTTP/1.0 404 Not Found", "another method")
    # more than the request itself, or a request that is too long: an answer, and no reset (scrape reads to the end)
    check_equal(scrape(path, b"GET /metrics HTTP/1.1\r\n\r\n" + b"x" * 6000)[0], "HTTP/1.0 200 OK", "bytes behind a request")
    check_equal(scrape(path, b"GET /metrics HTTP/1.1\r\nCookie: " + b"x" * 6000 + b"\r\n\r\n")[0],
                "HTTP/1.0 431 Request Header Fields Too Large", "a request of 6 KB")
    silent = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    for s in silent:
        s.connect(path)
    endless = socket.socket(socket.AF_UNIX)
    endless.settimeout(k3test.TIMEOUT)
    endless.connect(path)
    try:
        endless.sendall(b"x" * 100000)
        endless.recv(1)
    except (BrokenPipeError, ConnectionResetError):
        pass
    r = case.k3(None, prompt="Thus saith the LORD", gen=8, daemon=d)  # clients are served all the while
    check_equal(r.rc, 0, "a run beside them")
    check(len(parse(scrape(path)[2])) > 20, "no answer after those that were silent have gone")
    for s in [*silent, endless]:
        s.close()
    check_equal(d.stop(), 0, "exit code")
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind(case.path("busy"))
        busy.listen(0)
        first.connect(case.path("busy"))  # the next one would wait
        r = case.exec("k3-iod", "--model", DEMO, "--socket", case.path("s"), "--metrics", case.path("busy"))
        check(r.rc == 1 and "served by another" in r.err, f"a socket of somebody who is busy\n{r}")
        check(os.path.exists(case.path("busy")), "it took the socket of somebody who is busy")
    r = case.exec("k3-iod", "--model", DEMO, "--socket", case.path("s"), "--metrics", case.dir)
    check(r.rc == 1 and "--metrics" in r.err, f"a folder in the place of the socket\n{r}")


def no_descriptors(case):
    """Out of descriptors: said once a second, not as often as the loop can turn; then it answers."""
    path = case.path("metrics")
    d = Daemon(case, DEMO, "--trunk-gb", "0", "--cache-gb", "0", "--metrics", path)
    soft, hard = resource.prlimit(d.pid, resource.RLIMIT_NOFILE)
    fds = set()
    while (now := set(map(int, os.listdir(f"/proc/{d.pid}/fd")))) != fds:  # and the visit is over
        fds = now
        time.sleep(0.5)
    used = min(set(range(len(fds) + 1)) - fds)  # the number that the next one would get
    resource.prlimit(d.pid, resource.RLIMIT_NOFILE, (used, hard))
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        wait_until(lambda: d.log().count("visitor of --metrics") > 2, "three attempts to accept")
        resource.prlimit(d.pid, resource.RLIMIT_NOFILE, (soft, hard))
    dropped = parse(scrape(path)[2])["k3_log_lines_dropped_total"][1]
    check_equal(dropped, {None: 0}, "complaints beyond ten a second")
    check_equal(d.stop(), 0, "exit code")


def paths(case):
    """A path that is no UTF-8 is shown all the same, in JSON and for Prometheus."""
    model, path = case.path("m\udcffl"), case.path("metrics")
    os.symlink(DEMO, model)
    d = Daemon(case, model, "--trunk-gb", "0", "--cache-gb", "0", "--metrics", path)
    r = case.exec("k3", "stats", "--socket", d.socket, "--json")
    shown = [x["path"] for x in json.loads(r.out)["devices"]]
    check(len(shown) == 1 and "/m?l/" in shown[0] + "/", f"devices: {shown}")
    labels = parse(scrape(path)[2])["k3_device_reads_in_flight"][1]
    check_equal(list(labels), [f'path="{shown[0]}"'], "labels")
    check_equal(d.stop(), 0, "exit code")


def view(case):
    """k3 stats: text, JSON, and a picture every second; it is no client and needs no promise."""
    d = Daemon(case, DEMO, "--trunk-gb", "0", "--cache-gb", "0")
    with Wire(d.socket) as w:
        w.hello()
        w.send("SWEEP", (1).to_bytes(4, "little") + (0).to_bytes(4, "little") + (9).to_bytes(4, "little") + (0).to_bytes(4, "little"))
        w.expect("TILE_READY")
        r = case.exec("k3", "stats", "--socket", d.socket, "--json")
        check_equal(r.rc, 0, f"exit code\n{r}")
        picture = json.loads(r.out)
        for name, *_ in STATS:
            check(name in picture["counters"], f"{name} is missing")
        check_equal(picture["counters"]["slots"], w.welcome["n_slots"], "slots")
        c = picture["clients"]
        check_equal(len(c), 1, "clients: who looks is none")
        check_equal((c[0]["pid"], c[0]["uid"], c[0]["name"]), (os.getpid(), os.getuid(), "k3test"), "the client")
        check(c[0]["tile_leases"] > 0 and c[0]["position"] > 0 and c[0]["length"] >= c[0]["position"], f"its sweep: {c[0]}")
        slots = picture["slots"]
        check_equal(slots["empty"] + slots["loading"] + slots["ready"], slots["total"], "states of slots")
        check_equal(len(slots["map"]), min(slots["total"], 64), "the map")
        check(picture["devices"][0]["bytes"]["trunk"] > 0, f"bytes by class: {picture['devices']}")
        text = case.exec("k3", "stats", "--socket", d.socket).out
        check(re.search(rf"^{c[0]['number']} +k3test +{os.getpid()} ", text, re.M), text)
        p = subprocess.Popen([k3test.program("k3"), "stats", "--socket", d.socket, "--watch", "1", "--json"],
                             stdout=subprocess.PIPE, text=True)
        case.processes.append(p)
        first, second = json.loads(p.stdout.readline()), json.loads(p.stdout.readline())
        check(second["uptime_seconds"] > first["uptime_seconds"], "time does not pass")
    check_equal(d.stop(), 0, "exit code")
    d = Daemon(case, DEMO, socket_path=d.socket)
    third = json.loads(p.stdout.readline())
    while third["uptime_seconds"] >= second["uptime_seconds"]:  # pictures of the first daemon's last seconds
        third = json.loads(p.stdout.readline())
    check_equal(p.poll(), None, "k3 stats --watch, when the daemon has started again")
    p.kill()
    p.stdout.close()
    for args in (["--watch", "0"], ["--watch", "x"], ["--watch", str(2**32 + 2)], ["3"]):
        check_equal(case.exec("k3", "stats", "--socket", d.socket, *args).rc, 2, f"exit code with {args}")
    check_equal(d.stop(), 0, "exit code")


def quotas(case):
    """Shares by option: what WELCOME promises, one client too many, and a reload for those that come."""
    conf = case.path("iod.conf")
    text = "client-tiles = 4\nclient-experts = 8\nmax-clients = {}\n"
    open(conf, "w").write(text.format(2))
    d = Daemon(case, DEMO, "--conf", conf)
    busy = [r[1] for r in k3test.table("shared/err.def", "ERR") if r[0] == "BUSY"][0]
    with Wire(d.socket) as a, Wire(d.socket) as b, Wire(d.socket) as c:
        for w in (a, b):
            w.hello()
            check_equal((w.welcome["tile_window"], w.welcome["expert_window"]), (4, 8), "windows")
        try:
            c.hello()
            raise k3test.Failure("a third client was let in")
        except k3test.Failure as e:
            check("at most 2 clients" in str(e), str(e))
            check("ERROR" in str(e) and int(busy) == 12, "not the code that is worth asking again")
        open(conf, "w").write(text.format(3).replace("= 4", "= 5"))
        d.messages.clear()
        d.process.send_signal(signal.SIGHUP)
        d.wait_notify(lambda x: x == "READY=1")
        with Wire(d.socket) as e:
            e.hello()
            check_equal((e.welcome["tile_window"], e.welcome["expert_window"]), (5, 8), "windows after the reload")
        check("max-clients 3" in d.log(), d.log())
        # nine experts, where eight were promised: refused, and told that asking again is worth it
        b.send("EXPERTS", struct.pack("<IIII128H", 1, 9, 1, 0, *range(9), *[0] * 119))
        got = b.receive()
        while got and got[0] != "ERROR":
            got = b.receive()
        check(got is not None, "no ERROR before the connection ended")
        check_equal(struct.unpack_from("<II", got[1]), (int(busy), 1), "code and class of a quota that is used up")
        check(b"more than the window of 8 experts" in got[1], str(got[1]))
    check_equal(d.stop(), 0, "exit code")


if __name__ == "__main__":
    k3test.main([parser, prometheus, visitors, no_descriptors, paths, view, quotas])
