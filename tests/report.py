"""tests/report.py TESTLOG LABEL COUNTS: what a run of meson test amounts to.

Reads meson's testlog.json. Prints the reason of everything that failed or was not run, and appends
"passed failed skipped" to the file COUNTS. A test program that prints "cases: N passed, N failed,
N not run" counts as that many, any other as one; a program that ends badly without a failed case is
one failure more (a crash, a time-out).
"""
import json
import re
import sys

CASES = re.compile(r"^cases: (\d+) passed, (\d+) failed, (\d+) not run$", re.M)


def counts_of(test):
    found = CASES.findall(test.get("stdout", ""))
    passed, failed, skipped = map(int, found[-1]) if found else (0, 0, 0)
    if test["result"] in ("OK", "EXPECTEDFAIL"):
        if not found:
            passed = 1
    elif test["result"] == "SKIP":
        if not found:
            skipped = 1
    elif failed == 0:
        failed = 1
    return passed, failed, skipped


def reasons(text):
    """Lines that say why something was not run, without repetitions."""
    seen = []
    for line in text.splitlines():
        if "NOT RUN" in line and line not in seen:
            seen.append(line)
    return seen


def main(log, label, counts):
    total = [0, 0, 0]
    for line in open(log, encoding="utf-8", errors="replace"):
        test = json.loads(line)
        name = f"{label} {test['name'].split(' / ')[-1]}"
        one = counts_of(test)
        total = [a + b for a, b in zip(total, one)]
        text = test.get("stdout", "") + "\n" + test.get("stderr", "")
        if one[1]:
            print(f"FAILED: {name} ({test['result']}, exit code {test.get('returncode')})")
            print("\n".join("    " + x for x in text.strip().splitlines()[-60:]))
        if one[2]:
            for reason in reasons(text) or ["NOT RUN: no reason given"]:
                print(f"{name}: {reason}")
    with open(counts, "a", encoding="utf-8") as f:
        f.write(f"{total[0]} {total[1]} {total[2]}\n")
    print(f"{label}: {total[0]} passed, {total[1]} failed, {total[2]} skipped", flush=True)


main(*sys.argv[1:])
