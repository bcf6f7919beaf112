/*
 * Summing and choosing. The budgets that the user (or a preset) gave are taken as they are; auto
 * gives the trunk what is left after everything else, then the cache. Rows of a step are as many as
 * fit, unless their number was asked for: a row more in a prompt chunk saves more reading than its
 * bytes do as pinned tiles.
 */
#include "compute/memplan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "compute/engine.h"
#include "compute/preset.h"
#include "shared/memlimit.h"
#include "shared/memlock.h"
#include "shared/slab.h"

/* Left to others when auto decides: a sixteenth, at most 4 GiB. */
enum { AUTO_SPARE_SHARE = 16 };
#define AUTO_SPARE_MAX (4ull << 30)
/* Of a limit that was given only what the borders of the slab's areas may take. */
enum { GIVEN_SPARE_SHARE = 64 };
#define GIVEN_SPARE_MAX (16ull << 20)
/* What k3 still allocates beside the items: buffers of the connection and the like. */
#define PROGRAM_SPARE (4ull << 20)
/* config.json gives sizes to about a percent; "everything" must not fall short of it. */
#define SURPLUS(x) ((x) + (x) / 20)

static const struct {
	const char *name, *sentence;
} items[] = {
#define X(name, sentence) { #name, sentence },
	K3_MEMPLAN_ITEMS(X)
#undef X
};

const char *k3_memplan_item_name(enum k3_memplan_item item)
{
	return items[item].name;
}

uint64_t k3_private_rss(void)
{
	FILE *f = fopen("/proc/self/status", "re");
	uint64_t total = 0;
	char line[256];

	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, "RssAnon:", 8) == 0 || strncmp(line, "RssFile:", 8) == 0)
			total += strtoull(line + 8, NULL, 10) << 10; /* in KiB */
	if (f)
		(void)fclose(f);
	return total;
}

static void find_limit(const struct k3_memplan_want *w, struct k3_memplan *p)
{
	struct memlimit m;

	if (w->limit > 0) {
		p->limit = p->common_limit = w->limit;
		(void)snprintf(p->limit_note, sizeof(p->limit_note), "the limit that was given");
		return;
	}
	memlimit_get(w->limit_root ? w->limit_root : "", &m);
	p->limit = p->common_limit = m.bytes;
	p->reserved = w->wants_reserved ? slab_pages_reserved() : 0;
	(void)snprintf(p->limit_note, sizeof(p->limit_note), "%s", m.text);
}

static void add_up(struct k3_memplan *p)
{
	p->total = 0;
	for (int i = 0; i < K3_MEMPLAN_N_; i++)
		p->total += p->item[i];
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static uint32_t at_least_one(uint32_t n)
{
	return n > 0 ? n : 1;
}

/* For p->n_rows and p->n_sequences. */
static void plan_client(const struct k3_memplan_want *w, struct k3_memplan *p)
{
	struct k3_engine_memory m;
	uint32_t rows = p->n_rows;
	uint32_t n_logits = w->n_logits ? max_u32(w->n_logits, p->n_sequences) : rows;

	k3_engine_plan(w->config, w->n_layers, rows, w->n_positions, &m);
	p->item[K3_MEMPLAN_client_scratch] = m.scratch;
	p->item[K3_MEMPLAN_client_vectors] = m.vectors;
	p->item[K3_MEMPLAN_client_contributions] = m.contributions;
	p->item[K3_MEMPLAN_client_state_kda] = m.state_kda;
	p->item[K3_MEMPLAN_client_state_mla] = m.state_mla;
	p->item[K3_MEMPLAN_client_logits] =
		(uint64_t)n_logits * w->config->vocab_size * sizeof(float);
	p->item[K3_MEMPLAN_client_trace] =
		w->has_trace ? (uint64_t)rows * p->size.n_moe_layers * w->config->top_k * 2 : 0;
	p->item[K3_MEMPLAN_client_program] = p->program_size + m.stacks;
	p->item[K3_MEMPLAN_client_state_kda] *= p->n_sequences;
	p->item[K3_MEMPLAN_client_state_mla] *= p->n_sequences;
	for (int i = K3_MEMPLAN_client_scratch; i <= K3_MEMPLAN_client_program; i++)
		p->item[i] *= at_least_one(w->n_clients);
}

static int plan_daemon(const struct k3_memplan_want *w, uint64_t trunk_budget,
		       uint64_t cache_budget, struct k3_memplan *p, struct err *err)
{
	struct slab_want want = {
		.trunk_size = p->size.trunk_size,
		.max_tile_size = p->size.max_tile_size,
		.n_tiles = p->size.n_tiles,
		.expert_size = p->size.expert_size,
		.n_experts = p->size.n_experts,
		.trunk_budget = trunk_budget,
		.cache_budget = cache_budget,
		.in_flight = w->in_flight,
		.rates = w->rates,
	};
	struct slab_plan slab;
	int r;

	want.rates.gap_size = ring_gap_size(w->config);
	/* a private daemon has one; who shares one makes room for two, as k3-iod does */
	want.rates.n_clients = w->n_clients > 1 ? 0 : 1;
	r = slab_plan(&want, &slab, err);
	if (r < 0)
		return r;
	slab_plan_set_pinned(&slab, k3_model_pinned(w->config, w->n_layers, w->tile_bytes, &p->size,
						    slab.pinned_size));
	p->rates = want.rates;
	memcpy(p->ring_note, slab.ring_note, sizeof(p->ring_note));
	p->trunk_budget = trunk_budget;
	p->cache_budget = cache_budget;
	p->item[K3_MEMPLAN_daemon_pinned_tiles] = slab.pinned_size;
	p->item[K3_MEMPLAN_daemon_tile_ring] = slab.ring_size;
	p->item[K3_MEMPLAN_daemon_expert_slots] = slab.slots_size;
	p->item[K3_MEMPLAN_daemon_directory] =
		slab.total_size - slab.pinned_size - slab.ring_size - slab.slots_size;
	p->item[K3_MEMPLAN_daemon_private] = slab.daemon_private_size;
	/* all of the slab is of reserved pages, or nothing */
	p->limit = p->common_limit;
	if (slab.total_size <= p->reserved && p->limit < UINT64_MAX - slab.total_size)
		p->limit += slab.total_size;
	return 0;
}

/* With the least budgets, and the rows and sequences of p. */
static int plan_least(const struct k3_memplan_want *w, struct k3_memplan *p, struct err *err)
{
	int r = 0;

	plan_client(w, p);
	if (w->has_daemon)
		r = plan_daemon(w, 0, 0, p, err);
	add_up(p);
	return r;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Bytes that auto has to share out beside the least plan, which p holds. */
static uint64_t what_is_left(const struct k3_memplan_want *w, const struct k3_memplan *p)
{
	uint64_t spare = w->limit ? min_u64(p->limit / GIVEN_SPARE_SHARE, GIVEN_SPARE_MAX)
				  : min_u64(p->limit / AUTO_SPARE_SHARE, AUTO_SPARE_MAX);
	uint64_t slab = p->total + GIVEN_SPARE_MAX;

	for (int i = K3_MEMPLAN_daemon_private; i < K3_MEMPLAN_N_; i++)
		slab -= p->item[i];
	if (slab < p->reserved)
		return p->reserved - slab;
	return p->total + spare >= p->limit ? 0 : p->limit - spare - p->total;
}

/* auto: p holds the least plan; what is left of the limit goes to the trunk, then to the cache. */
static void choose_auto(const struct k3_memplan_want *w, const struct k3_memplan *p,
			uint64_t *ret_trunk, uint64_t *ret_cache)
{
	uint64_t trunk =
		p->item[K3_MEMPLAN_daemon_pinned_tiles] + p->item[K3_MEMPLAN_daemon_tile_ring];
	uint64_t cache = p->item[K3_MEMPLAN_daemon_expert_slots];
	uint64_t all_trunk = SURPLUS(p->size.trunk_size);
	uint64_t all_experts = SURPLUS(p->size.expert_size * p->size.n_experts);
	uint64_t left = what_is_left(w, p), share;

	*ret_trunk = *ret_cache = 0;
	if (left == 0)
		return;
	share = all_trunk > trunk ? min_u64(left, all_trunk - trunk) : 0;
	*ret_trunk = trunk + share;
	left -= share;
	share = all_experts > cache ? min_u64(left, all_experts - cache) : 0;
	if (share > 0)
		*ret_cache = cache + share;
}

static uint64_t budget_bytes(double given_gb, double preset_gb)
{
	return (uint64_t)((given_gb >= 0 ? given_gb : preset_gb) * 1e9 + 0.5);
}

/* p holds the least plan for its rows: fill in the budgets asked for. */
static int plan_budgets(const struct k3_memplan_want *w, struct k3_memplan *p, struct err *err)
{
	const struct k3_preset *preset = k3_preset_find(w->preset);
	uint64_t trunk, cache;

	if (strcmp(preset->name, "auto") == 0) {
		uint64_t given;

		/* what is given counts before what is left is shared out */
		if (w->cache_gb >= 0) {
			given = budget_bytes(w->cache_gb, 0);
			p->total += given > p->item[K3_MEMPLAN_daemon_expert_slots]
					    ? given - p->item[K3_MEMPLAN_daemon_expert_slots]
					    : 0;
		}
		choose_auto(w, p, &trunk, &cache);
		if (w->trunk_gb >= 0) {
			given = budget_bytes(w->trunk_gb, 0);
			cache = given < trunk ? cache + (trunk - given) : cache;
			cache = min_u64(cache, SURPLUS(p->size.expert_size * p->size.n_experts));
			trunk = given;
		}
		if (w->cache_gb >= 0)
			cache = budget_bytes(w->cache_gb, 0);
	} else {
		trunk = budget_bytes(w->trunk_gb, preset->trunk_gb);
		cache = budget_bytes(w->cache_gb, preset->cache_gb);
	}
	return plan_daemon(w, trunk, cache, p, err);
}

/* The daemon admits a client when it can promise it three tiles and two experts
 * (docs/decisions/0005-promises.md); with everything resident nothing need be promised. */
static int check_clients(const struct k3_memplan_want *w, const struct k3_memplan *p,
			 struct err *err)
{
	uint32_t n = at_least_one(w->n_clients);
	uint64_t ring = p->item[K3_MEMPLAN_daemon_tile_ring];
	uint64_t slots = p->item[K3_MEMPLAN_daemon_expert_slots];
	uint64_t ring_least = (3ull * n + 1) * p->size.max_tile_size;
	uint64_t slots_least = 2ull * n * p->size.expert_size;

	if (n == 1)
		return 0;
	if (ring > 0 && ring < ring_least)
		return err_set(err, ERR_BUDGET,
			       "%" PRIu32
			       " clients need a ring of %.3f GB, this trunk budget leaves "
			       "%.3f GB; give a larger --trunk-gb or a smaller --tile",
			       n, (double)ring_least / 1e9, (double)ring / 1e9);
	if (slots < slots_least && slots < p->size.n_experts * p->size.expert_size)
		return err_set(err, ERR_BUDGET,
			       "%" PRIu32 " clients need a cache of %.3f GB, this one has %.3f GB; "
			       "give a larger --cache-gb",
			       n, (double)slots_least / 1e9, (double)slots / 1e9);
	return 0;
}

static int refuse(const struct k3_memplan_want *w, const struct k3_memplan *p, struct err *err)
{
	struct k3_memplan least = *p;
	int r = err_set(err, ERR_BUDGET,
			"this run would take %.3f GB, but only %.3f GB may be allocated (%s)",
			(double)p->total / 1e9, (double)p->limit / 1e9, p->limit_note);

	least.n_sequences = w->limit > 0 ? p->n_sequences : 1; /* k3 plan is asked about so many */
	least.n_rows = least.n_sequences;
	if (plan_least(w, &least, NULL) < 0)
		return r;
	if (least.total < p->total)
		err_append(err, "; the least is %.3f GB, with %s--prefill-rows 1%s",
			   (double)least.total / 1e9,
			   w->has_daemon ? "--trunk-gb 0 --cache-gb 0 " : "",
			   least.n_sequences < w->n_sequences ? " --batch-max 1" : "");
	else
		err_append(err, "; that is the least");
	return r;
}

/* Everything, with the rows and sequences of p. */
static int plan_all(const struct k3_memplan_want *w, struct k3_memplan *p, struct err *err)
{
	int r = plan_least(w, p, err);

	if (r == 0 && w->has_daemon)
		r = plan_budgets(w, p, err);
	if (r == 0 && w->has_daemon)
		r = check_clients(w, p, err);
	add_up(p);
	return r;
}

/* Take less: fewer rows first, then fewer sequences. False: they are the least, or were asked for.
 */
static bool lower(const struct k3_memplan_want *w, struct k3_memplan *p)
{
	if (!w->n_rows_is_given && p->n_rows > p->n_sequences)
		p->n_rows = max_u32(p->n_rows / 2, p->n_sequences);
	else if (!w->n_sequences_is_given && p->n_sequences > 1)
		p->n_sequences /= 2;
	else
		return false;
	return true;
}

/* p fits, after rows were lowered: as many as fit. */
static int raise_rows(const struct k3_memplan_want *w, struct k3_memplan *p, struct err *err)
{
	uint32_t fits = p->n_rows, too_many = w->n_rows + 1;
	int r = 0;

	while (r == 0 && fits + 1 < too_many) {
		p->n_rows = fits + (too_many - fits) / 2;
		r = plan_all(w, p, err);
		*(p->total <= p->limit ? &fits : &too_many) = p->n_rows;
	}
	p->n_rows = fits;
	return r == 0 ? plan_all(w, p, err) : r;
}

int k3_memplan_make(const struct k3_memplan_want *want, struct k3_memplan *ret, struct err *err)
{
	struct k3_memplan *p = ret;
	int r;

	memset(p, 0, sizeof(*p));
	k3_model_size(want->config, want->n_layers, want->tile_bytes, &p->size);
	find_limit(want, p);
	p->program_size = k3_private_rss() + PROGRAM_SPARE + want->program_extra;
	p->n_sequences = at_least_one(want->n_sequences);
	p->n_rows = max_u32(want->n_rows, p->n_sequences);
	do {
		r = plan_all(want, p, err);
		if (r < 0)
			return r;
	} while (p->total > p->limit && lower(want, p));
	if (p->total <= p->limit && p->n_rows < want->n_rows)
		r = raise_rows(want, p, err);
	if (r < 0)
		return r;
	return p->total <= p->limit ? 0 : refuse(want, p, err);
}

void k3_memplan_correct(struct k3_memplan *plan, const struct wire_welcome *w)
{
	plan->item[K3_MEMPLAN_daemon_pinned_tiles] = w->trunk_pinned_size;
	plan->item[K3_MEMPLAN_daemon_tile_ring] = w->ring_size;
	plan->item[K3_MEMPLAN_daemon_expert_slots] = w->slots_size;
	plan->item[K3_MEMPLAN_daemon_directory] =
		w->slab_size -
		min_u64(w->slab_size, w->trunk_pinned_size + w->ring_size + w->slots_size);
	plan->item[K3_MEMPLAN_daemon_private] = w->daemon_private_size;
	add_up(plan);
}

uint64_t k3_memplan_slab_size(const struct k3_memplan *plan)
{
	return plan->item[K3_MEMPLAN_daemon_pinned_tiles] +
	       plan->item[K3_MEMPLAN_daemon_tile_ring] +
	       plan->item[K3_MEMPLAN_daemon_expert_slots] + plan->item[K3_MEMPLAN_daemon_directory];
}

int k3_memplan_check_lock(const struct k3_memplan *plan, const char *text, struct err *err)
{
	if (memlock_parse(text) != MEMLOCK_YES)
		return 0;
	return memlock_check(k3_memplan_slab_size(plan), err);
}

void k3_memplan_print(const struct k3_memplan *plan, FILE *out)
{
	(void)fprintf(out, "memory plan (MB)\n");
	for (int i = 0; i < K3_MEMPLAN_N_; i++)
		if (plan->item[i] > 0)
			(void)fprintf(out, "  %12.3f  %-21s %s\n", (double)plan->item[i] / 1e6,
				      items[i].name, items[i].sentence);
	if (plan->ring_note[0])
		(void)fprintf(out, "  %12s  (the ring is for %s)\n", "", plan->ring_note);
	(void)fprintf(out, "  %12.3f  total", (double)plan->total / 1e6);
	if (plan->limit != UINT64_MAX)
		(void)fprintf(out, " of %.3f that may be allocated (%s)", (double)plan->limit / 1e6,
			      plan->limit_note);
	(void)fputc('\n', out);
}
