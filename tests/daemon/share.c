/*
 * The decisions of sweep sharing over times and positions that the test makes up: a sweep of 100 MB
 * that the disks deliver in a second, through a ring of 8 MB.
 */
#include "iod/share.h"

#include "tests/harness/test.h"

enum { MB = 1000000, LENGTH = 100 * MB, WINDOW = 8 * MB, SECOND = 1000000 };

/* So many steps of 10 ms in which the disks brought 1 MB, or stood still. */
static void pass(struct iod_share_pace *p, int n_busy, int n_idle)
{
	while (n_busy-- > 0)
		iod_share_pace_add(p, SECOND / 100, true, MB, LENGTH);
	while (n_idle-- > 0)
		iod_share_pace_add(p, SECOND / 100, false, 0, LENGTH);
}

static struct iod_share_way at(uint64_t mb)
{
	return (struct iod_share_way){
		.at = mb * MB, .ahead = mb * MB + WINDOW / 4, .length = LENGTH, .goes_on = true
	};
}

static uint64_t hold(const struct iod_share_way *c, const struct iod_share_way *q, uint64_t left)
{
	struct iod_share_pace p = { 0 };

	pass(&p, 100, 0);
	return iod_share_hold_usec(c, q, 1, &p, WINDOW, left);
}

static void pace(void)
{
	struct iod_share_pace p = { 0 };

	CHECK_EQ(iod_share_usec(&p, MB), 0);
	CHECK(!iod_share_is_short(&p));
	pass(&p, 50, 0);
	CHECK_EQ(iod_share_usec(&p, LENGTH), SECOND);
	CHECK(iod_share_is_short(&p));
	/* what disks do while nothing is wanted of them says nothing of their pace, but sharing
	 * pays no longer */
	pass(&p, 0, 100);
	CHECK_EQ(iod_share_usec(&p, LENGTH), SECOND);
	CHECK(!iod_share_is_short(&p));
	/* the past is forgotten: ten sweeps later the disks are half as fast */
	for (int i = 0; i < 2000; i++)
		iod_share_pace_add(&p, SECOND / 100, true, MB / 2, LENGTH);
	CHECK(iod_share_usec(&p, LENGTH) > 2 * SECOND - SECOND / 10);
	CHECK(iod_share_is_short(&p));
}

static void newcomer_waits(void)
{
	struct iod_share_way c = at(0), q = at(70);

	CHECK_EQ(hold(&c, &q, SECOND), 300000);
	/* not for longer than it may */
	CHECK_EQ(hold(&c, &q, 299999), 0);
	CHECK_EQ(hold(&c, &q, 300000), 300000);
	q.goes_on = false;
	CHECK_EQ(hold(&c, &q, SECOND), 0);
	q = at(70);
	q.is_held = true;
	CHECK_EQ(hold(&c, &q, SECOND), 0);
	q = at(70);
	q.has_fallen = true;
	CHECK_EQ(hold(&c, &q, SECOND), 0);
	q = at(70);
	c.has_fallen = true;
	CHECK_EQ(hold(&c, &q, SECOND), 0);
	c = at(0);
	q.length = LENGTH / 2;
	CHECK_EQ(hold(&c, &q, SECOND), 0);
}

static void in_phase_nobody_waits(void)
{
	struct iod_share_way c = at(0), q = at(3);

	/* q is just ahead, and c finds what it has read; or q comes round in a moment */
	CHECK_EQ(hold(&c, &q, SECOND), 0);
	q = at(100);
	CHECK_EQ(hold(&c, &q, SECOND), 0);
	q = at(97);
	c.ahead = 0;
	CHECK_EQ(hold(&c, &q, SECOND), 0);
	q = at(95);
	CHECK_EQ(hold(&c, &q, SECOND), 50000);
}

static void the_last_that_pays(void)
{
	struct iod_share_way c = at(0), others[] = { at(80), at(40), at(90) };
	struct iod_share_pace p = { 0 };

	pass(&p, 100, 0);
	CHECK_EQ(iod_share_hold_usec(&c, others, 3, &p, WINDOW, SECOND), 600000);
	CHECK_EQ(iod_share_hold_usec(&c, others, 3, &p, WINDOW, SECOND / 2), 200000);
	CHECK_EQ(iod_share_hold_usec(&c, others, 3, &p, WINDOW, SECOND / 20), 0);
	/* disks that stand still half of the time are not what clients wait for */
	pass(&p, 0, 100);
	CHECK_EQ(iod_share_hold_usec(&c, others, 3, &p, WINDOW, SECOND), 0);
}

static void who_rides(void)
{
	struct iod_share_way front = at(50), behind = at(46), far = at(40), next = at(98);

	CHECK(iod_share_is_behind(&behind, &front, WINDOW));
	CHECK(!iod_share_is_behind(&front, &behind, WINDOW));
	CHECK(!iod_share_is_behind(&far, &front, WINDOW));
	behind.has_fallen = true;
	CHECK(!iod_share_is_behind(&behind, &front, WINDOW));
	/* over the end of the sweep: the one in front has begun the next, or reads ahead into it */
	front = at(1);
	CHECK(iod_share_is_behind(&next, &front, WINDOW));
	front = at(99);
	CHECK(iod_share_is_behind(&next, &front, WINDOW));
	/* a ring that holds more than half of it: one is behind the other, not each behind each */
	front = at(60);
	behind = at(20);
	CHECK(iod_share_is_behind(&behind, &front, LENGTH));
	CHECK(!iod_share_is_behind(&front, &behind, LENGTH));
}

static void limits(void)
{
	struct iod_share_pace p = { 0 };
	uint32_t last = 0;

	CHECK(iod_share_patience_usec(&p, LENGTH) > 0);
	pass(&p, 100, 0);
	CHECK_EQ(iod_share_patience_usec(&p, LENGTH), SECOND / 8);
	CHECK_EQ(iod_share_pause(0), 0);
	CHECK_EQ(iod_share_pause(1), 0);
	for (uint32_t n = 2; n < 100; n++) {
		CHECK(iod_share_pause(n) >= last && iod_share_pause(n) <= 31);
		last = iod_share_pause(n);
	}
	CHECK_EQ(last, 31);
}

static const struct test_case cases[] = {
	{ "pace", pace },
	{ "a newcomer waits", newcomer_waits },
	{ "in phase nobody waits", in_phase_nobody_waits },
	{ "the last that pays", the_last_that_pays },
	{ "who rides", who_rides },
	{ "limits", limits },
};
TEST_MAIN(cases)
