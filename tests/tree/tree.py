"""Rules about the source tree that a compiler does not check: who includes whom, what symbols are
called, what is never called, how long files and functions get, format, and documents that must say
the same as a table in the code. Each case prints every offence with file and line.
"""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import ROOT, Failure, Skip, check

BUILD = os.environ.get("K3_BUILD", "")
COMPONENTS = ("shared", "proto", "iod", "compute")
# Who may include whom, besides itself.
MAY_INCLUDE = {"shared": (), "proto": ("shared",), "iod": ("shared", "proto"), "compute": ("shared", "proto")}
MAY_INCLUDE["bench"] = COMPONENTS
MAY_INCLUDE["tests"] = COMPONENTS

FORBIDDEN_NAMES = "util utils common misc helper helpers types defs core base stuff".split()
FILE_LINES = 600
FUNCTION_LINES = 80

# (file, function): why it may be longer.
LONG_FUNCTIONS = {}


def files(*suffixes, under=COMPONENTS + ("bench", "tests")):
    out = []
    for top in under:
        for where, dirs, names in os.walk(os.path.join(ROOT, top)):
            dirs.sort()
            out += [os.path.relpath(os.path.join(where, n), ROOT) for n in sorted(names) if n.endswith(suffixes)]
    return out


def read(path):
    return open(os.path.join(ROOT, path), errors="replace").read()


def code(path):
    """The text with comments and the insides of strings blanked, line numbers kept."""

    def blank(m):
        s = m.group(0)
        if s[0] in "\"'":
            return s[0] + s[0]
        return re.sub(r"[^\n]", " ", s)

    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, read(path), flags=re.S)


def fail_on(offences):
    if offences:
        raise Failure("\n" + "\n".join(offences))


def grep(paths, pattern, why, allowed=()):
    out = []
    for p in paths:
        if p in allowed:
            continue
        for n, line in enumerate(code(p).splitlines(), 1):
            m = re.search(pattern, line)
            if m:
                out.append(f"{p}:{n}: {m.group(0).strip()}: {why}")
    return out


def includes(path):
    for n, line in enumerate(read(path).splitlines(), 1):
        m = re.match(r'#\s*include\s+"([^"]+)"', line)
        if m:
            yield n, m.group(1)


def include_direction(case):
    """shared <- proto <- iod, compute; the two processes never see each other's headers."""
    bad, seen = [], 0
    for p in files(".c", ".h", ".def"):
        top = p.split("/")[0]
        for n, name in includes(p):
            seen += 1
            target = name.split("/")[0]
            if not os.path.exists(os.path.join(ROOT, name)):
                bad.append(f"{p}:{n}: {name} is not written from the root of the tree")
            elif target != top and target not in MAY_INCLUDE[top]:
                bad.append(f"{p}:{n}: {top}/ may not include {name}")
            elif p.startswith("compute/kernel/") and target == "compute" and not name.startswith("compute/kernel/"):
                bad.append(f"{p}:{n}: kernels include nothing of the client: {name}")
    check(seen > 100, f"only {seen} includes found: the check itself is broken")
    fail_on(bad)


def own_header_first(case):
    bad = []
    for p in files(".c", under=COMPONENTS):
        own = p[:-2] + ".h"
        if not os.path.exists(os.path.join(ROOT, own)):
            continue
        m = re.search(r'^#\s*include\s+([<"][^>"]+[>"])', read(p), re.M)
        # A module in several files may have a private header, which then brings the own one.
        private = f'"{own[:-2]}_private.h"'
        if m and m.group(1) not in (f'"{own}"', private):
            bad.append(f"{p}: the first include is {m.group(1)}, not its own header")
    for p in files(".h", under=COMPONENTS + ("bench", "tests")):
        if not re.match(r"\s*#pragma once", read(p)):
            bad.append(f"{p}: does not begin with #pragma once")
    fail_on(bad)


def file_names(case):
    bad = []
    for p in files("", under=COMPONENTS + ("bench", "tests", "deploy", "docs")):
        stem = os.path.basename(p).split(".")[0].lower()
        if stem in FORBIDDEN_NAMES:
            bad.append(f"{p}: a name that says nothing")
        if any(d in FORBIDDEN_NAMES for d in os.path.dirname(p).split("/")):
            bad.append(f"{p}: a folder name that says nothing")
    fail_on(bad)


def functions(path):
    """(name, first line, lines of the body with its braces). Relies on the format: a function's
    braces stand alone in column 0."""
    lines = code(path).splitlines()
    start = None
    for n, line in enumerate(lines):
        if line == "{":
            start = n
        elif line.startswith("}") and start is not None:
            head = " ".join(lines[max(0, start - 8):start])
            names = re.findall(r"([A-Za-z_]\w*)\s*\(", head[head.rfind("}") + 1:])
            names = [x for x in names if x not in ("PRINTF_LIKE", "__attribute__", "sizeof", "KERN_DECL")]
            yield (names[0] if names else "?"), start + 1, n - start + 1
            start = None


def lengths(case):
    bad, longest, soft, n_functions = [], 0, 0, 0
    for p in files(".c", ".h"):
        n = read(p).count("\n")
        if n >= FILE_LINES:
            bad.append(f"{p}: {n} lines, fewer than {FILE_LINES} are wanted")
        for name, line, length in functions(p):
            n_functions += 1
            longest = max(longest, length)
            soft += length > 60
            if length > FUNCTION_LINES and (p, name) not in LONG_FUNCTIONS:
                bad.append(f"{p}:{line}: {name}() has {length} lines, at most {FUNCTION_LINES} are wanted")
    check(n_functions > 200, f"only {n_functions} functions found: the check itself is broken")
    print(f"lengths: {n_functions} functions, {soft} over 60 lines, the longest {longest}")
    fail_on(bad)


def forbidden_calls(case):
    c = files(".c", ".h", under=COMPONENTS)
    shared = [p for p in c if p.startswith(("shared/", "proto/"))]
    kernels = [p for p in c if p.startswith("compute/kernel/")]
    mains = [p for p in c if os.path.basename(p) == "main.c"]
    bad = grep(c, r"(?<!\w)exit\s*\(", "exit() only in main()", allowed=mains)
    bad += grep(c, r"(?<!\w)(strcpy|strcat|sprintf|vsprintf|gets|strtok|atoi|atol|atof|system|popen|alloca|tmpnam|"
                   r"mktemp|usleep|rand|srand)\s*\(", "not used here")
    bad += grep(shared + kernels, r"(?<!\w)(printf|puts|putchar|perror)\s*\(", "shared/, proto/ and kernels never print")
    bad += grep(shared + kernels, r"(?<!\w)(fprintf|fputs|vfprintf)\s*\(\s*std(err|out)",
                "shared/, proto/ and kernels never print", allowed=("shared/log.c", "shared/must.c"))
    bad += grep(shared + kernels, r"(?<!\w)log_(error|warning|notice|info|debug|line)\s*\(",
                "shared/, proto/ and kernels never log", allowed=("shared/log.c", "shared/log.h"))
    bad += grep(c, r"#\s*pragma\s+omp|(?<!\w)omp_\w+\s*\(|<omp\.h>", "OpenMP only in compute/team.c",
                allowed=("compute/team.c",))
    bad += grep([p for p in c if p.startswith("compute/")], r"(?<!\w)pthread_create\s*\(",
                "threads of the client only in compute/team.c", allowed=("compute/team.c",))
    bad += grep([p for p in c if p.startswith("iod/store/") is False and p.startswith("compute/")],
                r"(?<!\w)(O_DIRECT|io_uring_\w+)(?!\w)", "the client opens no weight file",
                allowed=("compute/rates.c",))  # measures a disk, computes on nothing
    for p in files("meson.build", under=COMPONENTS + ("tests", "bench", "deploy", "docs")) + ["meson.build"]:
        for n, line in enumerate(read(p).splitlines(), 1):
            if re.search(r"-ffast-math|-Ofast|-march=native|-funsafe-math|-fno-strict-aliasing|glob\(", line):
                bad.append(f"{p}:{n}: {line.strip()}: a flag that changes bits or hides mistakes")
    check("-ffp-contract=off" in read("meson.build"), "meson.build does not pass -ffp-contract=off")
    fail_on(bad)


# Of libm only these correctly rounded calls may lie on the path to the logits.
LIBM_ALLOWED = {"fmaf", "sqrtf"}
LIBM = set()
for _f in ("exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh pow cbrt hypot erf erfc fma sqrt "
           "fmod remainder ldexp scalbn frexp floor ceil round rint nearbyint trunc atan2 lgamma tgamma fmax fmin").split():
    LIBM |= {_f, _f + "f", _f + "l"}
LIBM -= LIBM_ALLOWED
PATH_TO_LOGITS = re.compile(r"compute/(kernel/.*|engine|step|layer_\w+|attn_res|head|state|bind|scratch|team)\.c")


def objects():
    """{source: object} of the build directory, for the four components."""
    if not BUILD:
        raise Skip("K3_BUILD is not set: no objects to look at")
    out = {}
    sources = {p.replace("/", "_"): p for p in files(".c", under=COMPONENTS)}
    for where, _, names in os.walk(BUILD):
        folder = os.path.dirname(os.path.relpath(where, BUILD))
        for n in names:
            if n.endswith(".c.o"):
                # meson names an object after the source's path from the target's folder, / as _.
                at, name = folder, n[:-2]
                while name.startswith(".._"):
                    at, name = os.path.dirname(at), name[3:]
                source = sources.get(f"{at}/{name}".replace("/", "_"))
                if source:
                    out.setdefault(source, os.path.join(where, n))
    check(len(out) >= len(sources) * 0.8, f"objects of {len(out)} of {len(sources)} sources found")
    return out


def nm(path, *options):
    r = subprocess.run(["nm", *options, path], capture_output=True, text=True)
    check(r.returncode == 0, f"nm {path}: {r.stderr}")
    return [line.split() for line in r.stdout.splitlines() if line]


def allowed_prefixes(path):
    top = path.split("/")[0]
    stem = os.path.basename(path)[:-2]
    if path.startswith("compute/kernel/"):
        return ("kern_",)
    if top == "compute":
        return ("k3_",)
    if top == "iod":
        return ("iod_",)
    if top == "proto":
        return ("proto_",)
    # shared/: the module is the prefix; a module in several files: its first word. Short forms are listed.
    short = {"safetensors": ("st_",), "names": ("role_", "expert_part_"), "fd": ("freep",)}
    return (stem + "_", stem.split("_")[0] + "_") + short.get(stem, ())


def symbol_prefixes(case):
    """The owner of every global symbol can be read from its name."""
    bad, seen = [], 0
    for p, o in sorted(objects().items()):
        for fields in nm(o, "-g", "--defined-only"):
            name = fields[-1]
            if name == "main" and os.path.basename(p) == "main.c" or name.startswith(("__", "DW.ref")):
                continue
            seen += 1
            if not name.startswith(allowed_prefixes(p)):
                bad.append(f"{p}: {name} does not begin with {' or '.join(allowed_prefixes(p))}")
    check(seen > 100, f"only {seen} symbols found: the check itself is broken")
    fail_on(bad)


def library_calls(case):
    """What objects really call: libm beyond fmaf and sqrtf would make bits depend on the machine."""
    bad, seen = [], 0
    for p, o in sorted(objects().items()):
        if not PATH_TO_LOGITS.fullmatch(p):
            continue
        seen += 1
        for fields in nm(o, "-u"):
            if fields[-1].split("@")[0] in LIBM:
                bad.append(f"{p}: calls {fields[-1]}")
    check(seen > 10, f"only {seen} objects on the path to the logits: the check itself is broken")
    fail_on(bad)


def headers_alone(case):
    """Every header compiles by itself. Not the bodies that each instruction set compiles for itself
    (*_simd.h); the vectors of an instruction set want its flags."""
    headers = [h for h in files(".h", under=COMPONENTS + ("tests", "bench")) if not h.endswith("_simd.h")]
    flags = {"compute/kernel/simd_avx2.h": ["-mavx2", "-mfma"],
             "compute/kernel/simd_avx512.h": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma"]}
    neon = "compute/kernel/simd_neon.h"  # for another CPU: with its compiler, where there is one
    headers.remove(neon)
    bad = []
    for cc in ("gcc", "clang", "aarch64-linux-gnu-gcc"):
        is_cross = cc.startswith("aarch64")
        if subprocess.run(["which", cc], capture_output=True).returncode:
            if is_cross:
                continue
            raise Skip(f"{cc} is not installed")
        for h in [neon] if is_cross else headers:
            r = subprocess.run([cc, "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-UNDEBUG",
                                "-Wno-unused-function", '-DK3_SOURCE_ROOT="."', *flags.get(h, []), "-I", ROOT, "-x", "c",
                                "-include", os.path.join(ROOT, h), "/dev/null"], capture_output=True, text=True)
            if r.returncode:
                bad.append(f"{h} alone with {cc}: {r.stderr.splitlines()[0] if r.stderr else r.returncode}")
    fail_on(bad)


def formatting(case):
    try:
        version = subprocess.run(["clang-format", "--version"], capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise Skip("clang-format is not installed")
    if "version 14" not in version:
        raise Skip(f"the format is defined by clang-format 14, here is {version.strip()}")
    r = subprocess.run(["clang-format", "--dry-run", "-Werror"] + files(".c", ".h"), cwd=ROOT, capture_output=True, text=True)
    places = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error", r.stderr, re.M)))
    fail_on([f"{p}: not formatted" for p in places])
    check(r.returncode == 0, r.stderr)
    bad = []
    for p in files(".py", ".md", ".build", ".def", under=COMPONENTS + ("bench", "tests", "deploy", "docs")):
        if os.path.basename(p) == "tiktoken.model" or "/demo/" in p:
            continue
        for n, line in enumerate(read(p).splitlines(), 1):
            if line != line.rstrip():
                bad.append(f"{p}:{n}: blanks at the end of the line")
    fail_on(bad)


def rows_of(doc):
    """Table rows of a markdown file as lists of stripped cells."""
    return [[c.strip().strip("`") for c in line.strip().strip("|").split("|")]
            for line in read(doc).splitlines() if line.lstrip().startswith("|")]


def need(path):
    if not os.path.exists(os.path.join(ROOT, path)):
        raise Failure(f"{path} is missing")


def protocol_page(case):
    """docs/protocol.md has a row for every message with its number and direction, and no other."""
    need("docs/protocol.md")
    rows, bad = rows_of("docs/protocol.md"), []
    table = k3test.table("proto/messages.def", "PROTO_MSG")
    for number, name, direction, *_ in table:
        mine = [r for r in rows if name in r and number in r]
        if not mine:
            bad.append(f"docs/protocol.md: no row with number {number} and {name}")
    known = {r[1] for r in table}
    for r in rows:
        if len(r) > 2 and r[0].isdigit() and re.fullmatch(r"[A-Z_]{3,}", r[1]) and r[1] not in known:
            bad.append(f"docs/protocol.md: {r[1]} is not in messages.def")
    text = read("docs/protocol.md")
    for r in k3test.table("proto/stats.def", "STAT"):
        if f"`{r[0]}`" not in text and not any(r[0] in row for row in rows):
            bad.append(f"docs/protocol.md: the counter {r[0]} is not explained")
    fail_on(bad)


def events_page(case):
    """docs/deployment.md has a row for every event with its id, and no other."""
    events = {(r[0], r[1].strip('"')) for r in k3test.table("iod/events.def", "EVENT")}
    rows = {(r[0], r[1]) for r in rows_of("docs/deployment.md") if len(r) == 3 and re.fullmatch("[0-9a-f]{32}", r[1])}
    check(len(events) > 3, "iod/events.def: hardly an event found")
    fail_on([f"docs/deployment.md: {n} {i}" for n, i in sorted(events ^ rows)])


def tour(case):
    """docs/tour.md reads the system in at most 1,500 lines of code."""
    need("docs/tour.md")
    listed = []
    for p in re.findall(r"`([\w/]+\.(?:c|h|def))`", read("docs/tour.md")):
        if p not in listed:
            listed.append(p)
    check(len(listed) >= 6, f"docs/tour.md names only {len(listed)} files")
    missing = [p for p in listed if not os.path.exists(os.path.join(ROOT, p))]
    fail_on([f"docs/tour.md: {p} does not exist" for p in missing])
    total = sum(read(p).count("\n") for p in listed)
    print(f"tour: {len(listed)} files, {total} lines")
    check(total <= 1500, f"the tour has {total} lines: " + ", ".join(f"{p} {read(p).count(chr(10))}" for p in listed))


def links(case):
    """Links between documents lead somewhere."""
    bad = []
    for p in ["README.md"] + files(".md", under=("docs", "tests", "deploy", "bench")):
        if "/demo/" in p:
            continue
        need(p)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", read(p)):
            if "://" not in target and not os.path.exists(os.path.join(ROOT, os.path.dirname(p), target)):
                bad.append(f"{p}: {target} does not exist")
    fail_on(bad)


def def_tables(case):
    """Numbers that go over the wire are used once and never reused."""
    bad = []
    for path, macro, at in (("proto/messages.def", "PROTO_MSG", 0), ("shared/err.def", "ERR", 1)):
        rows = k3test.table(path, macro)
        check(len(rows) > 5, f"{path}: only {len(rows)} rows found")
        numbers = [r[at] for r in rows]
        names = [r[1 - at] for r in rows]
        for column in (numbers, names):
            bad += [f"{path}: {x} twice" for x in sorted(set(column)) if column.count(x) > 1]
    fail_on(bad)


if __name__ == "__main__":
    k3test.main([include_direction, own_header_first, file_names, lengths, forbidden_calls, symbol_prefixes, library_calls,
                 headers_alone, formatting, protocol_page, events_page, tour, links, def_tables])
