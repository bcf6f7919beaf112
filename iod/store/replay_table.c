#include "iod/store/replay_table.h"

#include <inttypes.h>

double iod_replay_rate(const struct iod_replay *x)
{
	return x->asks ? (double)x->hits / (double)x->asks : 0;
}

static double asks_per_token(const struct iod_replay_table *t)
{
	const struct iod_replay *x = &t->found[IOD_REPLAY_LRU][0];
	uint64_t tokens = (uint64_t)(t->routing->n_tokens - t->warm) * t->n_clients;

	return (double)x->asks / (double)tokens;
}

double iod_replay_bytes(const struct iod_replay_table *t, const struct iod_replay *x)
{
	return (1 - iod_replay_rate(x)) * asks_per_token(t) * (double)t->expert_bytes;
}

static void print_row(const struct iod_replay_table *t, size_t i, FILE *out)
{
	if (t->gb[i] > 0)
		(void)fprintf(out, "%8g GB ", t->gb[i]);
	else
		(void)fprintf(out, "%8.3g GB ",
			      (double)t->slots[i] * (double)t->expert_bytes / 1e9);
	(void)fprintf(out, "%9" PRIu32, t->slots[i]);
	for (int k = 0; k < IOD_REPLAY_ROWS; k++)
		(void)fprintf(out, "  %8.2f%%", 100 * iod_replay_rate(&t->found[k][i]));
	(void)fprintf(out, "  |");
	for (int k = 0; k < IOD_REPLAY_ROWS; k++)
		(void)fprintf(out, "  %8.2f", iod_replay_bytes(t, &t->found[k][i]) / 1e9);
	(void)fputc('\n', out);
}

static void print_clients(const struct iod_replay_table *t, FILE *out)
{
	(void)fprintf(out,
		      "\nhits of each client\n   slots  client       lru   default    belady\n");
	for (size_t i = 0; i < t->n; i++) {
		for (uint32_t c = 0; c < t->n_clients; c++) {
			(void)fprintf(out, "%8" PRIu32 "%8" PRIu32, t->slots[i], c + 1);
			for (int k = 0; k <= IOD_REPLAY_BELADY; k++) {
				const struct iod_replay *x = &t->found[k][i];
				double asks = (double)x->clients[c].asks;

				(void)fprintf(out, "  %7.2f%%",
					      asks > 0 ? 100 * (double)x->clients[c].hits / asks
						       : 0.0);
			}
			(void)fputc('\n', out);
		}
	}
}

void iod_replay_print(const struct iod_replay_table *t, FILE *out)
{
	const struct iod_routing *r = t->routing;

	(void)fprintf(out,
		      "%s: %zu requests, %" PRIu32 " tokens in %" PRIu32 " steps, %" PRIu32
		      " layers\nhits and bytes are of the %.0f requests a token after the first "
		      "%" PRIu32 " tokens",
		      t->path, r->n, r->n_tokens, r->n_steps, r->n_distinct_layers,
		      asks_per_token(t), t->warm);
	if (t->n_clients > 1)
		(void)fprintf(out, ", of each of %" PRIu32 " clients side by side", t->n_clients);
	(void)fprintf(out, "\nif nothing were cached: %.2f GB a token\n\n",
		      asks_per_token(t) * (double)t->expert_bytes / 1e9);
	(void)fprintf(out, "      cache     slots        hits: lru   default   belady  pin+lru  |  "
			   "GB a token: same order\n");
	for (size_t i = 0; i < t->n; i++)
		print_row(t, i, out);
	(void)fprintf(out,
		      "\ndefault is the daemon's policy, %s. belady and pin+lru know the "
		      "future: the first is the bound\nof all policies, the second pins the "
		      "hottest experts of the whole trace in half of the slots.\n",
		      iod_policy_decay.name);
	if (t->n_clients > 1)
		print_clients(t, out);
}

static void print_list(const struct iod_replay_table *t, const char *name, int row, bool bytes,
		       FILE *out)
{
	(void)fprintf(out, "\"%s\": [", name);
	for (size_t i = 0; i < t->n; i++) {
		const struct iod_replay *x = &t->found[row][i];

		if (bytes)
			(void)fprintf(out, "%s%.0f", i ? ", " : "", iod_replay_bytes(t, x));
		else
			(void)fprintf(out, "%s%.6f", i ? ", " : "", iod_replay_rate(x));
	}
	(void)fputc(']', out);
}

static void print_lists(const struct iod_replay_table *t, const char *name, bool bytes, FILE *out)
{
	static const char *const names[] = { "lru", "default", "belady" };

	(void)fprintf(out, "\"%s\": {", name);
	for (int k = 0; k <= IOD_REPLAY_BELADY; k++) {
		(void)fputs(k ? ", " : "", out);
		print_list(t, names[k], k, bytes, out);
	}
	(void)fputc('}', out);
}

static void print_client_lists(const struct iod_replay_table *t, FILE *out)
{
	(void)fputs(", \"clients\": [", out);
	for (uint32_t c = 0; c < t->n_clients; c++) {
		static const char *const names[] = { "lru", "default", "belady" };

		for (int k = 0; k <= IOD_REPLAY_BELADY; k++) {
			(void)fprintf(out, "%s\"%s\": [", k ? ", " : c ? ", {" : "{", names[k]);
			for (size_t i = 0; i < t->n; i++) {
				const struct iod_replay *x = &t->found[k][i];
				double asks = (double)x->clients[c].asks;

				(void)fprintf(out, "%s%.6f", i ? ", " : "",
					      asks > 0 ? (double)x->clients[c].hits / asks : 0.0);
			}
			(void)fputc(']', out);
		}
		(void)fputc('}', out);
	}
	(void)fputc(']', out);
}

void iod_replay_print_json(const struct iod_replay_table *t, FILE *out)
{
	(void)fputs("{\"slots\": [", out);
	for (size_t i = 0; i < t->n; i++)
		(void)fprintf(out, "%s%" PRIu32, i ? ", " : "", t->slots[i]);
	(void)fputs("], ", out);
	print_lists(t, "policies", false, out);
	(void)fputs(", ", out);
	print_lists(t, "bytes_per_token", true, out);
	(void)fprintf(out,
		      ", \"default_policy\": \"%s\", \"tokens\": %" PRIu32 ", \"warm\": %" PRIu32,
		      iod_policy_decay.name, t->routing->n_tokens, t->warm);
	if (t->n_clients > 1)
		print_client_lists(t, out);
	(void)fputs("}\n", out);
}
