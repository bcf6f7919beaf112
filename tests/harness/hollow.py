"""The released checkpoint without its weights: the 96 real headers, each file stretched to its real
size with holes. 1.56 TB to look at, 75 MB on the disk; weights read as zeros.

    hollow.py OUT [N...]    write it to OUT; with numbers, those shards alone (1 is layer 0)
"""
import gzip
import os
import shutil
import sys
import tarfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from k3test import Skip, data

TOTAL_SIZE = 1_560_860_324_864  # of all tensors, as the released index says


def manifest():
    """{file name: (size, sha256, header bytes, tensors)} as published."""
    out = {}
    for line in open(data("checkpoint/shard_manifest.tsv")):
        if not line.startswith("#"):
            name, size, sha256, header, _, tensors = line.split("\t")[:6]
            out[name] = int(size), sha256, int(header), int(tensors)
    return out


def make(out, shards=None, index=False):
    """Into the new directory out. shards: numbers from 1, None all. index: the released index too."""
    sizes = manifest()
    os.mkdir(out)
    with tarfile.open(data("checkpoint/headers_all96.tar.xz")) as tar:
        for member in tar:
            name = os.path.basename(member.name).removesuffix(".header") + ".safetensors"
            if name not in sizes or shards is not None and int(name.split("-")[1]) not in shards:
                continue
            path = os.path.join(out, name)
            with open(path, "wb") as f:
                shutil.copyfileobj(tar.extractfile(member), f)
                try:
                    f.truncate(sizes[name][0])
                except OSError as e:
                    raise Skip(f"no sparse files of 17 GB here: {e}")
    shutil.copyfile(data("checkpoint/config.json"), os.path.join(out, "config.json"))
    if index:
        with gzip.open(data("checkpoint/model.safetensors.index.json.gz")) as f:
            with open(os.path.join(out, "model.safetensors.index.json"), "wb") as to:
                shutil.copyfileobj(f, to)
    return out


if __name__ == "__main__":
    make(sys.argv[1], {int(n) for n in sys.argv[2:]} or None)
