#include "compute/summary.h"

#include <inttypes.h>

#include "compute/rates.h"

/* The roofline is worth a moment of measuring where a run took many. */
#define MEASURE_AFTER_SECONDS 10.0
/* Waiting less than this share of the time, the disk is not what binds. */
#define WAIT_MATTERS 0.2
/* Above this share of the memory's rate the kernels have nothing left to gain. */
#define NEAR_MEMORY 0.7

static bool holds_all_experts(const struct k3_memplan *m)
{
	return m->item[K3_MEMPLAN_daemon_expert_slots] >= m->size.n_experts * m->size.expert_size;
}

static const char *advise(const struct k3_report *r, const struct k3_summary *s)
{
	const struct k3_memplan *m = r->plan;

	if (s->wait_share < WAIT_MATTERS)
		return s->memory_rate > 0 && s->weights_rate > NEAR_MEMORY * s->memory_rate
			       ? "computing binds, and reads weights nearly as fast as memory "
				 "gives them: only faster memory helps"
			       : "computing binds: more physical cores (--threads), a quieter "
				 "machine, or huge pages for shared memory (k3 doctor)";
	if (m && m->item[K3_MEMPLAN_daemon_tile_ring] > 0 && s->trunk_read > 0)
		return "reading binds, most of it trunk: a larger --trunk-gb, a faster disk, or a "
		       "trunk file on it (k3-store pack); k3 plan shows what a budget brings";
	if (s->experts_read > 0 ? m && holds_all_experts(m) : s->trunk_read > 0)
		return r->has_lasting_daemon
			       ? "reading binds, but all has its place in the daemon's memory and "
				 "is read once: the next run finds it there"
			       : "reading binds, but all has its place in memory and is read once: "
				 "a longer run, a daemon that stays (k3-iod), or a faster disk";
	if (s->experts_read > 0)
		return "reading binds, and all of the trunk is resident: a larger --cache-gb, or a "
		       "faster disk; k3-store replay shows what a cache brings";
	return "nothing was read in the end and yet it waited: the daemon is shared or starved of "
	       "processor time";
}

static void add_decode(const struct k3_report *r, size_t first, double memory_rate,
		       struct k3_summary *s)
{
	double seconds = 0, waited = 0, used = 0;
	uint64_t resident = 0, read = 0, bytes = 0;
	size_t n = r->n_steps - first;
	const struct k3_model_size *size = r->plan ? &r->plan->size : NULL;

	for (size_t i = first; i < r->n_steps; i++) {
		const struct k3_step_report *step = &r->steps[i];

		seconds += step->seconds;
		waited += step->wait_seconds;
		resident += step->experts_resident;
		read += step->experts_read;
		bytes += step->trunk_bytes_read + step->expert_bytes_read;
		if (size)
			used += (double)(size->layers_data + size->head_data) +
				(double)(step->experts_resident + step->experts_read) *
					(double)size->expert_data;
	}
	s->seconds_per_token = seconds / (double)n;
	s->wait_share = seconds > 0 ? waited / seconds : 0;
	s->read_rate = seconds > 0 ? (double)bytes / seconds : 0;
	if (resident + read > 0)
		s->hit_rate = (double)resident / (double)(resident + read);
	if (s->n_decode > 0 && size && memory_rate > 0 && seconds > waited) {
		s->weights_rate = used / (seconds - waited);
		s->memory_rate = memory_rate;
	}
}

void k3_summary_make(const struct k3_report *r, double memory_rate, struct k3_summary *ret)
{
	struct k3_summary s = { .hit_rate = -1, .weights_rate = -1, .memory_rate = -1 };

	s.rows_read = r->row_bytes_read;
	for (size_t i = 0; i < r->n_steps; i++) {
		s.trunk_read += r->steps[i].trunk_bytes_read;
		s.experts_read += r->steps[i].expert_bytes_read;
	}
	if (r->n_steps > 0) {
		s.n_decode = r->n_steps - 1;
		s.first_seconds = r->steps[0].seconds;
		add_decode(r, s.n_decode > 0 ? 1 : 0, memory_rate, &s);
	}
	s.advice = advise(r, &s);
	*ret = s;
}

void k3_summary_print(const struct k3_summary *s, const struct k3_report *r, FILE *out)
{
	if (s->n_decode > 0)
		(void)fprintf(out,
			      "run report\n  speed     %.3f s a token over %zu step%s; the first "
			      "took %.3f s\n",
			      s->seconds_per_token, s->n_decode, s->n_decode == 1 ? "" : "s",
			      s->first_seconds);
	else
		(void)fprintf(out, "run report\n  speed     %.3f s for the only step\n",
			      s->first_seconds);
	if (s->hit_rate >= 0)
		(void)fprintf(
			out,
			"  experts   true resident hit rate %.1f %%: in memory when asked for\n",
			100 * s->hit_rate);
	(void)fprintf(out,
		      "  disk      %.1f %% of the time waiting; %.3f GB of trunk, %.3f GB of "
		      "experts, %.3f GB of rows read in all; %.3f GB/s %s\n",
		      100 * s->wait_share, (double)s->trunk_read / 1e9,
		      (double)s->experts_read / 1e9, (double)s->rows_read / 1e9, s->read_rate / 1e9,
		      s->n_decode > 0 ? "while decoding" : "meanwhile");
	(void)fprintf(out, "  memory    peaks: k3 %.3f GB, k3-iod %.3f GB with its slab",
		      (double)r->client_peak_rss_bytes / 1e9,
		      (double)r->daemon_peak_rss_bytes / 1e9);
	if (r->plan)
		(void)fprintf(out, "; planned %.3f GB", (double)r->plan->total / 1e9);
	(void)fputc('\n', out);
	if (s->memory_rate > 0)
		(void)fprintf(out,
			      "  roofline  %.1f %%: computed on %.3f GB/s of weights, memory gives "
			      "%.3f GB/s\n",
			      100 * s->weights_rate / s->memory_rate, s->weights_rate / 1e9,
			      s->memory_rate / 1e9);
	(void)fprintf(out, "  faster    %s\n", s->advice);
}

static json_t *known(double x)
{
	return x < 0 ? json_null() : json_real(x);
}

json_t *k3_summary_json(const struct k3_summary *s)
{
	json_t *o = json_object();

	(void)json_object_set_new(o, "seconds_per_token", json_real(s->seconds_per_token));
	(void)json_object_set_new(o, "first_seconds", json_real(s->first_seconds));
	(void)json_object_set_new(o, "resident_hit_rate", known(s->hit_rate));
	(void)json_object_set_new(o, "wait_share", json_real(s->wait_share));
	(void)json_object_set_new(o, "trunk_bytes_read", json_integer((json_int_t)s->trunk_read));
	(void)json_object_set_new(o, "expert_bytes_read",
				  json_integer((json_int_t)s->experts_read));
	(void)json_object_set_new(o, "row_bytes_read", json_integer((json_int_t)s->rows_read));
	(void)json_object_set_new(o, "read_bytes_per_second", json_real(s->read_rate));
	(void)json_object_set_new(o, "weights_bytes_per_second", known(s->weights_rate));
	(void)json_object_set_new(o, "memory_bytes_per_second", known(s->memory_rate));
	(void)json_object_set_new(o, "roofline_share",
				  s->memory_rate > 0 ? json_real(s->weights_rate / s->memory_rate)
						     : json_null());
	(void)json_object_set_new(o, "advice", json_string(s->advice));
	return o;
}

void k3_summary_say(struct k3_report *r, unsigned n_threads, FILE *out)
{
	struct k3_summary s;
	double seconds = 0;

	for (size_t i = 0; i < r->n_steps; i++)
		seconds += r->steps[i].seconds;
	if (r->n_steps == 0)
		return;
	if (seconds >= MEASURE_AFTER_SECONDS)
		r->memory_rate = k3_rate_memory(n_threads);
	k3_summary_make(r, r->memory_rate, &s);
	k3_summary_print(&s, r, out);
}
