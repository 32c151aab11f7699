// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Denies a pod's connect() and sendmsg() by session rules, and what arrives at the sockets of a pod on the host network or leaves
 * them by ways that nobody asks about.
 *
 *   connect(), sendmsg() ──▶ service? ─┬─ no ──▶ rules about the address
 *                                      └─ yes ─▶ rules about its endpoints: one that is allowed is enough where the switch
 *                                                decides about the one that is chosen. On the host network connect()
 *                                                leads to one that is allowed, and sendmsg() needs all of them to be
 *   a packet for a listener or ────────────────▶ rules about the sender's address and the socket's port
 *   an unconnected UDP socket
 *
 * A datagram in reply to one is no connection of its own: `sent` and `heard` have the ends of the first one.
 *
 * The rules about an address are those of the pod that opens (its own table, the longest network with
 * the other end) and those of the pod on this node that has the address (its table, the longest network with the
 * opener's address). A socket is of the cgroup that opened it, whoever holds it now, and a program's data of the
 * cgroup that the program is attached to: so nothing here asks for the calling process but the report of a denial.
 *
 * All keys hold the generation: a program that reads it once sees rules of one snapshot only.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../../bpf/barrier.h"
#include "socket.h"
#include "../../bpf/counters.h"

/* Of every network namespace. */
#define LOOPBACK_INTERFACE 1
#define SOCK_RAW 3

/* Version 4, and a header of 20 bytes: without options. */
#define PLAIN_V4 0x45
#define ROUTING_HEADER 43

#define WHOLE_V4 (96 + 32)
#define WHOLE_V6 (96 + 128)

#include "maps.h"
#include "rules.h"

/* A connection within the pod: to loopback, to the unspecified address, or to its own. */
static __always_inline int is_inside(const struct pod *pod, __u8 family, const __u64 *address)
{
	if (!(address[0] | address[1]) || is_same(pod->own[family == V6], address))
		return 1;
	if (family == V4)
		return *(const __u8 *)address == 127;
	return !address[0] && address[1] == bpf_cpu_to_be64(1);
}

#include "exchanges.h"

/* Room for an event; one without room is counted. */
static __always_inline struct event *reserve_event(void)
{
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event)
		count(LOST, 1);
	return event;
}

static __always_inline void report_call(const struct pod *pod, const struct question *question,
					const __u64 *address, __be16 port)
{
	struct event *event = reserve_event();

	if (!event)
		return;
	*event = (struct event){
		.pod = pod->number,
		.by = question->by,
		.generation = question->generation,
		.process = bpf_get_current_pid_tgid() >> 32,
		.user = bpf_get_current_uid_gid(),
		.family = question->family,
		.transport = question->transport,
		.port = port,
	};
	copy(event->address, address);
	bpf_get_current_comm(event->command, sizeof(event->command));
	bpf_ringbuf_submit(event, 0);
}

/* Reports some packets that a pod was not to get: senders outside must not fill the ring. */
static __always_inline void
report_packet(struct pod *pod, const struct question *question, __be16 port)
{
	__u64 now = bpf_ktime_get_ns();
	struct event *event;

	if (now - pod->reported < REPORT)
		return;
	pod->reported = now;
	event = reserve_event();
	if (!event)
		return;
	*event = (struct event){
		.pod = pod->number,
		.by = question->by,
		.generation = question->generation,
		.family = question->family,
		.transport = question->transport,
		.port = port,
		.own_port = bpf_ntohs(question->port),
	};
	copy(event->address, question->address);
	bpf_ringbuf_submit(event, 0);
}

static __always_inline int deny(const struct settings *known)
{
	if (known->error)
		bpf_set_retval(known->error);
	return 0;
}

/* Has a connection to a service lead to the endpoint that is allowed. */
static __always_inline void
redirect(struct bpf_sock_addr *context, int is_v6, const struct question *question)
{
	__u32 place = question->chosen - 1;
	struct endpoint *endpoint = bpf_map_lookup_elem(&endpoints, &place);
	__u32 ip[4];

	if (!endpoint)
		return;
	__builtin_memcpy(ip, endpoint->address, sizeof(ip));
	if (!is_v6) {
		context->user_ip4 = ip[0];
	} else if (question->family == V4) {
		/* At a socket of IPv6: the rest of an IPv4-mapped address is there. */
		context->user_ip6[3] = ip[0];
	} else {
		context->user_ip6[0] = ip[0];
		context->user_ip6[1] = ip[1];
		context->user_ip6[2] = ip[2];
		context->user_ip6[3] = ip[3];
	}
	context->user_port = endpoint->port;
}

/* 1 if the call goes on, 0 if it fails. */
static __always_inline int
decide(struct bpf_sock_addr *context, int is_v6, int is_send, __u8 family, const __u64 *address,
       __be16 port)
{
	struct pod *pod = bpf_get_local_storage(&pods, 0);
	__u32 zero = 0;
	struct settings *known = bpf_map_lookup_elem(&settings, &zero);
	struct exchange exchange = {};
	struct question question = {};
	struct service_key key = {};
	struct piece *service;
	struct bpf_sock *socket = context->sk;
	__u32 flags = pod->flags;
	int inside, denied;

	if (context->protocol != IPPROTO_TCP && context->protocol != IPPROTO_UDP)
		return 1;
	if (!known)
		return 1;
	count(ASKED_ABOUT, 1);
	inside = is_inside(pod, family, address);
	/* At the own addresses of a pod on the host network are the node's ports, which lead to others. */
	if (inside && !(flags & POD_HOST))
		return 1;
	question.generation = *(volatile __u32 *)&known->generation;
	if (!(flags & POD_KNOWN) || !question.generation) {
		if (!known->closed || flags & POD_HOST)
			return 1;
		count(CLOSED, 1);
		return deny(known);
	}
	question.table = pod->number;
	question.family = family;
	question.transport = context->protocol;
	question.port = port;
	question.by = ~0U;
	question.is_host = flags & POD_HOST;
	copy(question.own, pod->own[family == V6]);
	copy(question.address, address);

	key.generation = question.generation;
	key.family = family;
	key.transport = question.transport;
	key.port = port;
	copy(key.address, address);
	service = find_service(&key);
	if (service)
		denied = are_denied(&question, service, !is_send);
	else
		denied = !inside && is_denied(&question);
	if (flags & POD_DATAGRAMS && context->protocol == IPPROTO_UDP && socket) {
		exchange.own_port = socket->src_port;
		exchange.port = port;
		exchange.family = family;
		copy(exchange.address, address);
		if (denied) {
			if (is_seen(&heard, pod->number, known, &exchange))
				return 1;
			forget_exchange(&sent, pod->number, known, &exchange);
		} else if (is_send) {
			note_exchange(&sent, &heard, pod->number, known, &exchange);
		}
	}
	if (!denied) {
		if (!is_send && service && question.is_mixed)
			redirect(context, is_v6, &question);
		return 1;
	}
	count(DENIED, 1);
	report_call(pod, &question, address, port);
	return deny(known);
}

/* The address of a call; its family. */
static __always_inline __u8 address_of(struct bpf_sock_addr *context, int is_v6, __u64 *address)
{
	__u32 ip[4] = {};

	if (is_v6) {
		ip[0] = context->user_ip6[0];
		ip[1] = context->user_ip6[1];
		ip[2] = context->user_ip6[2];
		ip[3] = context->user_ip6[3];
		/* An IPv4-mapped address. */
		if (!ip[0] && !ip[1] && ip[2] == bpf_htonl(0xffff)) {
			ip[0] = ip[3];
			ip[2] = ip[3] = 0;
			is_v6 = 0;
		}
	} else {
		ip[0] = context->user_ip4;
	}
	__builtin_memcpy(address, ip, sizeof(ip));
	return is_v6 ? V6 : V4;
}

static __always_inline int ask_about(struct bpf_sock_addr *context, int is_v6, int is_send)
{
	__u64 address[2];
	__u8 family = address_of(context, is_v6, address);

	return decide(context, is_v6, is_send, family, address, context->user_port);
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *context)
{
	return ask_about(context, 0, 0);
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *context)
{
	return ask_about(context, 0, 1);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *context)
{
	return ask_about(context, 1, 0);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *context)
{
	return ask_about(context, 1, 1);
}

/*
 * Remembers whose datagrams a socket gets, so that it may reply. Those of a pod on the host network are remembered as they
 * arrive, where it shows which of them a process of the node has sent.
 */
static __always_inline int hear(struct bpf_sock_addr *context, int is_v6)
{
	struct pod *pod = bpf_get_local_storage(&pods, 0);
	struct bpf_sock *socket = context->sk;
	__u32 zero = 0;
	struct settings *known = bpf_map_lookup_elem(&settings, &zero);
	struct exchange exchange = {};

	if ((pod->flags & (POD_DATAGRAMS | POD_HOST)) != POD_DATAGRAMS)
		return 1;
	if (context->protocol != IPPROTO_UDP || !socket || !known)
		return 1;
	exchange.own_port = socket->src_port;
	exchange.port = context->user_port;
	exchange.family = address_of(context, is_v6, exchange.address);
	note_exchange(&heard, &sent, pod->number, known, &exchange);
	return 1;
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *context)
{
	return hear(context, 0);
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *context)
{
	return hear(context, 1);
}

/*
 * Whether packets of a socket leave without a question: of a raw one, and on the host network of UDP-Lite (elsewhere they are
 * the switch's), whose connect() runs no program.
 */
static __always_inline int is_unasked(const struct bpf_sock *socket, __u32 flags)
{
	return socket->type == SOCK_RAW || (flags & POD_HOST && socket->protocol == IPPROTO_UDPLITE);
}

SEC("cgroup/sock_create")
int create(struct bpf_sock *socket)
{
	struct pod *pod = bpf_get_local_storage(&pods, 0);

	if (!(pod->flags & POD_NO_RAW) || !is_unasked(socket, pod->flags))
		return 1;
	count(RAW, 1);
	return 0;
}

#include "packets.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
