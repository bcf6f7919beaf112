"""bench/peer.py on stand-ins that print what the two programs print: rates by hand from the times and shapes."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import check, check_equal

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
THEIRS = """Testing 1 devices
  MUL_MAT(type_a=bf16,type_b=f32,m=4096,n=1,k=14336,bs=[1,1],nr=[1,1],per=[0,1,2,3],k_v=0,o=1): \
      2556 runs -  1000.00 us/run - 117.44 MFLOP/run - \x1b[1;34m117.44 GFLOPS\x1b[0m
  MUL_MAT(type_a=mxfp4,type_b=f32,m=4096,n=4,k=14336,bs=[1,1],nr=[1,1],per=[0,1,2,3]):  100 runs - 2000.00 us/run - x
  MUL_MAT(type_a=q4_0,type_b=f32,m=4096,n=1,k=14336,bs=[1,1],nr=[1,1],per=[0,1,2,3]):  100 runs - 9.00 us/run - x
"""
OURS = """2 threads
avx2    bf16    1 rows cold     1.00 GB/s    1.00 GMAC/s   0.79 of read 14.8 GB/s
avx512  bf16    1 rows cold    20.00 GB/s   88.08 GMAC/s   0.85 of read 14.4 GB/s
avx512  bf16    1 rows cache   99.00 GB/s   99.00 GMAC/s   0.85 of read 14.4 GB/s
avx512  mxfp4   4 rows cache    5.00 GB/s   58.72 GMAC/s   0.40 of FMA peak 139.5 GMAC/s
"""


def stand_in(path, text):
    os.makedirs(os.path.dirname(path))
    with open(path, "w") as f:
        f.write(f"#!/bin/sh\ncat <<'END'\n{text}END\n")
    os.chmod(path, 0o755)


def peer(case):
    return subprocess.run([sys.executable, "-B", os.path.join(ROOT, "bench", "peer.py"), "--peer", case.path("peer"), "--build",
                           case.path("build")], capture_output=True, text=True)


def side_by_side(case):
    stand_in(case.path("peer/build/bin/test-backend-ops"), THEIRS)
    stand_in(case.path("build/bench/bench_kernels"), OURS)
    r = peer(case)
    check_equal(r.returncode, 0, f"exit code\n{r.stderr}")
    rows = [line.split() for line in r.stdout.splitlines()[2:]]
    # 4096 x 14336 = 58,720,256: in 1 ms 58.72 GMAC/s and 117.44 GB/s of bf16; four rows in 2 ms 117.44
    # GMAC/s and, at 4.25 bits, 15.60 GB/s
    check_equal(rows, [["bf16", "1", "rows", "20.00", "88.08", "117.44", "58.72", "1.50", "x"],
                       ["mxfp4", "4", "rows", "5.00", "58.72", "15.60", "117.44", "0.50", "x"]], "the table")


def not_built(case):
    stand_in(case.path("build/bench/bench_kernels"), OURS)
    r = peer(case)
    check(r.returncode == 1 and "test-backend-ops is not there: build it" in r.stderr, f"{r}")


def says_nothing(case):
    stand_in(case.path("peer/build/bin/test-backend-ops"), "nothing known\n")
    stand_in(case.path("build/bench/bench_kernels"), OURS)
    r = peer(case)
    check(r.returncode == 1 and "printed no product" in r.stderr, f"{r}")


k3test.main([side_by_side, not_built, says_nothing])
