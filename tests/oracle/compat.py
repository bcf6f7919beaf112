"""Every worked example of docs/compat.md, on the bundled model: what it says runs, runs."""
import json
import os
import re
import shlex
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import numpy as np

import k3test
from k3test import DEMO, ROOT, check, check_equal, program

VOCABULARY = 2048  # deploy/demo: ids of the full model are folded into it


def examples():
    """(mark, argv) of every command on the page, continued lines joined."""
    found = []
    for mark, block in re.findall(r"^```sh (unchanged|here|published)\n(.*?)^```", open(os.path.join(ROOT, "docs", "compat.md")).read(),
                                  re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            found.append((mark, shlex.split(line)))
    return found


def translated(case, argv):
    """The same with this build's programs and the bundled model's files."""
    if argv[0] == "systemd-run":
        argv = argv[argv.index("./bin/k3"):]
    programs = {"./bin/k3": [program("k3")], "k3": [program("k3")], "k3-store": [program("k3-store")],
                "tests/compare": [sys.executable, "-B", os.path.join(ROOT, "tests", "compare")],
                "bench/devbw.py": [sys.executable, "-B", os.path.join(ROOT, "bench", "devbw.py")]}
    out = list(programs[argv[0]])
    for word, before in zip(argv[1:], argv):
        word = re.sub("^(~|/tmp)/", case.dir + "/", word.replace("~/k3model", DEMO))
        if before == "--ids":
            word = ",".join(str(int(i) % VOCABULARY) for i in word.split(","))
        out.append(word)
    return out


def published_bits(case):
    """ref_logits.json in the published form: here from the plain kernels, which have the same bits."""
    path = case.path("plain.f32")
    r = case.exec("k3", "run", DEMO, "--ids", "3,4,5,6,7", "--gen", "0", "--isa", "ref", "--dump-logits", path)
    check_equal(r.rc, 0, f"the reference run\n{r}")
    bits = np.fromfile(path, "<u4").tolist()
    json.dump({"prompt_ids": [3, 4, 5, 6, 7], "vocab": len(bits), "logits_bits": bits}, open(case.path("ref_logits.json"), "w"))


def everything_runs(case):
    open(case.path("prompt.txt"), "w").write("La capitale de la France est")
    check_equal(case.exec("k3-store", "pack", DEMO, case.path("k3trunk")).rc, 0, "k3-store pack")
    published_bits(case)
    n = {"unchanged": 0, "here": 0, "published": 0}
    for mark, argv in examples():
        n[mark] += 1
        if mark == "published":
            continue
        argv = translated(case, argv)
        r = subprocess.run(argv, cwd=case.dir, capture_output=True, stdin=subprocess.DEVNULL, timeout=120)
        check_equal(r.returncode, 0, f"exit code of {' '.join(argv)}\n{r.stderr.decode()[-2000:]}")
        check(r.stdout or r.stderr, f"nothing was said: {argv}")
    check(n["unchanged"] >= 15 and n["here"] >= 6 and n["published"] >= 7, f"examples found: {n}")
    check(os.path.getsize(case.path("run.json")) > 100, "run.json")


k3test.main([everything_runs])
