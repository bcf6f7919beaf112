/* The table behind options.def, and for each command the texts of its help. */
#include "iod/store/options.h"

#include <string.h>

#include "shared/attr.h"

#define OPT(field, name, type, value, initial, min, max, section, commands, help) \
	{ name,  OPTION_##type, offsetof(struct iod_store_options, field),        \
	  value, initial,       min,                                              \
	  max,   section,       commands,                                         \
	  help },
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
	.usage = "k3-store pack MODEL... OUT [--tile BYTES] [--config FILE]\n"
		 "k3-store synth OUT [--config FILE] [geometry] [--seed N]\n"
		 "k3-store COMMAND --help",
	.intro = "pack copies everything but the routed experts into one trunk file in the order "
		 "in which a step uses it: faster to stream, checksummed, and never a "
		 "precondition.\n\n"
		 "synth writes a random checkpoint of a given geometry in the released layout, for "
		 "tests and benches. The text it produces means nothing.",
	.epilog = "examples:\n"
		  "  k3-store pack /models/k3 /fast/k3.trunk\n"
		  "  k3-store synth /tmp/small --layers 9 --experts 24 --seed 7\n\n" EXIT_CODES,
	.options = table,
	.n_options = N_ELEMENTS(table),
};

static const struct option_program pack = {
	.name = "k3-store",
	.summary = "write the trunk file of a checkpoint",
	.usage = "k3-store pack MODEL... OUT [--tile BYTES] [--config FILE]",
	.intro = "MODEL is a directory with the released shards and config.json; several may be "
		 "given when the shards are spread over disks. OUT is written as OUT.partial, "
		 "synced, read back and compared, and only then renamed; an OUT that exists stays "
		 "as it is until then.\n\n"
		 "A pack that was stopped goes on where it was when the same command is given "
		 "again. The file fits this checkpoint and config.json only: another is refused.",
	.epilog = "examples:\n"
		  "  k3-store pack /models/k3 /fast/k3.trunk\n\n" EXIT_CODES,
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

const struct option_program *iod_store_program(const char *command)
{
	if (command && strcmp(command, "pack") == 0)
		return &pack;
	if (command && strcmp(command, "synth") == 0)
		return &synth;
	return &whole;
}
