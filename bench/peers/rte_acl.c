/* DPDK's rte_acl over the same rules and headers as the engine it is compared with.
 *
 *   rte_acl RULES HEADERS WINNERS HUGE
 *
 * RULES and HEADERS are arrays of the structures below in this machine's byte order; WINNERS
 * gets for each header the number of the winning rule from 1, or 0. HUGE is 1 if there are huge pages for its memory, else
 * 0. Prints the seconds to build, the bytes that this takes, and the fastest of the methods that this machine can run.
 * Then does one round with it for each line on standard input and prints the nanoseconds for a lookup, so that rounds
 * of both engines can take turns.
 */
#include <rte_acl.h>
#include <rte_eal.h>
#include <rte_malloc.h>
#include <rte_vect.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
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

static const char *const methods[] = {
	[RTE_ACL_CLASSIFY_SCALAR] = "scalar",       [RTE_ACL_CLASSIFY_SSE] = "sse",
	[RTE_ACL_CLASSIFY_AVX2] = "avx2",           [RTE_ACL_CLASSIFY_AVX512X16] = "avx512x16",
	[RTE_ACL_CLASSIFY_AVX512X32] = "avx512x32",
};
enum { METHODS = sizeof(methods) / sizeof(*methods), VECTOR = 256 };

/* Prints a message if `failed`, and ends. */
static void check(int failed, const char *what)
{
	if (!failed)
		return;
	fprintf(stderr, "rte_acl: %s: %s\n", what, failed < 0 ? strerror(-failed) : "failed");
	exit(1);
}

/* Time on the processor: others may be at work on the same core. */
static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static const void *load(const char *path, size_t size, size_t *count)
{
	struct stat stat;
	int file = open(path, O_RDONLY);
	check(file < 0 || fstat(file, &stat), path);
	*count = stat.st_size / size;
	const void *data = mmap(NULL, stat.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
	check(data == MAP_FAILED, path);
	return data;
}

static size_t used(void)
{
	struct rte_malloc_socket_stats stats;
	rte_malloc_get_socket_stats(0, &stats);
	return stats.heap_allocsz_bytes;
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

static void set(struct acl_rule *rule, int field, uint32_t value, uint32_t mask_range)
{
	int size = fields[field].size;
	memcpy(&rule->field[field].value, &value, size);
	/* The length of a mask of four bytes, a mask of one. */
	memcpy(&rule->field[field].mask_range, &mask_range, size);
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
	check(argc != 5, "usage: rte_acl RULES HEADERS WINNERS HUGE");
	check(start(atoi(argv[4])) < 0, "start of DPDK");
	size_t rule_count, count;
	const struct rule *rules = load(argv[1], sizeof(*rules), &rule_count);
	const struct header *headers = load(argv[2], sizeof(*headers), &count);
	struct rte_acl_param param = {"bench", 0, RTE_ACL_RULE_SZ(FIELDS), rule_count};
	struct rte_acl_ctx *ctx = rte_acl_create(&param);
	struct acl_rule *list = calloc(rule_count, sizeof(*list));
	uint32_t *winners = calloc(count, sizeof(*winners));
	const uint8_t **data = calloc(count, sizeof(*data));
	check(!ctx || !list || !winners || !data, "memory");
	for (size_t i = 0; i < count; i++)
		data[i] = (const uint8_t *)&headers[i];
	for (size_t i = 0; i < rule_count; i++) {
		const struct rule *r = &rules[i];
		list[i].data.userdata = i + 1;
		list[i].data.category_mask = 1;
		list[i].data.priority = RTE_ACL_MAX_PRIORITY - i;
		set(&list[i], PROTOCOL, r->protocol, r->protocol_mask);
		set(&list[i], SOURCE, r->source, r->source_length);
		set(&list[i], DESTINATION, r->destination, r->destination_length);
		set(&list[i], SOURCE_PORT, r->source_first, r->source_last);
		set(&list[i], DESTINATION_PORT, r->destination_first, r->destination_last);
	}

	struct rte_acl_config config = {.num_categories = 1, .num_fields = FIELDS};
	memcpy(config.defs, fields, sizeof(fields));
	double start = now();
	check(rte_acl_add_rules(ctx, (const struct rte_acl_rule *)list, rule_count), "rules");
	size_t before = used();
	check(rte_acl_build(ctx, &config), "build");
	printf("%.9f %zu", now() - start, used() - before);

	double best = 0;
	size_t fastest = 0;
	for (size_t m = 0; m < METHODS; m++) {
		if (!methods[m] || rte_acl_set_ctx_classify(ctx, m))
			continue;
		/* The first round warms the caches. */
		round_of(ctx, data, winners, count);
		double time = round_of(ctx, data, winners, count);
		if (best == 0 || time < best) {
			best = time;
			fastest = m;
		}
	}
	check(best == 0 || rte_acl_set_ctx_classify(ctx, fastest), "no method");
	round_of(ctx, data, winners, count);
	FILE *file = fopen(argv[3], "wb");
	check(!file || fwrite(winners, sizeof(*winners), count, file) != count || fclose(file), argv[3]);
	printf(" %s\n", methods[fastest]);
	fflush(stdout);
	for (int c = getchar(); c != EOF; c = getchar()) {
		printf("%.4f\n", round_of(ctx, data, winners, count));
		fflush(stdout);
	}
	return 0;
}
