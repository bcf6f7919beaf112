"""What a client sees of a daemon, and what the shards say it should be: catalog and slab by the layouts
of shared/catalog.h and shared/slab_layout.h, tensors straight from the safetensors files. Shares no
code with the programs."""
import glob
import json
import mmap
import os
import re
import struct

from k3test import ROOT, Wire, check, check_equal

PINNED, READY = 1, 2
PARTS = ("w1.weight_packed", "w1.weight_scale", "w2.weight_packed", "w2.weight_scale", "w3.weight_packed", "w3.weight_scale")


def roles():
    """[(name, layer kind, is a vector, suffix)] in the order of roles.def."""
    out = []
    for line in open(os.path.join(ROOT, "shared", "roles.def")):
        m = re.match(r'ROLE\((\w+),\s*(\w+), ([VM]), "([^"]+)"', line)
        if m:
            out.append((m[1], m[2], m[3] == "V", m[4]))
    return out


ROLES = roles()


class Shards:
    """Bytes of tensors by name."""

    def __init__(self, path):
        self.where = {}
        for name in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
            with open(name, "rb") as f:
                n = struct.unpack("<Q", f.read(8))[0]
                head = json.loads(f.read(n))
            for k, e in head.items():
                if k != "__metadata__":
                    self.where[k] = name, 8 + n + e["data_offsets"][0], e["data_offsets"][1] - e["data_offsets"][0], e["shape"]

    def get(self, name):
        path, offset, size, _ = self.where[name]
        with open(path, "rb") as f:
            f.seek(offset)
            return f.read(size)


class View(Wire):
    """A connection with catalog and slab mapped."""

    def __init__(self, path):
        super().__init__(path)
        self.hello()
        self.n_sweeps = 0
        w = self.welcome
        self.slab = mmap.mmap(self.fds[0], w["slab_size"], mmap.MAP_SHARED, mmap.PROT_READ)
        self.catalog = os.pread(self.fds[1], w["catalog_size"], 0)
        h = struct.unpack_from("<QII2Q16sQ4I5Q2IQ6I6I", self.catalog)
        (self.n_layers, self.n_tiles, self.n_parts, self.n_experts, tiles, parts, self.max_tile, self.trunk_size,
         self.expert_size, self.embed_dtype, self.embed_cols, self.embed_rows) = h[7:19]
        self.expert_shapes = list(zip(h[19:25], h[25:31]))
        names = "layer role _ first_part n_parts first_row n_rows slab_size data_size _".split()
        self.tiles = [dict(zip(names, struct.unpack_from("<IHHIIIIQQQ", self.catalog, tiles + 48 * i))) for i in range(self.n_tiles)]
        names = "role dtype rows cols _ offset size".split()
        self.parts = [dict(zip(names, struct.unpack_from("<HHIIIQQ", self.catalog, parts + 32 * i))) for i in range(self.n_parts)]
        s = struct.unpack_from("<QII2Q16sQII8Q", self.slab)
        self.slab_tiles, self.slab_slots, self.slot_size = s[9], s[10], s[16]

    def expect(self, name):
        """News of pinned tiles may come at any time."""
        while True:
            got = self.receive()
            check(got is not None, f"the daemon closed the connection instead of sending {name}")
            if got[0] == "TILE_READY" != name and struct.unpack_from("<4I", got[1])[3] == 1:
                continue
            check(got[0] == name, f"{got[0]} {got[1]!r} instead of {name}")
            return got[1]

    def close(self):
        self.slab.close()
        super().close()

    def entry(self, tile):
        """generation, state, layer, id, offset, flags"""
        return struct.unpack_from("<4IQI", self.slab, self.slab_tiles + 32 * tile)

    def slot(self, slot):
        return struct.unpack_from("<4IQI", self.slab, self.slab_slots + 32 * slot)

    def is_pinned(self, tile):
        e = self.entry(tile)
        return e[1] == READY and bool(e[5] & PINNED)

    def tile_is_right(self, tile, offset, shards):
        """The bytes at offset of the slab against the shards."""
        t = self.tiles[tile]
        for p in self.parts[t["first_part"]:t["first_part"] + t["n_parts"]]:
            _, kind, is_vector, suffix = ROLES[p["role"]]
            check_equal(is_vector, t["role"] == 0xffff, f"tile {tile}: a vector in a matrix tile, or the reverse")
            name = f"language_model.{suffix}" if kind == "HEAD" else f"language_model.model.layers.{t['layer']}.{suffix}"
            want = shards.get(name)
            at = 0 if is_vector else t["first_row"] * (p["size"] // p["rows"])
            got = self.slab[offset + p["offset"]:offset + p["offset"] + p["size"]]
            check_equal(len(got), p["size"], f"tile {tile}: it ends beyond the slab")
            check(got == want[at:at + p["size"]], f"tile {tile}, {name}: other bytes than in the shard")
        return t["data_size"]

    def expert_is_right(self, layer, expert, offset, part_off, shards):
        for part, off, shape in zip(PARTS, part_off, self.expert_shapes):
            want = shards.get(f"language_model.model.layers.{layer}.block_sparse_moe.experts.{expert}.{part}")
            check_equal(len(want), shape[0] * shape[1], f"bytes of {part}")
            check(self.slab[offset + off:offset + off + len(want)] == want,
                  f"expert {expert} of layer {layer}, {part}: other bytes than in the shard")

    def sweep(self, first=0, n_layers=None, head=True, again=False):
        self.n_sweeps += 1
        self.send("SWEEP", struct.pack("<4I", self.n_sweeps, first, self.n_layers if n_layers is None else n_layers, head | again << 1))

    def tile_ready(self):
        """sweep, tile, generation, flags, offset, bytes_read"""
        return struct.unpack("<4I2Q", self.expect("TILE_READY"))

    def tile_done(self, tile):
        self.send("TILE_DONE", struct.pack("<2I", self.n_sweeps, tile))

    def walk(self, last, use):
        """Go through tiles of the sweep in order as a client does; use(tile, offset, generation)."""
        leased = {}
        for tile in last:
            while tile not in leased and not self.is_pinned(tile):
                sweep, t, generation, flags, offset, _ = self.tile_ready()
                check_equal(sweep, self.n_sweeps, "sweep in TILE_READY")
                if flags == 0:
                    check(t >= tile and t not in leased, f"TILE_READY for {t} while {tile} is wanted")
                    leased[t] = generation, offset
            if tile in leased:
                generation, offset = leased[tile]
            else:
                generation, offset = self.entry(tile)[0], self.entry(tile)[4]
            use(tile, offset, generation)
            check_equal(self.entry(tile)[0], generation, f"generation of tile {tile} after use")
            if tile in leased:
                del leased[tile]
                self.tile_done(tile)
        check_equal(leased, {}, "leases beyond the end of the sweep")

    def ask(self, layer, ids, step=1):
        self.send("EXPERTS", struct.pack("<IIII128H", layer, len(ids), step, 0, *ids, *[0] * (128 - len(ids))))

    def hint(self, layer, ids):
        self.send("HINT", struct.pack("<IIII128H", layer, len(ids), 0, 0, *ids, *[0] * (128 - len(ids))))

    def expert_ready(self):
        """layer, expert, step, slot, generation, -, offset, bytes_read, part_off[6]"""
        return struct.unpack("<6I2Q6I", self.expect("EXPERT_READY"))

    def expert_done(self, ready):
        self.send("EXPERT_DONE", struct.pack("<4I", ready[0], ready[1], ready[3], ready[4]))

    def rows(self, ids, serial=1):
        self.send("ROWS", struct.pack("<II128I", serial, len(ids), *ids, *[0] * (128 - len(ids))))
