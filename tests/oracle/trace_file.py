"""What k3 run --dump-cache-trace writes: the experts of every position and layer."""
import json
import os


def read(folder, config):
    """{(position, layer): [ids, ascending]}. config: a reference.Config, which knows the MoE layers."""
    layers = [l for l in range(config.layers) if config.is_moe(l)]
    out = {}
    with open(os.path.join(folder, "trace.jsonl")) as f:
        for line in f:
            row = json.loads(line)
            assert len(row["layers"]) == len(layers), f"{len(row['layers'])} layers instead of {len(layers)}"
            for layer, ids in zip(layers, row["layers"]):
                out[row["tok"], layer] = ids
    return out
