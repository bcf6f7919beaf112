#pragma once
/*
 * Facts about this machine and a model's files, each as a name, a sentence and a verdict. Nothing
 * is changed, nothing is started. Shown by k3 doctor.
 */
#include <jansson.h>
#include <stdint.h>

#include "compute/model_files.h"
#include "shared/err.h"
#include "shared/option.h"

/* OK; NOTE: works, but slower or with less; BAD: cannot run like this. */
enum k3_verdict { K3_VERDICT_OK, K3_VERDICT_NOTE, K3_VERDICT_BAD };

enum { K3_FINDINGS_MAX = 48, K3_FINDING_TEXT = 1024 };

enum k3_checkpoint {
	K3_CHECKPOINT_WHOLE,     /* the daemon would open it */
	K3_CHECKPOINT_BAD_TRUNK, /* but for the trunk file, which is not of it */
	K3_CHECKPOINT_NOT_WHOLE,
	K3_CHECKPOINT_UNKNOWN /* its config.json is not understood: another model, perhaps */
};

struct k3_finding {
	const char *name; /* static */
	enum k3_verdict verdict;
	char text[K3_FINDING_TEXT];
};

struct k3_doctor {
	struct k3_finding findings[K3_FINDINGS_MAX];
	uint32_t n;
	enum err_code bad; /* of the first bad one; decides the exit code */
};

/* code: ERR_NONE unless verdict is BAD. A full table drops the rest. */
void k3_doctor_add(struct k3_doctor *d, const char *name, enum k3_verdict verdict,
		   enum err_code code, const char *fmt, ...) PRINTF_LIKE(5, 6);

/* doctor_machine.c: processors, memory and its limits, huge pages, kernel, io_uring. */
void k3_doctor_machine(struct k3_doctor *d, unsigned n_threads);
/* doctor_model.c: the disks behind dirs (the current directory when there are none) and trunk. */
void k3_doctor_disks(struct k3_doctor *d, const struct option_list *dirs,
		     const struct option_list *trunk);
/* Files and headers of the checkpoint and the trunk file; config NULL: the model's; n_layers 0:
 * all, else what the first so many need. */
enum k3_checkpoint k3_doctor_checkpoint(struct k3_doctor *d, const struct option_list *dirs,
					const struct option_list *trunk, const char *config,
					uint32_t n_layers);

void k3_doctor_print(const struct k3_doctor *d, FILE *out);
/* An array of {name, verdict, text}; the caller's reference. */
json_t *k3_doctor_json(const struct k3_doctor *d);
