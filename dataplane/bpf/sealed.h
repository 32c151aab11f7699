/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the programs at the uplink and at the WireGuard device both know of encryption between nodes. A program that
 * includes this includes ip.h.
 */
#ifndef SEALED_H
#define SEALED_H

/*
 * The mark of packets that arrived encrypted, between the program at the WireGuard device and the one at the uplink,
 * which clears it. What comes from the wire or from another network namespace has no mark.
 */
#define SEALED_MARK 0x9d6a7e01

#define SEALED_NETWORKS 65536

/* Bits of a network's value. */
/* An address of another node. */
#define NODE 1
/* A pod network of another node. */
#define PODS 2
/* A pod network of this node. */
#define OWN 4
/* A WireGuard device has a peer for it. */
#define KEYED 8
/* It is the second device, while a node changes its key. */
#define SECOND 16
/* What processes of the other node and of this one say to each other is encrypted. */
#define HOSTS 32
/* An address of this node. */
#define SELF 64

/* The first message of neighbour discovery, and the last (RFC 4861). */
#define FIRST_OF_ND 133
#define LAST_OF_ND 137

struct sealed_networks {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, SEALED_NETWORKS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct network);
	__type(value, __u32);
};

static __always_inline __u32 kind_in(void *networks, const struct address *address)
{
	struct network key = { .length = 128, .address = *address };
	__u32 *value = bpf_map_lookup_elem(networks, &key);

	return value ? *value : 0;
}

enum end { SOURCE, DESTINATION };

/* The port of one end in host order; 0 where the packet has none that can be read. */
static __always_inline __u32 port_of(struct __sk_buff *skb, const struct ip_packet *packet,
				     enum end end)
{
	__be16 ports[2];

	if (packet->place == LATER || bpf_skb_load_bytes(skb, packet->l4, ports, sizeof(ports)))
		return 0;
	return bpf_ntohs(ports[end]);
}

/* Whether it is a packet of the overlay's tunnels. */
static __always_inline int is_tunnel(struct __sk_buff *skb, const struct ip_packet *packet,
				     __u32 vxlan_port)
{
	return vxlan_port && packet->protocol == IPPROTO_UDP &&
	       port_of(skb, packet, DESTINATION) == vxlan_port;
}

/*
 * Whether nodes say it to each other before anything can be encrypted: neighbour discovery, and encrypted packets.
 * This node has the port at `end`, and the next one for the second device.
 */
static __always_inline int is_below(struct __sk_buff *skb, const struct ip_packet *packet,
				    enum end end, __u32 wireguard_port)
{
	__u32 port;
	__u8 type;

	if (packet->protocol == IPPROTO_ICMPV6)
		return packet->place != LATER &&
		       !bpf_skb_load_bytes(skb, packet->l4, &type, sizeof(type)) &&
		       type >= FIRST_OF_ND && type <= LAST_OF_ND;
	if (packet->protocol != IPPROTO_UDP)
		return 0;
	port = port_of(skb, packet, end);
	return port == wireguard_port || port == wireguard_port + 1;
}

#endif
