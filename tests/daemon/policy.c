/* The eviction policy against a plain list of uses. */
#include "iod/policy.h"

#include "tests/harness/test.h"

enum { SLOTS = 16 };

static bool held[SLOTS];
static bool may(void *data, uint32_t slot)
{
	(void)data;
	return !held[slot];
}

static uint64_t state = 88172645463325252ull;
static uint32_t draw(uint32_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)((state >> 16) % below);
}

static void against_times_of_use(void)
{
	struct iod_policy *p = iod_policy_lru.new(SLOTS);
	uint64_t used[SLOTS] = { 0 }; /* 0: empty */

	CHECK(p);
	for (uint64_t now = 1; now < 20000; now++) {
		uint32_t slot = draw(SLOTS), want = UINT32_MAX;

		if (draw(5) == 0)
			held[slot] = !held[slot];
		if (used[slot] == 0) {
			iod_policy_lru.admit(p, slot, 1, draw(800));
			used[slot] = now;
		} else if (draw(4) == 0) {
			iod_policy_lru.remove(p, slot);
			used[slot] = 0;
		} else {
			iod_policy_lru.touch(p, slot);
			used[slot] = now;
		}
		for (uint32_t i = 0; i < SLOTS; i++)
			if (used[i] > 0 && !held[i] && (want == UINT32_MAX || used[i] < used[want]))
				want = i;
		CHECK_EQ(iod_policy_lru.victim(p, may, NULL), want);
	}
	CHECK(iod_policy_lru.free(p) == NULL && iod_policy_lru.free(NULL) == NULL);
}

static const struct test_case cases[] = {
	{ "against times of use", against_times_of_use },
};
TEST_MAIN(cases)
