/* DPDK's rte_acl over the same rules and headers as the engine it is compared with.
 *
 *   rte_acl RULES HEADERS WINNERS ROUNDS HUGE
 *
 * RULES and HEADERS are arrays of the structures below in this machine's byte order; WINNERS
 * gets for each header the number of the winning rule from 1, or 0. HUGE is 1 if there are huge pages for its memory, else
 * 0. Prints one line of key=value: build seconds, bytes, and the fastest of the methods that this machine can run, by
 * ROUNDS with each. Then does one round with it for each line on standard input and prints the
 * nanoseconds for a lookup, so that rounds of both engines can take turns.
 */
#include <rte_acl.h>
#include <rte_eal.h>
#include <rte_malloc.h>
#include <rte_memory.h>
#include <rte_vect.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct rule {
	uint32_t source, destination;
	uint16_t source_first, source_last, destination_first, destination_last;
	uint8_t source_length, destination_length, protocol, protocol_mask;
};

/* Big-endian, as in a packet. */
struct header {
	uint8_t protocol, pad[3];
	uint32_t source, destination;
	uint16_t source_port, destination_port;
};

enum { PROTOCOL, SOURCE, DESTINATION, SOURCE_PORT, DESTINATION_PORT, FIELDS };

RTE_ACL_RULE_DEF(acl_rule, FIELDS);

static const struct rte_acl_field_def fields[FIELDS] = {
	{RTE_ACL_FIELD_TYPE_BITMASK, 1, PROTOCOL, 0, offsetof(struct header, protocol)},
	{RTE_ACL_FIELD_TYPE_MASK, 4, SOURCE, 1, offsetof(struct header, source)},
	{RTE_ACL_FIELD_TYPE_MASK, 4, DESTINATION, 2, offsetof(struct header, destination)},
	{RTE_ACL_FIELD_TYPE_RANGE, 2, SOURCE_PORT, 3, offsetof(struct header, source_port)},
	{RTE_ACL_FIELD_TYPE_RANGE, 2, DESTINATION_PORT, 3, offsetof(struct header, destination_port)},
};

static const struct {
	enum rte_acl_classify_alg alg;
	const char *name;
} methods[] = {
	{RTE_ACL_CLASSIFY_SCALAR, "scalar"},       {RTE_ACL_CLASSIFY_SSE, "sse"},
	{RTE_ACL_CLASSIFY_AVX2, "avx2"},           {RTE_ACL_CLASSIFY_AVX512X16, "avx512x16"},
	{RTE_ACL_CLASSIFY_AVX512X32, "avx512x32"},
};

#define VECTOR 256

/* Time on the processor: others may be at work on the same core. */
static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *load(const char *path, size_t size, size_t *count)
{
	FILE *file = fopen(path, "rb");
	if (!file)
		return NULL;
	fseek(file, 0, SEEK_END);
	long bytes = ftell(file);
	rewind(file);
	void *data = malloc(bytes + 1);
	if (data && fread(data, 1, bytes, file) != (size_t)bytes) {
		free(data);
		data = NULL;
	}
	fclose(file);
	*count = bytes / size;
	return data;
}

static size_t used(void)
{
	struct rte_malloc_socket_stats stats;
	rte_malloc_get_socket_stats(0, &stats);
	return stats.heap_allocsz_bytes;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Starts DPDK with its memory in the machine's huge pages, as its users have it, or in plain pages. */
static int start(int huge)
{
	char *in_huge[] = {"--in-memory", "--iova-mode=va"}, *plain[] = {"--no-huge", "-m6144"};
	char **memory = huge ? in_huge : plain;
	char *eal[] = {"rte_acl", memory[0], memory[1], "--no-pci", "--no-shconf", "--no-telemetry",
		       "--log-level", "error", "--force-max-simd-bitwidth", "512"};
	return rte_eal_init(sizeof(eal) / sizeof(*eal), eal);
}

/* Bytes in huge pages. */
static size_t huge(void)
{
	size_t kib = 0, value;
	char line[256];
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "Private_Hugetlb: %zu", &value) == 1 || sscanf(line, "Shared_Hugetlb: %zu", &value) == 1)
			kib += value;
	if (file)
		fclose(file);
	return kib * 1024;
}

/* Nanoseconds for a lookup in one round. */
static double round_of(struct rte_acl_ctx *ctx, const uint8_t **data, uint32_t *winners, size_t count)
{
	double start = now();
	for (size_t at = 0; at < count; at += VECTOR) {
		size_t n = count - at < VECTOR ? count - at : VECTOR;
		rte_acl_classify(ctx, data + at, winners + at, n, 1);
	}
	return (now() - start) * 1e9 / count;
}

int main(int argc, char **argv)
{
	if (argc != 6) {
		fprintf(stderr, "usage: rte_acl RULES HEADERS WINNERS ROUNDS HUGE\n");
		return 2;
	}
	if (start(atoi(argv[5])) < 0) {
		fprintf(stderr, "rte_acl: cannot start DPDK\n");
		return 1;
	}
	size_t rule_count, count;
	struct rule *rules = load(argv[1], sizeof(*rules), &rule_count);
	struct header *headers = load(argv[2], sizeof(*headers), &count);
	int rounds = atoi(argv[4]);
	if (!rules || !headers || rounds < 1 || rounds > 1000) {
		fprintf(stderr, "rte_acl: cannot read %s or %s\n", argv[1], argv[2]);
		return 1;
	}

	struct rte_acl_param param = {"bench", 0, RTE_ACL_RULE_SZ(FIELDS), rule_count};
	struct rte_acl_ctx *ctx = rte_acl_create(&param);
	struct acl_rule *list = calloc(rule_count, sizeof(*list));
	if (!ctx || !list) {
		fprintf(stderr, "rte_acl: out of memory\n");
		return 1;
	}
	for (size_t i = 0; i < rule_count; i++) {
		const struct rule *r = &rules[i];
		struct acl_rule *to = &list[i];
		to->data.userdata = i + 1;
		to->data.category_mask = 1;
		to->data.priority = RTE_ACL_MAX_PRIORITY - i;
		to->field[PROTOCOL].value.u8 = r->protocol;
		to->field[PROTOCOL].mask_range.u8 = r->protocol_mask;
		to->field[SOURCE].value.u32 = r->source;
		to->field[SOURCE].mask_range.u32 = r->source_length;
		to->field[DESTINATION].value.u32 = r->destination;
		to->field[DESTINATION].mask_range.u32 = r->destination_length;
		to->field[SOURCE_PORT].value.u16 = r->source_first;
		to->field[SOURCE_PORT].mask_range.u16 = r->source_last;
		to->field[DESTINATION_PORT].value.u16 = r->destination_first;
		to->field[DESTINATION_PORT].mask_range.u16 = r->destination_last;
	}

	struct rte_acl_config config = {.num_categories = 1, .num_fields = FIELDS};
	memcpy(config.defs, fields, sizeof(fields));
	double start = now();
	int failed = rte_acl_add_rules(ctx, (const struct rte_acl_rule *)list, rule_count);
	size_t before = used();
	failed = failed ? failed : rte_acl_build(ctx, &config);
	double build = now() - start;
	if (failed) {
		fprintf(stderr, "rte_acl: cannot build: %s\n", strerror(-failed));
		return 1;
	}
	printf("build=%.9f bytes=%zu", build, used() - before);

	uint32_t *winners = calloc(count, sizeof(*winners));
	const uint8_t **data = calloc(count, sizeof(*data));
	double *times = calloc(rounds, sizeof(*times));
	if (!winners || !data || !times)
		return 1;
	for (size_t i = 0; i < count; i++)
		data[i] = (const uint8_t *)&headers[i];
	double best = 0;
	size_t fastest = 0;
	for (size_t m = 0; m < sizeof(methods) / sizeof(*methods); m++) {
		if (rte_acl_set_ctx_classify(ctx, methods[m].alg))
			continue;
		for (int round = 0; round < rounds; round++)
			times[round] = round_of(ctx, data, winners, count);
		qsort(times, rounds, sizeof(*times), ascending);
		if (best == 0 || times[rounds / 2] < best) {
			best = times[rounds / 2];
			fastest = m;
		}
	}
	if (best == 0 || rte_acl_set_ctx_classify(ctx, methods[fastest].alg)) {
		fprintf(stderr, "rte_acl: no method runs here\n");
		return 1;
	}
	round_of(ctx, data, winners, count);

	FILE *file = fopen(argv[3], "wb");
	if (!file || fwrite(winners, sizeof(*winners), count, file) != count || fclose(file)) {
		fprintf(stderr, "rte_acl: cannot write %s\n", argv[3]);
		return 1;
	}
	printf(" huge=%zu method=%s\n", huge(), methods[fastest].name);
	fflush(stdout);
	for (int c = getchar(); c != EOF; c = getchar()) {
		printf("%.4f\n", round_of(ctx, data, winners, count));
		fflush(stdout);
	}
	return 0;
}
