// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Denies a pod's connect() and sendmsg() by session rules.
 *
 *   connect(), sendmsg() ──▶ service? ─┬─ no ──▶ rules about the address
 *                                      └─ yes ─▶ rules about its endpoints: one that is allowed is enough
 *
 * The rules about an address are those of the pod that opens (its own table, the longest network with
 * the other end) and those of the pod on this node that has the address (its table, the longest network with the
 * opener's address). A socket is of the cgroup that opened it, whoever holds it now, and a program's data of the
 * cgroup that the program is attached to: so nothing here asks for the calling process but the report of a denial.
 *
 * All keys hold the generation: a program that reads it once sees rules of one snapshot only.
 */
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../../bpf/barrier.h"
#include "socket.h"

#define WHOLE_V4 (96 + 32)
#define WHOLE_V6 (96 + 128)

struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_STORAGE);
	__type(key, __u64);
	__type(value, struct pod);
} pods SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1 << 18);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct rule_key);
	__type(value, struct piece);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * RANGES);
	__type(key, __u32);
	__type(value, struct range);
} ranges SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 12);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct local_key);
	__type(value, __u32);
} locals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct service_key);
	__type(value, struct piece);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * ENDPOINTS);
	__type(key, __u32);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} events SEC(".maps");

/* One question, and the policies of the last answer. */
struct question {
	__u32 generation;
	__u32 table;
	__u8 own[16];
	__u8 address[16];
	__be16 port;
	__u8 family;
	__u8 transport;
	__u32 by;
	__u32 is_host;
};

static void count(__u32 counter)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &counter);

	if (value)
		++*value;
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
static __always_inline int ask(struct question *question, __u32 table, const __u8 *other)
{
	struct rule_key key = {
		.prefix = question->family == V4 ? WHOLE_V4 : WHOLE_V6,
		.generation = question->generation,
		.table = table,
		.family = question->family,
		.transport = question->transport,
	};
	struct piece *piece;

	__builtin_memcpy(key.address, other, sizeof(key.address));
	piece = bpf_map_lookup_elem(&rules, &key);
	if (!piece)
		return NOTHING;
	return find_range(piece->first, piece->count, bpf_ntohs(question->port), &question->by);
}

/* Whether the rules deny one address. */
__noinline int is_denied(struct question *question)
{
	struct local_key local = {};
	__u32 *table;

	if (!question)
		return 0;
	if (ask(question, question->table, question->address) == DENY)
		return 1;
	if (question->is_host)
		return 0;
	local.generation = question->generation;
	local.family = question->family;
	__builtin_memcpy(local.address, question->address, sizeof(local.address));
	table = bpf_map_lookup_elem(&locals, &local);
	return table && ask(question, *table, question->own) == DENY;
}

/* The same for the endpoints of a service: whether they deny each. */
__noinline int are_denied(struct question *question, __u32 first, __u32 count)
{
	if (!question || !count || count > ASKED)
		return 0;
	for (__u32 nth = 0; nth < ASKED && nth < count; nth++) {
		__u32 place = first + nth;
		struct endpoint *endpoint = bpf_map_lookup_elem(&endpoints, &place);

		if (!endpoint)
			return 0;
		__builtin_memcpy(question->address, endpoint->address, sizeof(question->address));
		question->port = endpoint->port;
		if (!is_denied(question))
			return 0;
	}
	return 1;
}

static __always_inline int is_zero(const __u8 *address, int from)
{
	__u8 any = 0;

	for (int at = from; at < 16; at++)
		any |= address[at];
	return !any;
}

/* A connection within the pod: to loopback, to the unspecified address, or to its own. */
static __always_inline int is_inside(const struct pod *pod, __u8 family, const __u8 *address)
{
	const __u8 *own = pod->own[family == V6];
	__u8 differs = 0;

	if (family == V4 && (address[0] == 127 || is_zero(address, 0)))
		return 1;
	if (family == V6 && is_zero(address, 0))
		return 1;
	if (family == V6 && address[15] == 1) {
		__u8 head[16];

		__builtin_memcpy(head, address, sizeof(head));
		head[15] = 0;
		if (is_zero(head, 0))
			return 1;
	}
	for (int at = 0; at < 16; at++)
		differs |= own[at] ^ address[at];
	return !differs;
}

static __always_inline void
report(const struct pod *pod, const struct question *question, const __u8 *address, __be16 port)
{
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		count(LOST);
		return;
	}
	event->pod = pod->number;
	event->by = question->by;
	event->generation = question->generation;
	event->process = bpf_get_current_pid_tgid() >> 32;
	event->user = bpf_get_current_uid_gid();
	event->family = question->family;
	event->transport = question->transport;
	event->port = port;
	__builtin_memcpy(event->address, address, sizeof(event->address));
	bpf_get_current_comm(event->command, sizeof(event->command));
	bpf_ringbuf_submit(event, 0);
}

static __always_inline int deny(const struct settings *known)
{
	if (known->error)
		bpf_set_retval(known->error);
	return 0;
}

/* 1 if the call goes on, 0 if it fails. */
static __always_inline int
decide(struct bpf_sock_addr *context, __u8 family, const __u8 *address, __be16 port)
{
	struct pod *pod = bpf_get_local_storage(&pods, 0);
	__u32 zero = 0;
	struct settings *known = bpf_map_lookup_elem(&settings, &zero);
	struct question question = {};
	struct service_key key = {};
	struct piece *service;
	int denied;

	if (context->protocol != IPPROTO_TCP && context->protocol != IPPROTO_UDP)
		return 1;
	if (!known)
		return 1;
	count(ASKED_ABOUT);
	question.generation = known->generation;
	if (is_inside(pod, family, address))
		return 1;
	if (!(pod->flags & POD_KNOWN) || !question.generation) {
		if (!known->closed || pod->flags & POD_HOST)
			return 1;
		count(CLOSED);
		return deny(known);
	}
	question.table = pod->number;
	question.family = family;
	question.transport = context->protocol;
	question.port = port;
	question.by = ~0U;
	question.is_host = pod->flags & POD_HOST;
	__builtin_memcpy(question.own, pod->own[family == V6], sizeof(question.own));
	__builtin_memcpy(question.address, address, sizeof(question.address));

	key.generation = question.generation;
	key.family = family;
	key.transport = question.transport;
	key.port = port;
	__builtin_memcpy(key.address, address, sizeof(key.address));
	service = bpf_map_lookup_elem(&services, &key);
	if (service)
		denied = are_denied(&question, service->first, service->count);
	else
		denied = is_denied(&question);
	if (!denied)
		return 1;
	count(DENIED);
	report(pod, &question, address, port);
	return deny(known);
}

static __always_inline int decide_v4(struct bpf_sock_addr *context)
{
	__u8 address[16] = {};
	__u32 ip = context->user_ip4;

	__builtin_memcpy(address, &ip, sizeof(ip));
	return decide(context, V4, address, context->user_port);
}

static __always_inline int decide_v6(struct bpf_sock_addr *context)
{
	__u32 ip[4] = {
		context->user_ip6[0], context->user_ip6[1], context->user_ip6[2], context->user_ip6[3],
	};
	__u8 address[16] = {};

	/* An IPv4-mapped address. */
	if (!ip[0] && !ip[1] && ip[2] == bpf_htonl(0xffff)) {
		__builtin_memcpy(address, &ip[3], sizeof(ip[3]));
		return decide(context, V4, address, context->user_port);
	}
	__builtin_memcpy(address, ip, sizeof(ip));
	return decide(context, V6, address, context->user_port);
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *context)
{
	return decide_v4(context);
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *context)
{
	return decide_v4(context);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *context)
{
	return decide_v6(context);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *context)
{
	return decide_v6(context);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
