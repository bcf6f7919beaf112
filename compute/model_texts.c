#include "compute/model_texts.h"

#include "compute/model_config.h"
#include "compute/prompt.h"

/* The tokenizer of --tok. */
static int read_given_tokenizer(const char *dir, uint32_t n_vocab, struct k3_tokenizer **ret,
				struct err *err)
{
	struct option_list dirs = { .items = { dir }, .n = 1 };
	int e = k3_tokenizer_open(ret, &dirs, n_vocab, err);

	if (e == K3_TOKENIZER_NONE)
		return err_set(err, ERR_VOCABULARY, "there is no tiktoken.model in %s", dir);
	return e;
}

int k3_model_texts_read(const struct k3_command_line *line, struct config *ret_config,
			struct k3_tokenizer **ret_tokenizer, struct err *err)
{
	int e = k3_config_read(&line->words, line->options.config, ret_config, err);

	if (e < 0)
		return e;
	if (line->options.tok)
		return read_given_tokenizer(line->options.tok, ret_config->vocab_size,
					    ret_tokenizer, err);
	e = k3_tokenizer_open(ret_tokenizer, &line->words, ret_config->vocab_size, err);
	return e < 0 ? e : 0;
}

int k3_model_texts_take(const struct k3_iod *iod, const struct k3_command_line *line,
			struct config *ret_config, struct k3_tokenizer **ret_tokenizer,
			struct err *err)
{
	size_t size = 0, vocabulary_size = 0;
	const char *config = k3_iod_file(iod, WIRE_FD_CONFIG, &size);
	const char *vocabulary = k3_iod_file(iod, WIRE_FD_VOCABULARY, &vocabulary_size);
	int e = config_parse(config, size, "config.json of the daemon", ret_config, err);

	if (e < 0)
		return e;
	if (line->options.tok)
		return read_given_tokenizer(line->options.tok, ret_config->vocab_size,
					    ret_tokenizer, err);
	if (!vocabulary)
		return 0;
	config = k3_iod_file(iod, WIRE_FD_TOKENIZER_CONFIG, &size);
	return k3_tokenizer_new(ret_tokenizer, vocabulary, vocabulary_size, config,
				config ? size : 0, ret_config->vocab_size, err);
}
