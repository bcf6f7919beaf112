"""deploy/download-model against a local server that does all that servers and networks do: each file is byte-exact in
the end or named as failed, and a second run fetches only what is missing."""
import hashlib
import http.server
import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import check, check_equal, wait_until

PROGRAM = os.path.join(k3test.ROOT, "deploy", "download-model")
TOKEN = "hf_secretSecretSecret"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        srv = self.server
        name = self.path.rsplit("/", 1)[1]
        m = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        start = int(m[1]) if m else 0
        with srv.lock:
            srv.log.append((name, start, self.headers.get("Authorization"), srv.server_port))
            faults = srv.faults.get(name, [])
            fault = faults[0] if faults else None
            if fault and not fault.endswith("always"):
                faults.pop(0)
        self.close_connection = True
        body = srv.files.get(name)
        if body is None:
            return self.simple(404)
        kind = (fault or "").removesuffix(" always")
        try:
            getattr(self, "fault_" + kind.split(":")[0])(name, body, start, kind.partition(":")[2]) if kind else \
                self.good(body, start)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def simple(self, code, **headers):
        self.send_response(code)
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), v)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def head(self, body, start, length=None, first=None, total=None):
        if start:
            self.send_response(206)
            first = start if first is None else first
            self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body) if total is None else total}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body) - start if length is None else length))
        self.end_headers()

    def good(self, body, start):
        if start >= len(body):
            return self.simple(416, Content_Range=f"bytes */{len(body)}")
        self.head(body, start)
        self.wfile.write(body[start:])

    def half(self, body, start):
        self.head(body, start)
        self.wfile.write(body[start:start + (len(body) - start) // 2])
        self.wfile.flush()

    def fault_stall(self, name, body, start, _):
        self.half(body, start)
        self.server.over.wait(30)

    def fault_silent(self, name, body, start, _):
        self.server.over.wait(30)

    def fault_reset(self, name, body, start, _):
        self.half(body, start)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def fault_truncated(self, name, body, start, _):
        self.half(body, start)

    def fault_drip(self, name, body, start, _):
        self.head(body, start)
        for i in range(start, len(body), 8):
            if self.server.over.wait(0.05):
                return
            self.wfile.write(body[i:i + 8])

    def fault_wrong_bytes(self, name, body, start, _):
        bad = bytearray(body)
        bad[(start + len(body)) // 2] ^= 4
        self.good(bytes(bad), start)

    def fault_wrong_content_range(self, name, body, start, _):
        self.head(body, start, first=start + 7 if start else None)
        self.wfile.write(body[start:])

    def fault_other_total(self, name, body, start, _):
        self.head(body, start, total=len(body) + 5 if start else None)
        self.wfile.write(body[start:])

    def fault_wrong_size(self, name, body, start, _):
        self.good(body[:-9], 0)

    def fault_too_much(self, name, body, start, _):
        self.send_response(200)
        self.end_headers()  # no length: to the end of the connection
        self.wfile.write(body + b"more")

    def fault_page(self, name, body, start, _):
        self.good(b"<html>please sign in</html>", 0)

    def fault_no_ranges(self, name, body, start, _):
        self.good(body, 0)

    def fault_code(self, name, body, start, text):
        self.simple(int(text))

    def fault_wait(self, name, body, start, text):
        self.simple(429, Retry_After=text)

    def fault_garbage(self, name, body, start, _):
        self.wfile.write(b"\0\1\2 this is no answer\r\n\r\n")

    def fault_broken_record(self, name, body, start, _):
        self.half(body, start)
        os.write(self.connection.fileno(), b"no record of TLS" * 8)

    def fault_redirect(self, name, body, start, _):
        self.simple(302, Location=f"{self.server.other.url}/elsewhere/{name}")


    def fault_odd_length(self, name, body, start, _):
        self.send_response(200)
        self.send_header("Content-Length", "many")
        self.end_headers()

    def fault_odd_chunks(self, name, body, start, _):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"zz\r\nabc\r\n")

    def fault_odd_redirect(self, name, body, start, text):
        self.simple(302, Location=text)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, files, tls=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.faults, self.log = files, {}, []
        self.lock, self.over = threading.Lock(), threading.Event()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server_port}"
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        pass

    def end(self):
        self.over.set()
        self.shutdown()
        self.server_close()


class Download:
    """A server, a manifest, and a directory to fetch into."""

    def __init__(self, case, n=6, size=200_000, seed=1, tls=None):
        rng = random.Random(seed)
        self.case = case
        self.files = {f"model-{i:05}-of-{n:06}.safetensors": rng.randbytes(size + 997 * i) for i in range(1, n + 1)}
        self.files["config.json"] = b"{}"
        folder = case.subdir("download")
        self.server, self.manifest, self.out = Server(self.files, tls), f"{folder}/manifest.tsv", f"{folder}/out"
        self.server.other = Server(self.files)
        self.write_manifest(self.files)

    def write_manifest(self, files, unknown=()):
        with open(self.manifest, "w") as f:
            f.write("# files\n")
            for name, b in files.items():
                f.write(f"{name}\t-\t-\n" if name in unknown else f"{name}\t{len(b)}\t{hashlib.sha256(b).hexdigest()}\n")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.end()
        self.server.other.end()

    def argv(self, *args):
        return [sys.executable, "-B", PROGRAM, self.out, "--endpoint", self.server.url, "--manifest", self.manifest, "--timeout", "1",
                "--pause", "0.01", *map(str, args)]

    def run(self, *args, expect=0, env=None):
        self.server.log.clear()
        p = subprocess.run(self.argv(*args), capture_output=True, text=True, timeout=k3test.TIMEOUT,
                           env=dict(os.environ, HF_TOKEN=TOKEN, **(env or {})))
        check_equal(p.returncode, expect, f"exit code\n{p.stdout}\n{p.stderr}")
        check(TOKEN not in p.stdout + p.stderr, "the token was printed")
        return p.stderr

    def check_files(self, without=()):
        for name, b in self.files.items():
            path = os.path.join(self.out, name)
            if name in without:
                check(not os.path.exists(path), f"{name} has its name although it is not whole")
            else:
                check(open(path, "rb").read() == b, f"{name} has other bytes")
        check_equal([n for n in os.listdir(self.out) if n.endswith(".part") and n[:-5] not in without], [], "partial files")

    def fetched(self):
        return sorted(n for n, _, _, _ in self.server.log)


def shard(i, n=6):
    return f"model-{i:05}-of-{n:06}.safetensors"


def plain(case):
    with Download(case) as d:
        d.run()
        d.check_files()
        check_equal(d.fetched(), sorted(d.files), "requests")
        check_equal({a for _, _, a, _ in d.server.log}, {f"Bearer {TOKEN}"}, "the token that was sent")
        d.run()
        check_equal(d.fetched(), [], "requests of a second run")
        os.unlink(os.path.join(d.out, shard(2)))
        d.run()
        check_equal(d.fetched(), [shard(2)], "requests after one file is gone")
        # a file of the wrong size is not taken for the right one; wrong bytes of the right size by --check
        with open(os.path.join(d.out, shard(3)), "ab") as f:
            f.write(b"x")
        d.run()
        check_equal(d.fetched(), [shard(3)], "requests after one file has another size")
        with open(os.path.join(d.out, shard(4)), "r+b") as f:
            f.write(b"wrong")
        d.run()
        check_equal(d.fetched(), [], "requests without --check")
        err = d.run("--check")
        check("7 files are there, 0.001 GB: compared" in err, f"what --check is at\n{err}")
        check_equal(d.fetched(), [shard(4)], "requests with --check")
        d.check_files()


# Each at the first request, then at a resumed one: what the second meets after a connection that broke half way.
FAULTS = ["stall", "silent", "reset", "truncated", "drip", "wrong_bytes", "wrong_content_range", "other_total", "wrong_size",
          "too_much", "page", "no_ranges", "code:500", "code:502", "code:503", "code:408", "code:416", "wait:0", "wait:1",
          "garbage", "redirect", "odd_length", "odd_chunks", "odd_redirect:http://[", "odd_redirect:http://" + "x" * 80 + "/",
          "wait:\u00b2", "wait:Mon, 01 Jan 0001 00:00:00 -0000"]


def faults(case):
    for before in ([], ["truncated"]):
        with Download(case, n=len(FAULTS), size=60_000) as d:
            for i, fault in enumerate(FAULTS, 1):
                d.server.faults[shard(i, len(FAULTS))] = before + [fault]
            err = d.run("--jobs", 16)
            d.check_files()
            for i, fault in enumerate(FAULTS, 1):
                name = shard(i, len(FAULTS))
                if fault in ("no_ranges", "redirect") and not before:
                    continue
                if fault in ("wrong_content_range", "other_total") and not before:
                    continue  # there is none in the first answer
                check(name in err, f"nothing is said of {fault} {before}\n{err}")
            check_equal({a for _, _, a, _ in d.server.other.log}, {None}, "the token went where the server redirects")


def resumed(case):
    """A broken connection costs what was not there yet, no more."""
    with Download(case, n=1, size=1_000_000) as d:
        name = shard(1, 1)
        d.server.faults[name] = ["truncated", "reset", "truncated"]
        d.run()
        starts = [start for n, start, _, _ in d.server.log if n == name]
        size = len(d.files[name])
        check_equal(starts[0], 0, "the first request")
        check(starts == sorted(starts) and len(starts) == 4 and starts[1] == size // 2, f"where requests began: {starts}")
        d.check_files()


def encrypted(case):
    """What breaks inside of TLS is the connection's fault and not the disk's: asked for again. A certificate that
    nobody vouches for is refused, with that reason."""
    pem = case.path("server.pem")
    if not shutil.which("openssl") or subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
             "/CN=k3test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", pem + ".key", "-out", pem],
            capture_output=True).returncode:
        raise k3test.Skip("openssl makes no certificate here")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem, pem + ".key")
    with Download(case, n=2, size=400_000, tls=tls) as d:
        d.server.faults = {shard(1, 2): ["broken_record"], shard(2, 2): ["truncated"]}
        err = d.run(env={"SSL_CERT_FILE": pem})
        check(shard(1, 2) in err and shard(2, 2) in err, f"nothing is said of the broken connections\n{err}")
        d.check_files()
        os.unlink(os.path.join(d.out, shard(1, 2)))
        err = d.run("--retries", "1", expect=1)
        check(re.search(rf"{shard(1, 2)}: FAILED: .*certificate", err), f"a certificate of nobody\n{err}")


# What a network does in the middle of a body and that is no ConnectionError: the first three reads of the process.
NO_ROUTE = """
import errno, http.client, ssl
left = [OSError(errno.EHOSTUNREACH, "No route to host"), ssl.SSLError(1, "bad record mac"), OSError(errno.ENETDOWN, "Network is down")]
good = http.client.HTTPResponse.read1
def read1(self, n=-1):
    if left:
        raise left.pop()
    return good(self, n)
http.client.HTTPResponse.read1 = read1
"""


def networks(case):
    """A route that is lost, or TLS that breaks, is the network's fault and not the disk's: asked again."""
    with Download(case, n=2) as d:
        folder = case.subdir("patch")
        open(os.path.join(folder, "sitecustomize.py"), "w").write(NO_ROUTE)
        err = d.run(env={"PYTHONPATH": folder})
        for words in ("No route to host", "bad record mac", "Network is down"):
            check(words in err, f"nothing is said of {words}\n{err}")
        d.check_files()


def nobody_reads(case):
    """Standard error closed, or a terminal that has gone: the files come all the same."""
    for how in ("closed", "broken"):
        with Download(case, n=2) as d:
            d.server.faults[shard(1, 2)] = ["reset", "truncated"]
            r, w = os.pipe()
            os.close(r)
            p = subprocess.Popen(d.argv(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=w,
                                 preexec_fn=(lambda: os.close(2)) if how == "closed" else None)
            case.processes.append(p)
            os.close(w)
            check_equal(p.wait(k3test.TIMEOUT), 0, f"exit code with standard error {how}")
            d.check_files()


def stopped(case):
    """kill -9 and Ctrl-C, then again: it goes on from the partial files."""
    with Download(case, n=2, size=400_000) as d:
        for sig, rc in ((signal.SIGKILL, -9), (signal.SIGINT, 130)):
            for i in (1, 2):
                d.server.faults[shard(i, 2)] = ["truncated", "stall"]
                path = os.path.join(d.out, shard(i, 2))
                if os.path.exists(path):
                    os.unlink(path)
            p = subprocess.Popen(d.argv("--timeout", "20"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
            case.processes.append(p)
            parts = [os.path.join(d.out, shard(i, 2) + ".part") for i in (1, 2)]
            wait_until(lambda: all(os.path.exists(x) and os.path.getsize(x) >= 200_000 for x in parts), "half of both files")
            p.send_signal(sig)
            d.server.over.set()
            check_equal(p.wait(k3test.TIMEOUT), rc, "how it ended")
            d.server.over.clear()
            d.server.faults.clear()
            d.run()
            check(all(start >= 200_000 for n, start, _, _ in d.server.log if n.startswith("model")), f"{d.server.log}")
            d.check_files()


def hopeless(case):
    """Files that cannot be had are named; the others are there, and the next run asks for the missing ones alone."""
    with Download(case) as d:
        d.server.faults = {shard(1): ["wrong_bytes always"], shard(2): ["code:404 always"], shard(3): ["code:500 always"],
                           shard(4): ["wrong_size always"]}
        err = d.run("--retries", 2, expect=1)
        bad = [shard(i) for i in (1, 2, 3, 4)]
        for name, why in zip(bad, ("SHA-256", "404", "500", "manifest")):
            check(re.search(rf"{name}: FAILED: .*{why}", err), f"{name} and {why}\n{err}")
        check(" ".join(bad) in err, f"the list at the end\n{err}")
        d.check_files(without=bad)
        d.server.faults = {}
        d.run()
        check_equal(sorted(set(d.fetched())), bad, "requests of the second run")
        d.check_files()
        d.server.faults = {shard(1): ["code:401 always"]}
        os.unlink(os.path.join(d.out, shard(1)))
        check("HF_TOKEN" in d.run(expect=1), "401 does not speak of the token")


def space(case):
    """Not enough space: both numbers and nothing fetched; a disk that fills up all the same: a clean end."""
    with Download(case, n=2, size=400_000) as d:
        os.mkdir(d.out)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", d.out], capture_output=True).returncode:
            raise k3test.Skip("cannot mount a small file system here")
        try:
            err = d.run(expect=2)
            check("0.001 GB are to be fetched" in err and "are free" in err, f"both numbers\n{err}")
            check_equal(d.fetched(), [], "requests")
            d.write_manifest(d.files, unknown=list(d.files))
            err = d.run(expect=3)
            check("No space left" in err and "goes on" in err, f"the sentence\n{err}")
            check_equal([n for n in os.listdir(d.out) if open(os.path.join(d.out, n), "rb").read() != d.files.get(n)
                         and not n.endswith(".part")], [], "files that are not whole under their names")
        finally:
            subprocess.run(["umount", "-l", d.out])


def subsets(case):
    with Download(case) as d:
        index = {"weight_map": {f"language_model.model.layers.{i}.x": shard(i + 1) for i in range(4)}}
        index["weight_map"]["language_model.lm_head.weight"] = shard(5)
        index["weight_map"]["vision_tower.x"] = shard(6)
        d.files["model.safetensors.index.json"] = json.dumps(index).encode()
        d.write_manifest(d.files)
        d.run("--layers", 2)
        d.check_files(without=[shard(3), shard(4), shard(6)])
        d.run("--only", "*3-of*", "--only", "*4-of*")
        check_equal(d.fetched(), [shard(3), shard(4)], "requests of --only")
        d.run("--only", "nothing", expect=2)
        path = os.path.join(d.out, "model.safetensors.index.json")
        good = open(path).read()
        d.write_manifest({n: b for n, b in d.files.items() if n.endswith("safetensors")})
        for text in ("<html>", "[]", '{"weight_map": 1}'):
            open(path, "w").write(text)
            check(path in d.run("--layers", 2, expect=1), "the index is not named")
        open(path, "w").write(good)
        d.write_manifest(d.files)
        d.run()
        check_equal(d.fetched(), [shard(6)], "requests for the rest")


def refusals(case):
    with Download(case, n=1, size=1000) as d:
        for args in (["--jobs", "0"], ["--endpoint", "ftp://x"], ["--layers", "0"], ["--manifest", "/nothing"], ["--bad"]):
            d.run(*args, expect=2)
        for text in ("", "a\tb\tc\n", "../x\t1\t" + "0" * 64 + "\n", "x\t1\n", ".x\t1\t-\n", "a/b\t1\t-\n"):
            open(d.manifest, "w").write(text)
            check(d.manifest in d.run(expect=2), "the manifest is not named")
        d.write_manifest(d.files)
        p = subprocess.run(d.argv(), capture_output=True, text=True, env=dict(os.environ, HF_TOKEN="a b\nc"))
        check(p.returncode == 2 and "a b" not in p.stderr and "HF_TOKEN" in p.stderr, f"an odd token\n{p.stderr}")
        check_equal(d.fetched(), [], "requests")


def released_manifest(case):
    """deploy/k3-files.tsv has the published facts."""
    import hollow
    rows = {}
    for line in open(os.path.join(k3test.ROOT, "deploy", "k3-files.tsv")):
        if not line.startswith("#"):
            name, size, sha = line.rstrip("\n").split("\t")
            rows[name] = size, sha
    want = {n: (str(s[0]), s[1]) for n, s in hollow.manifest().items()}
    check_equal({n: r for n, r in rows.items() if n.endswith(".safetensors")}, want, "sizes and SHA-256 of the shards")
    b = open(k3test.data("checkpoint/config.json"), "rb").read()
    check_equal(rows["config.json"], (str(len(b)), hashlib.sha256(b).hexdigest()), "config.json")


if __name__ == "__main__":
    k3test.main([plain, faults, resumed, encrypted, networks, nobody_reads, stopped, hopeless, space, subsets, refusals,
                 released_manifest])
