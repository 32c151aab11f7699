/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Reads IP headers of a packet as far as programs decide by them.
 *
 * Addresses are kept as IPv6, IPv4 among them as ::ffff:a.b.c.d.
 *
 * A program that includes this defines `uplink_context`, the type of its context, and
 * `load_bytes`, which reads from the packet.
 */
#ifndef IP_H
#define IP_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* As many as the switch's own parser reads, and one more look to see that they end. */
#define EXTENSIONS 9
#define VLAN_TAGS 2
#define VLAN_ID 0x0fff
#define MORE_FRAGMENTS 0x2000
#define FRAGMENT_OFFSET 0x1fff

struct address {
	__u32 words[4];
};

/* A key of maps of networks. */
struct network {
	__u32 length;
	struct address address;
};

enum place { WHOLE, FIRST, LATER };

/* A VLAN tag behind the addresses of a frame, and the ethertype behind it. */
struct tag {
	__be16 control;
	__be16 ethertype;
};

static __always_inline int is_tagged(__be16 ethertype)
{
	return ethertype == bpf_htons(ETH_P_8021Q) || ethertype == bpf_htons(ETH_P_8021AD);
}

struct ip_packet {
	struct address source;
	struct address destination;
	__u32 l4;
	__u32 identification;
	enum place place;
	__u8 protocol;
};

static __always_inline void mapped(struct address *address, __be32 v4)
{
	address->words[0] = 0;
	address->words[1] = 0;
	address->words[2] = bpf_htonl(0xffff);
	address->words[3] = v4;
}

static __always_inline enum place place_of(__u16 offset, int more)
{
	return offset ? LATER : more ? FIRST : WHOLE;
}

static __always_inline int read_v4(uplink_context *context, __u32 at, struct ip_packet *packet)
{
	struct iphdr header;

	if (load_bytes(context, at, &header, sizeof(header)))
		return -1;
	if (header.version != 4 || header.ihl < 5)
		return -1;
	mapped(&packet->source, header.saddr);
	mapped(&packet->destination, header.daddr);
	packet->protocol = header.protocol;
	packet->l4 = at + header.ihl * 4;
	packet->identification = header.id;
	__u16 word = bpf_ntohs(header.frag_off);
	packet->place = place_of(word & FRAGMENT_OFFSET, word & MORE_FRAGMENTS);
	return 0;
}

static __always_inline int read_v6(uplink_context *context, __u32 at, struct ip_packet *packet)
{
	struct ipv6hdr header;

	if (load_bytes(context, at, &header, sizeof(header)))
		return -1;
	if (header.version != 6)
		return -1;
	__builtin_memcpy(&packet->source, &header.saddr, sizeof(packet->source));
	__builtin_memcpy(&packet->destination, &header.daddr, sizeof(packet->destination));
	packet->protocol = header.nexthdr;
	packet->place = WHOLE;
	at += sizeof(header);
	for (int n = 0; n < EXTENSIONS; n++) {
		__u8 extension[8];

		switch (packet->protocol) {
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
		case IPPROTO_FRAGMENT:
			break;
		default:
			packet->l4 = at;
			return 0;
		}
		if (load_bytes(context, at, extension, sizeof(extension)))
			return -1;
		if (packet->protocol == IPPROTO_FRAGMENT) {
			__u16 word = extension[2] << 8 | extension[3];

			__builtin_memcpy(&packet->identification, extension + 4, 4);
			packet->place = place_of(word >> 3, word & 1);
			at += 8;
		} else {
			at += 8 + 8 * extension[1];
		}
		packet->protocol = extension[0];
		if (packet->place == LATER) {
			packet->l4 = at;
			return 0;
		}
	}
	return -1;
}

enum reading { READ, NOT_IP, TOO_MANY_TAGS, UNREADABLE };

/*
 * Reads a frame from whose front so many VLAN tags are taken off already. An unreadable packet has the addresses that
 * could be read, and zeros.
 */
static __always_inline enum reading read_frame(uplink_context *context, int tags,
					       struct ip_packet *packet)
{
	struct ethhdr ethernet;
	__u32 at = sizeof(ethernet);
	__be16 ethertype;
	int bad;

	if (load_bytes(context, 0, &ethernet, sizeof(ethernet)))
		return NOT_IP;
	ethertype = ethernet.h_proto;
	for (; tags < VLAN_TAGS && is_tagged(ethertype); tags++) {
		struct tag tag;

		if (load_bytes(context, at, &tag, sizeof(tag)) ||
		    bpf_ntohs(tag.control) & VLAN_ID)
			return NOT_IP;
		ethertype = tag.ethertype;
		at += sizeof(tag);
	}
	/* Nobody has a use for more; whom the packet is for stays unread. */
	if (is_tagged(ethertype) && tags)
		return TOO_MANY_TAGS;
	switch (bpf_ntohs(ethertype)) {
	case ETH_P_IP:
		bad = read_v4(context, at, packet);
		break;
	case ETH_P_IPV6:
		bad = read_v6(context, at, packet);
		break;
	default:
		return NOT_IP;
	}
	return bad ? UNREADABLE : READ;
}

#endif
