/*
 * Ids recorded elsewhere: strings encoded by the reference tokenizer, prompts rendered and encoded
 * by public test suites of the model, and the ids printed in the description of the chat format.
 */
#include "tests/text/vocabularies.h"

/* Segments of a rendered prompt (tag, attributes, content), each encoded by itself. */
static void encode_tag(struct k3_tokenizer *t, const char **at, struct k3_ids *ids)
{
	const char *p = *at, *end = p + strcspn(p, " <");

	encode(t, p, (size_t)(end - p), false, ids);
	while (*end == ' ') {
		const char *key = end, *value = strstr(key, "=\"");
		const char *quote;

		CHECK(value);
		quote = strchr(value + 2, '"');
		CHECK(quote);
		encode(t, key, (size_t)(value - key), false, ids);
		encode(t, "=\"", 2, false, ids);
		encode(t, value + 2, (size_t)(quote - value - 2), false, ids);
		encode(t, "\"", 1, false, ids);
		end = quote + 1;
	}
	*at = end;
}

static void encode_prompt(struct k3_tokenizer *t, const char *text, struct k3_ids *ids)
{
	static const char *const marks[] = { "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>" };

	while (*text) {
		const char *next = text + strlen(text);
		unsigned which = 0;

		for (unsigned i = 0; i < 4; i++) {
			const char *p = strstr(text, marks[i]);

			if (p && p < next) {
				next = p;
				which = i;
			}
		}
		encode(t, text, (size_t)(next - text), false, ids);
		text = next;
		if (!*text)
			break;
		encode(t, marks[which], strlen(marks[which]), true, ids);
		text += strlen(marks[which]);
		if (which < 2)
			encode_tag(t, &text, ids);
	}
}

static void case_text(void)
{
	struct k3_tokenizer *t = real_tokenizer();
	FILE *f = fopen(test_data("tokenizer/goldens_text.jsonl"), "r");
	char *line = NULL;
	size_t capacity = 0, n = 0;

	CHECK(f);
	while (getline(&line, &capacity, f) > 0) {
		json_t *j = json_loads(line, JSON_ALLOW_NUL, NULL);
		const json_t *text = json_object_get(j, "text");
		struct k3_ids ids = { 0 };

		CHECK(text);
		encode(t, json_string_value(text), json_string_length(text), false, &ids);
		check_ids(&ids, json_object_get(j, "ids"), line);
		k3_ids_deinit(&ids);
		json_decref(j);
		n++;
	}
	printf("%zu strings\n", n);
	CHECK(n >= 90);
	free(line);
	(void)fclose(f);
	k3_tokenizer_free(t);
}

static void case_chat(void)
{
	struct k3_tokenizer *t = real_tokenizer();
	json_t *all = json_load_file(test_data("tokenizer/goldens_chat.json"), 0, NULL), *one;
	size_t i, n = 0;

	json_array_foreach(all, i, one)
	{
		struct k3_ids ids = { 0 };

		encode_prompt(t, json_string_value(json_object_get(one, "text")), &ids);
		check_ids(&ids, json_object_get(one, "ids"),
			  json_string_value(json_object_get(one, "name")));
		k3_ids_deinit(&ids);
		n++;
	}
	printf("%zu prompts\n", n);
	CHECK(n >= 10);
	json_decref(all);
	k3_tokenizer_free(t);
}

#define SYSTEM_USER                                                        \
	"<|open|>message role=\"system\"<|sep|>You are helpful."           \
	"<|close|>message<|sep|><|end_of_msg|>"                            \
	"<|open|>message role=\"user\"<|sep|>Hello<|close|>message<|sep|>" \
	"<|end_of_msg|><|open|>message role=\"assistant\"<|sep|>"
#define USER(x) "<|open|>message role=\"user\"<|sep|>" x "<|close|>message<|sep|><|end_of_msg|>"

static const struct {
	const char *prompt, *ids;
} described[] = {
	{ "<|open|>message role=\"system\" type=\"thinking-effort\"<|sep|>`thinking_effort` guides "
	  "on how much to think in your thinking channel (not including the response channel), "
	  "supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked "
	  "with `thinking_effort=max`.<|close|>message<|sep|><|end_of_msg|>" SYSTEM_USER
	  "<|open|>think<|sep|>",
	  "[163587,2778,6244,878,14062,1,1798,878,130400,59991,470,1,163589,63,130400,123074,470,"
	  "63,28560,418,1632,2455,308,2704,306,651,9545,8491,347,2976,3411,276,4503,8491,904,9141,"
	  "4661,3867,1268,1332,5713,1268,50004,5713,1268,19421,5713,316,1268,5354,16518,10048,276,"
	  "2403,387,42070,472,1268,130400,123074,470,105281,11369,163588,2778,163589,163586,163587,"
	  "2778,6244,878,14062,1,163589,3900,554,13205,13,163588,2778,163589,163586,163587,2778,"
	  "6244,878,2482,1,163589,19180,163588,2778,163589,163586,163587,2778,6244,878,69702,1,"
	  "163589,163587,39964,163589]" },
	{ SYSTEM_USER "<|open|>response<|sep|>",
	  "[163587,2778,6244,878,14062,1,163589,3900,554,13205,13,163588,2778,163589,163586,163587,"
	  "2778,6244,878,2482,1,163589,19180,163588,2778,163589,163586,163587,2778,6244,878,69702,"
	  "1,163589,163587,12092,163589]" },
	{ USER("Numbers?") "<|open|>message role=\"assistant\"<|sep|><|open|>response<|sep|>473, "
			   "921, 235<|close|>response<|sep|><|close|>message<|sep|>"
			   "<|end_of_msg|>" USER(
				   "What were the other two?") "<|open|>message "
							       "role=\"assistant\"<|sep|><|open|>"
							       "response<|sep|>",
	  "[163587,2778,6244,878,2482,1,163589,38587,30,163588,2778,163589,163586,163587,2778,6244,"
	  "878,69702,1,163589,163587,12092,163589,42780,11,220,49114,11,220,23782,163588,12092,"
	  "163589,163588,2778,163589,163586,163587,2778,6244,878,2482,1,163589,5376,1646,276,1356,"
	  "2069,30,163588,2778,163589,163586,163587,2778,6244,878,69702,1,163589,163587,12092,"
	  "163589]" },
	{ "message", "[2778]" },
	{ " role", "[6244]" },
	{ "=\"", "[878]" },
	{ "\"", "[1]" },
	{ "user", "[2482]" },
	{ "system", "[14062]" },
	{ "assistant", "[69702]" },
	{ " type", "[1798]" },
	{ "think", "[39964]" },
	{ "response", "[12092]" },
	{ "The capital of France is", "[1008,10484,318,15383,387]" },
	{ " Paris", "[17374]" },
};

static void case_described(void)
{
	struct k3_tokenizer *t = real_tokenizer();

	for (size_t i = 0; i < sizeof(described) / sizeof(described[0]); i++) {
		json_t *expected = json_loads(described[i].ids, 0, NULL);
		struct k3_ids ids = { 0 };

		CHECK(expected);
		encode_prompt(t, described[i].prompt, &ids);
		check_ids(&ids, expected, described[i].prompt);
		k3_ids_deinit(&ids);
		json_decref(expected);
	}
	k3_tokenizer_free(t);
}

static void case_demo(void)
{
	struct k3_tokenizer *t = demo_tokenizer();
	json_t *golden = json_load_file(test_source("deploy/demo/golden.json"), 0, NULL), *one;
	size_t i;

	CHECK(golden);
	CHECK(json_array_size(json_object_get(golden, "tokenizer")) == 12);
	json_array_foreach(json_object_get(golden, "tokenizer"), i, one)
	{
		const char *text = json_string_value(json_object_get(one, "text"));
		struct k3_ids ids = { 0 };

		encode(t, text, strlen(text), false, &ids);
		check_ids(&ids, json_object_get(one, "ids"), text);
		k3_ids_deinit(&ids);
	}
	json_array_foreach(json_object_get(golden, "greedy"), i, one)
	{
		const char *prompt = json_string_value(json_object_get(one, "prompt"));
		const json_t *greedy = json_object_get(one, "greedy_ids"), *id;
		struct k3_ids ids = { 0 };
		size_t k, size;
		char *text;

		encode(t, prompt, strlen(prompt), false, &ids);
		check_ids(&ids, json_object_get(one, "ids"), prompt);
		ids.n = 0;
		CHECK(ids.capacity >= json_array_size(greedy));
		json_array_foreach(greedy, k, id) ids.ids[ids.n++] =
			(uint32_t)json_integer_value(id);
		text = decode(t, &ids, &size);
		CHECK_STR(text, json_string_value(json_object_get(one, "continuation")));
		free(text);
		k3_ids_deinit(&ids);
	}
	json_decref(golden);
	k3_tokenizer_free(t);
}

static const struct test_case cases[] = {
	{ "text", case_text },
	{ "chat", case_chat },
	{ "described", case_described },
	{ "demo", case_demo },
};
TEST_MAIN(cases)
