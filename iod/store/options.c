/* The table behind options.def, and for each command the texts of its help. */
#include "iod/store/options.h"

#include <string.h>

#include "shared/attr.h"

#define OPT(...) OPTION_ROW(struct iod_store_options, __VA_ARGS__),
static const struct option table[] = {
#include "iod/store/options.def"
};
#undef OPT

#define EXIT_CODES                                                           \
	"exit codes:\n"                                                      \
	"  0  success\n"                                                     \
	"  1  the checkpoint is damaged or incomplete, or the disk failed\n" \
	"  2  the command line or a config is not understood"

static const struct option_program whole = {
	.name = "k3-store",
	.summary = "offline work on the files of a K3 checkpoint",
	.usage = "k3-store bench PATH... [--seconds N] [--write-profile FILE] [--json]\n"
		 "k3-store census MODEL... [--layers N] [--json]\n"
		 "k3-store pack MODEL... OUT... [--tile BYTES] [--config FILE]\n"
		 "k3-store replay TRACE [--slots N,N,...] [--warm TOKENS] [--json] [--plot FILE]\n"
		 "k3-store synth OUT [--config FILE] [geometry] [--seed N]\n"
		 "k3-store verify MODEL... [--trunk FILE] [--deep] [--manifest FILE]\n"
		 "k3-store verify MODEL... --write\n"
		 "k3-store COMMAND --help",
	.intro =
		"bench measures how fast the disks are read at which depth and chunk, and writes "
		"that down for k3-iod.\n\n"
		"census says what a checkpoint consists of, from its headers alone.\n\n"
		"pack copies everything but the routed experts into one trunk file in the order "
		"in which a step uses it: faster to stream, checksummed, and never a "
		"precondition.\n\n"
		"replay simulates the cache of experts over a recorded trace: what a larger "
		"--cache-gb would bring.\n\n"
		"synth writes a random checkpoint of a given geometry in the released layout, for "
		"tests and benches. The text it produces means nothing.\n\n"
		"verify checks sizes and headers, or every byte; it also writes the checksums that "
		"--verify-reads needs.",
	.epilog = "examples:\n"
		  "  k3-store pack /models/k3 /fast/k3.trunk\n"
		  "  k3-store synth /tmp/small --layers 9 --experts 24 --seed 7\n\n" EXIT_CODES,
	.options = table,
	.n_options = N_ELEMENTS(table),
};

static const struct option_program bench = {
	.name = "k3-store",
	.summary = "how fast the disks are read, at which depth and chunk",
	.usage = "k3-store bench PATH... [--seconds N] [--write-profile FILE] [--json]",
	.intro = "PATH is a file, a directory, of which the files of 32 MiB or more are read, or a "
		 "block device. Nothing is written to them. For each device that they lie on a "
		 "grid of chunk sizes and depths is measured with the daemon's own reader: random "
		 "reads of one chunk each, as of experts, and one after the other, as of the "
		 "trunk. Files that are holes, or lie in the page cache and are read through it, "
		 "give figures that mean nothing.\n\n"
		 "The best point is, of those within three in a hundred of the best in both, the "
		 "one with the fewest bytes in flight: what is in flight is what an urgent read "
		 "waits for. Measure while nothing else reads.",
	.epilog = "examples:\n"
		  "  k3-store bench /models/k3 /disk2/k3 --write-profile /etc/k3/profile\n"
		  "  k3-iod --profile /etc/k3/profile ...\n\n"
		  "exit codes:\n"
		  "  0  success\n"
		  "  1  a file cannot be read\n"
		  "  2  the command line is not understood, or there is nothing to read",
	.options = table,
	.n_options = N_ELEMENTS(table),
};

static const struct option_program census = {
	.name = "k3-store",
	.summary = "what a checkpoint consists of: bytes by kind, layer and file",
	.usage = "k3-store census MODEL... [--layers N] [--config FILE] [--json]",
	.intro = "Counted from the headers alone, so it takes under a second. A checkpoint that is "
		 "not complete is counted too: layers that are not there or incomplete are marked, "
		 "and absent shards are named with the layers they hold, as far as the index "
		 "(model.safetensors.index.json) says.",
	.epilog = "examples:\n"
		  "  k3-store census /models/k3\n"
		  "  k3-store census /models/k3 --json >census.json\n\n"
		  "exit codes:\n"
		  "  0  all layers are complete\n"
		  "  1  a layer is absent or incomplete, or a header is damaged\n"
		  "  2  the command line or a config is not understood",
	.options = table,
	.n_options = N_ELEMENTS(table),
};

static const struct option_program pack = {
	.name = "k3-store",
	.summary = "write the trunk file of a checkpoint",
	.usage = "k3-store pack MODEL... OUT... [--tile BYTES] [--layers N] [--config FILE]",
	.intro =
		"MODEL is a directory with the released shards and config.json; several may be "
		"given when the shards are spread over disks. OUT is written as OUT.partial, "
		"synced, read back and compared, and only then renamed; an OUT that exists stays "
		"as it is until then.\n\n"
		"With several OUT, one on each disk, the tiles alternate over them, so that a step "
		"reads all disks at once. They are one set: --trunk is given once for each, in any "
		"order, and another file among them, or one that is missing, is refused.\n\n"
		"Beside it, or beside the first, OUT.sums is written, the checksums of everything "
		"that a run reads, experts included (k3-store verify, --verify-reads of k3 and "
		"k3-iod). For that all of the checkpoint is read once; --no-sums leaves it out.\n\n"
		"A pack that was stopped goes on where it was when the same command is given "
		"again. The file fits this checkpoint and config.json only: another is refused.",
	.epilog = "examples:\n"
		  "  k3-store pack /models/k3 /fast/k3.trunk\n"
		  "  k3-store pack /models/k3 /disk1/k3.trunk /disk2/k3.trunk\n\n" EXIT_CODES,
	.options = table,
	.n_options = N_ELEMENTS(table),
};

static const struct option_program replay = {
	.name = "k3-store",
	.summary = "simulate the cache of experts over a routing trace",
	.usage = "k3-store replay TRACE [--slots N,N,... | --cache-gb X,X,...] [--warm TOKENS] "
		 "[--clients N] [--json] [--plot FILE.svg]",
	.intro = "TRACE says which experts a model asked for, token after token: a directory that "
		 "k3 "
		 "run --dump-cache-trace wrote, a file of JSON lines {\"tok\": N, \"layers\": "
		 "[[ids], "
		 "...]}, or one of int32 pairs (layer, expert). It goes through caches of several "
		 "sizes with the policies of k3-iod themselves: lru, and the default. Belady's "
		 "bound is what a policy that knows the future would reach; no other can do "
		 "better.\n\n"
		 "What a token asks for (layers times experts of each) is one sweep. Below one "
		 "sweep "
		 "lru has no hits: whatever is used next has just been evicted.",
	.epilog = "examples:\n"
		  "  k3 run /models/k3 --prompt 'Once upon' --gen 200 --dump-cache-trace /tmp/t\n"
		  "  k3-store replay /tmp/t --cache-gb 8,16,32,64 --warm 60\n"
		  "  k3-store replay trace.jsonl --slots 208,416,832 --json --plot hits.svg\n\n"
		  "exit codes:\n"
		  "  0  success\n"
		  "  1  a file cannot be read or written\n"
		  "  2  the command line or the trace is not understood",
	.options = table,
	.n_options = N_ELEMENTS(table),
};

static const struct option_program synth = {
	.name = "k3-store",
	.summary = "write a random checkpoint of a given geometry",
	.usage = "k3-store synth OUT [--config FILE] [geometry] [--seed N]",
	.intro = "OUT is a directory that is made, or is empty. It gets config.json, one shard a "
		 "layer and one of globals, and the index, as released. The weights are random, "
		 "scaled so that activations stay near one and the correction bias changes the "
		 "choice of experts. Without --config the geometry is a tiny one.",
	.epilog =
		"examples:\n"
		"  k3-store synth /tmp/small --layers 9 --experts 24 --seed 7\n"
		"  k3-store synth /tmp/slice --config /models/k3/config.json --layers 4 --experts "
		"64 --vocab 4096\n\n" EXIT_CODES,
	.options = table,
	.n_options = N_ELEMENTS(table),
};

static const struct option_program verify = {
	.name = "k3-store",
	.summary = "is a checkpoint what it should be?",
	.usage = "k3-store verify MODEL... [--trunk FILE] [--deep] [--manifest FILE] [--rate "
		 "BYTES]\n"
		 "k3-store verify MODEL... --write [--sums FILE]",
	.intro = "Without --deep: every shard's header and size, that nothing is missing, that "
		 "checksums and trunk file belong to this checkpoint. It takes a second.\n\n"
		 "With --deep every byte is read and compared with all checksums there are: of "
		 "FILE.sums or k3.sums, of the trunk file, of the manifest. What is wrong is named "
		 "by file, tensor and bytes, and the work goes on. A run that was stopped goes on "
		 "where it was when the same command is given again; it may run beside a daemon "
		 "(--rate).\n\n"
		 "--write makes the checksums (k3.sums in MODEL): of each expert's tensors, of 16 "
		 "rows at a time of the others, of each row of the embedding. k3-store pack writes "
		 "them too. They say what the files were then, so check new files against a "
		 "manifest first.",
	.epilog = "examples:\n"
		  "  k3-store verify /models/k3 --manifest deploy/k3-files.tsv\n"
		  "  k3-store verify /models/k3 --manifest deploy/k3-files.tsv --deep\n"
		  "  k3-store verify /models/k3 --write\n"
		  "  k3-store verify /models/k3 --trunk /fast/k3.trunk --deep --rate 500M\n\n"
		  "exit codes:\n"
		  "  0  no fault\n"
		  "  1  a file is damaged, missing or cannot be read; each is named\n"
		  "  2  the command line, a config or the manifest is not understood\n"
		  "  4  --write: an expert with an impossible scale",
	.options = table,
	.n_options = N_ELEMENTS(table),
};

const struct option_program *iod_store_program(const char *command)
{
	if (command && strcmp(command, "bench") == 0)
		return &bench;
	if (command && strcmp(command, "census") == 0)
		return &census;
	if (command && strcmp(command, "pack") == 0)
		return &pack;
	if (command && strcmp(command, "replay") == 0)
		return &replay;
	if (command && strcmp(command, "synth") == 0)
		return &synth;
	if (command && strcmp(command, "verify") == 0)
		return &verify;
	return &whole;
}
