/* Reads that succeed: alignment, ends of files, order, registered memory. Both back ends. */
#include "tests/read/rig.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/statfs.h>

#include "shared/attr.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static void start(struct rig *rig, const char *faults)
{
	rig->settings.backend = TEST_BACKEND;
	CHECK_MSG(rig_start(rig, faults) == 0, "%s", rig->err.text);
}

static void add_files(struct rig *rig, const char *dir)
{
	rig_add_file(rig, dir, 3 * MIB + 777);
	rig_add_file(rig, dir, MIB);
	rig_add_file(rig, dir, 1);
	rig_add_file(rig, dir, 5000);
}

static void random_segments(struct rig *rig, struct rig_read *r, uint32_t n, uint64_t max)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t file = (uint32_t)rig_random(rig, rig->src.n_files);
		uint64_t size = rig->files[file].size;
		uint64_t offset = rig_random(rig, size);
		uint64_t most = size - offset < max ? size - offset : max;

		rig_add_segment(r, file, offset, rig_random(rig, most + 1));
	}
}

static void read_random(struct rig *rig)
{
	for (int round = 0; round < 20; round++) {
		struct rig_read r = { 0 };

		memset(rig->slab, RIG_POISON, rig->slab_size);
		random_segments(rig, &r, 1 + (uint32_t)rig_random(rig, 20), 700 * KIB);
		rig_submit(rig, &r, IOD_READ_DEMAND, rig->slab + SLAB_PAGE);
		rig_wait(rig, &r);
		CHECK_EQ(r.result, 0);
		rig_check(rig, &r);
		CHECK_EQ(rig->slab[SLAB_PAGE - 1], RIG_POISON);
	}
}

static void odd_alignments(void)
{
	struct rig rig = { .settings = { .chunk = 64 * KIB, .queue_depth = 8 } };

	add_files(&rig, test_tmpdir());
	start(&rig, NULL);
	rig_register_all(&rig);
	read_random(&rig);
	rig_free(&rig);
}

static void default_settings(void)
{
	struct rig rig = { 0 };

	add_files(&rig, test_tmpdir());
	start(&rig, NULL);
	rig_register_all(&rig);
	read_random(&rig);
	CHECK(strlen(iod_reader_describe_short(rig.reader)) <= 31);
	CHECK(strstr(iod_reader_describe(rig.reader), "depth 16"));
	rig_free(&rig);
}

static void direct_off(void)
{
	struct rig rig = { .settings = { .chunk = 64 * KIB, .direct = IOD_DIRECT_OFF } };

	add_files(&rig, test_tmpdir());
	start(&rig, NULL);
	CHECK(strstr(iod_reader_describe(rig.reader), "buffered"));
	rig_register_all(&rig);
	read_random(&rig);
	rig_free(&rig);
}

static void direct_on(void)
{
	struct rig rig = { .settings = { .chunk = 64 * KIB, .direct = IOD_DIRECT_ON } };

	add_files(&rig, test_tmpdir());
	rig.settings.backend = TEST_BACKEND;
	if (rig_start(&rig, NULL) < 0) {
		CHECK_EQ(rig.err.code, ERR_UNSUPPORTED);
		test_skip("no O_DIRECT on the test directory");
	}
	CHECK(strstr(iod_reader_describe(rig.reader), ", O_DIRECT"));
	read_random(&rig);
	rig_free(&rig);
}

/* tmpfs: some kernels take O_DIRECT there, others refuse. Either way the bytes are right. */
static void tmpfs(void)
{
	struct rig rig = { .settings = { .chunk = 64 * KIB } };
	struct statfs fs;
	bool is_direct;

	if (statfs("/dev/shm", &fs) < 0 || fs.f_type != 0x01021994)
		test_skip("/dev/shm is not a tmpfs");
	add_files(&rig, "/dev/shm");
	start(&rig, NULL);
	is_direct = strstr(iod_reader_describe(rig.reader), "BUFFERED") == NULL;
	read_random(&rig);
	rig_stop(&rig);
	rig.settings.direct = IOD_DIRECT_ON;
	CHECK_EQ(rig_start(&rig, NULL), is_direct ? 0 : -ENOTSUP);
	rig_free(&rig);
}

/* Two devices: a request may have parts on both, and both have their own depth. */
static void two_devices(void)
{
	struct rig rig = { .settings = { .chunk = 16 * KIB, .queue_depth = 2 } };

	add_files(&rig, test_tmpdir());
	add_files(&rig, "/dev/shm");
	start(&rig, NULL);
	read_random(&rig);
	rig_free(&rig);
}

static void end_of_file(void)
{
	struct rig rig = { .settings = { .chunk = 4096, .queue_depth = 3 } };

	add_files(&rig, test_tmpdir());
	start(&rig, NULL);
	for (uint32_t file = 0; file < rig.src.n_files; file++) {
		struct rig_read r = { 0 };
		uint64_t size = rig.files[file].size;

		rig_add_segment(&r, file, size - 1, 1);
		rig_add_segment(&r, file, size > 4999 ? size - 4999 : 0, size > 4999 ? 4999 : size);
		rig_add_segment(&r, file, size, 0);
		rig_submit(&rig, &r, IOD_READ_TRUNK, rig.slab);
		rig_wait(&rig, &r);
		CHECK_EQ(r.result, 0);
		rig_check(&rig, &r);
		memset(rig.slab, RIG_POISON, MIB);
	}
	rig_free(&rig);
}

static void nothing_to_read(void)
{
	struct rig rig = { 0 };
	struct rig_read none = { 0 }, empty = { 0 };

	add_files(&rig, test_tmpdir());
	start(&rig, NULL);
	rig_add_segment(&empty, 0, 17, 0);
	rig_submit(&rig, &none, IOD_READ_DEMAND, rig.slab);
	rig_submit(&rig, &empty, IOD_READ_HINT, rig.slab);
	CHECK(!iod_reader_is_idle(rig.reader, IOD_READ_DEMAND));
	rig_wait(&rig, &none);
	rig_wait(&rig, &empty);
	CHECK_EQ(none.result, 0);
	CHECK_EQ(empty.result, 0);
	CHECK(iod_reader_is_idle(rig.reader, IOD_READ_BACKGROUND));
	rig_free(&rig);
}

/* Requests that would write outside their memory or read outside a file are answered, not done. */
static void refused(void)
{
	struct rig rig = { 0 };
	static const struct source_segment bad[] = {
		{ .file = 4, .size = 1 },
		{ .file = 1, .file_off = MIB, .size = 1 },
		{ .file = 1, .file_off = MIB + 1, .size = 0 },
		{ .file = 1, .file_off = UINT64_MAX, .size = 2 },
		{ .file = 1, .file_off = 5, .size = UINT64_MAX - 2 },
		{ .file = 1, .file_off = 5, .size = 8192 }, /* three pages, two there */
		{ .file = 1, .size = 4096, .slab_off = 8192 },
		{ .file = 1, .size = 4096, .slab_off = UINT64_MAX - 4095 },
		{ .file = 1, .size = 1, .slab_off = 512 },
	};

	add_files(&rig, test_tmpdir());
	start(&rig, NULL);
	for (size_t i = 0; i < N_ELEMENTS(bad); i++) {
		struct rig_read r = { .dst_used = 8192 };

		r.segments[0] = bad[i];
		r.read.n_segments = 1;
		rig_submit(&rig, &r, IOD_READ_DEMAND, rig.slab);
		rig_wait(&rig, &r);
		CHECK_MSG(r.result == -EINVAL, "bad segment %zu was taken: %d", i, r.result);
		CHECK_EQ(r.read.bad_file, bad[i].file);
	}
	for (uint64_t i = 0; i < 4 * SLAB_PAGE; i++)
		CHECK_EQ(rig.slab[i], RIG_POISON);
	rig_free(&rig);
}

/* Memory that is not the slab, as for embedding rows. */
static void private_buffer(void)
{
	struct rig rig = { .settings = { .chunk = 16 * KIB } };
	struct rig_read r = { 0 };
	uint8_t *mine = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(mine != MAP_FAILED);
	memset(mine, RIG_POISON, MIB);
	add_files(&rig, test_tmpdir());
	start(&rig, NULL);
	rig_register_all(&rig);
	rig_add_segment(&r, 0, 14336 * 7 + 2, 14336);
	rig_add_segment(&r, 0, 14336 * 100 + 2, 14336);
	rig_submit(&rig, &r, IOD_READ_DEMAND, mine);
	rig_wait(&rig, &r);
	CHECK_EQ(r.result, 0);
	rig_check(&rig, &r);
	CHECK_EQ(rig.slab[0], RIG_POISON);
	rig_free(&rig);
	CHECK_EQ(munmap(mine, MIB), 0);
}

/* Chunks across the borders of registered pieces, while none, one and all are registered. */
static void registered_pieces(void)
{
	struct rig rig = { .slab_size = 130 * MIB };

	rig_add_file(&rig, test_tmpdir(), 5 * MIB);
	start(&rig, NULL);
	for (int more = 1, n = 0; more >= 0 && n < 5; n++) {
		for (uint64_t border = 64 * MIB; border <= 128 * MIB; border += 64 * MIB) {
			struct rig_read r = { 0 };

			rig_add_segment(&r, 0, 1234, 3 * MIB);
			rig_submit(&rig, &r, IOD_READ_TRUNK,
				   rig.slab + border - MIB - 7 * SLAB_PAGE);
			rig_wait(&rig, &r);
			CHECK_EQ(r.result, 0);
			rig_check(&rig, &r);
			memset(rig.slab + border - 2 * MIB, RIG_POISON, 4 * MIB);
		}
		more = more > 0 ? iod_reader_register_some(rig.reader, UINT64_MAX) : -1;
	}
	rig_free(&rig);
}

/* The whole pages of one registered piece must be there before it is registered. */
static void registered_when_resident(void)
{
	struct rig rig = { .slab_size = 130 * MIB };
	bool is_ring;

	rig_add_file(&rig, test_tmpdir(), MIB);
	start(&rig, NULL);
	is_ring = strncmp(iod_reader_describe_short(rig.reader), "threads", 7) != 0;
	CHECK_EQ(iod_reader_register_some(rig.reader, 64 * MIB - 1), is_ring);
	CHECK_EQ(iod_reader_register_some(rig.reader, 64 * MIB), is_ring);
	CHECK_EQ(iod_reader_register_some(rig.reader, 128 * MIB - 1), is_ring);
	CHECK_EQ(iod_reader_register_some(rig.reader, 130 * MIB), is_ring);
	CHECK(!strstr(iod_reader_describe_short(rig.reader), "fixed"));
	CHECK_EQ(iod_reader_register_some(rig.reader, 130 * MIB), 0);
	CHECK_EQ(strstr(iod_reader_describe_short(rig.reader), "fixed") != NULL, is_ring);
	rig_free(&rig);
}

static void allow(void *data, uint8_t *at, uint64_t size)
{
	uint64_t *n_told = data;

	CHECK_EQ((uintptr_t)at % SLAB_PAGE, 0);
	CHECK_EQ(mprotect(at, size, PROT_READ | PROT_WRITE), 0);
	*n_told += size;
}

/* Nothing can be read into the slab before whoever prepares it was told, and memory elsewhere is
 * not his. */
static void prepared(void)
{
	uint64_t n_told = 0;
	struct rig rig = { .settings = { .prepare = allow, .prepare_data = &n_told } };
	struct rig_read r = { 0 }, other = { 0 };
	uint8_t *mine = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(mine != MAP_FAILED);
	rig_add_file(&rig, test_tmpdir(), 5 * MIB);
	start(&rig, "short=3");
	CHECK_EQ(mprotect(rig.slab, rig.slab_size, PROT_NONE), 0);
	rig_add_segment(&other, 0, 0, 100 * KIB);
	rig_submit(&rig, &other, IOD_READ_DEMAND, mine);
	rig_wait(&rig, &other);
	CHECK_EQ(other.result, 0);
	CHECK_EQ(n_told, 0);
	rig_add_segment(&r, 0, 1234, 3 * MIB);
	rig_submit(&rig, &r, IOD_READ_TRUNK, rig.slab + 5 * SLAB_PAGE);
	rig_wait(&rig, &r);
	CHECK_EQ(r.result, 0);
	CHECK_EQ(n_told, 3 * MIB + SLAB_PAGE);
	CHECK_EQ(mprotect(rig.slab, rig.slab_size, PROT_READ), 0);
	rig_check(&rig, &r);
	rig_free(&rig);
	CHECK_EQ(munmap(mine, MIB), 0);
}

/* A slow device with one chunk in flight: a later demand overtakes trunk, that hints, and so on. */
static void order_of_classes(void)
{
	static const enum iod_read_class classes[] = { IOD_READ_BACKGROUND, IOD_READ_HINT,
						       IOD_READ_TRUNK, IOD_READ_DEMAND };
	struct rig rig = { .settings = { .chunk = 64 * KIB, .queue_depth = 1 } };
	struct rig_read r[8] = { 0 };

	add_files(&rig, test_tmpdir());
	start(&rig, "slow=32M");
	for (uint32_t i = 0; i < 8; i++) {
		rig_add_segment(&r[i], 0, i * 300 * KIB, 300 * KIB);
		rig_submit(&rig, &r[i], classes[i / 2], rig.slab + i * MIB);
	}
	CHECK(!iod_reader_is_idle(rig.reader, IOD_READ_DEMAND));
	for (uint32_t i = 0; i < 8; i++)
		rig_wait(&rig, &r[i]);
	for (uint32_t i = 0; i < 8; i++) {
		CHECK_EQ(r[i].result, 0);
		CHECK_EQ(r[i].order, (3 - i / 2) * 2 + i % 2 + 1);
		rig_check(&rig, &r[i]);
	}
	CHECK(iod_reader_is_idle(rig.reader, IOD_READ_BACKGROUND));
	CHECK(iod_reader_counts(rig.reader)->bytes[IOD_READ_HINT] >= 600 * KIB);
	rig_free(&rig);
}

/* Whatever the depth, a demand finds at most one chunk of a hint before it. */
static void hints_one_chunk(void)
{
	struct rig rig = { .settings = { .chunk = 64 * KIB, .queue_depth = 8 } };
	struct rig_read hint = { 0 }, demand = { 0 };
	uint64_t before;

	add_files(&rig, test_tmpdir());
	start(&rig, "slow=2M");
	rig_add_segment(&hint, 0, 0, 2 * MIB);
	rig_submit(&rig, &hint, IOD_READ_HINT, rig.slab);
	while (iod_reader_counts(rig.reader)->bytes[IOD_READ_HINT] == 0)
		CHECK(sd_event_run(rig.event, UINT64_MAX) >= 0);
	CHECK(!hint.is_done);
	rig_add_segment(&demand, 1, 0, 256 * KIB);
	rig_submit(&rig, &demand, IOD_READ_DEMAND, rig.slab + 4 * MIB);
	before = iod_reader_counts(rig.reader)->bytes[IOD_READ_HINT];
	CHECK(iod_reader_is_idle(rig.reader, IOD_READ_TRUNK) == false);
	rig_wait(&rig, &demand);
	CHECK(iod_reader_counts(rig.reader)->bytes[IOD_READ_HINT] - before <= 64 * KIB);
	rig_check(&rig, &demand);
	rig_free(&rig); /* with the hint in flight */
}

/* A hint that is wanted after all overtakes, and is read with the whole depth. */
static void promotion(void)
{
	struct rig rig = { .settings = { .chunk = 64 * KIB, .queue_depth = 4 } };
	struct rig_read trunk = { 0 }, hint = { 0 }, other = { 0 };

	add_files(&rig, test_tmpdir());
	start(&rig, "slow=2M");
	rig_add_segment(&hint, 0, 5, MIB);
	rig_add_segment(&other, 0, MIB, 200 * KIB);
	rig_add_segment(&trunk, 0, 2 * MIB, MIB);
	rig_submit(&rig, &hint, IOD_READ_HINT, rig.slab);
	rig_submit(&rig, &other, IOD_READ_HINT, rig.slab + 2 * MIB);
	rig_run_for(&rig, 20 * 1000);
	rig_submit(&rig, &trunk, IOD_READ_TRUNK, rig.slab + 4 * MIB);
	rig_run_for(&rig, 20 * 1000);
	CHECK(!hint.is_done && !trunk.is_done);
	CHECK(iod_reader_is_idle(rig.reader, IOD_READ_DEMAND));
	iod_reader_promote(rig.reader, &hint.read, IOD_READ_DEMAND);
	iod_reader_promote(rig.reader, &hint.read, IOD_READ_BACKGROUND); /* never down */
	CHECK_EQ(hint.read.class, IOD_READ_DEMAND);
	CHECK(!iod_reader_is_idle(rig.reader, IOD_READ_DEMAND));
	rig_wait(&rig, &other);
	CHECK_EQ(hint.order, 1);
	CHECK_EQ(trunk.order, 2);
	CHECK_EQ(other.order, 3);
	rig_check(&rig, &hint);
	rig_check(&rig, &other);
	rig_check(&rig, &trunk);
	rig_free(&rig);
}

static struct rig *chain_rig;
static uint32_t n_links;

static void next_link(struct iod_read *read, int result)
{
	CHECK_EQ(result, 0);
	if (++n_links < 200)
		iod_reader_submit(chain_rig->reader, read);
	else
		(void)sd_event_exit(chain_rig->event, 0);
}

/* done() may submit the same request again. */
static void submit_from_done(void)
{
	struct rig rig = { .settings = { .chunk = 4096, .queue_depth = 2 } };
	struct source_segment segment = { .file = 0, .file_off = 3, .size = 9000 };
	struct iod_read read = { .class = IOD_READ_DEMAND,
				 .segments = &segment,
				 .n_segments = 1,
				 .dst_size = 12288,
				 .done = next_link };

	add_files(&rig, test_tmpdir());
	start(&rig, NULL);
	chain_rig = &rig;
	read.dst = rig.slab;
	iod_reader_submit(rig.reader, &read);
	CHECK_EQ(sd_event_loop(rig.event), 0);
	CHECK_EQ(n_links, 200);
	CHECK_EQ(iod_reader_counts(rig.reader)->reads, 600);
	rig_free(&rig);
}

static const struct test_case cases[] = {
	{ "odd_alignments", odd_alignments },
	{ "default_settings", default_settings },
	{ "direct_off", direct_off },
	{ "direct_on", direct_on },
	{ "tmpfs", tmpfs },
	{ "two_devices", two_devices },
	{ "end_of_file", end_of_file },
	{ "nothing_to_read", nothing_to_read },
	{ "refused", refused },
	{ "private_buffer", private_buffer },
	{ "registered_pieces", registered_pieces },
	{ "registered_when_resident", registered_when_resident },
	{ "prepared", prepared },
	{ "order_of_classes", order_of_classes },
	{ "hints_one_chunk", hints_one_chunk },
	{ "promotion", promotion },
	{ "submit_from_done", submit_from_done },
};

TEST_MAIN(cases)
