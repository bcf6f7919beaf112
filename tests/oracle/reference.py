"""A second implementation of the model, in numpy and fp64, as plain as it can be.

It shares nothing with the engine: it reads the safetensors files itself, keeps every weight as
fp64, runs KDA as the recurrence over single tokens and MLA in the expanded form (the engine absorbs
kv_b), and evaluates the whole sequence at once without any cache. It is itself checked against
golden.f64 (tests/oracle/oracle.py), and the engine is checked against it on geometries for which
no golden file exists.
"""
import glob
import json
import os
import struct

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float64)


def read_header(path):
    """{name: entry} and the offset of the first data byte of a safetensors file."""
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(n))
    head.pop("__metadata__", None)
    return head, 8 + n


def decode(dtype, shape, raw):
    if dtype == "F64":
        return np.frombuffer(raw, "<f8").reshape(shape)
    if dtype == "F32":
        return np.frombuffer(raw, "<f4").reshape(shape).astype(np.float64)
    if dtype == "BF16":
        u = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
        return u.view(np.float32).reshape(shape).astype(np.float64)
    if dtype == "U8":
        return np.frombuffer(raw, np.uint8).reshape(shape)
    raise ValueError(dtype)


def read_file(path):
    """Every tensor of one safetensors file."""
    head, base = read_header(path)
    with open(path, "rb") as f:
        data = f.read()
    return {k: decode(e["dtype"], e["shape"], data[base + e["data_offsets"][0]:base + e["data_offsets"][1]])
            for k, e in head.items()}


class Checkpoint:
    """Tensors by name. The index, where there is one, says which files belong to the model."""

    def __init__(self, path):
        index = os.path.join(path, "model.safetensors.index.json")
        if os.path.exists(index):
            names = sorted(set(json.load(open(index))["weight_map"].values()))
            files = [os.path.join(path, n) for n in names]
        else:
            files = sorted(glob.glob(os.path.join(path, "*.safetensors")))
        self.where = {}
        for p in files:
            head, base = read_header(p)
            for k, e in head.items():
                self.where[k] = (p, base, e)

    def __getitem__(self, name):
        path, base, e = self.where["language_model." + name]
        with open(path, "rb") as f:
            f.seek(base + e["data_offsets"][0])
            return decode(e["dtype"], e["shape"], f.read(e["data_offsets"][1] - e["data_offsets"][0]))

    def vector(self, name):
        return self[name].reshape(-1)

    def mxfp4(self, name):
        p, s = self[name + ".weight_packed"], self[name + ".weight_scale"]
        assert not (s == 255).any(), name
        v = np.stack([E2M1[p & 15], E2M1[p >> 4]], -1).reshape(p.shape[0], -1)
        return v * np.repeat(np.ldexp(1.0, s.astype(np.int64) - 127), 32, axis=1)


class Config:
    """The numbers of config.json, released or flat form."""

    def __init__(self, path):
        j = json.load(open(path))
        t = j.get("text_config", j)
        la = t.get("linear_attn_config", {})
        self.vocab = t["vocab_size"]
        self.hidden = t["hidden_size"]
        self.layers = t["num_hidden_layers"]
        self.dense_layers = t["first_k_dense_replace"]
        self.moe_freq = t.get("moe_layer_freq", 1)
        self.beta = t.get("activation_situ_beta", t.get("situ_beta"))
        self.linear_beta = t.get("activation_situ_linear_beta", t.get("situ_linear_beta"))
        self.eps = t["rms_norm_eps"]
        self.heads = t["num_attention_heads"]
        self.q_lora, self.kv_lora = t["q_lora_rank"], t["kv_lora_rank"]
        self.nope, self.rope, self.v = t["qk_nope_head_dim"], t["qk_rope_head_dim"], t["v_head_dim"]
        self.kda_heads = la.get("num_heads", t.get("kda_num_heads"))
        self.kda_dim = la.get("head_dim", t.get("kda_head_dim"))
        self.taps = la.get("short_conv_kernel_size", t.get("short_conv_kernel_size"))
        self.bound = la.get("gate_lower_bound", t.get("gate_lower_bound"))
        self.mla = {i - 1 for i in la.get("full_attn_layers", t.get("full_attn_layers"))}
        self.block = t["attn_res_block_size"]
        self.experts, self.top_k = t["num_experts"], t["num_experts_per_token"]
        self.scale = t["routed_scaling_factor"]
        self.eos = j.get("eos_token_id", t.get("eos_token_id"))

    def is_moe(self, layer):
        return layer >= self.dense_layers and layer % self.moe_freq == 0


LATENT_EPS = 1e-6  # of the two MLA latent norms; not in config.json
L2_EPS = 1e-6


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def silu(x):
    return x * sigmoid(x)


def rmsnorm(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


class Model:
    def __init__(self, path, config=None):
        self.c = Config(config or os.path.join(path, "config.json"))
        self.t = Checkpoint(path)

    def mix(self, blocks, p, norm, proj):
        """[tokens, hidden]: softmax over the sources of their normalised score, of raw sources."""
        v = np.stack(blocks + [p])
        k = v / np.sqrt((v * v).mean(-1, keepdims=True) + self.c.eps)
        s = k @ (self.t.vector(norm) * self.t.vector(proj))
        s = np.exp(s - s.max(0))
        s /= s.sum(0)
        return (s[..., None] * v).sum(0)

    def kda(self, x, pre):
        c, t = self.c, self.t
        n, nh, d = x.shape[0], c.kda_heads, c.kda_dim
        streams = []
        for s in "qkv":
            y = x @ t[f"{pre}{s}_proj.weight"].T
            w = t[f"{pre}{s}_conv1d.weight"].reshape(nh * d, c.taps)
            padded = np.concatenate([np.zeros((c.taps - 1, nh * d)), y])
            z = sum(padded[j:j + n] * w[:, j] for j in range(c.taps))
            streams.append(silu(z).reshape(n, nh, d))
        q, k, v = streams
        q = q / np.sqrt((q * q).sum(-1, keepdims=True) + L2_EPS) * d ** -0.5
        k = k / np.sqrt((k * k).sum(-1, keepdims=True) + L2_EPS)
        z = (x @ t[pre + "f_a_proj.weight"].T) @ t[pre + "f_b_proj.weight"].T + t.vector(pre + "dt_bias")
        a = np.exp(t.vector(pre + "A_log")[:nh])[:, None]
        alpha = np.exp(c.bound * sigmoid(a * z.reshape(n, nh, d)))
        beta = sigmoid(x @ t[pre + "b_proj.weight"].T)
        state = np.zeros((nh, d, d))  # [head, key, value]
        o = np.empty((n, nh, d))
        for i in range(n):
            state *= alpha[i][..., None]
            u = np.einsum("hkv,hk->hv", state, k[i])
            state += k[i][..., None] * (beta[i][:, None] * (v[i] - u))[:, None, :]
            o[i] = np.einsum("hkv,hk->hv", state, q[i])
        o = rmsnorm(o, t.vector(pre + "o_norm.weight"), c.eps)
        o = o.reshape(n, nh * d) * sigmoid(x @ t[pre + "g_proj.weight"].T)
        return o @ t[pre + "o_proj.weight"].T

    def attention(self, x, pre):
        c, t = self.c, self.t
        n, nh = x.shape[0], c.heads
        cq = rmsnorm(x @ t[pre + "q_a_proj.weight"].T, t.vector(pre + "q_a_layernorm.weight"), LATENT_EPS)
        q = (cq @ t[pre + "q_b_proj.weight"].T).reshape(n, nh, c.nope + c.rope)
        ckv = x @ t[pre + "kv_a_proj_with_mqa.weight"].T
        latent = rmsnorm(ckv[:, :c.kv_lora], t.vector(pre + "kv_a_layernorm.weight"), LATENT_EPS)
        shared = ckv[:, c.kv_lora:]
        kv = (latent @ t[pre + "kv_b_proj.weight"].T).reshape(n, nh, c.nope + c.v)
        out = np.empty((n, nh, c.v))
        mask = np.triu(np.full((n, n), -np.inf), 1)
        for h in range(nh):
            s = q[:, h, :c.nope] @ kv[:, h, :c.nope].T + q[:, h, c.nope:] @ shared.T
            s = s * (c.nope + c.rope) ** -0.5 + mask
            p = np.exp(s - s.max(-1, keepdims=True))
            out[:, h] = (p / p.sum(-1, keepdims=True)) @ kv[:, h, c.nope:]
        out = out.reshape(n, nh * c.v) * sigmoid(x @ t[pre + "g_proj.weight"].T)
        return out @ t[pre + "o_proj.weight"].T

    def situ(self, g, u):
        b, lb = self.c.beta, self.c.linear_beta
        return b * np.tanh(g / b) * sigmoid(g) * lb * np.tanh(u / lb)

    def mlp(self, x, pre):
        t = self.t
        y = self.situ(x @ t[pre + "gate_proj.weight"].T, x @ t[pre + "up_proj.weight"].T)
        return y @ t[pre + "down_proj.weight"].T

    def moe(self, x, pre, routing):
        c, t = self.c, self.t
        s = sigmoid(x @ t[pre + "gate.weight"].T)
        choice = s + t.vector(pre + "gate.e_score_correction_bias")
        # Stable: of equal scores the lower id is taken.
        ids = np.sort(np.argsort(-choice, axis=1, kind="stable")[:, :c.top_k], axis=1)
        w = np.take_along_axis(s, ids, 1)
        w = w / (w.sum(1, keepdims=True) + 1e-20) * c.scale
        routing.append((ids, w))
        z = x @ t[pre + "routed_expert_down_proj.weight"].T
        u = np.zeros_like(z)
        for e in np.unique(ids):
            row, col = np.nonzero(ids == e)
            p = f"{pre}experts.{e}."
            y = self.situ(z[row] @ t.mxfp4(p + "w1").T, z[row] @ t.mxfp4(p + "w3").T) @ t.mxfp4(p + "w2").T
            u[row] += w[row, col][:, None] * y
        u = rmsnorm(u, t.vector(pre + "routed_expert_norm.weight"), c.eps)
        return u @ t[pre + "routed_expert_up_proj.weight"].T + self.mlp(x, pre + "shared_experts.")

    def forward(self, ids):
        """Logits [tokens, vocab], P after each layer [layers, tokens, hidden], routing per MoE
        layer as (layer, ids [tokens, top_k] ascending, weights)."""
        c, t = self.c, self.t
        p = t["model.embed_tokens.weight"][np.asarray(ids)]
        blocks, residual, routing = [], [], []
        for l in range(c.layers):
            pre = f"model.layers.{l}."
            x = self.mix(blocks, p, pre + "self_attention_res_norm.weight",
                         pre + "self_attention_res_proj.weight") if blocks else p
            if l % c.block == 0:
                blocks = blocks + [p]
                p = np.zeros_like(p)
            x = rmsnorm(x, t.vector(pre + "input_layernorm.weight"), c.eps)
            p = p + (self.attention if l in c.mla else self.kda)(x, pre + "self_attn.")
            x = self.mix(blocks, p, pre + "mlp_res_norm.weight", pre + "mlp_res_proj.weight")
            x = rmsnorm(x, t.vector(pre + "post_attention_layernorm.weight"), c.eps)
            if c.is_moe(l):
                chosen = []
                p = p + self.moe(x, pre + "block_sparse_moe.", chosen)
                routing.append((l,) + chosen[0])
            else:
                p = p + self.mlp(x, pre + "mlp.")
            residual.append(p)
        h = self.mix(blocks, p, "model.output_attn_res_norm.weight", "model.output_attn_res_proj.weight")
        h = rmsnorm(h, t.vector("model.norm.weight"), c.eps)
        return h @ t["lm_head.weight"].T, np.stack(residual), routing

    def greedy(self, ids, n):
        """n tokens by full recompute, with the smallest margin between best and second logit."""
        ids, out, margin = list(ids), [], np.inf
        for _ in range(n):
            row = self.forward(ids)[0][-1]
            two = np.sort(row)[-2:]
            margin = min(margin, two[1] - two[0])
            out.append(int(row.argmax()))
            ids.append(out[-1])
        return out, margin
