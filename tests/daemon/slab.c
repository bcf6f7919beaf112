/* The plan of the slab, its creation, and a client's check of every number in its header. */
#include "shared/slab.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/attr.h"
#include "shared/fd.h"
#include "tests/harness/test.h"

#define MIB (1ull << 20)

static const uint8_t digest[16] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };

/* The released model: sizes from the architecture's facts, about. */
static struct slab_want full_model(void)
{
	return (struct slab_want){
		.trunk_size = 111150000128ull / 4096 * 4096,
		.max_tile_size = 32 * MIB + 4096,
		.n_tiles = 3600,
		.expert_size = 17551360,
		.n_experts = 82432,
	};
}

static void plan(const struct slab_want *want, struct slab_plan *ret)
{
	struct err err = { 0 };
	int r = slab_plan(want, ret, &err);

	CHECK_MSG(r == 0, "%s", err.text);
	CHECK(ret->pinned_off % 4096 == 0 && ret->ring_off % 4096 == 0 &&
	      ret->slots_off % 4096 == 0 && ret->total_size % 4096 == 0);
	CHECK(ret->pinned_off >= 4096 + 32ull * (ret->n_tiles + ret->n_slots));
	CHECK(ret->ring_off >= ret->pinned_off + ret->pinned_size);
	CHECK(ret->slots_off >= ret->ring_off + ret->ring_size);
	CHECK(ret->total_size >= ret->slots_off + ret->slots_size);
	CHECK_EQ(ret->slots_size, ret->n_slots * want->expert_size);
}

static void least_that_works(void)
{
	struct slab_want want = full_model();
	struct slab_plan p;

	plan(&want, &p);
	CHECK_EQ(p.pinned_size, 0);
	CHECK_EQ(p.ring_size, 4 * want.max_tile_size);
	CHECK_EQ(p.n_slots, 4);
	/* the model in 1 GB: the slab must leave most of it */
	CHECK(p.total_size < 256 * MIB);
	/* a small model may be less than four tiles, and have few experts */
	want.trunk_size = 3 * want.max_tile_size;
	want.n_experts = 3;
	plan(&want, &p);
	CHECK_EQ(p.pinned_size, want.trunk_size);
	CHECK_EQ(p.ring_size, 0);
	CHECK_EQ(p.n_slots, 3);
	want.n_experts = 0;
	want.expert_size = 0;
	plan(&want, &p);
	CHECK_EQ(p.n_slots, 0);
}

static void budgets(void)
{
	struct slab_want want = full_model();
	struct slab_plan p;

	for (uint64_t gb = 1; gb < 120; gb++) {
		want.trunk_budget = gb * 1000000000;
		want.cache_budget = gb * 500000000;
		plan(&want, &p);
		CHECK(p.pinned_size + p.ring_size <= want.trunk_budget);
		CHECK(p.slots_size <= want.cache_budget);
		CHECK(p.slots_size + want.expert_size > want.cache_budget);
		CHECK_EQ(p.area_align, 2 * MIB);
		CHECK(p.pinned_off % (2 * MIB) == 0 && p.ring_off % (2 * MIB) == 0);
		if (want.trunk_budget >= want.trunk_size) {
			CHECK_EQ(p.pinned_size, want.trunk_size);
			CHECK_EQ(p.ring_size, 0);
		} else {
			CHECK(p.ring_size >= 4 * want.max_tile_size);
			CHECK(p.pinned_size + p.ring_size + 8192 > want.trunk_budget);
			CHECK(p.ring_size < 320 * MIB);
		}
	}
	want.trunk_budget = SLAB_BUDGET_ALL;
	want.cache_budget = SLAB_BUDGET_ALL;
	plan(&want, &p);
	CHECK_EQ(p.pinned_size, want.trunk_size);
	CHECK_EQ(p.n_slots, 82432);
}

/* The rule of docs/slab.md in numbers: 64 MiB + 8 MiB in flight + disk x gap, in whole tiles. */
static void ring_of_rates(void)
{
	struct slab_want want = full_model();
	uint64_t tile = want.max_tile_size;
	struct slab_plan p;
	static const struct {
		double disk, memory;
		uint64_t gap_size;
		uint32_t n_clients;
		uint64_t budget, tiles;
	} rows[] = {
		/* 346 MB at 0.75 x 20 GB/s: 23 ms */
		{ 3.2e9, 20e9, 346000000, 1, 16000000000, 5 },  /* 75.5 + 73.8 MB */
		{ 14e9, 20e9, 346000000, 1, 16000000000, 12 },  /* 75.5 + 322.9 MB */
		{ 14e9, 200e9, 346000000, 1, 16000000000, 4 },  /* 75.5 + 32.3 MB */
		{ 0.3e9, 20e9, 346000000, 1, 16000000000, 4 },  /* 75.5 + 6.9 MB: the least */
		{ 0.3e9, 20e9, 346000000, 2, 16000000000, 7 },  /* what two clients hold */
		{ 0.3e9, 20e9, 346000000, 0, 16000000000, 7 },  /* the same, by default */
		{ 14e9, 20e9, 346000000, 1, 300000000, 8 },     /* all of a small budget */
		{ 1000e9, 1e9, 346000000, 1, 60000000000, 414 } /* an eighth of the trunk */
	};

	for (size_t i = 0; i < N_ELEMENTS(rows); i++) {
		want.rates = (struct ring_rates){ .disk = rows[i].disk,
						  .memory = rows[i].memory,
						  .gap_size = rows[i].gap_size,
						  .n_clients = rows[i].n_clients };
		want.trunk_budget = rows[i].budget;
		plan(&want, &p);
		CHECK_MSG(p.ring_size / tile == rows[i].tiles, "row %zu: %llu tiles", i,
			  (unsigned long long)(p.ring_size / tile));
		CHECK_MSG(strstr(p.ring_note, "GB/s x "), "%s", p.ring_note);
		CHECK(!strstr(p.ring_note, "assumed"));
	}
	want.rates = (struct ring_rates){ .n_clients = 1 };
	want.trunk_budget = 16000000000;
	plan(&want, &p);
	CHECK(strstr(p.ring_note, "GB/s (assumed) x 20 ms between tiles (assumed)"));
	want.trunk_budget = SLAB_BUDGET_ALL;
	plan(&want, &p);
	CHECK_STR(p.ring_note, "");
}

static void below_the_floor(void)
{
	struct slab_want want = full_model();
	struct slab_plan p;
	struct err err = { 0 };

	want.trunk_budget = 4 * want.max_tile_size - 1;
	CHECK(slab_plan(&want, &p, &err) < 0);
	CHECK_EQ(err.code, ERR_BUDGET);
	CHECK(strstr(err.text, "0.134217 GB") || strstr(err.text, "0.134234 GB"));
	CHECK(strstr(err.text, "--trunk-gb"));
	want.trunk_budget++;
	CHECK(slab_plan(&want, &p, NULL) == 0);
	err_clear(&err);
	want.cache_budget = 2 * want.expert_size - 1;
	CHECK(slab_plan(&want, &p, &err) < 0);
	CHECK_EQ(err.code, ERR_BUDGET);
	CHECK(strstr(err.text, "0.035103 GB") && strstr(err.text, "--cache-gb"));
	want.cache_budget++;
	CHECK(slab_plan(&want, &p, NULL) == 0);
	CHECK_EQ(p.n_slots, 2);
}

static struct slab *make(struct slab_plan *p)
{
	struct slab_want want = {
		.trunk_size = 200 << 12,
		.max_tile_size = 20 << 12,
		.n_tiles = 33,
		.expert_size = 5 << 12,
		.n_experts = 50,
		.trunk_budget = 150 << 12,
		.cache_budget = 50 << 12,
	};
	struct slab *s = NULL;
	struct err err = { 0 };
	int r;

	plan(&want, p);
	CHECK_MSG(slab_new(&s, p, digest, &err) == 0, "%s", err.text);
	while ((r = slab_fault_some(s, &err)) > 0)
		;
	CHECK_MSG(r == 0, "%s", err.text);
	return s;
}

static void daemon_and_client(void)
{
	struct slab_plan p;
	struct slab *s = make(&p), *c = NULL;
	struct err err = { 0 };
	int fd = fd_reopen_read_only(s->fd);

	CHECK(fd >= 0);
	CHECK_MSG(slab_open(&c, fd, &err) == 0, "%s", err.text);
	close(fd);
	CHECK(memcmp(&c->header, &s->header, sizeof(c->header)) == 0);
	CHECK(memcmp(c->header.model_digest, digest, 16) == 0);
	CHECK_EQ(c->header.n_tiles, 33);
	CHECK_EQ(c->header.n_slots, 10);
	CHECK((uintptr_t)c->base % (2 * MIB) == 0 && (uintptr_t)s->base % (2 * MIB) == 0);
	/* what the daemon writes the client sees */
	s->base[p.ring_off] = 77;
	CHECK_EQ(slab_range(c, p.ring_off, 1)[0], 77);
	s->tiles[32].offset = 4096;
	CHECK_EQ(c->tiles[32].offset, 4096);
	CHECK_EQ(c->slots[9].offset, p.slots_off + 9 * p.slot_size);
	CHECK_EQ(c->slots[9].id, UINT32_MAX);
	CHECK(slab_entry_is_same(&c->slots[3], 0));
	slab_entry_invalidate(&s->slots[3]);
	CHECK(!slab_entry_is_same(&c->slots[3], 0) && slab_entry_is_same(&c->slots[3], 1));
	/* ranges */
	CHECK(slab_range(c, p.pinned_off, p.total_size - p.pinned_off));
	CHECK(!slab_range(c, p.pinned_off, p.total_size - p.pinned_off + 1));
	CHECK(!slab_range(c, 0, 4096) && !slab_range(c, p.total_size, 1));
	CHECK(!slab_range(c, UINT64_MAX - 4095, 8192));
	slab_freep(&c);
	slab_freep(&s);
}

static void sealed(void)
{
	struct slab_plan p;
	struct slab *s = make(&p);
	struct stat st;
	int fd = fd_reopen_read_only(s->fd);

	CHECK(fstat(s->fd, &st) == 0 && (st.st_mode & 07777) == 0600);
	CHECK(ftruncate(s->fd, 4096) < 0 && errno == EPERM);
	CHECK(ftruncate(s->fd, (off_t)p.total_size * 2) < 0 && errno == EPERM);
	CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	close(fd);
	slab_freep(&s);
}

/* A slab large enough for huge pages. */
static void plan_large(struct slab_plan *p)
{
	struct slab_want want = {
		.trunk_size = 70 * MIB,
		.max_tile_size = MIB,
		.n_tiles = 70,
		.trunk_budget = SLAB_BUDGET_ALL,
	};

	plan(&want, p);
}

/* The same made of these, nothing of it resident. */
static struct slab *new_large(struct slab_plan *p, enum slab_pages pages)
{
	struct slab *s = NULL;
	struct err err = { 0 };

	plan_large(p);
	p->pages = pages;
	CHECK_MSG(slab_new(&s, p, digest, &err) == 0, "%s", err.text);
	return s;
}

/* Filled and resident; the note in words. */
static struct slab *make_large(struct slab_plan *p, enum slab_pages pages)
{
	struct slab *s = new_large(p, pages);
	struct err err = { 0 };
	int r;

	while ((r = slab_fault_some(s, &err)) > 0)
		;
	CHECK_MSG(r == 0, "%s", err.text);
	(void)fprintf(stderr, "  %s\n", s->huge_note);
	memset(s->base + p->pinned_off, 7, p->pinned_size);
	return s;
}

/* What a client sees, and the daemon after this one. */
static void use_large(struct slab *s, const struct slab_plan *p)
{
	struct slab *c = NULL, *next = NULL;
	struct err err = { 0 };
	int fd = fd_reopen_read_only(s->fd), kept = fcntl(s->fd, F_DUPFD_CLOEXEC, 3);
	bool is_early = slab_is_usable_early(s);

	CHECK(fd >= 0 && kept >= 0);
	CHECK_MSG(slab_open(&c, fd, &err) == 0, "%s", err.text);
	CHECK(mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	CHECK_EQ(slab_range(c, p->pinned_off, p->pinned_size)[p->pinned_size - 1], 7);
	CHECK(ftruncate(s->fd, 2 * MIB) < 0);
	slab_freep(&s);
	CHECK_MSG(slab_adopt(&next, kept, p, digest, &err) == 0, "%s", err.text);
	CHECK_EQ(slab_is_usable_early(next), is_early);
	while (slab_fault_some(next, &err) > 0)
		;
	CHECK_EQ(next->base[p->pinned_off + p->pinned_size - 1], 7);
	next->base[p->pinned_off] = 8;
	CHECK_EQ(slab_range(c, p->pinned_off, 1)[0], 8);
	CHECK(close(fd) == 0);
	slab_freep(&c);
	slab_freep(&next);
}

static void transparent_pages(void)
{
	struct slab_plan p;
	struct slab *s = make_large(&p, SLAB_PAGES_AUTO);

	CHECK_EQ(p.area_align, 2 * MIB);
	if (slab_pages_try() < 0)
		CHECK(strstr(s->huge_note, "no huge pages"));
	else
		CHECK(strncmp(s->huge_note, "huge pages", 10) == 0);
	use_large(s, &p);
}

static bool is_in_memory(const struct slab *s, uint64_t at)
{
	unsigned char page;

	CHECK(mincore(s->base + at / SLAB_PAGE * SLAB_PAGE, SLAB_PAGE, &page) == 0);
	return (page & 1) != 0;
}

/* What is used before all of it is resident: these pages and no others, and what has been read into
 * them stays when the rest follows. */
static void used_early(void)
{
	uint64_t at = 20 * MIB - 3;
	struct slab_plan p;
	struct slab *s = new_large(&p, SLAB_PAGES_AUTO);
	char note[sizeof(s->huge_note)];
	struct err err = { 0 };
	int r;

	CHECK_EQ(slab_fault_some(s, &err), 1);
	CHECK(slab_is_usable_early(s));
	CHECK(is_in_memory(s, 2 * MIB - 1) && !is_in_memory(s, 2 * MIB));
	slab_fault_at(s, s->base + at, 6);
	CHECK(is_in_memory(s, 18 * MIB) && is_in_memory(s, 22 * MIB - 1));
	CHECK(!is_in_memory(s, 18 * MIB - 1) && !is_in_memory(s, 22 * MIB));
	memset(s->base + 18 * MIB, 9, 4 * MIB);
	while ((r = slab_fault_some(s, &err)) > 0)
		slab_fault_at(s, s->base + s->size - 1, 1);
	CHECK_MSG(r == 0, "%s", err.text);
	memcpy(note, s->huge_note, sizeof(note));
	CHECK_EQ(slab_fault_some(s, &err), 0);
	CHECK_MSG(strcmp(s->huge_note, note) == 0, "%s", s->huge_note);
	for (uint64_t i = 0; i < s->size; i += SLAB_PAGE) {
		CHECK_MSG(is_in_memory(s, i), "%llu", (unsigned long long)i);
		if (i >= p.pinned_off)
			CHECK_EQ(s->base[i], i >= 18 * MIB && i < 22 * MIB ? 9 : 0);
	}
	slab_freep(&s);
	s = make(&p);
	CHECK(!slab_is_usable_early(s));
	slab_freep(&s);
}

static void no_memory(void)
{
	struct slab_plan p;
	struct slab *s = new_large(&p, SLAB_PAGES_AUTO);
	struct err err = { 0 };
	int r;

	CHECK(munmap(s->base + 10 * MIB, 2 * MIB) == 0);
	while ((r = slab_fault_some(s, &err)) > 0)
		;
	CHECK(r < 0);
	CHECK_EQ(err.code, ERR_NO_MEMORY);
	CHECK_MSG(strstr(err.text, "10485760 of 75497472 bytes"), "%s", err.text);
	slab_freep(&s);
}

static void small_pages(void)
{
	struct slab_plan p;
	struct slab *s = make_large(&p, SLAB_PAGES_NEVER);

	CHECK(strcmp(s->huge_note, "no huge pages (chosen by option)") == 0);
	use_large(s, &p);
}

static void set_pool(unsigned long n)
{
	char text[32];
	int fd = open("/proc/sys/vm/nr_hugepages", O_WRONLY | O_CLOEXEC);
	int len = snprintf(text, sizeof(text), "%lu\n", n);

	if (fd < 0 || write(fd, text, (size_t)len) != len)
		test_skip("vm.nr_hugepages cannot be set");
	CHECK(close(fd) == 0);
}

static unsigned long get_pool(void)
{
	char text[32] = "";
	int fd = open("/proc/sys/vm/nr_hugepages", O_RDONLY | O_CLOEXEC);

	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
		test_skip("this kernel has no vm.nr_hugepages");
	CHECK(close(fd) == 0);
	return strtoul(text, NULL, 10);
}

/* Too few are as good as none: the slab is then made of others, and says so. */
static void reserved_pages(void)
{
	unsigned long before = get_pool();
	struct slab_plan p;
	struct slab *s;
	uint64_t had = slab_pages_reserved();

	if (had < 72 * MIB) {
		s = make_large(&p, SLAB_PAGES_RESERVED);
		CHECK_MSG(strstr(s->huge_note, "of reserved huge pages are free, 75 needed"), "%s",
			  s->huge_note);
		CHECK(!s->is_reserved);
		use_large(s, &p);
		set_pool(before + 40);
	}
	if (slab_pages_reserved() < 76 * MIB) {
		set_pool(before);
		test_skip("the machine has no 40 huge pages to reserve");
	}
	s = make_large(&p, SLAB_PAGES_RESERVED);
	CHECK_MSG(strcmp(s->huge_note, "reserved huge pages") == 0, "%s", s->huge_note);
	use_large(s, &p);
	if (had < 72 * MIB)
		set_pool(before);
	CHECK_EQ(get_pool(), before);
}

/* One number of the header changed: the field that must be named. */
static const struct {
	size_t offset;
	uint64_t value;
	size_t size;
	const char *says;
} broken[] = {
	{ offsetof(struct slab_header, magic), 1, 8, "magic" },
	{ offsetof(struct slab_header, version), 2, 4, "version" },
	{ offsetof(struct slab_header, header_size), 161, 4, "header_size" },
	{ offsetof(struct slab_header, incompat), 1, 8, "incompat" },
	{ offsetof(struct slab_header, total_size), 4096, 8, "total_size" },
	{ offsetof(struct slab_header, n_tiles), 0xffffffff, 4, "n_tiles" },
	{ offsetof(struct slab_header, n_tiles), 1 << 20, 4, "n_tiles" },
	{ offsetof(struct slab_header, n_slots), 0xffffffff, 4, "n_slots" },
	{ offsetof(struct slab_header, n_slots), 11, 4, "slot" },
	{ offsetof(struct slab_header, tile_entries_off), 8, 8, "tile_entries_off" },
	{ offsetof(struct slab_header, tile_entries_off), 4097, 8, "tile_entries_off" },
	{ offsetof(struct slab_header, tile_entries_off), UINT64_MAX - 31, 8, "tile_entries_off" },
	{ offsetof(struct slab_header, slot_entries_off), 4096, 8, "slot_entries_off" },
	{ offsetof(struct slab_header, slot_entries_off), UINT64_MAX - 31, 8, "slot_entries_off" },
	{ offsetof(struct slab_header, pinned_off), 4096, 8, "pinned_off" },
	{ offsetof(struct slab_header, pinned_off), UINT64_MAX - 4095, 8, "pinned_off" },
	{ offsetof(struct slab_header, pinned_size), UINT64_MAX, 8, "pinned_size" },
	{ offsetof(struct slab_header, ring_off), 0, 8, "ring_off" },
	{ offsetof(struct slab_header, ring_size), UINT64_MAX - 4095, 8, "ring_size" },
	{ offsetof(struct slab_header, slots_off), 4096, 8, "slots_off" },
	{ offsetof(struct slab_header, slot_size), 4097, 8, "slot_size" },
	{ offsetof(struct slab_header, slot_size), 1ull << 62, 8, "slot_size" },
	{ offsetof(struct slab_header, reserved), 1, 8, "reserved" },
	{ offsetof(struct slab_header, reserved) + 8, 1, 8, "reserved" },
};

static void header_wrong(void)
{
	struct slab_plan p;
	struct slab *s = make(&p), *c = NULL;

	for (size_t i = 0; i < N_ELEMENTS(broken); i++) {
		struct slab_header good = s->header;
		struct err err = { 0 };

		memcpy(s->base + broken[i].offset, &broken[i].value, broken[i].size);
		CHECK_MSG(slab_open(&c, s->fd, &err) < 0, "%s = %llx was accepted", broken[i].says,
			  (unsigned long long)broken[i].value);
		CHECK_EQ(err.code, ERR_PROTOCOL);
		CHECK_MSG(strstr(err.text, broken[i].says), "\"%s\" does not say \"%s\"", err.text,
			  broken[i].says);
		memcpy(s->base, &good, sizeof(good));
	}
	CHECK(slab_open(&c, s->fd, NULL) == 0);
	slab_freep(&c);
	slab_freep(&s);
}

static void not_a_slab(void)
{
	struct slab *c = NULL;
	struct err err = { 0 };
	int fd = fd_memfd("test", 8192, 0);

	CHECK(fd >= 0);
	CHECK(slab_open(&c, fd, &err) < 0 && strstr(err.text, "sealed"));
	err_clear(&err);
	CHECK(fd_seal(fd, 0) == 0);
	CHECK(slab_open(&c, fd, &err) < 0 && strstr(err.text, "magic"));
	close(fd);
	err_clear(&err);
	fd = fd_memfd("test", 100, 0);
	CHECK(fd >= 0 && fd_seal(fd, 0) == 0);
	CHECK(slab_open(&c, fd, &err) < 0 && strstr(err.text, "size"));
	close(fd);
	fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	CHECK(slab_open(&c, fd, NULL) < 0);
	close(fd);
}

static const struct test_case cases[] = {
	{ "the least that works", least_that_works },
	{ "budgets", budgets },
	{ "ring of rates", ring_of_rates },
	{ "below the floor", below_the_floor },
	{ "daemon and client", daemon_and_client },
	{ "sealed", sealed },
	{ "transparent pages", transparent_pages },
	{ "small pages", small_pages },
	{ "used early", used_early },
	{ "no memory", no_memory },
	{ "reserved pages", reserved_pages },
	{ "header with one number wrong", header_wrong },
	{ "not a slab", not_a_slab },
};
TEST_MAIN(cases)
