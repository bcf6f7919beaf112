#include "compute/doctor.h"

#include <stdarg.h>
#include <stdio.h>

static const char *const verdicts[] = { "ok", "note", "BAD" };

void k3_doctor_add(struct k3_doctor *d, const char *name, enum k3_verdict verdict,
		   enum err_code code, const char *fmt, ...)
{
	struct k3_finding *f = &d->findings[d->n];
	va_list args;

	if (d->n == K3_FINDINGS_MAX)
		return;
	f->name = name;
	f->verdict = verdict;
	va_start(args, fmt);
	(void)vsnprintf(f->text, sizeof(f->text), fmt, args);
	va_end(args);
	if (verdict == K3_VERDICT_BAD && d->bad == ERR_NONE)
		d->bad = code;
	d->n++;
}

void k3_doctor_print(const struct k3_doctor *d, FILE *out)
{
	for (uint32_t i = 0; i < d->n; i++)
		(void)fprintf(out, "%-13s %-4s  %s\n", d->findings[i].name,
			      verdicts[d->findings[i].verdict], d->findings[i].text);
}

json_t *k3_doctor_json(const struct k3_doctor *d)
{
	json_t *a = json_array();

	for (uint32_t i = 0; i < d->n; i++) {
		const struct k3_finding *f = &d->findings[i];
		json_t *o = json_object();

		(void)json_object_set_new(o, "name", json_string(f->name));
		(void)json_object_set_new(o, "verdict", json_string(verdicts[f->verdict]));
		(void)json_object_set_new(o, "text", json_string(f->text));
		(void)json_array_append_new(a, o);
	}
	return a;
}
