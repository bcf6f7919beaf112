/*
 * The decoder of untrusted bytes against packets written by hand (golden.txt), against the same
 * packets with one field broken, cut and mangled, and the connection with its descriptors.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "proto/conn.h"
#include "shared/attr.h"
#include "tests/harness/test.h"

enum { PACKET_MAX = 4096, TYPE_MAX_ = 14 };

struct packet {
	size_t size;
	uint8_t bytes[PACKET_MAX];
};

static void parse_word(const char *word, struct packet *p)
{
	unsigned value, n;

	if (sscanf(word, "00*%u", &n) == 1) {
		CHECK(p->size + n <= PACKET_MAX);
		memset(p->bytes + p->size, 0, n);
		p->size += n;
		return;
	}
	for (; *word; word += 2) {
		CHECK(sscanf(word, "%2x", &value) == 1 && p->size < PACKET_MAX);
		p->bytes[p->size++] = (uint8_t)value;
	}
}

static void golden(const char *name, struct packet *ret)
{
	FILE *f = fopen(test_source("tests/daemon/golden.txt"), "r");
	char line[8192], *save = NULL;

	CHECK(f);
	ret->size = 0;
	while (fgets(line, sizeof(line), f)) {
		char *word = strtok_r(line, " \n", &save);

		if (!word || strcmp(word, name) != 0)
			continue;
		while ((word = strtok_r(NULL, " \n", &save)))
			parse_word(word, ret);
	}
	fclose(f);
	CHECK_MSG(ret->size > 0, "golden.txt has no %s", name);
}

static enum proto_direction sender(const struct packet *p)
{
	return proto_direction(p->bytes[4]);
}

/* Descriptors that the golden packet would come with. */
static uint32_t fds_of(const struct packet *p)
{
	return p->bytes[4] == PROTO_WELCOME ? 5 : 0;
}

static int check_packet(const struct packet *p, struct proto_message *m, struct err *err)
{
	/* exact heap copy, so that a read past the end is seen by the sanitizer and valgrind */
	uint8_t *copy = malloc(p->size ? p->size : 1);
	int r;

	CHECK(copy);
	memcpy(copy, p->bytes, p->size);
	r = proto_check(copy, p->size, fds_of(p), sender(p), m, err);
	if (r == 0 && m->tail_size > 0)
		m->tail = p->bytes + (m->tail - copy);
	free(copy);
	return r;
}

static void decode(const char *name, struct packet *p, struct proto_message *m)
{
	struct err err = { 0 };
	uint8_t again[PACKET_MAX];
	int r;

	golden(name, p);
	r = check_packet(p, m, &err);
	CHECK_MSG(r == 0, "%s: %s", name, err.text);
	CHECK_STR(proto_name(m->type), name);
	CHECK_EQ(proto_packet_size(m), p->size);
	CHECK_EQ(proto_encode(m, again), p->size);
	CHECK_MSG(memcmp(again, p->bytes, p->size) == 0, "%s encodes to other bytes", name);
}

static void opening(void)
{
	struct proto_message m;
	struct packet p;

	decode("HELLO", &p, &m);
	CHECK_EQ(m.body.hello.version_min, 1);
	CHECK_EQ(m.body.hello.version_max, 3);
	CHECK(m.body.hello.compat == 0x0102030405060708 && m.body.hello.incompat == 0);
	CHECK_EQ(m.body.hello.pid, 4242);
	CHECK_STR(m.body.hello.name, "k3 0.1.0");
	decode("WELCOME", &p, &m);
	CHECK_EQ(m.body.welcome.version, 1);
	CHECK_EQ(m.body.welcome.has, 3);
	CHECK_EQ(m.body.welcome.compat, 0x11);
	for (int i = 0; i < 16; i++)
		CHECK_EQ(m.body.welcome.model_digest[i], i);
	CHECK_EQ(m.body.welcome.slab_size, 0x200000);
	CHECK_EQ(m.body.welcome.catalog_size, 0x3000);
	CHECK_EQ(m.body.welcome.trunk_pinned_size, 0x44);
	CHECK_EQ(m.body.welcome.ring_size, 0x55);
	CHECK_EQ(m.body.welcome.slots_size, 0x66);
	CHECK_EQ(m.body.welcome.daemon_private_size, 0x77);
	CHECK_EQ(m.body.welcome.n_slots, 8);
	CHECK_EQ(m.body.welcome.tile_window, 32);
	CHECK_EQ(m.body.welcome.expert_window, 256);
	CHECK_EQ(m.body.welcome.client, 7);
	CHECK_STR(m.body.welcome.backend, "io_uring, O_DIRECT");
}

static void tiles(void)
{
	struct proto_message m;
	struct packet p;

	decode("SWEEP", &p, &m);
	CHECK_EQ(m.body.sweep.sweep, 5);
	CHECK_EQ(m.body.sweep.first_tile, 6);
	CHECK_EQ(m.body.sweep.n_layers, 93);
	CHECK_EQ(m.body.sweep.flags, WIRE_SWEEP_HEAD | WIRE_SWEEP_AGAIN);
	decode("TILE_READY", &p, &m);
	CHECK_EQ(m.body.tile_ready.sweep, 5);
	CHECK_EQ(m.body.tile_ready.tile, 6);
	CHECK_EQ(m.body.tile_ready.generation, 7);
	CHECK_EQ(m.body.tile_ready.flags, WIRE_TILE_PINNED);
	CHECK_EQ(m.body.tile_ready.offset, 0x123456000);
	CHECK_EQ(m.body.tile_ready.bytes_read, 0x2000001);
	decode("TILE_DONE", &p, &m);
	CHECK_EQ(m.body.tile_done.sweep, 5);
	CHECK_EQ(m.body.tile_done.tile, 6);
}

static void rows_and_experts(void)
{
	struct proto_message m;
	struct packet p;

	decode("ROWS", &p, &m);
	CHECK_EQ(m.body.rows.serial, 9);
	CHECK_EQ(m.body.rows.n, 3);
	CHECK(m.body.rows.ids[0] == 1 && m.body.rows.ids[1] == 2 && m.body.rows.ids[2] == 163839);
	decode("ROW", &p, &m);
	CHECK_EQ(m.body.row.index, 2);
	CHECK_EQ(m.body.row.id, 163839);
	CHECK_EQ(m.tail_size, 5);
	CHECK(memcmp(m.tail, "\1\2\3\4\5", 5) == 0);
	decode("EXPERTS", &p, &m);
	CHECK_EQ(m.body.experts.layer, 92);
	CHECK_EQ(m.body.experts.n, 4);
	CHECK_EQ(m.body.experts.step, 77);
	CHECK(m.body.experts.ids[1] == 1 && m.body.experts.ids[2] == 300 &&
	      m.body.experts.ids[3] == 895);
	decode("HINT", &p, &m);
	CHECK_EQ(m.body.experts.ids[0], 895);
	decode("EXPERT_READY", &p, &m);
	CHECK_EQ(m.body.expert_ready.layer, 92);
	CHECK_EQ(m.body.expert_ready.expert, 895);
	CHECK_EQ(m.body.expert_ready.step, 77);
	CHECK_EQ(m.body.expert_ready.slot, 12);
	CHECK_EQ(m.body.expert_ready.generation, 13);
	CHECK_EQ(m.body.expert_ready.offset, 0x4000000000);
	CHECK_EQ(m.body.expert_ready.bytes_read, 17547264);
	for (int i = 0; i < 6; i++)
		CHECK_EQ(m.body.expert_ready.part_off[i], i * 4096);
	decode("EXPERT_DONE", &p, &m);
	CHECK_EQ(m.body.expert_done.slot, 12);
	CHECK_EQ(m.body.expert_done.generation, 13);
}

static void counters_and_errors(void)
{
	struct proto_message m;
	struct packet p;

	decode("STATS", &p, &m);
	decode("STATS_REPLY", &p, &m);
	CHECK_EQ(m.body.stats_reply.n, 3);
	CHECK(m.body.stats_reply.values[0] == 1 && m.body.stats_reply.values[1] == 1ull << 63);
	decode("ERROR", &p, &m);
	CHECK_EQ(m.body.error.code, ERR_EXPERT);
	CHECK_EQ(m.body.error.class, ERR_CLASS_FATAL);
	CHECK_EQ(m.body.error.request, PROTO_EXPERTS);
	CHECK_EQ(m.body.error.a, 92);
	CHECK_EQ(m.body.error.b, 895);
	CHECK(m.tail_size == 6 && memcmp(m.tail, "broken", 6) == 0);
	decode("VIEW", &p, &m);
	decode("VIEW_REPLY", &p, &m);
	CHECK(m.tail_size == 2 && memcmp(m.tail, "{}", 2) == 0);
}

/* One 32-bit word (64-bit ones: their low half) of a golden packet changed: what must be said. */
static const struct broken {
	const char *name;
	size_t offset;
	uint32_t value;
	const char *says;
} broken[] = {
	{ "HELLO", 0, 73, "size" },
	{ "HELLO", 4, 99, "unknown message" },
	{ "HELLO", 4, 0, "unknown message" },
	{ "HELLO", 4, 1u << 16 | 1, "reserved" },
	{ "HELLO", 4, PROTO_STATS, "tail" },
	{ "HELLO", 8, 0, "version_min" },
	{ "HELLO", 12, 0, "version_max" },
	{ "HELLO", 36, 1, "reserved" },
	{ "HELLO", 40, 0x0a0a0a0a, "name" },
	{ "HELLO", 68, 1, "name" },
	{ "WELCOME", 8, 2, "version" },
	{ "WELCOME", 12, 7, "has" },
	{ "WELCOME", 12, 1, "descriptors" },
	{ "WELCOME", 24, 1, "incompat" },
	{ "WELCOME", 48, 5, "slab_size" },
	{ "WELCOME", 56, 0, "catalog_size" },
	{ "WELCOME", 100, 2, "tile_window" },
	{ "WELCOME", 104, 1, "expert_window" },
	{ "WELCOME", 112, 0x01010101, "backend" },
	{ "WELCOME", 144, 1, "reserved" },
	{ "WELCOME", 152, 1, "reserved" },
	{ "SWEEP", 20, 4, "flags" },
	{ "TILE_READY", 20, 2, "flags" },
	{ "TILE_READY", 24, 0x1001, "offset" },
	{ "ROWS", 12, 0, "n is" },
	{ "ROWS", 12, 129, "n is" },
	{ "ROWS", 524, 1, "zero after n" },
	{ "ROW", 12, 128, "index" },
	{ "ROW", 20, 6, "tail" },
	{ "ROW", 20, 4, "tail" },
	{ "ROW", 20, 0, "tail" },
	{ "EXPERTS", 12, 0, "n is" },
	{ "EXPERTS", 12, 0xffffffff, "n is" },
	{ "EXPERTS", 12, 3, "zero after n" },
	{ "EXPERTS", 20, 1, "reserved" },
	{ "HINT", 12, 129, "n is" },
	{ "HINT", 20, 1, "reserved" },
	{ "HINT", 276, 1, "zero after n" },
	{ "EXPERT_READY", 28, 1, "reserved" },
	{ "EXPERT_READY", 32, 1, "offset" },
	{ "STATS", 8, 1, "reserved" },
	{ "STATS", 12, 1, "reserved" },
	{ "STATS_REPLY", 8, 65, "n is" },
	{ "STATS_REPLY", 8, 1, "zero after n" },
	{ "STATS_REPLY", 12, 1, "reserved" },
	{ "ERROR", 8, 0, "code" },
	{ "ERROR", 12, 2, "class" },
	{ "ERROR", 16, 99, "request" },
	{ "ERROR", 20, 2, "flags" },
	{ "ERROR", 32, 7, "tail" },
	{ "VIEW", 8, 1, "reserved" },
	{ "VIEW_REPLY", 8, 3, "tail" },
	{ "VIEW_REPLY", 12, 1, "reserved" },
	{ "ERROR", 36, 1, "reserved" },
	{ "ERROR", 40, 0, "NUL" },
};

static void one_field_wrong(void)
{
	for (size_t i = 0; i < N_ELEMENTS(broken); i++) {
		const struct broken *b = &broken[i];
		struct proto_message m;
		struct err err = { 0 };
		struct packet p;

		golden(b->name, &p);
		CHECK(b->offset + 4 <= p.size);
		for (int k = 0; k < 4; k++)
			p.bytes[b->offset + k] = (uint8_t)(b->value >> 8 * k);
		/* a changed type keeps its sender: only the type is wrong */
		CHECK_MSG(proto_check(p.bytes, p.size, strcmp(b->name, "WELCOME") == 0 ? 5 : 0,
				      strcmp(b->name, "HELLO") == 0 ? PROTO_C2D : sender(&p), &m,
				      &err) < 0,
			  "%s with %u at %zu was accepted", b->name, b->value, b->offset);
		CHECK_EQ(err.code, ERR_PROTOCOL);
		CHECK_MSG(strstr(err.text, b->says), "%s at %zu: \"%s\" does not say \"%s\"",
			  b->name, b->offset, err.text, b->says);
	}
}

static void cut_and_extended(void)
{
	for (int type = 1; type <= TYPE_MAX_; type++) {
		struct packet whole, p;

		golden(proto_name(type), &whole);
		for (size_t size = 0; size < whole.size; size++) {
			struct proto_message m;
			struct err err = { 0 };

			p = whole;
			p.size = size;
			CHECK_MSG(check_packet(&p, &m, &err) < 0, "%s cut to %zu was accepted",
				  proto_name(type), size);
			/* a header that agrees with the cut does not help */
			p.bytes[0] = (uint8_t)size;
			p.bytes[1] = (uint8_t)(size >> 8);
			err_clear(&err);
			CHECK_MSG(check_packet(&p, &m, &err) < 0, "%s of %zu was accepted",
				  proto_name(type), size);
		}
		p = whole;
		p.size++;
		p.bytes[0]++;
		CHECK(check_packet(&p, &(struct proto_message){ 0 }, NULL) < 0);
	}
}

static void direction_and_descriptors(void)
{
	for (int type = 1; type <= TYPE_MAX_; type++) {
		struct proto_message m;
		struct err err = { 0 };
		struct packet p;

		golden(proto_name(type), &p);
		CHECK(proto_check(p.bytes, p.size, fds_of(&p),
				  sender(&p) == PROTO_C2D ? PROTO_D2C : PROTO_C2D, &m, &err) < 0);
		CHECK(strstr(err.text, "direction"));
		err_clear(&err);
		CHECK(proto_check(p.bytes, p.size, fds_of(&p) + 1, sender(&p), &m, &err) < 0);
		CHECK(strstr(err.text, "descriptors"));
	}
}

static uint64_t random_state = 88172645463325252ull;
static uint32_t random_u32(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state >> 16);
}

/* Mangled packets: no crash, and what is accepted encodes to itself. */
static void mangled(void)
{
	uint8_t again[PACKET_MAX];
	unsigned accepted = 0;

	for (int type = 1; type <= TYPE_MAX_; type++) {
		struct packet whole;

		golden(proto_name(type), &whole);
		for (int round = 0; round < 3000; round++) {
			struct packet p = whole;
			struct proto_message m;

			for (int n = 1 + (int)(random_u32() % 3); n > 0; n--)
				p.bytes[random_u32() % p.size] ^= (uint8_t)(1u << random_u32() % 8);
			if (check_packet(&p, &m, NULL) < 0)
				continue;
			accepted++;
			CHECK_EQ(proto_encode(&m, again), p.size);
			CHECK(memcmp(again, p.bytes, p.size) == 0);
		}
	}
	CHECK(accepted > 0);
}

static void agreement(void)
{
	struct wire_hello hello = { .version_min = 1, .version_max = 7 };
	struct err err = { 0 };
	uint32_t version = 0;

	CHECK(proto_hello_agree(&hello, &version, &err) == 0);
	CHECK_EQ(version, 1);
	hello.compat = 1u << 30; /* may be ignored */
	CHECK(proto_hello_agree(&hello, &version, &err) == 0);
	hello.incompat = 1;
	CHECK(proto_hello_agree(&hello, &version, &err) < 0);
	CHECK(err.code == ERR_VERSION && strstr(err.text, "features 0x1"));
	hello.incompat = 0;
	hello.version_min = 2;
	err_clear(&err);
	CHECK(proto_hello_agree(&hello, &version, &err) < 0);
	CHECK(err.code == ERR_VERSION && strstr(err.text, "2 to 7") && strstr(err.text, "1 to 1"));
}

/* ---- the connection -------------------------------------------------------------------------- */

static void make_pair(struct proto_conn **client, struct proto_conn **daemon)
{
	int fds[2];

	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
	CHECK(proto_conn_new(client, fds[0], PROTO_C2D) == 0);
	CHECK(proto_conn_new(daemon, fds[1], PROTO_D2C) == 0);
}

static void descriptors_travel(void)
{
	struct proto_conn *client, *daemon;
	struct proto_message m, got;
	struct err err = { 0 };
	struct packet p;
	char byte;
	int pipes[2];

	make_pair(&client, &daemon);
	decode("WELCOME", &p, &m);
	CHECK(pipe(pipes) == 0 && write(pipes[1], "x", 1) == 1);
	m.n_fds = 5;
	for (int i = 0; i < 5; i++)
		m.fds[i] = pipes[0];
	CHECK_EQ(proto_conn_send(daemon, &m, false), 0);
	CHECK_EQ(proto_conn_receive(client, &got, false, &err), 0);
	CHECK_EQ(got.n_fds, 5);
	for (int i = 0; i < 5; i++) {
		CHECK(got.fds[i] > 2 && got.fds[i] != pipes[0]);
		CHECK((fcntl(got.fds[i], F_GETFD) & FD_CLOEXEC) != 0);
	}
	CHECK(read(got.fds[4], &byte, 1) == 1 && byte == 'x');
	proto_message_close_fds(&got);
	CHECK_EQ(got.n_fds, 0);
	CHECK_EQ(proto_conn_receive(client, &got, false, &err), PROTO_AGAIN);
	proto_conn_freep(&daemon);
	CHECK_EQ(proto_conn_receive(client, &got, true, &err), PROTO_CLOSED);
	CHECK_EQ(proto_conn_send(client, &(struct proto_message){ .type = PROTO_STATS }, true),
		 PROTO_CLOSED);
	proto_conn_freep(&client);
	close(pipes[0]);
	close(pipes[1]);
}

/* Raw bytes with n copies of descriptor 0. */
static void send_raw(int fd, const void *bytes, size_t size, int n)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int) * 64)];
		struct cmsghdr align;
	} control = { .bytes = { 0 } };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = size };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (n > 0) {
		struct cmsghdr *cmsg;
		int fds[64] = { 0 };

		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)n);
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)n);
		memcpy(CMSG_DATA(cmsg), fds, sizeof(int) * (size_t)n);
	}
	CHECK(sendmsg(fd, &msg, 0) == (ssize_t)size);
}

static unsigned count_fds(void)
{
	unsigned n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void unwanted_descriptors_are_closed(void)
{
	struct proto_conn *client, *daemon;
	struct proto_message m;
	struct packet p;
	unsigned before;

	make_pair(&client, &daemon);
	golden("STATS", &p);
	before = count_fds();
	for (int n = 1; n <= 60; n += 7) {
		struct err err = { 0 };

		send_raw(proto_conn_fd(client), p.bytes, p.size, n);
		CHECK(proto_conn_receive(daemon, &m, false, &err) < 0);
		CHECK_EQ(err.code, ERR_PROTOCOL);
		CHECK_EQ(count_fds(), before);
	}
	proto_conn_freep(&client);
	proto_conn_freep(&daemon);
}

static void too_large_and_garbage(void)
{
	static uint8_t big[200000];
	struct proto_conn *client, *daemon;
	struct proto_message m;
	struct err err = { 0 };
	struct packet p;

	make_pair(&client, &daemon);
	send_raw(proto_conn_fd(client), big, 5000, 0);
	CHECK(proto_conn_receive(daemon, &m, false, &err) < 0 && err.code == ERR_PROTOCOL);
	err_clear(&err);
	send_raw(proto_conn_fd(daemon), big, sizeof(big), 0);
	CHECK(proto_conn_receive(client, &m, false, &err) < 0 && err.code == ERR_PROTOCOL);
	err_clear(&err);
	/* the largest row there can be passes */
	m = (struct proto_message){ .type = PROTO_ROW, .tail = big, .tail_size = PROTO_TAIL_MAX };
	m.body.row.size = PROTO_TAIL_MAX;
	CHECK_EQ(proto_conn_send(daemon, &m, false), 0);
	CHECK_EQ(proto_conn_receive(client, &m, false, &err), 0);
	CHECK_EQ(m.tail_size, PROTO_TAIL_MAX);
	/* what this side must not send is not sent */
	golden("STATS", &p);
	m = (struct proto_message){ .type = PROTO_STATS };
	CHECK(proto_conn_send(daemon, &m, false) < 0);
	proto_conn_freep(&client);
	proto_conn_freep(&daemon);
}

/* A full socket says so and loses nothing. */
static void full_socket(void)
{
	struct proto_conn *client, *daemon;
	struct proto_message m = { .type = PROTO_STATS }, got;
	unsigned sent = 0, received = 0;

	make_pair(&client, &daemon);
	while (proto_conn_send(client, &m, false) == 0)
		CHECK(++sent < 1000000);
	CHECK(sent > 100);
	CHECK_EQ(proto_conn_send(client, &m, false), PROTO_AGAIN);
	while (proto_conn_receive(daemon, &got, false, NULL) == 0)
		received++;
	CHECK_EQ(received, sent);
	proto_conn_freep(&client);
	proto_conn_freep(&daemon);
}

static const struct test_case cases[] = {
	{ "golden: opening", opening },
	{ "golden: tiles", tiles },
	{ "golden: rows and experts", rows_and_experts },
	{ "golden: counters and errors", counters_and_errors },
	{ "one field wrong", one_field_wrong },
	{ "cut and extended", cut_and_extended },
	{ "direction and descriptors", direction_and_descriptors },
	{ "mangled", mangled },
	{ "agreement on a version", agreement },
	{ "descriptors travel", descriptors_travel },
	{ "unwanted descriptors are closed", unwanted_descriptors_are_closed },
	{ "too large, and garbage", too_large_and_garbage },
	{ "full socket", full_socket },
};
TEST_MAIN(cases)
