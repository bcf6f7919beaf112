"""--verify-reads: a wrong byte in a shard or a trunk file is never computed on, whatever part of the model it is in and
whichever back end reads it; a byte that was wrong once is read again."""
import os
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "harness"))
sys.path.insert(0, os.path.join(HERE, "..", "oracle"))
import k3test
import verify
from k3test import check, check_equal

L = "language_model.model.layers."
IDS = [5, 300, 120]  # rows in different pages
BACKENDS = ("io_uring", "threads")


def model_with_sums(case, name="tiny"):
    model = case.copy_model(k3test.oracle(name))
    verify.verify(case, model, "--write")
    return model


def same_bits(case):
    """It changes nothing but what damage does: the same digest in all ways of reading and with odd cuts."""
    model, trunk = model_with_sums(case), case.path("trunk")
    want = case.k3(model, ids=IDS, gen=2).run["logits_digest"]
    check_equal(case.exec("k3-store", "pack", model, trunk, "--tile", "8192").rc, 0, "exit code of k3-store pack")
    for args in ([], ["--trunk-gb", "0", "--cache-gb", "0"], ["--tile", "16384"], ["--layers", "9"], ["--trunk", trunk],
                 ["--trunk", trunk, "--backend", "threads", "--direct", "off"]):
        r = case.k3(model, "--verify-reads", *args, ids=IDS, gen=2)
        check_equal(r.run["logits_digest"], want, f"digest with {args}")
    other = model_with_sums(case, "odd")  # scattered experts
    want = case.k3(other, ids=IDS, gen=2).run["logits_digest"]
    check_equal(case.k3(other, "--verify-reads", ids=IDS, gen=2).run["logits_digest"], want, "digest of the odd one")


def damaged_shard(case):
    model = model_with_sums(case)
    where = verify.places(model)
    good = case.k3(model, ids=IDS, gen=2).run["logits_digest"]
    # every expert of one layer, so that whichever is asked for is damaged
    experts = [n for n in where if n.startswith(f"{L}4.block_sparse_moe.experts.") and n.endswith("w3.weight_packed")]
    for tensors, row, rc in (([f"{L}3.self_attn.o_proj.weight"], 0, 1), ([f"{L}2.input_layernorm.weight"], 0, 1),
                             (["language_model.lm_head.weight"], 40, 1), (["language_model.model.embed_tokens.weight"], IDS[1], 1),
                             (experts, 1, 4)):
        for tensor in tensors:
            shard, start, size, shape = where[tensor]
            verify.flip(os.path.join(model, shard), start + row * (size // shape[0]) + 1, 1)
        # nothing looks without the option: these bytes are used
        check(case.k3(model, ids=IDS, gen=2).run["logits_digest"] != good, f"{tensors[0]}: the damage does not matter")
        for backend in BACKENDS:
            for memory in (["--trunk-gb", "0", "--cache-gb", "0"], []):
                r = case.k3(model, "--verify-reads", "--backend", backend, *memory, ids=IDS, gen=2, expect=rc)
                check(any(t in r.err for t in tensors) and shard in r.err and "checksum" in r.err, f"the sentence\n{r}")
                check("once more" in r.err, f"it was not read again\n{r}")
                check_equal((r.run or {}).get("generated_ids", []), [], "tokens computed on damaged bytes")
        for tensor in tensors:
            shard, start, size, shape = where[tensor]
            verify.flip(os.path.join(model, shard), start + row * (size // shape[0]) + 1, 1)
    check_equal(case.k3(model, "--verify-reads", ids=IDS, gen=2).run["logits_digest"], good, "digest of the mended model")


def damaged_trunk_file(case):
    model, trunk = case.copy_model(k3test.oracle("tiny")), case.path("trunk")
    check_equal(case.exec("k3-store", "pack", model, trunk).rc, 0, "exit code of k3-store pack")
    b = open(trunk, "rb").read()
    tiles_off, = struct.unpack_from("<Q", b, 72)
    embed_off, embed_size = struct.unpack_from("<QQ", b, 104)
    place, = struct.unpack_from("<Q", b, tiles_off + 64 * 3 + 48)
    row = embed_size // 512
    for at, word in ((place + 5, "language_model.model.layers.0."), (embed_off + IDS[0] * row + 1, "embed_tokens")):
        verify.flip(trunk, at)
        for backend in BACKENDS:
            r = case.k3(model, "--trunk", trunk, "--verify-reads", "--backend", backend, ids=IDS, gen=1, expect=1)
            check(trunk in r.err and word in r.err and "checksum" in r.err, f"the sentence\n{r}")
        verify.flip(trunk, at)
    case.k3(model, "--trunk", trunk, "--verify-reads", ids=IDS, gen=1)


def wrong_once(case):
    """Bytes that are wrong in memory and right on the disk: one reads again and goes on; bytes that stay wrong end it."""
    model = model_with_sums(case)
    want = case.k3(model, ids=IDS, gen=2).run["logits_digest"]
    where = verify.places(model)
    files = verify.shards(model)
    experts = [n for n in where if n.startswith(f"{L}4.block_sparse_moe.experts.") and n.endswith("w1.weight_packed")]
    for tensors in ([f"{L}0.self_attn.q_proj.weight"], ["language_model.model.embed_tokens.weight"], experts[:12]):
        for count, rc in ((1, 0), ("always", None)):
            items = []
            for t in tensors:
                shard, start, size, shape = where[t]
                at = start + (IDS[0] * (size // shape[0]) if "embed" in t else size // 2)
                items.append(f"flip={files.index(shard)}:{at}:{count}")
            for backend in BACKENDS:
                r = case.k3(model, "--verify-reads", "--backend", backend, "--chunk", "4M", ids=IDS, gen=2, expect=None,
                            env={"K3_IOD_FAULT": ";".join(items)})
                if rc == 0:
                    check_equal(r.rc, 0, f"exit code after one wrong read\n{r}")
                    check_equal(r.run["logits_digest"], want, "digest after one wrong read")
                    # small experts share pages: another's read may have met the one wrong byte
                    check("once more" in r.err or len(tensors) > 1, f"nothing was read again\n{r}")
                else:
                    check(r.rc in (1, 4), f"exit code after wrong reads of {tensors[0]}\n{r}")


def refusals(case):
    model = case.copy_model(k3test.oracle("tiny"))
    r = case.k3(model, "--verify-reads", ids=IDS, gen=1, expect=2)
    check("k3-store verify --write" in r.err, f"the remedy\n{r}")
    verify.verify(case, model, "--write", "--sums", case.path("sums"))
    case.k3(model, "--verify-reads", "--sums", case.path("sums"), ids=IDS, gen=1)
    check_equal(case.exec("k3", "run", model, "--sums", case.path("sums"), "--ids", "1").rc, 2, "--sums alone")
    r = case.k3(model, "--verify-reads", "--sums", case.path("sums"), "--tile", "4096", ids=IDS, gen=1, expect=None)
    check(r.rc == 2 and "larger tiles" in r.err, f"tiles of a page\n{r}")
    open(os.path.join(model, "k3.sums"), "wb").write(b"nonsense")
    r = case.k3(model, "--verify-reads", ids=IDS, gen=1, expect=1)
    check("k3.sums" in r.err, f"the file is not named\n{r}")


def other_clients(case):
    """A client that needs a damaged expert ends; one that needs none of it goes on, and so does the daemon."""
    model = model_with_sums(case)
    where = verify.places(model)
    shard, start, _, _ = where["language_model.lm_head.weight"]
    verify.flip(os.path.join(model, shard), start)
    for backend in BACKENDS:
        d = k3test.Daemon(case, model, "--verify-reads", "--backend", backend, "--trunk-gb", "0", "--cache-gb", "0")
        for _ in range(2):
            r = case.k3(model, ids=IDS, gen=1, daemon=d, expect=1)
            check("lm_head" in r.err and "checksum" in r.err, f"the sentence\n{r}")
        check_equal(d.stats()["tile_leases"], 0, "leases")
        check_equal(d.stop(), 0, "exit code of k3-iod")


if __name__ == "__main__":
    k3test.main([same_bits, damaged_shard, damaged_trunk_file, wrong_once, refusals, other_clients])
