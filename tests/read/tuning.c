/* Depth and chunk of single devices, from the start and changed under load. Both back ends. */
#include <errno.h>
#include <sys/stat.h>

#include "iod/read/reader.h"
#include "shared/attr.h"
#include "shared/slab.h"
#include "shared/tuning.h"
#include "tests/read/rig.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static char shm_path[] = "/dev/shm", nowhere_path[] = "/nowhere/at/all", proc_path[] = "/proc";

static bool are_two_devices(void)
{
	struct stat a, b;

	return stat(test_tmpdir(), &a) == 0 && stat("/dev/shm", &b) == 0 && a.st_dev != b.st_dev;
}

/* A file on each of two devices, or the case is not run. */
static void set_up(struct rig *rig)
{
	if (!are_two_devices())
		test_skip("/dev/shm is on the device of the test directory");
	*rig = (struct rig){ .settings = { .backend = TEST_BACKEND, .chunk = 64 * KIB } };
	rig_add_file(rig, test_tmpdir(), 3 * MIB);
	rig_add_file(rig, "/dev/shm", 3 * MIB);
}

static void read_both(struct rig *rig)
{
	struct rig_read r = { 0 };

	memset(rig->slab, RIG_POISON, rig->slab_size);
	rig_add_segment(&r, 0, 1000, 2 * MIB);
	rig_add_segment(&r, 1, 5000, 2 * MIB);
	rig_submit(rig, &r, IOD_READ_DEMAND, rig->slab);
	rig_wait(rig, &r);
	CHECK_EQ(r.result, 0);
	rig_check(rig, &r);
}

static void rows_are_of_their_device(void)
{
	struct tuning_row rows[] = { { .path = shm_path, .depth = 3 },
				     { .path = shm_path, .chunk = 8 * KIB } };
	struct rig rig;

	set_up(&rig);
	rig.settings.queue_depth = 5;
	rig.settings.rows = rows;
	rig.settings.n_rows = 2;
	CHECK_MSG(rig_start(&rig, NULL) == 0, "%s", rig.err.text);
	CHECK_EQ(rig.reader->queues[0].depth, 5);
	CHECK_EQ(rig.reader->queues[0].chunk, 64 * KIB);
	CHECK_EQ(rig.reader->queues[1].depth, 3);
	CHECK_EQ(rig.reader->queues[1].chunk, 8 * KIB);
	CHECK(strstr(iod_reader_describe(rig.reader), "depth 5, chunk 64 KiB"));
	CHECK(strstr(iod_reader_describe(rig.reader), "depth 3, chunk 8 KiB"));
	read_both(&rig);
	rig_free(&rig);
}

/* A symbolic link, as in a hub cache: the device is that of the file behind it. */
static void links_are_followed(void)
{
	struct tuning_row row = { .depth = 2 };
	struct rig rig;
	char link[256];

	set_up(&rig);
	(void)snprintf(link, sizeof(link), "%s/link", test_tmpdir());
	CHECK_EQ(symlink(rig.files[1].path, link), 0);
	row.path = link;
	rig.settings.rows = &row;
	rig.settings.n_rows = 1;
	CHECK_MSG(rig_start(&rig, NULL) == 0, "%s", rig.err.text);
	CHECK_EQ(rig.reader->queues[0].depth, SLAB_READ_DEPTH);
	CHECK_EQ(rig.reader->queues[1].depth, 2);
	rig_free(&rig);
}

static void refusals(void)
{
	static const struct {
		struct tuning_row row;
		int result;
		const char *word;
	} tries[] = {
		{ { .path = nowhere_path, .depth = 2 }, -EINVAL, "/nowhere/at/all" },
		{ { .path = proc_path, .chunk = 4096 }, -EINVAL, "no file of the model" },
		{ { .path = shm_path, .depth = 4090 }, -EINVAL, "4096 at most" },
		{ { .path = nowhere_path, .depth = 2, .is_from_profile = true }, 0, NULL },
		{ { .path = proc_path, .depth = 2, .is_from_profile = true }, 0, NULL },
	};

	for (size_t i = 0; i < N_ELEMENTS(tries); i++) {
		struct rig rig;

		set_up(&rig);
		rig.settings.rows = &tries[i].row;
		rig.settings.n_rows = 1;
		CHECK_EQ(rig_start(&rig, NULL), tries[i].result);
		if (tries[i].word) {
			CHECK_EQ(rig.err.code, ERR_USAGE);
			CHECK_MSG(strstr(rig.err.text, tries[i].word), "%s", rig.err.text);
		}
		rig_free(&rig);
	}
}

/* On a slow device exactly as many reads are started as its depth says, before and after. */
static void deeper_and_shallower(void)
{
	struct rig rig;
	struct rig_read r = { 0 };
	struct iod_reader_settings other;
	const struct iod_queue *q;
	char changes[512];

	set_up(&rig);
	rig.settings.queue_depth = 4;
	CHECK_MSG(rig_start(&rig, "slow=2M") == 0, "%s", rig.err.text);
	q = &rig.reader->queues[0];
	rig_add_segment(&r, 0, 0, 3 * MIB);
	rig_submit(&rig, &r, IOD_READ_DEMAND, rig.slab);
	rig_run_for(&rig, 1000);
	CHECK_EQ(q->n_in_flight, 4);
	other = rig.settings;
	other.queue_depth = 40;
	other.chunk = 16 * KIB;
	CHECK_EQ(iod_reader_retune(rig.reader, &other, changes, sizeof(changes), &rig.err), 0);
	CHECK_MSG(strstr(changes, "depth 40, chunk 16 KiB instead of depth 4, chunk 64 KiB"), "%s",
		  changes);
	CHECK_EQ(sd_event_run(rig.event, 0) >= 0, true);
	rig_run_for(&rig, 1000);
	CHECK_EQ(q->n_in_flight, 40);
	other.queue_depth = 1;
	CHECK_EQ(iod_reader_retune(rig.reader, &other, changes, sizeof(changes), &rig.err), 0);
	rig_wait(&rig, &r);
	CHECK_EQ(r.result, 0);
	rig_check(&rig, &r);
	CHECK_EQ(iod_reader_retune(rig.reader, &other, changes, sizeof(changes), &rig.err), 0);
	CHECK_EQ(changes[0], '\0');
	/* Refused: all stays as it is. */
	other.queue_depth = 4000;
	CHECK_EQ(iod_reader_retune(rig.reader, &other, changes, sizeof(changes), &rig.err),
		 -EINVAL);
	CHECK_EQ(q->depth, 1);
	read_both(&rig);
	rig_free(&rig);
}

static const struct test_case cases[] = {
	{ "rows_are_of_their_device", rows_are_of_their_device },
	{ "links_are_followed", links_are_followed },
	{ "refusals", refusals },
	{ "deeper_and_shallower", deeper_and_shallower },
};

TEST_MAIN(cases)
