"""k3 doctor: says what is, under limits that the test sets; and what it prints as the next command works."""
import ctypes
import json
import os
import resource
import shlex
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import k3test
from k3test import DEMO, check, check_equal

RATES = ["--disk-rate", "3.2", "--memory-rate", "20"]


def doctor(case, *args, rc=0, **more):
    r = case.exec("k3", "doctor", *args, "--json", **more)
    check_equal(r.rc, rc, f"exit code\n{r}")
    found = json.loads(r.out)
    check_equal(found["can_run"], rc == 0, f"can_run\n{r}")
    return found, {f["name"]: f for f in found["findings"]}


def names_everything(case):
    found, by = doctor(case, DEMO, *RATES)
    for name in ("cpu", "instructions", "memory", "locked memory", "shared memory", "huge pages", "kernel", "io_uring", "disk",
                 "checkpoint", "vocabulary", "preset", "speed"):
        check(name in by, f"no {name} in {sorted(by)}")
    check(f"of {os.cpu_count()})" in by["cpu"]["text"] or "allowed" in by["cpu"]["text"], by["cpu"]["text"])
    check("1770 tensors" in by["checkpoint"]["text"], by["checkpoint"]["text"])  # as deploy/demo's index counts them
    check("3.200 GB/s (given)" in by["speed"]["text"], by["speed"]["text"])
    text = case.exec("k3", "doctor", DEMO, *RATES)
    check(text.rc == 0 and "next:" in text.out, f"the text\n{text}")


def the_next_command_works(case):
    found, _ = doctor(case, DEMO, *RATES)
    r = subprocess.run(found["next"], shell=True, capture_output=True, timeout=120, env=dict(os.environ, PATH="/usr/bin:/bin"))
    check_equal(r.returncode, 0, f"{found['next']}\n{r.stderr.decode()}")
    check(r.stdout.strip(), "no text came")
    argv = shlex.split(found["next"])
    check(argv[1:3] == ["run", DEMO], f"the command is {argv}")


def the_next_command_of_any_model_works(case):
    """Names that a shell would cut or expand; a model without a vocabulary; a config that is elsewhere."""
    odd = case.copy_model(DEMO, "it's a $model")
    bare = case.copy_model(k3test.oracle("tiny"), "without a vocabulary")
    apart, words, config = case.copy_model(DEMO, "apart"), case.subdir("the words"), case.path("the config.json")
    os.rename(os.path.join(apart, "config.json"), config)
    for name in "tiktoken.model", "tokenizer_config.json":
        os.rename(os.path.join(apart, name), os.path.join(words, name))
    for args in ([odd], [bare], [apart, "--config", config, "--tok", words]):
        found, _ = doctor(case, *args, *RATES)
        r = subprocess.run(found["next"], shell=True, capture_output=True, timeout=120)
        check_equal(r.returncode, 0, f"{found['next']}\n{r.stderr.decode()}")
        argv = shlex.split(found["next"])
        check(all(a in argv for a in args), f"the command for {args} is {argv}")


def a_trunk_file_that_does_not_fit_is_made_again(case):
    """The checkpoint beside it is whole: nothing of it is to be fetched."""
    trunk = case.path("a trunk")
    r = case.exec("k3-store", "pack", DEMO, trunk, "--layers", "2")
    check_equal(r.rc, 0, f"exit code\n{r}")
    made_again(case, trunk, trunk)
    # Another file is left alone by pack; the command has another name.
    other = case.path("another file")
    with open(other, "w") as f:
        f.write("no trunk file")
    made_again(case, other, other + ".new")
    check_equal(open(other).read(), "no trunk file", "the other file")


def made_again(case, trunk, name):
    found, by = doctor(case, DEMO, "--trunk", trunk, *RATES, rc=1)
    check_equal(by["checkpoint"]["verdict"], "ok", "verdict on the checkpoint")
    check_equal(by["trunk file"]["verdict"], "BAD", "verdict on the trunk file")
    check(trunk in by["trunk file"]["text"], by["trunk file"]["text"])
    r = subprocess.run(found["next"], shell=True, capture_output=True, timeout=120)
    check_equal(r.returncode, 0, f"{found['next']}\n{r.stderr.decode()}")
    doctor(case, DEMO, "--trunk", name, *RATES)


def another_model_is_left_alone(case):
    """A directory whose config.json is not understood: the release is not fetched over it."""
    model = case.subdir("other")
    with open(os.path.join(model, "config.json"), "w") as f:
        json.dump({"model_type": "other"}, f)
    found, by = doctor(case, model, *RATES, rc=2)
    check_equal(by["checkpoint"]["verdict"], "BAD", "verdict")
    check_equal(found["next"], None, "the next command")


def a_damaged_vocabulary_is_found(case):
    model = case.copy_model(DEMO)
    with open(os.path.join(model, "tiktoken.model"), "w") as f:
        f.write("nonsense\n")
    found, by = doctor(case, model, *RATES, rc=2)
    check_equal(by["vocabulary"]["verdict"], "BAD", "verdict")
    check("tiktoken.model" in by["vocabulary"]["text"], by["vocabulary"]["text"])


def measures(case):
    _, by = doctor(case, DEMO, "--measure")
    check("measured now" in by["disk rate"]["text"], by["disk rate"]["text"])


def an_absent_shard_is_named(case):
    model = case.copy_model(DEMO)
    shards = sorted(n for n in os.listdir(model) if n.endswith(".safetensors"))
    os.unlink(os.path.join(model, shards[3]))
    found, by = doctor(case, model, *RATES, rc=1)
    check_equal(by["checkpoint"]["verdict"], "BAD", "verdict")
    check("missing" in by["checkpoint"]["text"], by["checkpoint"]["text"])
    check(found["next"].endswith(f"deploy/download-model {model}"), f"next is {found['next']}")
    check("; and " in by["checkpoint"]["text"] and len(by["checkpoint"]["text"]) < 1000, by["checkpoint"]["text"])
    _, by = doctor(case, case.path("nowhere"), rc=2)
    # Another directory than the sources': the script is named so that it is found.
    r = case.exec("k3", "doctor", model, *RATES, "--json", preexec=lambda: os.chdir("/"))
    script = shlex.split(json.loads(r.out)["next"])[0]
    check(script == "deploy/download-model" or os.access(script, os.X_OK), f"next is {script}")


def a_part_of_a_download_can_run(case):
    """The first layers and the head are there: --layers goes from the finding into the next command."""
    model = case.copy_model(DEMO)
    shards = sorted(n for n in os.listdir(model) if n.endswith(".safetensors"))
    for name in shards[2:9]:
        os.unlink(os.path.join(model, name))
    _, by = doctor(case, model, *RATES, rc=1)
    check("--layers 2 needs only what is here" in by["checkpoint"]["text"], by["checkpoint"]["text"])
    found, by = doctor(case, model, *RATES, "--layers", "2")
    check("2 layers, all that --layers asks for" in by["checkpoint"]["text"], by["checkpoint"]["text"])
    r = subprocess.run(found["next"], shell=True, capture_output=True, timeout=120)
    check_equal(r.returncode, 0, f"{found['next']}\n{r.stderr.decode()}")
    found, by = doctor(case, model, *RATES, "--layers", "3", rc=1)
    check(found["next"].endswith(f"deploy/download-model {model} --layers 3"), f"next is {found['next']}")
    found, _ = doctor(case, model, *RATES, "--layers", "10", rc=2)
    check_equal(found["next"], None, "the next command")


def a_sandbox_without_io_uring(case):
    """A seccomp filter that answers EPERM to io_uring_setup (425), as containers do."""
    def forbid():
        code = b"".join(struct.pack("<HBBI", *i) for i in ((0x20, 0, 0, 0), (0x15, 0, 1, 425), (6, 0, 0, 0x50001),
                                                           (6, 0, 0, 0x7FFF0000)))
        text = ctypes.create_string_buffer(code)
        program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(text)))
        libc = ctypes.CDLL(None)
        if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
            os._exit(99)
    _, by = doctor(case, DEMO, *RATES, preexec=forbid)
    check_equal(by["io_uring"]["verdict"], "note", "verdict")
    check("sandbox" in by["io_uring"]["text"] or "io_uring_disabled" in by["io_uring"]["text"], by["io_uring"]["text"])
    _, by = doctor(case, DEMO, *RATES)


def a_limit_of_locked_memory(case):
    setpriv = ["setpriv", "--bounding-set=-ipc_lock"] if os.geteuid() == 0 else []
    limit = lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))
    _, by = doctor(case, DEMO, *RATES, wrap=setpriv, preexec=limit)
    check_equal(by["locked memory"]["verdict"], "note", by["locked memory"]["text"])
    check("1024 KiB" in by["locked memory"]["text"], by["locked memory"]["text"])


def too_little_memory_for_the_released_model(case):
    """A control group of 400 MB: both numbers, exit code 2."""
    with k3test.MemoryGroup(400_000_000) as group:
        config = k3test.data("checkpoint/config.json")
        _, by = doctor(case, "--config", config, *RATES, rc=2, preexec=group.enter)
        check_equal(by["plan"]["verdict"], "BAD", "verdict")
        check("this run would take 0." in by["plan"]["text"] and "cgroup" in by["plan"]["text"], by["plan"]["text"])


k3test.main([names_everything, the_next_command_works, the_next_command_of_any_model_works,
             a_trunk_file_that_does_not_fit_is_made_again, another_model_is_left_alone, a_damaged_vocabulary_is_found,
             measures, an_absent_shard_is_named, a_part_of_a_download_can_run,
             a_sandbox_without_io_uring, a_limit_of_locked_memory, too_little_memory_for_the_released_model])
