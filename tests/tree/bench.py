"""A bench whose programs are not built says in one line what to build; deploy/quickstart builds some of them."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import DEMO, check, check_equal

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
BENCH = os.path.join(ROOT, "bench")
# What else each wants; those that run nothing of the build are left out.
BENCHES = {"step": [DEMO], "devices": [DEMO], "experts": [DEMO], "overlap": [DEMO], "share": [DEMO], "dial": [DEMO], "plan": [DEMO],
           "ladder": [DEMO], "split": [DEMO, "--total", "1"], "repeat": [DEMO], "peer": ["--peer", "."], "start": []}


def bench(name, build):
    return subprocess.run([sys.executable, "-B", os.path.join(BENCH, f"{name}.py"), *BENCHES[name], "--build", build],
                          capture_output=True, text=True, timeout=60)


def one_line(r, *words):
    check(r.returncode != 0, f"exit code\n{r}")
    check_equal(r.stderr.count("\n"), 1, f"lines\n{r.stderr}")
    for w in words:
        check(w in r.stderr, f"no {w!r}\n{r.stderr}")
    check_equal(r.stdout, "", "standard output")


def all_of_them(case):
    here = {f[:-3] for f in os.listdir(BENCH) if f.endswith(".py") and "--build" in open(os.path.join(BENCH, f)).read()}
    check_equal(set(BENCHES), here - {"built"}, "the benches with --build")


def nothing_built(case):
    build = case.subdir("build")
    for name in BENCHES:
        one_line(bench(name, build), f"{build}/", "is not there", f"meson setup {build} && ninja -C {build}")


def built_by_quickstart(case):
    build = case.subdir("build")
    for name in ("compute/k3", "iod/k3-iod", "iod/store/k3-store", "build.ninja"):
        os.makedirs(os.path.dirname(os.path.join(build, name)), exist_ok=True)
        open(os.path.join(build, name), "w").close()
    one_line(bench("step", build), "bench/bench_memory is not there", f"first, ninja -C {build}")
    one_line(bench("peer", build), "bench/bench_kernels is not there", f"first, ninja -C {build}")


k3test.main([all_of_them, nothing_built, built_by_quickstart])
