/*
 * The table behind options.def, and for each command the texts of its help. The program as a whole
 * has the same options: its help and man page list all of them.
 */
#include "compute/options.h"

#include <string.h>

#define OPT(...) OPTION_ROW(struct k3_options, __VA_ARGS__),
static const struct option table[] = {
#include "compute/options.def"
};
#undef OPT

#define EXIT_CODES                                                                          \
	"exit codes:\n"                                                                     \
	"  0  success\n"                                                                    \
	"  1  a tensor failed to bind, a step failed, or the daemon is gone\n"              \
	"  2  the command line or a config is not understood, or memory does not suffice\n" \
	"  4  the run ended but an expert failed to load, so the output is unsound"
/* Of a command that takes no step. */
#define EXIT_CODES_STILL                                                    \
	"exit codes:\n"                                                     \
	"  0  success\n"                                                    \
	"  1  a file is damaged or cannot be used, or the daemon is gone\n" \
	"  2  the command line or a config is not understood, or memory does not suffice"

static const struct option_program whole = {
	.name = "k3",
	.summary = "run Kimi K3 from disk within the memory there is",
	.usage = "k3 run MODEL... [options]\n"
		 "k3 run --socket PATH [options]\n"
		 "k3 MODEL [options]                 the same as k3 run MODEL\n"
		 "k3 tokenize --tok DIR (TEXT | --file F | --jsonl F | --decode IDS) [--control]\n"
		 "k3 plan (MODEL... | --config FILE) [options]\n"
		 "k3 doctor [MODEL...] [--trunk FILE] [--layers N] [--measure] [--json]\n"
		 "k3 trace (MODEL... | --socket PATH) --ids IDS --out DIR [options]\n"
		 "k3 stats --socket PATH [--watch [SECONDS]] [--json]\n"
		 "k3 COMMAND --help",
	.intro =
		"k3 computes; k3-iod reads. k3 opens no weight file: a daemon hands it the weights "
		"in shared memory, tile by tile, as the disk delivers them. With MODEL and no "
		"--socket, k3 starts a private daemon that ends with it.\n\n"
		"The text goes to standard output as it is produced, and nothing else does. The "
		"same "
		"prompt gives the same bits at every memory budget, thread count, instruction set "
		"and chunk size.",
	.epilog =
		"examples:\n"
		"  k3 run deploy/demo --prompt \"In the beginning\" --gen 24\n"
		"  k3 run /models/k3 --trunk /fast/k3.trunk --preset laptop --ids 1008,10484 --out "
		"run.json\n"
		"  k3 tokenize --tok /models/k3 \"Hello\"\n\n" EXIT_CODES,
	.options = table,
	.n_options = N_ELEMENTS(table),
};

static const struct option_program run = {
	.name = "k3",
	.summary = "one prompt to the end",
	.usage = "k3 run MODEL... [options]\n"
		 "k3 run --socket PATH [options]",
	.intro = "MODEL is a directory with the released shards and config.json; several "
		 "directories "
		 "may be given when the shards are spread over disks. Everything that will be "
		 "allocated is summed first; a run that does not fit is refused with both numbers.",
	.epilog =
		"examples:\n"
		"  k3 run deploy/demo --prompt \"In the beginning\" --gen 24\n"
		"  k3 run --socket /run/k3/iod.socket --prompt-file letter.txt --gen 200 --stop-id "
		"eos\n\n" EXIT_CODES,
	.options = table,
	.n_options = N_ELEMENTS(table),
};

static const struct option_program plan = {
	.name = "k3",
	.summary = "what a run would take: memory, bytes and seconds",
	.usage = "k3 plan (MODEL... | --config FILE) [options]",
	.intro = "Sums every item of memory as k3 run would, what a token uses and reads, and from "
		 "the rates of disk and memory the seconds it should take; then the same over a "
		 "ladder of budgets. Nothing is started. A run that does not fit is refused with "
		 "both numbers and exit code 2.",
	.epilog = "examples:\n"
		  "  k3 plan --config config.json --memory-gb 64 --disk-rate 7\n"
		  "  k3 plan /models/k3 --preset laptop --context 32768 "
		  "--measure\n\n" EXIT_CODES_STILL,
	.options = table,
	.n_options = N_ELEMENTS(table),
};

static const struct option_program doctor = {
	.name = "k3",
	.summary = "what this machine can do, and what to run next",
	.usage = "k3 doctor [MODEL...] [--trunk FILE] [--layers N] [--measure] [--json]",
	.intro =
		"Looks at processors, memory and its limits, kernel and io_uring, the disks behind "
		"the model, and the checkpoint's files and headers. Ends with the budgets that "
		"auto would choose, the seconds a token should take with them, and the next "
		"command. The exit code is not 0 when the model cannot run here at all.",
	.epilog = "examples:\n"
		  "  k3 doctor\n"
		  "  k3 doctor /models/k3 --trunk /fast/k3.trunk --measure\n\n" EXIT_CODES_STILL,
	.options = table,
	.n_options = N_ELEMENTS(table),
};

static const struct option_program trace = {
	.name = "k3",
	.summary = "every layer's values of a prompt, for comparison",
	.usage = "k3 trace MODEL... --ids IDS --out DIR [options]\n"
		 "k3 trace --socket PATH --ids IDS --out DIR [options]",
	.intro = "Evaluates the prompt as k3 run does and writes DIR/trace.f32, a safetensors file "
		 "of layers.L.attn_in, attn_out, ffn_in, ffn_out and residual for every position, "
		 "the experts chosen and their weights, and residual_last; and DIR/logits.f32, a "
		 "row of float32 for every position. tests/compare says where two such dumps, or a "
		 "dump and a reference, depart first.",
	.epilog = "examples:\n"
		  "  k3 trace deploy/demo --ids 66,1085 --out /tmp/values\n\n" EXIT_CODES,
	.options = table,
	.n_options = N_ELEMENTS(table),
};

static const struct option_program tokenize = {
	.name = "k3",
	.summary = "text to token ids and back",
	.usage = "k3 tokenize --tok DIR (TEXT | --file F | --jsonl F | --decode IDS) [--control]",
	.intro = "TEXT and --file give the ids on one line, separated by commas, as --ids takes "
		 "them. "
		 "Text that is not valid UTF-8 is refused with the offset of the first bad byte.",
	.epilog = EXIT_CODES_STILL,
	.options = table,
	.n_options = N_ELEMENTS(table),
};

static const struct option_program stats = {
	.name = "k3",
	.summary = "a running k3-iod from outside",
	.usage = "k3 stats --socket PATH [--watch [SECONDS]] [--json]",
	.intro =
		"What the disks deliver, what is in memory, which clients there are, what share of "
		"the bytes each has and how much of the time it waits; then the counters, one a "
		"line: name, value, unit, meaning. Looking takes nothing from the clients.",
	.epilog = EXIT_CODES_STILL,
	.options = table,
	.n_options = N_ELEMENTS(table),
};

const struct option_program *k3_option_program(const char *command)
{
	static const struct {
		const char *name;
		const struct option_program *program;
	} commands[] = { { "run", &run },     { "plan", &plan },         { "doctor", &doctor },
			 { "trace", &trace }, { "tokenize", &tokenize }, { "stats", &stats } };

	if (!command)
		return &whole;
	for (size_t i = 0; i < N_ELEMENTS(commands); i++)
		if (strcmp(commands[i].name, command) == 0)
			return commands[i].program;
	return NULL;
}

static double budget(const struct k3_command_line *line, const char *name, double given)
{
	return option_was_given_before(line->program, &line->options, name, "preset") ? -1 : given;
}

bool k3_option_wants_reserved(const struct k3_options *o)
{
	return o->huge_pages && strcmp(o->huge_pages, "reserved") == 0;
}

double k3_option_trunk_gb(const struct k3_command_line *line)
{
	return budget(line, "trunk-gb", line->options.trunk_gb);
}

double k3_option_cache_gb(const struct k3_command_line *line)
{
	return budget(line, "cache-gb", line->options.cache_gb);
}
