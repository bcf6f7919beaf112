/* Reads that do not go as asked, and machines that refuse what is fast. Both back ends. */
#include "tests/read/rig.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "iod/read/change.h"
#include "shared/attr.h"
#include "shared/fd.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static void start(struct rig *rig, const char *faults)
{
	rig->settings.backend = TEST_BACKEND;
	CHECK_MSG(rig_start(rig, faults) == 0, "%s", rig->err.text);
}

/* One file of 3 MiB and a bit, one of 1 MiB; a reader with small chunks. */
static void start_small(struct rig *rig, const char *faults)
{
	*rig = (struct rig){ .settings = { .chunk = 64 * KIB, .queue_depth = 8 } };
	rig_add_file(rig, test_tmpdir(), 3 * MIB + 777);
	rig_add_file(rig, test_tmpdir(), MIB);
	start(rig, faults);
}

static void read_one(struct rig *rig, struct rig_read *r, uint32_t file, uint64_t offset,
		     uint64_t size)
{
	*r = (struct rig_read){ 0 };
	memset(rig->slab, RIG_POISON, rig->slab_size);
	rig_add_segment(r, file, offset, size);
	rig_submit(rig, r, IOD_READ_DEMAND, rig->slab);
	rig_wait(rig, r);
}

static void short_reads(void)
{
	struct rig rig;
	struct rig_read r;

	start_small(&rig, "short=2");
	for (uint64_t offset = 0; offset < 3 * MIB; offset += 999 * KIB + 13) {
		uint64_t left = rig.files[0].size - offset;

		read_one(&rig, &r, 0, offset, left < MIB ? left : MIB);
		CHECK_EQ(r.result, 0);
		rig_check(&rig, &r);
	}
	CHECK(iod_reader_counts(rig.reader)->reads_short > 20);
	CHECK_EQ(iod_reader_counts(rig.reader)->reads_failed, 0);
	rig_free(&rig);
}

static void again(void)
{
	struct rig rig;
	struct rig_read r;

	start_small(&rig, "again=5");
	read_one(&rig, &r, 0, 1, 3 * MIB);
	CHECK_EQ(r.result, 0);
	rig_check(&rig, &r);
	CHECK(iod_reader_counts(rig.reader)->reads_retried > 3);
	rig_free(&rig);
}

static void eio_once(void)
{
	struct rig rig;
	struct rig_read r;

	start_small(&rig, "eio=0:1000000:1");
	read_one(&rig, &r, 0, 77, 2 * MIB);
	CHECK_EQ(r.result, 0);
	rig_check(&rig, &r);
	CHECK_EQ(iod_reader_counts(rig.reader)->reads_retried, 1);
	CHECK_EQ(iod_reader_counts(rig.reader)->reads_failed, 0);
	rig_free(&rig);
}

/* A sector that stays bad: the request fails when all its chunks have landed, nothing else does. */
static void eio_always(void)
{
	struct rig rig;
	struct rig_read bad = { 0 }, good = { 0 };
	CLEANUP(freep) uint8_t *copy = malloc(4 * MIB);

	start_small(&rig, "eio=0:1000000+1000:always");
	rig_add_segment(&bad, 1, 3, MIB - 3);
	rig_add_segment(&bad, 0, 5, 2 * MIB);
	rig_add_segment(&good, 0, 1200000, MIB);
	rig_submit(&rig, &bad, IOD_READ_DEMAND, rig.slab);
	rig_submit(&rig, &good, IOD_READ_TRUNK, rig.slab + 4 * MIB);
	rig_wait(&rig, &bad);
	CHECK_EQ(bad.result, -EIO);
	CHECK_EQ(bad.read.bad_file, 0);
	CHECK(bad.read.bad_offset <= 1000000 && bad.read.bad_offset + 64 * KIB > 1000000);
	/* The memory is quiet from now on. */
	CHECK(copy);
	memcpy(copy, rig.slab, 4 * MIB);
	rig_wait(&rig, &good);
	CHECK_EQ(good.result, 0);
	rig_check(&rig, &good);
	rig_run_for(&rig, 500 * 1000);
	CHECK(memcmp(copy, rig.slab, 4 * MIB) == 0);
	CHECK_EQ(iod_reader_counts(rig.reader)->reads_retried, 3);
	CHECK_EQ(iod_reader_counts(rig.reader)->reads_failed, 1);
	CHECK(iod_reader_is_idle(rig.reader, IOD_READ_BACKGROUND));
	rig_free(&rig);
}

/* While a chunk waits to be tried again, its neighbours land and the request is not done. */
static void failing_waits_for_the_slow(void)
{
	struct rig rig;
	struct rig_read r = { 0 };

	start_small(&rig, "slow=512K;eio=0:0:always");
	rig_add_segment(&r, 0, 0, 512 * KIB);
	rig_submit(&rig, &r, IOD_READ_DEMAND, rig.slab);
	while (r.read.result == 0)
		CHECK(sd_event_run(rig.event, UINT64_MAX) >= 0);
	rig_wait(&rig, &r);
	CHECK_EQ(r.result, -EIO);
	CHECK_EQ(r.read.n_in_flight, 0);
	rig_free(&rig);
}

static void file_was_cut(void)
{
	struct rig rig;
	struct rig_read r;

	start_small(&rig, NULL);
	CHECK_EQ(ftruncate(rig.files[0].fd, 2 * MIB + 100), 0);
	read_one(&rig, &r, 0, 2 * MIB - 300, 1000);
	CHECK_EQ(r.result, -ESTALE);
	read_one(&rig, &r, 0, 3 * MIB, 700);
	CHECK_EQ(r.result, -ESTALE);
	CHECK_EQ(r.read.bad_offset, 3 * MIB);
	rig_free(&rig);
}

/* Not a byte of a file that is another one by now, also where it can be read; others go on. */
static void file_has_changed(void)
{
	struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_sec = 1 } };
	struct rig rig;
	struct rig_read r;

	start_small(&rig, NULL);
	read_one(&rig, &r, 0, MIB, 512 * KIB);
	CHECK_EQ(r.result, 0);
	CHECK_EQ(iod_reader_find_changed(rig.reader), UINT32_MAX);
	CHECK_EQ(futimens(rig.files[0].fd, times), 0);
	read_one(&rig, &r, 0, MIB, 512 * KIB);
	CHECK_EQ(r.result, -ESTALE);
	CHECK_EQ(r.read.bad_file, 0);
	CHECK_EQ(iod_reader_find_changed(rig.reader), 0);
	rig_free(&rig);
}

static void slow_device(void)
{
	struct rig rig;
	struct rig_read r;
	double start_s, seconds;

	start_small(&rig, "slow=4M");
	start_s = rig_seconds();
	read_one(&rig, &r, 0, 0, 2 * MIB);
	seconds = rig_seconds() - start_s;
	CHECK_EQ(r.result, 0);
	CHECK_MSG(seconds > 0.49 && seconds < 2, "2 MiB at 4 MiB/s took %.3f s", seconds);
	rig_free(&rig);
}

static void stuck_and_freed(void)
{
	struct rig rig;
	struct rig_read r = { 0 }, good;

	start_small(&rig, "stuck=0:100");
	rig_add_segment(&r, 0, 0, MIB);
	rig_submit(&rig, &r, IOD_READ_DEMAND, rig.slab + 8 * MIB);
	read_one(&rig, &good, 1, 0, MIB);
	CHECK_EQ(good.result, 0);
	rig_run_for(&rig, 200 * 1000);
	CHECK(!r.is_done);
	CHECK(!iod_reader_is_idle(rig.reader, IOD_READ_DEMAND));
	rig_free(&rig);
}

static void freed_in_flight(void)
{
	struct rig rig;
	struct rig_read r = { 0 };

	start_small(&rig, NULL);
	rig_add_segment(&r, 0, 0, 3 * MIB);
	rig_submit(&rig, &r, IOD_READ_DEMAND, rig.slab);
	CHECK(sd_event_run(rig.event, 0) >= 0);
	rig.reader = iod_reader_free(rig.reader);
	memset(rig.slab, RIG_POISON, rig.slab_size);
	(void)usleep(100 * 1000);
	for (uint64_t i = 0; i < 4 * MIB; i++)
		CHECK_MSG(rig.slab[i] == RIG_POISON, "a read landed after the reader was freed");
	CHECK(!r.is_done);
	rig_free(&rig);
}

static uint32_t n_left;
static struct rig *storm_rig;

/* Bad only where the fault is: file 0, bytes 200000 to 201000. */
static void storm_done(struct iod_read *read, int result)
{
	struct rig_read *r = CONTAINER_OF(read, struct rig_read, read);
	bool is_bad = false;

	for (uint32_t i = 0; i < read->n_segments; i++) {
		const struct source_segment *s = &r->segments[i];
		uint64_t first = s->file_off / SLAB_PAGE * SLAB_PAGE;
		uint64_t end = (s->file_off + s->size + SLAB_PAGE - 1) / SLAB_PAGE * SLAB_PAGE;

		is_bad |= s->file == 0 && s->size > 0 && first < 201000 && end > 200000;
	}
	if (is_bad) {
		CHECK_EQ(result, -EIO);
		CHECK_EQ(read->bad_file, 0);
	} else {
		CHECK_EQ(result, 0);
		rig_check(storm_rig, r);
	}
	n_left--;
}

/* Everything at once: many requests of all classes, short reads, EAGAIN, EIO that stays. */
static void storm(void)
{
	struct rig rig;
	static struct rig_read r[100];

	/* 4 KiB chunks make most requests many chunks. The faults are so rare that no chunk meets
	 * one each time it is tried. */
	rig = (struct rig){ .settings = { .chunk = 4 * KIB, .queue_depth = 13 },
			    .slab_size = 64 * MIB };
	rig_add_file(&rig, test_tmpdir(), 3 * MIB + 777);
	rig_add_file(&rig, test_tmpdir(), MIB);
	rig_add_file(&rig, "/dev/shm", 500001);
	start(&rig, "short=101;again=67;eio=0:200000+1000:always");
	rig_register_all(&rig);
	storm_rig = &rig;
	n_left = N_ELEMENTS(r);
	for (uint32_t i = 0; i < N_ELEMENTS(r); i++) {
		uint32_t n = 1 + (uint32_t)rig_random(&rig, 8);

		for (uint32_t k = 0; k < n; k++) {
			uint32_t file = (uint32_t)rig_random(&rig, 3);
			uint64_t offset = rig_random(&rig, rig.files[file].size);
			uint64_t most = rig.files[file].size - offset;

			rig_add_segment(&r[i], file, offset,
					rig_random(&rig, most < 50000 ? most : 50000));
		}
		CHECK(r[i].dst_used < 600 * KIB);
		r[i].read.segments = r[i].segments;
		r[i].read.class = (enum iod_read_class)rig_random(&rig, IOD_READ_CLASS_N_);
		r[i].read.dst = rig.slab + i * 600 * KIB;
		r[i].read.dst_size = r[i].dst_used;
		r[i].read.done = storm_done;
		iod_reader_submit(rig.reader, &r[i].read);
		if (i % 10 == 9)
			iod_reader_promote(rig.reader, &r[i].read, IOD_READ_DEMAND);
	}
	while (n_left > 0)
		CHECK(sd_event_run(rig.event, 60 * 1000 * 1000) > 0);
	CHECK(iod_reader_is_idle(rig.reader, IOD_READ_BACKGROUND));
	CHECK(iod_reader_counts(rig.reader)->reads_failed > 0);
	rig_free(&rig);
}

static void bad_fault_text(void)
{
	static const char *const texts[] = { "eio",        "eio=0:1",   "eio=0:1:",  "eio=x:1:1",
					     "short=",     "short=3x",  "slow=4Q",   "no_uring=2",
					     "stuck=0:1:", "slow=-1",   "wrong=1",   "=",
					     "short=2;x",  "eio=0:+:1", "eio=0:1+:1" };

	for (size_t i = 0; i < N_ELEMENTS(texts); i++) {
		struct rig rig = { .settings.backend = TEST_BACKEND };

		CHECK_MSG(rig_start(&rig, texts[i]) == -EINVAL, "\"%s\" was taken", texts[i]);
		CHECK_EQ(rig.err.code, ERR_USAGE);
		CHECK(strstr(rig.err.text, "K3_IOD_FAULT"));
		rig_free(&rig);
	}
}

static void bad_settings(void)
{
	struct rig rig = { .settings = { .backend = TEST_BACKEND, .chunk = 5000 } };

	CHECK_EQ(rig_start(&rig, NULL), -EINVAL);
	CHECK_EQ(rig.err.code, ERR_USAGE);
	rig_free(&rig);
}

/* ---- machines that refuse ------------------------------------------------------------------ */

static void no_direct(void)
{
	struct rig rig;
	struct rig_read r;

	start_small(&rig, "no_direct=1");
	CHECK(strstr(iod_reader_describe(rig.reader), "buffered"));
	read_one(&rig, &r, 0, 4097, 2 * MIB);
	CHECK_EQ(r.result, 0);
	rig_check(&rig, &r);
	rig_free(&rig);
}

static void limit_memlock(rlim_t bytes)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2] = { { 0 } };
	struct rlimit limit = { bytes, bytes };

	CHECK_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
	CHECK_EQ(syscall(SYS_capset, &header, caps), 0);
}

/* Registration refused, first on purpose, then by a real memlock limit without CAP_IPC_LOCK. */
static void no_registration(void)
{
	struct rig_read r;

	for (int round = 0; round < 2; round++) {
		struct rig rig;

		if (round == 1)
			limit_memlock(8 * MIB);
		start_small(&rig, round == 0 ? "no_register=1" : NULL);
		rig_register_all(&rig);
		if (rig.settings.backend == IOD_BACKEND_URING) {
			CHECK(strstr(iod_reader_describe(rig.reader), "0 of 1 buffers registered"));
			CHECK(strstr(iod_reader_describe(rig.reader), "memlock limit"));
		}
		read_one(&rig, &r, 0, 4097, 2 * MIB);
		CHECK_EQ(r.result, 0);
		rig_check(&rig, &r);
		rig_free(&rig);
	}
}

/* A sandbox as containers have it: the ring's calls give error. */
static void forbid_rings(uint32_t error)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, SYS_io_uring_setup, 0, 2),
		BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SYS_io_uring_register, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = N_ELEMENTS(filter), .filter = filter };

	CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	CHECK_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

static void no_ring_but_auto(const char *faults, const char *words)
{
	struct rig rig;
	struct rig_read r;

	rig = (struct rig){ .settings = { .chunk = 64 * KIB, .backend = IOD_BACKEND_URING } };
	rig_add_file(&rig, test_tmpdir(), 3 * MIB + 777);
	CHECK_EQ(rig_start(&rig, faults), -ENOTSUP);
	CHECK_EQ(rig.err.code, ERR_UNSUPPORTED);
	CHECK_MSG(strstr(rig.err.text, words), "%s", rig.err.text);
	rig_stop(&rig);
	rig.settings.backend = IOD_BACKEND_AUTO;
	CHECK_EQ(rig_start(&rig, faults), 0);
	CHECK(strstr(iod_reader_describe(rig.reader), words));
	CHECK(strncmp(iod_reader_describe_short(rig.reader), "threads", 7) == 0);
	read_one(&rig, &r, 0, 4097, 2 * MIB);
	CHECK_EQ(r.result, 0);
	rig_check(&rig, &r);
	rig_free(&rig);
}

static void no_uring(void)
{
	no_ring_but_auto("no_uring=1", "no io_uring");
}

static void sandboxed(void)
{
	forbid_rings(EPERM);
	no_ring_but_auto(NULL, "no io_uring");
}

static void old_kernel(void)
{
	forbid_rings(ENOSYS);
	no_ring_but_auto(NULL, "no io_uring");
}

/* Many small chunks that all complete while the loop is away: what tells of them tells once, and
 * one look does not collect them all. */
static void read_crowd(struct rig *rig)
{
	struct rig_read r = { 0 };

	memset(rig->slab, RIG_POISON, rig->slab_size);
	rig_add_segment(&r, 0, 4097, 3 * MIB - 8192);
	rig_submit(rig, &r, IOD_READ_DEMAND, rig->slab);
	CHECK(sd_event_run(rig->event, 0) >= 0); /* starts them */
	(void)usleep(50 * 1000);
	rig_wait(rig, &r);
	CHECK_EQ(r.result, 0);
	rig_check(rig, &r);
}

/* Kernels that know fewer kinds of ring: each says which it is and why not a better one. */
static void older_rings(void)
{
	static const char *const words[] = {
		"cooperative completions; no deferred completions: kernel too old",
		("plain ring; no deferred completions: kernel too old; no cooperative completions: "
		 "kernel too old"),
		"no io_uring: Invalid argument",
	};

	if (TEST_BACKEND != IOD_BACKEND_URING)
		test_skip("threads have no rings");
	for (uint32_t n = 0; n <= N_ELEMENTS(words); n++) {
		struct rig rig = { .settings = { .chunk = 4 * KIB, .queue_depth = 128 } };
		char fault[32];

		(void)snprintf(fault, sizeof(fault), "old_uring=%u", n);
		rig_add_file(&rig, test_tmpdir(), 3 * MIB + 777);
		CHECK_MSG(rig_start(&rig, fault) == 0, "%s", rig.err.text);
		rig_register_all(&rig);
		if (n > 0)
			CHECK_MSG(strstr(iod_reader_describe(rig.reader), words[n - 1]), "%s",
				  iod_reader_describe(rig.reader));
		for (int i = 0; i < 10; i++)
			read_crowd(&rig);
		rig_free(&rig);
	}
}

/* Without any lockable memory newer kernels refuse the ring itself. */
static void no_memlock(void)
{
	struct rig rig = { .settings = { .chunk = 64 * KIB } };
	struct rig_read r;

	limit_memlock(0);
	rig_add_file(&rig, test_tmpdir(), 3 * MIB + 777);
	CHECK_EQ(rig_start(&rig, NULL), 0);
	rig_register_all(&rig);
	CHECK(strstr(iod_reader_describe(rig.reader), "memlock limit 0 KiB"));
	read_one(&rig, &r, 0, 4097, 2 * MIB);
	CHECK_EQ(r.result, 0);
	rig_check(&rig, &r);
	rig_free(&rig);
}

static const struct test_case cases[] = {
	{ "short_reads", short_reads },
	{ "again", again },
	{ "eio_once", eio_once },
	{ "eio_always", eio_always },
	{ "failing_waits_for_the_slow", failing_waits_for_the_slow },
	{ "file_was_cut", file_was_cut },
	{ "file_has_changed", file_has_changed },
	{ "slow_device", slow_device },
	{ "stuck_and_freed", stuck_and_freed },
	{ "freed_in_flight", freed_in_flight },
	{ "storm", storm },
	{ "bad_fault_text", bad_fault_text },
	{ "bad_settings", bad_settings },
	{ "no_direct", no_direct },
	{ "no_registration", no_registration },
	{ "no_uring", no_uring },
	{ "sandboxed", sandboxed },
	{ "old_kernel", old_kernel },
	{ "older_rings", older_rings },
	{ "no_memlock", no_memlock },
};

TEST_MAIN(cases)
