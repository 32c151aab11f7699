/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Which packets of an interface that the node itself uses are the switch's. They are:
 *
 *   1. VXLAN: UDP to an address of the node and the overlay's port;
 *   2. packets to addresses inside this node's pod networks;
 *   3. packets to a service's address, protocol and port;
 *   4. replies to what left masqueraded: to an address of the node and a port
 *      (or an echo reply's identifier) of the range set aside for that;
 *   5. ICMP errors that quote a packet whose replies would be taken by 3 or 4;
 *   6. later fragments of a datagram whose first fragment was taken.
 *
 * All others are the kernel's: ARP and neighbour discovery, ssh, frames of VLANs, whatever is not
 * understood. A tag of VLAN 0 is a priority alone (IEEE 802.1Q), which the kernel looks behind, and
 * so does `classify`. A packet for a pod that cannot be read to its end is dropped: the kernel would
 * send it on.
 *
 * Ports are kept in the order of the wire.
 */
#ifndef UPLINK_H
#define UPLINK_H

#include "ip.h"

#define ADDRESSES 1024
#define NETWORKS 1024
#define SERVICES 65536
#define DATAGRAMS 4096
struct uplink_settings {
	/* In host order; 0 is off. */
	__u16 vxlan_port;
	__u16 masquerade_first;
	__u16 masquerade_last;
	__u16 unused;
};

struct service {
	struct address address;
	__u16 port;
	__u8 protocol;
	__u8 zero;
};

struct datagram {
	struct address source;
	struct address destination;
	__u32 identification;
	__u32 protocol;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct uplink_settings);
} uplink_settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ADDRESSES);
	__type(key, struct address);
	__type(value, __u8);
} node_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, NETWORKS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct network);
	__type(value, __u8);
} pod_networks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERVICES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct service);
	__type(value, __u8);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, DATAGRAMS);
	__type(key, struct datagram);
	__type(value, __u8);
} datagrams SEC(".maps");

static __always_inline int is_node(const struct address *address)
{
	return bpf_map_lookup_elem(&node_addresses, address) != NULL;
}

static __always_inline int is_pod(const struct address *address)
{
	struct network key = { .length = 128, .address = *address };

	return bpf_map_lookup_elem(&pod_networks, &key) != NULL;
}

static __always_inline int is_service(const struct address *address, __u8 protocol, __be16 port)
{
	struct service key = { .address = *address, .port = port, .protocol = protocol };

	return bpf_map_lookup_elem(&services, &key) != NULL;
}

static __always_inline int is_masqueraded(const struct uplink_settings *set,
					  const struct address *address, __be16 port)
{
	__u16 number = bpf_ntohs(port);

	return set->masquerade_first && number >= set->masquerade_first &&
	       number <= set->masquerade_last && is_node(address);
}

static __always_inline int has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP;
}

static __always_inline int is_neighbour_discovery(__u8 protocol, __u8 type)
{
	return protocol == IPPROTO_ICMPV6 && type >= 133 && type <= 137;
}

static __always_inline int is_echo_reply(__u8 protocol, __u8 type)
{
	return protocol == IPPROTO_ICMP ? type == 0 : type == 129;
}

static __always_inline int is_error(__u8 protocol, __u8 type)
{
	if (protocol == IPPROTO_ICMP)
		return type == 3 || type == 11 || type == 12;
	return type >= 1 && type <= 4;
}

/* The packet that an ICMP error quotes is one of ours if its replies would be. */
static __always_inline int quotes_ours(uplink_context *context, const struct uplink_settings *set,
				       const struct ip_packet *packet)
{
	struct ip_packet quote = {};
	__u32 at = packet->l4 + 8;
	__be16 ports[4];
	int bad;

	if (packet->protocol == IPPROTO_ICMP)
		bad = read_v4(context, at, &quote);
	else
		bad = read_v6(context, at, &quote);
	if (bad || quote.place == LATER)
		return 0;
	if (load_bytes(context, quote.l4, ports, sizeof(ports)))
		return 0;
	if (has_ports(quote.protocol))
		return is_service(&quote.source, quote.protocol, ports[0]) ||
		       is_masqueraded(set, &quote.source, ports[0]);
	if (quote.protocol == IPPROTO_ICMP || quote.protocol == IPPROTO_ICMPV6)
		return is_masqueraded(set, &quote.source, ports[2]);
	return 0;
}

static __always_inline int is_ours(uplink_context *context, const struct uplink_settings *set,
				   const struct ip_packet *packet)
{
	__be16 ports[4];

	if (packet->protocol == IPPROTO_ICMP || packet->protocol == IPPROTO_ICMPV6) {
		__u8 type;

		if (load_bytes(context, packet->l4, ports, sizeof(ports)))
			return is_pod(&packet->destination);
		__builtin_memcpy(&type, ports, 1);
		if (is_neighbour_discovery(packet->protocol, type))
			return 0;
		if (is_pod(&packet->destination))
			return 1;
		if (is_echo_reply(packet->protocol, type))
			return is_masqueraded(set, &packet->destination, ports[2]);
		return is_error(packet->protocol, type) && quotes_ours(context, set, packet);
	}
	if (is_pod(&packet->destination))
		return 1;
	if (!has_ports(packet->protocol) ||
	    load_bytes(context, packet->l4, ports, sizeof(ports)))
		return 0;
	if (packet->protocol == IPPROTO_UDP && set->vxlan_port &&
	    bpf_ntohs(ports[1]) == set->vxlan_port && is_node(&packet->destination))
		return 1;
	return is_service(&packet->destination, packet->protocol, ports[1]) ||
	       is_masqueraded(set, &packet->destination, ports[1]);
}

enum taken { PASSED, TAKEN, DROPPED };

/* Whether a frame is the switch's, from whose front so many VLAN tags are taken off already. */
static __always_inline enum taken classify(uplink_context *context, int tags)
{
	struct ip_packet packet = {};
	__u32 zero = 0;

	struct uplink_settings *set = bpf_map_lookup_elem(&uplink_settings, &zero);
	if (!set)
		return PASSED;
	switch (read_frame(context, tags, &packet)) {
	case READ:
		break;
	case NOT_IP:
		return PASSED;
	case TOO_MANY_TAGS:
		return DROPPED;
	default:
		return is_pod(&packet.destination) ? DROPPED : PASSED;
	}

	struct datagram datagram = {
		.source = packet.source,
		.destination = packet.destination,
		.identification = packet.identification,
		.protocol = packet.protocol,
	};
	if (packet.place == LATER) {
		if (is_pod(&packet.destination) || bpf_map_lookup_elem(&datagrams, &datagram))
			return TAKEN;
		return PASSED;
	}
	int ours = is_ours(context, set, &packet);

	if (packet.place == FIRST) {
		__u8 taken = 1;

		/* An earlier datagram with the same identification may have been another's. */
		if (ours)
			bpf_map_update_elem(&datagrams, &datagram, &taken, BPF_ANY);
		else
			bpf_map_delete_elem(&datagrams, &datagram);
	}
	return ours ? TAKEN : PASSED;
}

#endif
