// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Evaluates the rules about an address, a service and its endpoints. */

/* One question, and the policies of the last answer. */
struct question {
	__u32 generation;
	__u32 table;
	__u64 own[2];
	__u64 address[2];
	__be16 port;
	__u8 family;
	__u8 transport;
	__u32 by;
	__u32 is_host;
	/* Of a service: the place of its first endpoint, their number, and the one that is asked about first. */
	__u32 first;
	__u32 count;
	__u32 begin;
	/* The place of one that is allowed, from 1; and whether another one is not. */
	__u32 chosen;
	__u32 is_mixed;
};

static __always_inline void copy(__u64 *to, const __u64 *from)
{
	to[0] = from[0];
	to[1] = from[1];
}

static __always_inline int is_same(const __u64 *one, const __u64 *other)
{
	return one[0] == other[0] && one[1] == other[1];
}

/* The verdict of one network's ranges about a port. */
__noinline int find_range(__u32 first, __u32 count, __u32 port, __u32 *by)
{
	__u32 low = 0, high = count;

	if (!by)
		return NOTHING;
	for (int step = 0; step < 17 && low < high; step++) {
		__u32 middle = low + (high - low) / 2;
		__u32 place = first + middle;
		struct range *range = bpf_map_lookup_elem(&ranges, &place);

		if (!range)
			return NOTHING;
		if (port < range->first) {
			high = middle;
		} else if (port > range->last) {
			low = middle + 1;
		} else {
			*by = range->by;
			return range->verdict;
		}
	}
	return NOTHING;
}

/* The verdict of a table about its other end and a port. */
static __always_inline int ask(struct question *question, __u32 table, const __u64 *other)
{
	struct rule_key key = {
		.prefix = question->family == V4 ? WHOLE_V4 : WHOLE_V6,
		.generation = question->generation,
		.table = table,
		.family = question->family,
		.transport = question->transport,
	};
	struct piece *piece;

	copy(key.address, other);
	piece = bpf_map_lookup_elem(&rules, &key);
	if (!piece)
		return NOTHING;
	return find_range(piece->first, piece->count, bpf_ntohs(question->port), &question->by);
}

/* The table about what arrives at an address of this node. */
static __always_inline __u32 *find_local(const struct question *question, const __u64 *address)
{
	struct local_key key = {
		.generation = question->generation,
		.family = question->family,
	};

	copy(key.address, address);
	return bpf_map_lookup_elem(&locals, &key);
}

/*
 * Whether the rules deny one address; not that of the pod itself, to which a service may lead, nor to a pod on the host
 * network those of its node.
 */
__noinline int is_denied(struct question *question)
{
	__u32 *table;

	if (!question || is_same(question->address, question->own))
		return 0;
	table = find_local(question, question->address);
	if (question->is_host && table && *table == NODE)
		return 0;
	if (ask(question, question->table, question->address) == DENY)
		return 1;
	if (question->is_host || !table || *table == NODE)
		return 0;
	return ask(question, *table, question->own) == DENY;
}

/* The service of a destination; one that found no room is known by its address alone. */
static __always_inline struct piece *find_service(struct service_key *key)
{
	struct piece *found = bpf_map_lookup_elem(&services, key);

	if (found)
		return found;
	key->port = 0;
	return bpf_map_lookup_elem(&services, key);
}

/*
 * Asks about one endpoint of a service; 1 ends the loop. The switch decides about the endpoint that a packet of a pod takes,
 * so that one that is allowed is enough there.
 */
static long ask_endpoint(__u64 nth, struct question *question)
{
	__u32 at = question->begin + (__u32)nth;
	struct endpoint *endpoint;
	__u32 place;

	if (at >= question->count)
		at -= question->count;
	place = question->first + at;
	endpoint = bpf_map_lookup_elem(&endpoints, &place);
	if (endpoint) {
		copy(question->address, endpoint->address);
		question->port = endpoint->port;
		if (is_denied(question))
			question->is_mixed = 1;
		else if (!question->chosen)
			question->chosen = place + 1;
	}
	return question->chosen && (question->is_mixed || !question->is_host);
}

/*
 * Whether the rules deny a service: each of its endpoints, or for a call that cannot be led to another one any of them. One
 * without endpoints is the node's to refuse.
 */
static __always_inline int
are_denied(struct question *question, const struct piece *service, int is_connect)
{
	if (!service->count)
		return 0;
	if (service->count == UNKNOWN)
		return 1;
	question->first = service->first;
	question->count = service->count;
	if (question->is_host)
		question->begin = bpf_get_prandom_u32() % service->count;
	bpf_loop(service->count, ask_endpoint, question, 0);
	if (!question->is_host)
		question->is_mixed = 0;
	return !question->chosen || (question->is_mixed && !is_connect);
}
