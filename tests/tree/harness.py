"""The harness of the end-to-end tests can fail: each way in which a case goes wrong is reported."""
import os
import subprocess
import sys
import textwrap

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "harness"))
import k3test
from k3test import check, check_equal


def outcome(case, body):
    """(exit code, output) of a test file with one case."""
    path = case.path("sample.py")
    open(path, "w").write("import os, subprocess, sys\nsys.path.insert(0, %r)\nimport k3test\n" % os.path.join(HERE, "..", "harness")
                          + textwrap.dedent(body) + "\nk3test.main([sample])\n")
    r = subprocess.run([sys.executable, "-B", path], capture_output=True, text=True)
    return r.returncode, r.stdout


def passes(case):
    rc, out = outcome(case, "def sample(case): k3test.check(True, 'x')")
    check_equal((rc, out.splitlines()[0]), (0, "ok: sample"), "a case that passes")


def fails(case):
    rc, out = outcome(case, "def sample(case): k3test.check(False, 'because')")
    check_equal((rc, out.splitlines()[0]), (1, "FAILED: sample: because"), "a case that fails")
    rc, out = outcome(case, "def sample(case): k3test.check_equal([1], [2], 'ids')")
    check_equal((rc, out.splitlines()[0]), (1, "FAILED: sample: ids: [1] instead of [2]"), "a case that compares")
    rc, out = outcome(case, "def sample(case): undefined_name")
    check(rc == 1 and "NameError" in out, f"a case that breaks: {rc} {out}")


def skips(case):
    rc, out = outcome(case, "def sample(case): k3test.data('no/such/file')")
    check(rc == 77 and out.startswith("NOT RUN: sample: "), f"a case without its data: {rc} {out}")


def notices_leftovers(case):
    """A process left behind fails the case and is ended, also when its parent is gone."""
    rc, out = outcome(case, """
    def sample(case):
        k3test.SLOW = 0.01
        subprocess.run(["sh", "-c", "sleep 600 & until [ $(cat /proc/$!/comm) = sleep ]; do :; done"])
    """)
    check(rc == 1 and "left running: sleep" in out, f"a case that leaves a process: {rc} {out}")


def removes_its_folder(case):
    rc, out = outcome(case, "def sample(case): print('at', case.dir); open(case.path('x'), 'w').write('x')")
    path = out.split("at ", 1)[1].splitlines()[0]
    check(rc == 0 and not os.path.exists(path), f"the temporary folder stays: {rc} {out}")


k3test.main([passes, fails, skips, notices_leftovers, removes_its_folder])
