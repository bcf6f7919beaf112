#include "iod/read/fault.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/attr.h"
#include "shared/fd.h"

enum { PAGE = 4096 }; /* a direct read of one page comes whole or not at all */

/* A number with an optional K, M or G at *text; moves *text behind it. */
static bool take_number(const char **text, uint64_t *ret)
{
	const char *units = "KMG", *unit;
	uint64_t value;
	char *end;

	if (**text < '0' || **text > '9')
		return false;
	errno = 0;
	value = strtoull(*text, &end, 10);
	if (errno != 0)
		return false;
	unit = *end != '\0' ? strchr(units, *end) : NULL;
	if (unit) {
		value <<= 10 * (unit - units + 1);
		end++;
	}
	*text = end;
	*ret = value;
	return true;
}

static bool take_char(const char **text, char c)
{
	if (**text != c)
		return false;
	(*text)++;
	return true;
}

/* FILE:OFFSET[+SIZE] */
static bool take_range(const char **text, struct iod_fault_range *range)
{
	uint64_t file = UINT32_MAX;

	if (!take_char(text, '*') && !take_number(text, &file))
		return false;
	range->file = (uint32_t)file;
	range->size = 1;
	if (!take_char(text, ':') || !take_number(text, &range->offset))
		return false;
	return !take_char(text, '+') || take_number(text, &range->size);
}

static bool parse_range(struct iod_fault *f, const char *value, enum iod_fault_kind kind)
{
	struct iod_fault_range *range = &f->ranges[f->n_ranges];

	if (f->n_ranges == IOD_FAULT_RANGES_MAX || !take_range(&value, range))
		return false;
	range->kind = kind;
	range->n_left = UINT64_MAX;
	if (kind != IOD_FAULT_STUCK) {
		if (!take_char(&value, ':'))
			return false;
		if (strcmp(value, "always") == 0)
			value += strlen(value);
		else if (!take_number(&value, &range->n_left))
			return false;
	}
	f->n_ranges++;
	return *value == '\0';
}

static bool parse_number(const char *value, uint64_t *ret)
{
	return take_number(&value, ret) && *value == '\0';
}

static bool parse_switch(const char *value, bool *ret)
{
	*ret = strcmp(value, "1") == 0;
	return *ret;
}

static bool parse_item(struct iod_fault *f, const char *name, const char *value)
{
	if (strcmp(name, "eio") == 0)
		return parse_range(f, value, IOD_FAULT_EIO);
	if (strcmp(name, "stuck") == 0)
		return parse_range(f, value, IOD_FAULT_STUCK);
	if (strcmp(name, "flip") == 0)
		return parse_range(f, value, IOD_FAULT_FLIP);
	if (strcmp(name, "short") == 0)
		return parse_number(value, &f->short_every);
	if (strcmp(name, "again") == 0)
		return parse_number(value, &f->again_every);
	if (strcmp(name, "slow") == 0)
		return parse_number(value, &f->bytes_per_second);
	if (strcmp(name, "old_uring") == 0)
		return parse_number(value, &f->n_rings_refused);
	if (strcmp(name, "no_uring") == 0)
		return parse_switch(value, &f->no_uring);
	if (strcmp(name, "no_direct") == 0)
		return parse_switch(value, &f->no_direct);
	if (strcmp(name, "no_register") == 0)
		return parse_switch(value, &f->no_register);
	return false;
}

int iod_fault_parse(struct iod_fault *f, const char *text, struct err *err)
{
	CLEANUP(freep) char *copy = NULL;
	char *item, *rest, *value;

	*f = (struct iod_fault){ 0 };
	if (!text || *text == '\0')
		return 0;
	copy = strdup(text);
	if (!copy)
		return err_set(err, ERR_NO_MEMORY, "out of memory");
	for (item = strtok_r(copy, ";", &rest); item; item = strtok_r(NULL, ";", &rest)) {
		value = strchr(item, '=');
		if (value)
			*value++ = '\0';
		if (!value || !parse_item(f, item, value))
			return err_set(
				err, ERR_USAGE, "%s: \"%s%s%s\" is no fault this program knows",
				IOD_FAULT_VARIABLE, item, value ? "=" : "", value ? value : "");
	}
	f->is_active = true;
	return 0;
}

static bool touches(const struct iod_fault_range *range, const struct iod_op *op)
{
	return (range->file == UINT32_MAX || range->file == op->file) &&
	       range->offset < op->offset + op->size && op->offset < range->offset + range->size;
}

uint64_t iod_fault_start(struct iod_fault *f, const struct iod_op *op, uint32_t device,
			 uint64_t now_ns)
{
	uint64_t *free_ns = &f->free_ns[device % IOD_FAULT_DEVICES_MAX];

	if (!f->is_active)
		return 0;
	for (uint32_t i = 0; i < f->n_ranges; i++) {
		if (f->ranges[i].kind == IOD_FAULT_STUCK && touches(&f->ranges[i], op))
			return UINT64_MAX;
	}
	if (f->bytes_per_second == 0)
		return 0;
	if (*free_ns < now_ns)
		*free_ns = now_ns;
	*free_ns += (uint64_t)((double)op->size * 1e9 / (double)f->bytes_per_second);
	return *free_ns;
}

void iod_fault_land(struct iod_fault *f, struct iod_op *op)
{
	if (!f->is_active || op->result < 0)
		return;
	f->n_reads++;
	for (uint32_t i = 0; i < f->n_ranges; i++) {
		struct iod_fault_range *range = &f->ranges[i];

		if (range->kind == IOD_FAULT_STUCK || range->n_left == 0 || !touches(range, op))
			continue;
		if (range->n_left != UINT64_MAX)
			range->n_left--;
		if (range->kind == IOD_FAULT_FLIP) {
			op->dst[range->offset - op->offset] ^= 1;
			continue;
		}
		op->result = -EIO;
		return;
	}
	if (f->again_every > 0 && f->n_reads % f->again_every == 0)
		op->result = -EAGAIN;
	else if (f->short_every > 0 && f->n_reads % f->short_every == 0 && op->result > PAGE) {
		op->result -= op->result / 3;
		if (op->result < PAGE)
			op->result = PAGE; /* a direct read brings a page or fails */
	}
}
