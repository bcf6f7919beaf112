"""What goes wrong, and what the user gets (the failure table of docs/architecture.md)."""
import ctypes
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "oracle"))
import k3test
import reference
import trace_file
from victim import expert_page, page_of, two_prompts
from k3test import DEMO, Daemon, Wire, check, check_equal, wait_until

P = "language_model.model.layers."


def refused(r, codes, *words):
    """A clean end: one of the exit codes, a message with all the words, nothing on stdout."""
    check(r.rc in codes, f"exit code {r.rc} instead of {codes}\n{r}")
    check_equal(r.out, "", "standard output")
    for w in words:
        check(w in r.err, f"the message does not say {w!r}\n{r}")
    check("panic" not in r.err and "Assertion" not in r.err, f"an assertion, not a message\n{r}")


def tiny(case):
    path = case.copy_model(k3test.oracle("tiny"))
    c = json.load(open(os.path.join(k3test.oracle("tiny"), "golden.json")))["cases"][1]
    return path, c


def edit_config(path, change):
    name = os.path.join(path, "config.json")
    c = json.load(open(name))
    change(c, c["text_config"])
    json.dump(c, open(name, "w"))


# ---- config.json

def config_fields(case):
    """Every missing field in one message, before anything is loaded; the same from all programs."""
    gone = ["hidden_size", "q_lora_rank", "routed_scaling_factor", "activation_situ_beta", "attn_res_block_size"]
    path, _ = tiny(case)

    def change(c, t):
        for k in gone:
            del t[k]
        del t["linear_attn_config"]["gate_lower_bound"]

    edit_config(path, change)
    for r in (case.exec("k3", "run", path, "--ids", "1"), case.exec("k3-iod", "--model", path, "--socket", case.path("s")),
              case.exec("k3-store", "pack", path, case.path("t"))):
        refused(r, (2,), *gone, "gate_lower_bound", "config.json")
        check(not os.path.exists(case.path("t")), "a trunk file was written")


def config_each_field(case):
    """No field has a default: each one alone is missed by name."""
    original = json.load(open(os.path.join(k3test.oracle("tiny"), "config.json")))["text_config"]
    need = [k for k in original if k in (
        "vocab_size hidden_size num_hidden_layers intermediate_size first_k_dense_replace moe_layer_freq hidden_act "
        "activation_situ_beta activation_situ_linear_beta rms_norm_eps num_attention_heads q_lora_rank kv_lora_rank "
        "qk_nope_head_dim qk_rope_head_dim v_head_dim mla_use_nope mla_use_output_gate attn_res_block_size num_experts "
        "num_experts_per_token num_shared_experts moe_intermediate_size routed_expert_hidden_size latent_moe_use_norm "
        "moe_router_activation_func moe_renormalize routed_scaling_factor max_position_embeddings").split()]
    need += ["linear_attn_config." + k for k in original["linear_attn_config"]]
    check(len(need) >= 35, f"only {len(need)} fields")
    path, _ = tiny(case)
    good = open(os.path.join(path, "config.json")).read()
    for k in need:
        open(os.path.join(path, "config.json"), "w").write(good)
        edit_config(path, lambda c, t: t["linear_attn_config"].pop(k.split(".")[1]) if "." in k else t.pop(k))
        refused(case.exec("k3", "run", path, "--ids", "1"), (2,), k.split(".")[-1])


def config_layers(case):
    """Layer lists are one-based, disjoint and cover every layer."""
    def shift(t):
        la = t["linear_attn_config"]
        la["kda_layers"] = [x - 1 for x in la["kda_layers"]]
        la["full_attn_layers"] = [x - 1 for x in la["full_attn_layers"]]

    changes = {
        "zero-based": shift,
        "a layer in both": lambda t: t["linear_attn_config"]["kda_layers"].append(4),
        "a layer in neither": lambda t: t["linear_attn_config"]["kda_layers"].remove(2),
        "beyond the last": lambda t: t["linear_attn_config"]["full_attn_layers"].append(10),
        "twice": lambda t: t["linear_attn_config"]["kda_layers"].append(1),
        "more layers than listed": lambda t: t.__setitem__("num_hidden_layers", 10),
    }
    for what, change in changes.items():
        path, _ = tiny(case)
        edit_config(path, lambda c, t: change(t))
        r = case.exec("k3", "run", path, "--ids", "1")
        refused(r, (2,), "config.json")
        check(re.search(r"layer", r.err), f"{what}: the message does not speak of layers\n{r}")


def config_others(case):
    """Models that are something else are refused by name instead of run as if they were this one."""
    changes = {
        "dsa_config": lambda c, t: t.__setitem__("dsa_config", {"top_k": 2048}),
        "mla_use_nope": lambda c, t: t.__setitem__("mla_use_nope", False),
        "hidden_act": lambda c, t: t.__setitem__("hidden_act", "silu"),
        "KimiK31ForConditionalGeneration": lambda c, t: c.__setitem__("architectures", ["KimiK31ForConditionalGeneration"]),
        "rope_theta": lambda c, t: t.__setitem__("rope_theta", 10000.0),
        "quant": lambda c, t: t["quantization_config"].__setitem__("quant_method", "fp8"),
        "softmax": lambda c, t: t.__setitem__("moe_router_activation_func", "softmax"),
        "num_experts_per_token": lambda c, t: t.__setitem__("num_experts_per_token", 25),
        "use_full_rank_gate": lambda c, t: t["linear_attn_config"].__setitem__("use_full_rank_gate", False),
    }
    for word, change in changes.items():
        path, _ = tiny(case)
        edit_config(path, change)
        refused(case.exec("k3", "run", path, "--ids", "1"), (2,), word)
    path, _ = tiny(case)
    for text in ("", "{", "[]", '{"text_config": 3}', "\xff\xfe"):
        open(os.path.join(path, "config.json"), "w", encoding="latin-1").write(text)
        refused(case.exec("k3", "run", path, "--ids", "1"), (2,), "config.json")
    for name in ("bad_layer_index.json", "bad_topk.json", "no_layermap.json"):
        if os.path.exists(os.path.join(k3test.DATA, "config", name)):
            refused(case.exec("k3", "run", k3test.oracle("tiny"), "--config", k3test.data("config/" + name), "--ids", "1"), (2,),
                    name)


def pipes(case):
    """A pipe in the place of a file is refused; nobody waits for its writer."""
    for name, code in (("config.json", 2), ("tiktoken.model", 2), ("tokenizer_config.json", 2),
                       ("model.safetensors.index.json", 1), ("model-00003-of-000010.safetensors", 1)):
        path = case.copy_model(DEMO)
        os.unlink(os.path.join(path, name))
        os.mkfifo(os.path.join(path, name))
        refused(case.exec("k3", "run", path, "--ids", "1", timeout=60), (code,), name)


def no_regular_files(case):
    """What is no file where one belongs is called that, and bytes that cannot be printed are not."""
    profile = ["run", DEMO, "--ids", "1", "--profile"]
    for path, why in ((case.subdir("folder"), "Is a directory"), ("/dev/null", "it is no regular file")):
        refused(case.exec("k3", "run", DEMO, "--ids", "1", "--config", path), (2,), path, why)
        refused(case.exec("k3", *profile, path), (2,), path, why)
        refused(case.exec("k3-iod", "--conf", path), (2,), path, why)
    ids = case.path("ids")
    for byte, shown in ((b"\0", "0x00"), (b"\x1b", "0x1b"), (b"\xff", "0xff"), (b"x", "'x'")):
        with open(ids, "wb") as f:
            f.write(b"1,2," + byte)
        r = case.exec("k3", "run", DEMO, "--ids-file", ids)
        refused(r, (2,), ids, f"{shown} at byte 4")
        check("\0" not in r.err and "\x1b" not in r.err, f"a byte of the file in the sentence\n{r}")


# ---- shards

def shard(path, n):
    names = sorted(f for f in os.listdir(path) if f.endswith(".safetensors"))
    return os.path.join(path, names[n])


def rewrite(name, change):
    """Write a shard again with another header; the data stays as it is."""
    raw = open(name, "rb").read()
    n = struct.unpack_from("<Q", raw)[0]
    head = json.loads(raw[8:8 + n])
    text = change(head)
    text = json.dumps(head).encode() if text is None else text
    open(name, "wb").write(struct.pack("<Q", len(text)) + text + raw[8 + n:])


def broken_shards(case):
    """Truncated files and headers that lie: file and tensor named."""
    victim = P + "2.self_attn.k_proj.weight"
    expert = P + "2.block_sparse_moe.experts.5.w2.weight_packed"

    def entry(name, **fields):
        return lambda h: h[name].update(fields)

    def overlap(h):
        a, b = h[victim]["data_offsets"]
        h[victim]["data_offsets"] = [a - 64, b - 64]

    def renamed(h):
        h["other." + victim] = h.pop(victim)

    def renamed_expert(h):
        h["other." + expert] = h.pop(expert)

    def duplicate(h):
        text = json.dumps(h)
        return (text[:-1] + ', "' + victim + '": ' + json.dumps(h[victim]) + "}").encode()

    cases = {
        "beyond the file": (entry(victim, data_offsets=[1 << 30, (1 << 30) + 80 * 96 * 2]), [victim]),
        "a huge offset": (entry(victim, data_offsets=[(1 << 64) - 15360, (1 << 64) - 1]), [victim]),
        "more than 64 bits": (lambda h: json.dumps(h).replace(
            json.dumps(h[victim]["data_offsets"]), "[0, 36893488147419103232]").encode(), [victim]),
        "negative": (entry(victim, data_offsets=[-2, 15358]), [victim]),
        "backwards": (entry(victim, data_offsets=[15360, 0]), [victim]),
        "overlap": (overlap, [victim]),
        "wrong shape": (entry(victim, shape=[80, 97]), [victim]),
        "another shape": (entry(victim, shape=[96, 80]), [victim]),
        "overflowing shape": (entry(victim, shape=[1 << 32, 1 << 32, 1 << 32]), [victim]),
        "wrong dtype": (entry(victim, dtype="F32"), [victim]),
        "unknown dtype": (entry(victim, dtype="Q4"), [victim]),
        "expert cut": (lambda h: h[expert].update(shape=[h[expert]["shape"][0] - 1, h[expert]["shape"][1]]), [expert]),
        "missing tensor": (renamed, ["k_proj"]),
        "missing expert": (renamed_expert, ["experts.5"]),
        "a hole": (lambda h: h.pop(expert) and None, []),
        "twice": (duplicate, [victim]),
        "no JSON": (lambda h: b"x" * 100, []),
        "half JSON": (lambda h: json.dumps(h).encode()[:-200], []),
        "empty header": (lambda h: b"", []),
        "list": (lambda h: b"[]", []),
        "offsets missing": (lambda h: h[victim].pop("data_offsets") and None, [victim]),
        "offsets text": (entry(victim, data_offsets="0"), [victim]),
        "nested too deep": (lambda h: b"[" * 100000, []),
    }
    for what, (change, words) in cases.items():
        path, _ = tiny(case)
        name = shard(path, 2)
        rewrite(name, change)
        r = case.exec("k3", "run", path, "--ids", "1")
        try:
            refused(r, (1, 2), *words)
            if what not in ("missing tensor", "missing expert"):
                check(os.path.basename(name) in r.err, f"the file is not named\n{r}")
        except k3test.Failure as e:
            raise k3test.Failure(f"{what}: {e}")


def truncated_shards(case):
    path, _ = tiny(case)
    name = shard(path, 2)
    full = open(name, "rb").read()
    n = struct.unpack_from("<Q", full)[0]
    for size in (0, 4, 8, 8 + n // 2, 8 + n, 8 + n + 1, len(full) - 4096, len(full) - 1):
        open(name, "wb").write(full[:size])
        refused(case.exec("k3", "run", path, "--ids", "1"), (1, 2), os.path.basename(name), "; fetch it again")
    open(name, "wb").write(struct.pack("<Q", (1 << 63) + 5) + full[8:])
    refused(case.exec("k3", "run", path, "--ids", "1"), (1, 2), os.path.basename(name), "; fetch it again")
    os.unlink(name)
    refused(case.exec("k3", "run", path, "--ids", "1"), (1, 2), os.path.basename(name))
    refused(case.exec("k3", "run", case.subdir("empty"), "--ids", "1"), (1, 2))


# ---- disk faults

def eio_once(case):
    """Transient errors are retried and cost time only."""
    runs, layer, expert = two_prompts(case)
    f, off = expert_page(DEMO, layer, expert)
    for backend in ("io_uring", "threads"):
        for fault in (f"eio={f}:{off}+4096:2", "short=1", "short=5", "short=7;again=11", f"eio={f}:{off}+1:1;short=5"):
            d = Daemon(case, DEMO, "--backend", backend, "--cache-gb", "0", env={"K3_IOD_FAULT": fault})
            r = case.k3(None, ids=runs[0]["prompt_ids"], gen=4, daemon=d)
            check_equal(r.run["logits_digest"], runs[0]["logits_digest"], f"digest with {fault}, {backend}")
            s = d.stats()
            if "eio" in fault:
                check(s["reads_retried"] > 0, f"{fault}: no read was retried")
            if "short" in fault:
                check(s["reads_short"] > 0, f"{fault}: no read was short")
            check_equal(s["reads_failed"], 0, f"{fault}: failed reads")
            check_equal(d.stop(), 0, "exit code of k3-iod")


def eio_for_good(case):
    """An expert that cannot be read ends its client with exit code 4; others go on."""
    runs, layer, expert = two_prompts(case)
    f, off = expert_page(DEMO, layer, expert)
    for backend in ("io_uring", "threads"):
        d = Daemon(case, DEMO, "--backend", backend, "--cache-gb", "0.01", env={"K3_IOD_FAULT": f"eio={f}:{off}+4096:always"})
        for _ in range(2):
            r = case.k3(None, ids=runs[0]["prompt_ids"], gen=4, daemon=d, expect=4)
            check(str(layer) in r.err and str(expert) in r.err, f"layer {layer} and expert {expert} are not named\n{r}")
            check("unsound" in r.err or "expert" in r.err, f"no reason\n{r}")
            other = case.k3(None, ids=runs[1]["prompt_ids"], gen=4, daemon=d)
            check_equal(other.run["logits_digest"], runs[1]["logits_digest"], "digest of the other client")
        s = d.stats()
        check(s["reads_retried"] > 0 and s["reads_failed"] > 0, "the read was given up without another try")
        check_equal((s["tile_leases"], s["expert_leases"]), (0, 0), "leases")
        check_equal(d.stop(), 0, "exit code of k3-iod")
    # A private daemon gives the same.
    r = case.k3(DEMO, ids=runs[0]["prompt_ids"], gen=4, expect=4, env={"K3_IOD_FAULT": f"eio={f}:{off}+4096:always"})
    check(r.run is None or r.run["exit_code"] == 4, "exit_code in run.json")


def tile_for_good(case):
    """A tile or a row of the embedding that cannot be read ends its client with exit code 1, the tile pinned or not."""
    g = json.load(open(os.path.join(DEMO, "golden.json")))["greedy"][0]
    for tensor, said in ("layers.5.self_attn.o_proj.weight", "layer 5"), ("embed_tokens.weight", "embedding"):
        f, off = page_of(DEMO, tensor)
        for more in (), ("--trunk-gb", "0"), ("--backend", "threads"):
            r = case.k3(DEMO, *more, ids=[0, *g["ids"]], gen=4, expect=1, env={"K3_IOD_FAULT": f"eio={f}:{off}+4:always"})
            for w in said, f"model-{f + 1:05d}-of-000010.safetensors", "check the disk and the file":
                check(w in r.err, f"no {w!r} with {more}\n{r}")
            check_equal(r.out, "", "text")


# ---- trunk files

def trunk_files(case):
    """A trunk file of another checkpoint, or damaged, is refused with the command that repacks it."""
    path, c = tiny(case)
    trunk = case.path("trunk")
    check_equal(case.exec("k3-store", "pack", path, trunk).rc, 0, "k3-store pack")
    args = ("--ids", "1,2,3", "--gen", "1", "--trunk", trunk)
    check_equal(case.exec("k3", "run", path, *args).rc, 0, "with the right file")
    refused(case.exec("k3", "run", k3test.oracle("ties"), *args), (1, 2), "k3-store pack", trunk)
    # The same model with one number of its config changed, and with a shard that was replaced.
    other = case.copy_model(path)
    edit_config(other, lambda c, t: t.__setitem__("routed_scaling_factor", 1.5))
    refused(case.exec("k3", "run", other, *args), (1, 2), "k3-store pack")
    other = case.copy_model(path)
    rewrite(shard(other, 3), lambda h: json.dumps(h).encode() + b" " * 7)
    refused(case.exec("k3", "run", other, *args), (1, 2), "k3-store pack")
    full = open(trunk, "rb").read()
    for what, data in {"empty": b"", "no header": full[:100], "half": full[:len(full) // 2], "a byte short": full[:-1],
                       "longer": full + b"\0" * 4096, "zeros": bytes(len(full)),
                       "table": full[:4200] + bytes([full[4200] ^ 1]) + full[4201:],
                       "header": full[:50] + bytes([full[50] ^ 1]) + full[51:],
                       "feature": full[:24] + b"\x80" + full[25:]}.items():
        open(trunk, "wb").write(data)
        try:
            refused(case.exec("k3", "run", path, *args), (1, 2), "k3-store pack", trunk)
        except k3test.Failure as e:
            raise k3test.Failure(f"{what}: {e}")
    os.unlink(trunk)
    refused(case.exec("k3", "run", path, *args), (1, 2), trunk)


# ---- machines that refuse something

def no_io_uring():
    """A seccomp filter as containers have it: io_uring_setup gives EPERM."""
    class Filter(ctypes.Structure):
        _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint32)]

    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]

    rows = (Filter * 4)(Filter(0x20, 0, 0, 0), Filter(0x15, 0, 1, 425), Filter(0x06, 0, 0, 0x00050000 | 1),
                        Filter(0x06, 0, 0, 0x7fff0000))
    libc = ctypes.CDLL(None, use_errno=True)
    program = Program(4, rows)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
        raise OSError("no seccomp")


def no_locked_memory():
    """A small limit, and root without the capability that lifts it."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
    ctypes.CDLL(None).prctl(24, 14, 0, 0, 0)


def fallbacks(case):
    """Everything works on the fallback; one line says which and why."""
    path = k3test.oracle("tiny")
    c = json.load(open(os.path.join(path, "golden.json")))["cases"][1]
    want = case.k3(path, ids=c["ids"], gen=6).run["logits_digest"]
    for what, preexec, env, words in (
            ("io_uring forbidden", no_io_uring, {}, ("io_uring", "thread")),
            ("io_uring missing", None, {"K3_IOD_FAULT": "no_uring=1"}, ("io_uring", "thread")),
            ("O_DIRECT refused", None, {"K3_IOD_FAULT": "no_direct=1"}, ("buffered",)),
            ("registration refused", None, {"K3_IOD_FAULT": "no_register=1"}, ("regist",)),
            ("memlock", no_locked_memory, {}, ("lock",))):
        d = Daemon(case, path, env=env, preexec=preexec)
        r = case.k3(None, ids=c["ids"], gen=6, daemon=d)
        check_equal(r.run["logits_digest"], want, f"{what}: digest")
        check_equal(r.run["generated_ids"], c["greedy"][:6], f"{what}: tokens")
        check_equal(d.stop(), 0, f"{what}: exit code of k3-iod")
        lines = [x for x in d.log().splitlines() if all(w in x for w in words)]
        check(lines, f"{what}: no line of the log says {words}")
        check(len(lines) <= 2, f"{what}: it is said {len(lines)} times")
    # Asked for explicitly, the missing thing is an error, not a fallback.
    for args, env, preexec in ((["--backend", "io_uring"], {"K3_IOD_FAULT": "no_uring=1"}, None),
                               (["--backend", "io_uring"], {}, no_io_uring)):
        r = case.exec("k3-iod", "--model", path, "--socket", case.path("s"), *args, env=env, preexec=preexec)
        check(r.rc in (1, 2), f"{args} with {env or 'seccomp'}: exit code {r.rc}\n{r}")


def no_direct(case):
    """A file system without O_DIRECT: buffered, and the line says why."""
    source = k3test.oracle("tiny")
    c = json.load(open(os.path.join(source, "golden.json")))["cases"][1]
    folder = case.subdir("ramfs")
    if subprocess.run(["mount", "-t", "ramfs", "none", folder], capture_output=True).returncode:
        raise k3test.Skip("cannot mount a ramfs here")
    try:
        for f in os.listdir(source):
            shutil.copy(os.path.join(source, f), folder)
        d = Daemon(case, folder)
        r = case.k3(None, ids=c["ids"], gen=6, daemon=d)
        check_equal(r.run["generated_ids"], c["greedy"][:6], "tokens")
        check_equal(d.stop(), 0, "exit code of k3-iod")
        lines = [x for x in d.log().splitlines() if "buffered" in x.lower()]
        check(len(lines) == 1 and "O_DIRECT" in lines[0], f"no line with the reason:\n{d.log()}")
        r = case.exec("k3-iod", "--model", folder, "--socket", case.path("s"), "--direct", "on")
        refused(r, (1, 2), "O_DIRECT", folder)
    finally:
        # Lazily: a ring of a process that is gone lets go of its files a moment later.
        subprocess.run(["umount", "-l", folder])


def below_the_floor(case):
    """A budget that cannot work is refused, and the message says what would."""
    path = k3test.oracle("tiny")
    for option in ("--trunk-gb", "--cache-gb"):
        r = case.exec("k3", "run", path, "--ids", "1", option, "0.000001")
        refused(r, (2,), option)
        # In 10^9 bytes, so that it can be typed back; and then it works.
        numbers = [float(x) for x in re.findall(r"(?<![\w.])(\d+\.\d+)", r.err)]
        check(numbers, f"the floor is not stated\n{r}")
        ok = case.exec("k3", "run", path, "--ids", "1", "--gen", "1", option, f"{max(numbers):.9f}")
        check_equal(ok.rc, 0, f"exit code with the stated floor {max(numbers)}\n{ok}")


# ---- damaged numbers

def set_bytes(path, name, at, value):
    for f in sorted(os.listdir(path)):
        if f.endswith(".safetensors"):
            head, base = reference.read_header(os.path.join(path, f))
            if name in head:
                with open(os.path.join(path, f), "r+b") as s:
                    s.seek(base + head[name]["data_offsets"][0] + at)
                    s.write(value)
                return
    raise k3test.Failure(f"no tensor {name}")


def not_finite(case):
    """A step whose logits are not finite ends with the first layer where it began."""
    for layer, name, value in ((3, "self_attn.o_proj.weight", b"\xc0\x7f"), (0, "mlp.down_proj.weight", b"\x80\x7f"),
                               (6, "self_attn.v_proj.weight", b"\xc0\xff"),
                               (5, "block_sparse_moe.routed_expert_up_proj.weight", b"\xff\x7f")):
        path, c = tiny(case)
        set_bytes(path, f"{P}{layer}.{name}", 0, value)
        r = case.k3(path, ids=c["ids"], gen=4, expect=1)
        check(re.search(rf"layer {layer}(?!\d)", r.err), f"layer {layer} is not named\n{r}")
        check_equal(r.out, "", "standard output")
    for name, value in (("gate.weight", b"\xc0\x7f"), ("gate.weight", b"\x80\xff"),
                        ("gate.e_score_correction_bias", b"\0\0\xc0\x7f"), ("gate.e_score_correction_bias", b"\0\0\x80\x7f")):
        path, c = tiny(case)  # one expert would silently never (or always) be chosen
        set_bytes(path, f"{P}4.block_sparse_moe.{name}", 0, value)
        r = case.k3(path, ids=c["ids"], gen=1, expect=1)
        check("router" in r.err and "layer 4" in r.err, f"the sentence\n{r}")
    path, c = tiny(case)
    set_bytes(path, "language_model.lm_head.weight", 7 * 96 * 2, b"\xc0\x7f")
    r = case.k3(path, ids=c["ids"], gen=1, expect=1)
    check("finite" in r.err, f"no reason\n{r}")


def scale_255(case):
    """A scale byte 255 in an expert is corruption and is not computed on."""
    path, c = tiny(case)
    trace = case.subdir("trace")
    case.k3(path, "--dump-cache-trace", trace, ids=c["ids"], gen=1)
    config = reference.Config(os.path.join(path, "config.json"))
    expert = trace_file.read(trace, config)[len(c["ids"]) - 1, 4][1]
    set_bytes(path, f"{P}4.block_sparse_moe.experts.{expert}.w3.weight_scale", 9, b"\xff")
    r = case.k3(path, ids=c["ids"], gen=1, expect=None)
    check(r.rc in (1, 4), f"exit code {r.rc}\n{r}")
    check(f"layers.4.block_sparse_moe.experts.{expert}.w3.weight_scale" in r.err, f"the tensor is not named\n{r}")
    check("255" in r.err and "model-00005-of-000010.safetensors" in r.err, f"no reason, or no file\n{r}")


# ---- peers

def garbage(case):
    """A client that sends what it must not is dropped with a reason; the daemon goes on."""
    path = k3test.oracle("tiny")
    d = Daemon(case, path)
    c = json.load(open(os.path.join(path, "golden.json")))["cases"][1]

    def dropped(send):
        with Wire(d.socket) as w:
            send(w)
            while True:
                got = w.receive()
                if got is None:
                    return
                if got[0] == "ERROR" and struct.unpack_from("<4I", got[1])[3] & 1:
                    check(len(got[1]) > 40, "an ERROR without a sentence")

    def raw(data):
        return lambda w: w.s.sendall(data)

    def after_hello(name, body):
        def send(w):
            w.hello()
            w.send(name, body)
        return send

    experts = struct.pack("<IIII128H", 1, 1, 1, 0, *([23] + [0] * 127))
    for what, send in {
            "one byte": raw(b"x"), "random bytes": raw(bytes(range(200))), "no hello": lambda w: w.send("STATS", bytes(8)),
            "unknown type": raw(struct.pack("<IHH", 8, 99, 0)), "wrong size": raw(struct.pack("<IHH", 800, 1, 0)),
            "version": lambda w: w.send("HELLO", struct.pack("<IIQQII32s", 7, 9, 0, 0, 1, 0, b"new")),
            "feature": lambda w: w.send("HELLO", struct.pack("<IIQQII32s", 1, 1, 0, 1 << 40, 1, 0, b"new")),
            "hello twice": after_hello("HELLO", struct.pack("<IIQQII32s", 1, 1, 0, 0, 1, 0, b"again")),
            "not our direction": after_hello("TILE_READY", bytes(32)),
            "a layer too many": after_hello("EXPERTS", struct.pack("<I", 1000) + experts[4:]),
            "a dense layer": after_hello("EXPERTS", struct.pack("<I", 0) + experts[4:]),
            "an expert too many": after_hello("EXPERTS", experts[:16] + struct.pack("<H", 24) + experts[18:]),
            "a count too large": after_hello("EXPERTS", experts[:4] + struct.pack("<I", 4000) + experts[8:]),
            "a tile too many": after_hello("SWEEP", struct.pack("<4I", 1, 1 << 30, 9, 1)),
            "a row too many": after_hello("ROWS", struct.pack("<2I128I", 1, 1, 512, *[0] * 127)),
            "a lease it has not": after_hello("EXPERT_DONE", struct.pack("<4I", 1, 1, 0, 1)),
            "a tile it has not": after_hello("TILE_DONE", struct.pack("<2I", 1, 3))}.items():
        try:
            dropped(send)
        except ConnectionResetError:
            pass
        except k3test.Failure as e:
            raise k3test.Failure(f"{what}: {e}")
        check(d.process.poll() is None, f"{what}: the daemon ended")
    wait_until(lambda: d.stats()["clients"] == 1, "the daemon to drop them all")
    s = d.stats()
    check(s["clients_dropped"] >= 10, f"only {s['clients_dropped']} were dropped for a reason")
    check_equal((s["tile_leases"], s["expert_leases"]), (0, 0), "leases")
    check_equal(case.k3(None, ids=c["ids"], gen=6, daemon=d).run["generated_ids"], c["greedy"][:6], "tokens afterwards")
    check_equal(d.stop(), 0, "exit code of k3-iod")


def two_daemons(case):
    """A second daemon on a live socket refuses and leaves it alone; a dead socket is taken over."""
    path = k3test.oracle("tiny")
    d = Daemon(case, path)
    r = case.exec("k3-iod", "--model", path, "--socket", d.socket)
    refused(r, (1, 2), d.socket)
    check(d.stats()["clients"] == 1, "the first daemon does not answer any more")
    check_equal(d.stop(signal.SIGKILL), -9, "exit code after SIGKILL")
    check(os.path.exists(d.socket), "the socket file went with the process: nothing is shown")
    again = Daemon(case, path, socket_path=d.socket)
    check(again.stats()["clients"] == 1, "the third daemon does not answer")
    check_equal(again.stop(), 0, "exit code of k3-iod")


def names_taken_over(case):
    """Somebody cleaned up, and another daemon serves the same names: the first one's end leaves them alone."""
    path = k3test.oracle("tiny")
    metrics = case.path("metrics")
    first = Daemon(case, path, "--metrics", metrics)
    for name in (first.socket, first.socket + ".lock", metrics):
        os.unlink(name)
    second = Daemon(case, path, "--metrics", metrics, socket_path=first.socket)
    check_equal(first.stop(), 0, "exit code of the first")
    check_equal(second.stats()["clients"], 1, "clients of the second")
    refused(case.exec("k3-iod", "--model", path, "--socket", second.socket), (1, 2), second.socket)
    check(os.path.exists(metrics), "the metrics socket of the second daemon is gone")
    check_equal(second.stop(), 0, "exit code of the second")
    check_equal([n for n in (second.socket, second.socket + ".lock", metrics) if os.path.exists(n)], [], "names left behind")


def files_of_the_model(case):
    """A recording over a file of the model is refused before the file is touched."""
    model = case.copy_model(DEMO)
    for name in ("config.json", "tiktoken.model", "model-00003-of-000010.safetensors"):
        path = os.path.join(model, name)
        before = open(path, "rb").read()
        for option in ("--record-trace", "--timeline"):
            refused(case.exec("k3-iod", "--model", model, "--socket", case.path("socket"), option, path), (2,), option, path)
        check(open(path, "rb").read() == before, f"{name} is not what it was")


def socket_paths(case):
    """What is no socket stays as it is, and nothing is left beside it."""
    where = case.subdir("sockets")
    name = os.path.join(where, "a file")
    open(name, "w").write("text")
    refused(case.exec("k3-iod", "--model", DEMO, "--socket", name), (1, 2), name)
    free = os.path.join(where, "free")
    refused(case.exec("k3-iod", "--model", "/nowhere", "--socket", free), (1, 2), "/nowhere")
    check_equal(os.listdir(where), ["a file"], "files")
    check_equal(open(name).read(), "text", "the file")


def usage(case):
    """Exit code 2 and a sentence for a command line that is not understood."""
    for args in ([], ["run"], ["run", DEMO], ["run", DEMO, "--prompt", "a", "--ids", "1"], ["run", DEMO, "--ids", "1,x"],
                 ["run", DEMO, "--ids", ""], ["run", DEMO, "--ids", "2048"], ["run", DEMO, "--ids", "1", "--frobnicate"],
                 ["run", DEMO, "--ids", "1", "--gen", "-1"], ["run", DEMO, "--ids", "1", "--threads", "many"],
                 ["run", DEMO, "--ids", "1", "--isa", "sse"], ["run", DEMO, "--ids", "1", "--layers", "10"],
                 ["run", DEMO, "--ids", "1", "--prefill-rows", "0"], ["run", DEMO, "--ids", "1", "--cache-gb", "-2"],
                 ["run", DEMO, "--prompt", ""], ["run", "/nowhere", "--ids", "1"],
                 ["run", DEMO, "--ids", "1", "--gen", "5000"], ["tokenize"], ["tokenize", "--tok", DEMO],
                 ["tokenize", "--tok", DEMO, "--decode", "9999"], ["stats"], ["frobnicate"], ["tokenize", "--gen", "3", "x"]):
        r = case.exec("k3", *args)
        check(r.rc == 2 or (r.rc == 1 and "/nowhere" in args), f"k3 {args}: exit code {r.rc}\n{r}")
        check(r.out == "" and len(r.err) > 10, f"k3 {args}: no sentence\n{r}")
    for name, args in (("k3-iod", []), ("k3-iod", ["--model"]), ("k3-iod", ["--model", DEMO, "--nonsense"]), ("k3-store", []),
                       ("k3-store", ["pack"]), ("k3-store", ["pack", DEMO]), ("k3-store", ["nonsense"])):
        r = case.exec(name, *args)
        check(r.rc == 2, f"{name} {args}: exit code {r.rc}\n{r}")
    for name in ("k3", "k3-iod", "k3-store"):
        for option in ("--help", "--version"):
            r = case.exec(name, option)
            check_equal((r.rc, r.err), (0, ""), f"{name} {option}")
            check(r.out, f"{name} {option} prints nothing")
    check("--prefill-rows" in case.exec("k3", "run", "--help").out, "k3 run --help does not list its options")


if __name__ == "__main__":
    k3test.main([config_fields, config_each_field, config_layers, config_others, pipes, no_regular_files, broken_shards, truncated_shards, eio_once,
                 eio_for_good, tile_for_good, trunk_files, fallbacks, no_direct, below_the_floor, not_finite, scale_255, garbage, two_daemons, names_taken_over, files_of_the_model, socket_paths,
                 usage])
