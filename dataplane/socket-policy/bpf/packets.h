/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Packets of pods on the host network, which no other program of the switch sees: what arrives at their sockets, and what leaves
 * them by ways that nobody asks about. A part of `socket.bpf.c`, whose maps and questions it has.
 */
#ifndef PACKETS_H
#define PACKETS_H

/* The sender of a packet: its family, address, and for a UDP header behind a plain IP header its port. */
static __always_inline __u8 sender_of(struct __sk_buff *packet, __u64 *address, __be16 *port)
{
	__u8 first = 0, next = 0;
	__u32 udp = 40;

	address[0] = address[1] = 0;
	*port = 0;
	if (packet->protocol == bpf_htons(ETH_P_IPV6)) {
		bpf_skb_load_bytes(packet, 6, &next, sizeof(next));
		bpf_skb_load_bytes(packet, 8, address, 16);
		/* Behind other headers it has no port, and so no exchange. */
		if (next == IPPROTO_UDP || next == IPPROTO_UDPLITE || next == IPPROTO_TCP)
			bpf_skb_load_bytes(packet, udp, port, sizeof(*port));
		return V6;
	}
	bpf_skb_load_bytes(packet, 0, &first, sizeof(first));
	bpf_skb_load_bytes(packet, 12, address, 4);
	udp = (first & 15) * 4;
	bpf_skb_load_bytes(packet, udp, port, sizeof(*port));
	return V4;
}

/*
 * What a socket of a pod on the host network gets: 1, or 0 for a packet that is dropped. Packets of connections pass: they
 * come to sockets that are connected, and the handshake to the listener.
 */
SEC("cgroup_skb/ingress")
int ingress(struct __sk_buff *packet)
{
	struct pod *pod = bpf_get_local_storage(&pods, 0);
	__u32 zero = 0;
	struct settings *known = bpf_map_lookup_elem(&settings, &zero);
	struct bpf_sock *socket = packet->sk;
	struct exchange exchange = {};
	struct question question = {};
	__u32 flags = pod->flags;
	__be16 port;
	int is_local, is_named, denied;

	socket = socket ? bpf_sk_fullsock(socket) : 0;
	if (!socket || socket->type == SOCK_RAW)
		return 1;
	/* The rules are those of UDP for UDP-Lite. */
	question.transport = socket->protocol == IPPROTO_UDPLITE ? IPPROTO_UDP : socket->protocol;
	if (question.transport == IPPROTO_TCP) {
		if (socket->state != BPF_TCP_LISTEN)
			return 1;
	} else if (question.transport != IPPROTO_UDP || socket->state == BPF_TCP_ESTABLISHED) {
		return 1;
	}
	if (!known || !(flags & POD_KNOWN))
		return 1;
	question.generation = *(volatile __u32 *)&known->generation;
	if (!question.generation)
		return 1;
	question.family = sender_of(packet, question.address, &port);
	question.port = bpf_htons(socket->src_port);
	question.by = ~0U;
	/* The node reaches its pods. */
	is_local = packet->ifindex == LOOPBACK_INTERFACE;
	denied = !is_local && ask(&question, ACCEPTS | pod->number, question.address) == DENY;
	if (flags & POD_DATAGRAMS && question.transport == IPPROTO_UDP && port) {
		exchange.own_port = socket->src_port;
		exchange.port = port;
		exchange.family = question.family;
		copy(exchange.address, question.address);
		if (!denied) {
			/*
			 * A process of the node may write any sender in a packet of IPv6, which comes back by loopback, or to a
			 * group at the interface by which it left.
			 */
			is_named = question.family == V6 &&
				   (is_local || packet->pkt_type == PACKET_LOOPBACK);
			if (!is_named)
				note_exchange(&heard, &sent, pod->number, known, &exchange);
			return 1;
		}
		if (is_seen(&sent, pod->number, known, &exchange))
			return 1;
	}
	if (!denied)
		return 1;
	count(KEPT_OUT, 1);
	report_packet(pod, &question, port);
	return 0;
}

/*
 * What a pod on the host network sends past the rules about what it opens: packets of sockets that are open and that nobody asks
 * about, and packets that may name a way (options of RFC 791, a routing header of RFC 8200), so that they go first to an address that nobody asked about.
 */
SEC("cgroup_skb/egress")
int egress(struct __sk_buff *packet)
{
	struct pod *pod = bpf_get_local_storage(&pods, 0);
	struct bpf_sock *socket = packet->sk;
	__u8 first = PLAIN_V4, next = 0;

	if (!(pod->flags & POD_NO_RAW) || packet->ifindex == LOOPBACK_INTERFACE)
		return 1;
	if (packet->protocol == bpf_htons(ETH_P_IPV6))
		bpf_skb_load_bytes(packet, 6, &next, sizeof(next));
	else
		bpf_skb_load_bytes(packet, 0, &first, sizeof(first));
	socket = socket ? bpf_sk_fullsock(socket) : 0;
	if (first == PLAIN_V4 && next != ROUTING_HEADER && !(socket && is_unasked(socket, pod->flags)))
		return 1;
	count(RAW, 1);
	return 0;
}

#endif
