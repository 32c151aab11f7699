// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Forwards packets of connections that the switch has allowed, without the switch.
 *
 *   pod ── veth ──▶ from_pod ─┬─ entry ─────────▶ rewritten, into the other pod or out of an interface
 *                             └─ anything else ─▶ punt link ──▶ XDP ──▶ AF_XDP ──▶ the switch
 *   the switch ──▶ punt link ──▶ from_switch ───▶ into the pod that the tag names
 *
 *   wire ──▶ uplink ──▶ from_uplink ─┬─ entry ────────▶ rewritten, into the pod
 *                                    ├─ the switch's ─▶ uplink's link ──▶ XDP ──▶ AF_XDP ──▶ the switch
 *                                    └─ anything else ▶ the kernel's own stack
 *   the switch ──▶ uplink's link ──▶ to_uplink ───────▶ out of the uplink
 *
 *   the node's kernel ── host port ──▶ from_host ─┬─ entry ─────────▶ rewritten, to the pod
 *                                                 └─ anything else ─▶ the switch
 *
 * `from_pod` stands at the ingress of a pod's host-side interface and passes nothing to the
 * kernel's own stack. `from_host` stands at the egress of the kernel's end of the host port. The programs
 * never decide whether a connection is allowed: without an entry whose generations are current and whose
 * switch lives, the packet is the switch's. A template makes entries of a connection that differs in the
 * initiator's port alone from one that the switch has allowed, under the same conditions; the switch reads of
 * it in `reports`.
 *
 * An entry is found by the interface and both ends, so that a packet of a pod that matches has the
 * source address that the switch has held to that interface. What arrives in a tunnel has entries of
 * its own, for packets from the node that the source belongs to.
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

typedef struct __sk_buff uplink_context;
#define load_bytes bpf_skb_load_bytes
#include "../../bpf/uplink.h"
#include "../../bpf/barrier.h"
#include "../../bpf/sealed.h"
#include "flow.h"
#include "../../bpf/counters.h"

/* More fragments, and the place of this one. */
#define FRAGMENT 0x3fff
/* Ethernet, IP and TCP without options: what has to be in one piece. */
#define HEADERS_V4 (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct tcphdr))
#define HEADERS_V6 (sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + sizeof(struct tcphdr))
/* In front of a frame in a tunnel: IP, UDP, VXLAN, and the frame's own Ethernet header. */
#define VXLAN_HEADERS (sizeof(struct udphdr) + sizeof(struct vxlanhdr) + sizeof(struct ethhdr))
#define FRONT_V4 (sizeof(struct iphdr) + VXLAN_HEADERS)
#define FRONT_V6 (sizeof(struct ipv6hdr) + VXLAN_HEADERS)
/* Of flags of the VXLAN header: the network is valid. */
#define VXLAN_VALID bpf_htonl(0x08000000)
#define DONT_FRAGMENT 0x4000
#define HOP_LIMIT 255
/* Marks of congestion in a traffic class (RFC 3168). */
#define CONGESTION 3
#define CAPABLE_0 2
#define CAPABLE_1 1
/* `BPF_F_ADJ_ROOM_DECAP_L3_IPV4` and `_IPV6` of newer headers. */
#define DECAP_IPV4 (1ULL << 7)
#define DECAP_IPV6 (1ULL << 8)
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
/* All of them but the marks of congestion (RFC 3168). */
#define TCP_FLAGS 0x3f

struct vxlanhdr {
	__be32 flags;
	__be32 network;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 18);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow_key);
	__type(value, struct flow_entry);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GUARD_PORTS + PORTS);
	__type(key, __u32);
	__type(value, __u32);
} generations SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 14);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct template_key);
	__type(value, struct template);
} templates SEC(".maps");

/* How services that templates lead to choose their backends. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 14);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct choice_key);
	__type(value, struct choice);
} choices SEC(".maps");

/*
 * Programs that others go on to, and return from by the same map. Together they would be more than the kernel
 * verifies, which looks at all paths through a program.
 */
enum stage {
	STAGE_POD,
	STAGE_POD_OPENS,
	STAGE_POD_ASKS,
	STAGE_UPLINK,
	STAGE_UPLINK_OPENS,
	STAGE_UPLINK_LEAVES,
	STAGES,
};

int from_pod(struct __sk_buff *skb);
int pod_opens(struct __sk_buff *skb);
int pod_asks(struct __sk_buff *skb);
int from_uplink(struct __sk_buff *skb);
int uplink_opens(struct __sk_buff *skb);
int uplink_leaves(struct __sk_buff *skb);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, STAGES);
	__uint(key_size, sizeof(__u32));
	__array(values, int(void *));
} stages SEC(".maps") = {
	.values = {
		[STAGE_POD] = (void *)&from_pod,
		[STAGE_POD_OPENS] = (void *)&pod_opens,
		[STAGE_POD_ASKS] = (void *)&pod_asks,
		[STAGE_UPLINK] = (void *)&from_uplink,
		[STAGE_UPLINK_OPENS] = (void *)&uplink_opens,
		[STAGE_UPLINK_LEAVES] = (void *)&uplink_leaves,
	},
};

/* What the switch has to know of connections that it has not seen open or end. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 19);
} reports SEC(".maps");

/* By the number of the interface. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PORTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct port);
} interfaces SEC(".maps");

/* The same by the number of the port. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORTS);
	__type(key, __u32);
	__type(value, struct port);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORTS);
	__type(key, __u32);
	__type(value, struct share);
} shares SEC(".maps");

/*
 * What the switch writes: the round of each queue of the punt link, and behind that how many frames
 * of each port its workers have taken.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, QUEUES + 2 * PORTS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u32);
} progress SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

/* Where traffic between nodes is encrypted: their networks, and those of this one. */
struct sealed_networks sealed_networks SEC(".maps");

/* The UDP port of encrypted packets in host order; 0 where traffic is not encrypted. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sealed SEC(".maps");

/* A packet's headers, as far as entries are about them. */
struct packet {
	struct flow_key key;
	/* Of the transport header, from the start of the frame (in a tunnel: of the frame inside). */
	__u32 l4;
	/* Bytes of the IP packet, or of the longest segment it will be cut into. */
	__u32 length;
	/* Whether its sender has sent all. */
	__u32 has_fin;
	/* Flags of TCP without marks of congestion, and bytes behind its header. */
	__u32 flags;
	__u32 data;
};

static __always_inline int is_same_mac(const __u8 *a, const __u8 *b)
{
	const __u16 *x = (const __u16 *)a, *y = (const __u16 *)b;

	return !((x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]));
}

static __always_inline int is_same_address(const __u8 *a, const __u8 *b)
{
	const __u64 *x = (const __u64 *)a, *y = (const __u64 *)b;

	return !((x[0] ^ y[0]) | (x[1] ^ y[1]));
}

static __always_inline __u32 folded(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static __always_inline int has_right_sum(const struct iphdr *ip)
{
	const __u32 *words = (const __u32 *)ip;
	__u64 sum = (__u64)words[0] + words[1] + words[2] + words[3] + words[4];

	return folded(sum) == 0xffff;
}

static __always_inline void map_v4(__u8 *address, __be32 v4)
{
	__u32 *words = (__u32 *)address;

	words[0] = 0;
	words[1] = 0;
	words[2] = bpf_htonl(0xffff);
	words[3] = v4;
}

/* Reads the transport header; `rest` is its length and that of what follows. */
static __always_inline int read_transport(struct __sk_buff *skb, void *l4, void *end, __u32 rest,
					  struct packet *packet)
{
	__u32 header;

	if (packet->key.protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = l4;
		__u8 flags;

		if ((void *)(tcp + 1) > end)
			return REASON_MALFORMED;
		header = tcp->doff * 4;
		if (header < sizeof(*tcp) || header > rest)
			return REASON_MALFORMED;
		flags = ((__u8 *)tcp)[13];
		packet->flags = flags & TCP_FLAGS;
		packet->data = rest - header;
		packet->has_fin = flags & TCP_FIN;
		packet->key.source_port = tcp->source;
		packet->key.destination_port = tcp->dest;
		if (flags & (TCP_SYN | TCP_RST))
			return REASON_OPENS_OR_ENDS;
		if (!(flags & TCP_ACK))
			return packet->has_fin ? REASON_OPENS_OR_ENDS : REASON_MALFORMED;
	} else if (packet->key.protocol == IPPROTO_UDP) {
		struct udphdr *udp = l4;
		__u32 length;

		if ((void *)(udp + 1) > end)
			return REASON_MALFORMED;
		header = sizeof(*udp);
		length = bpf_ntohs(udp->len);
		if (length < header || length > rest)
			return REASON_MALFORMED;
		packet->key.source_port = udp->source;
		packet->key.destination_port = udp->dest;
	} else {
		return REASON_OTHER_PROTOCOL;
	}
	/* The kernel cuts it on the way, each segment with the headers. */
	if (skb->gso_size)
		packet->length = packet->l4 - sizeof(struct ethhdr) + header + skb->gso_size;
	return -1;
}

/*
 * Reads what an entry may be about from the frame at `data`, behind which there are `all` bytes; a
 * reason otherwise.
 */
static __always_inline int read_packet(struct __sk_buff *skb, void *data, void *end, __u32 all,
				       struct packet *packet)
{
	struct ethhdr *ethernet = data;
	void *l3 = ethernet + 1;
	__u32 rest;

	if (l3 > end)
		return REASON_MALFORMED;
	if (skb->vlan_present)
		return REASON_NOT_IP;
	packet->key.ingress = skb->ifindex;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = l3;
		__u32 total;

		if ((void *)(ip + 1) > end)
			return REASON_MALFORMED;
		if (*(__u8 *)ip != 0x45)
			return REASON_OPTIONS;
		if (ip->frag_off & bpf_htons(FRAGMENT))
			return REASON_FRAGMENT;
		if (ip->ttl <= 1)
			return REASON_TTL;
		total = bpf_ntohs(ip->tot_len);
		if (total < sizeof(*ip) || sizeof(*ethernet) + total > all || !has_right_sum(ip))
			return REASON_MALFORMED;
		packet->key.family = FAMILY_V4;
		packet->key.protocol = ip->protocol;
		map_v4(packet->key.source, ip->saddr);
		map_v4(packet->key.destination, ip->daddr);
		packet->length = total;
		packet->l4 = sizeof(*ethernet) + sizeof(*ip);
		rest = total - sizeof(*ip);
		return read_transport(skb, ip + 1, end, rest, packet);
	}
	if (ethernet->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = l3;

		if ((void *)(ip + 1) > end || ip->version != 6)
			return REASON_MALFORMED;
		switch (ip->nexthdr) {
		case IPPROTO_TCP:
		case IPPROTO_UDP:
			break;
		case IPPROTO_FRAGMENT:
			return REASON_FRAGMENT;
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
			return REASON_OPTIONS;
		default:
			return REASON_OTHER_PROTOCOL;
		}
		if (ip->hop_limit <= 1)
			return REASON_TTL;
		rest = bpf_ntohs(ip->payload_len);
		if (sizeof(*ethernet) + sizeof(*ip) + rest > all)
			return REASON_MALFORMED;
		packet->key.family = FAMILY_V6;
		packet->key.protocol = ip->nexthdr;
		__builtin_memcpy(packet->key.source, &ip->saddr, 16);
		__builtin_memcpy(packet->key.destination, &ip->daddr, 16);
		packet->length = sizeof(*ip) + rest;
		packet->l4 = sizeof(*ethernet) + sizeof(*ip);
		return read_transport(skb, ip + 1, end, rest, packet);
	}
	return REASON_NOT_IP;
}

/* Whether what allowed the entry still holds. */
static __always_inline int is_current(const struct flow_entry *entry)
{
#pragma unroll
	for (int n = 0; n < GUARDS; n++) {
		__u32 guard = entry->guards[n];
		__u32 *generation = bpf_map_lookup_elem(&generations, &guard);

		if (!generation || *generation != entry->generations[n])
			return 0;
	}
	return 1;
}

static __always_inline void lower_ttl(struct iphdr *ip)
{
	__u32 sum = ip->check;

	/* RFC 1624, as the switch does it. */
	sum += bpf_htons(0x0100);
	ip->check = sum + (sum >> 16);
	ip->ttl--;
}

/*
 * Mends the transport checksum for other addresses and ports; the difference that the addresses
 * make. The kernel's helpers know unfinished checksums, which cover the addresses alone.
 */
static __always_inline int mend_transport(struct __sk_buff *skb, const struct packet *packet,
					  __u32 l4, const struct flow_entry *entry,
					  __s64 *difference)
{
	__u32 field = l4 + __builtin_offsetof(struct tcphdr, check);
	__be16 ports[2] = {
		entry->source_port ?: packet->key.source_port,
		entry->destination_port ?: packet->key.destination_port,
	};
	__u64 zero = 0;
	__be32 from, to;

	if (packet->key.protocol == IPPROTO_UDP) {
		field = l4 + __builtin_offsetof(struct udphdr, check);
		zero = BPF_F_MARK_MANGLED_0;
	}
	/* Source and destination stand side by side in both. */
	*difference = bpf_csum_diff((__be32 *)packet->key.source, 32, (__be32 *)entry->source, 32, 0);
	if (*difference < 0 ||
	    bpf_l4_csum_replace(skb, field, 0, *difference, BPF_F_PSEUDO_HDR | zero))
		return -1;
	__builtin_memcpy(&from, &packet->key.source_port, 4);
	__builtin_memcpy(&to, ports, 4);
	if (from == to)
		return 0;
	if (bpf_l4_csum_replace(skb, field, from, to, sizeof(to) | zero))
		return -1;
	return bpf_skb_store_bytes(skb, l4, ports, 4, 0);
}

/* Mixes a word into a hash: both halves of a product, as `dataplane/src/services/mod.rs` has it. */
static __always_inline __u64 mix(__u64 hash, __u64 word)
{
	const __u64 by = 0x9e3779b97f4a7c15, by_low = (__u32)by, by_high = by >> 32;
	__u64 low, high, first, second;

	hash ^= word;
	low = (__u32)hash * by_low;
	first = (hash >> 32) * by_low + (low >> 32);
	second = (__u32)hash * by_high + (__u32)first;
	high = (hash >> 32) * by_high + (first >> 32) + (second >> 32);
	return hash * by ^ high;
}

static __always_inline __u64 half_of(const __u8 *address, __u32 half)
{
	const __be32 *words = (const __be32 *)address + 2 * half;

	return (__u64)bpf_ntohl(words[0]) << 32 | bpf_ntohl(words[1]);
}

/* A port to send a tunnel's packets from that follows from the connection inside (RFC 7348, section 5). */
static __always_inline __be16 outer_port(const struct flow_key *key)
{
	__u64 ports = (__u32)key->source_port << 16 | key->destination_port;

	return bpf_htons(0xc000 | (mix(half_of(key->source, 1) ^ half_of(key->destination, 1), ports) & 0x3fff));
}

/* How a packet arrived by the uplink. */
struct arrival {
	/* Both ends of its tunnel, as in `struct tunnel`. */
	__u8 own[16] __attribute__((aligned(8)));
	__u8 peer[16] __attribute__((aligned(8)));
	__be32 network;
	/* Bytes in front of the frame; 0 outside of a tunnel. */
	__u32 front;
	__u8 family;
	__u8 hop_limit;
	/* The traffic class of the packet outside, then the congestion mark that the one inside gets. */
	__u8 class;
	__u8 mark;
};

/*
 * The frame behind so many bytes: none, or a tunnel's headers. To a pointer into a packet, a program
 * of a process without CAP_PERFMON may add constants alone; so compilers must not unite these two.
 */
static __always_inline void *behind(void *data, __u32 front)
{
	if (front == FRONT_V4)
		asm volatile("%0 += %1" : "+r"(data) : "i"(FRONT_V4));
	else if (front == FRONT_V6)
		asm volatile("%0 += %1" : "+r"(data) : "i"(FRONT_V6));
	return data;
}

/* Has so many bytes behind the front in one piece, or as many as there are. */
static __always_inline int pull(struct __sk_buff *skb, __u32 front, __u32 bytes)
{
	if (behind((void *)(long)skb->data, front) + bytes <= (void *)(long)skb->data_end)
		return 0;
	bytes += front;
	return bpf_skb_pull_data(skb, skb->len < bytes ? skb->len : bytes);
}

/*
 * Has a frame's headers in one piece. No more than that: segments that are still to be cut have little
 * else in one piece, and what is pulled is copied out of the payload's pages.
 */
static __always_inline int pull_headers(struct __sk_buff *skb, __u32 front)
{
	struct ethhdr *ethernet;

	if (pull(skb, front, HEADERS_V4))
		return -1;
	ethernet = behind((void *)(long)skb->data, front);
	if ((void *)(ethernet + 1) > (void *)(long)skb->data_end)
		return -1;
	return ethernet->h_proto == bpf_htons(ETH_P_IPV6) ? pull(skb, front, HEADERS_V6) : 0;
}

/* The traffic class. */
static __always_inline __u8 class_of(const struct ipv6hdr *ip)
{
	return ip->priority << 4 | ip->flow_lbl[0] >> 4;
}

/* Reads what stands in front of a frame in a tunnel; 0 if an entry cannot be about it. */
static __always_inline int read_tunnel(struct __sk_buff *skb, __u16 port, void *data, void *end,
				       struct arrival *arrival)
{
	struct ethhdr *ethernet = data;
	struct vxlanhdr *vxlan;
	struct udphdr *udp;
	__u32 rest, length;

	if ((void *)(ethernet + 1) > end)
		return 0;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(ethernet + 1);

		udp = (void *)(ip + 1);
		vxlan = (void *)(udp + 1);
		if ((void *)(vxlan + 1) > end || *(__u8 *)ip != 0x45 ||
		    ip->protocol != IPPROTO_UDP || ip->frag_off & bpf_htons(FRAGMENT) ||
		    !has_right_sum(ip))
			return 0;
		rest = bpf_ntohs(ip->tot_len);
		if (rest < sizeof(*ip) || sizeof(*ethernet) + rest > skb->len)
			return 0;
		rest -= sizeof(*ip);
		map_v4(arrival->own, ip->daddr);
		map_v4(arrival->peer, ip->saddr);
		arrival->front = FRONT_V4;
		arrival->family = FAMILY_V4;
		arrival->hop_limit = ip->ttl;
		arrival->class = ip->tos;
	} else if (ethernet->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(ethernet + 1);

		udp = (void *)(ip + 1);
		vxlan = (void *)(udp + 1);
		if ((void *)(vxlan + 1) > end || ip->version != 6 || ip->nexthdr != IPPROTO_UDP)
			return 0;
		rest = bpf_ntohs(ip->payload_len);
		if (sizeof(*ethernet) + sizeof(*ip) + rest > skb->len)
			return 0;
		__builtin_memcpy(arrival->own, &ip->daddr, 16);
		__builtin_memcpy(arrival->peer, &ip->saddr, 16);
		arrival->front = FRONT_V6;
		arrival->family = FAMILY_V6;
		arrival->hop_limit = ip->hop_limit;
		arrival->class = class_of(ip);
	} else {
		return 0;
	}
	length = bpf_ntohs(udp->len);
	arrival->network = vxlan->network & bpf_htonl(0xffffff00);
	/* An unfinished checksum is that of the packet outside only if it has one. */
	return udp->dest == bpf_htons(port) && !udp->check && length <= rest &&
	       length >= VXLAN_HEADERS && vxlan->flags & VXLAN_VALID;
}

/*
 * The congestion mark that a packet leaves a tunnel with (RFC 6040, section 4.2); -1 if the packet
 * is lost.
 */
static __always_inline int combined_mark(__u8 inside, __u8 outside)
{
	inside &= CONGESTION;
	outside &= CONGESTION;
	if (!inside)
		return outside == CONGESTION ? -1 : 0;
	if (outside == CONGESTION)
		return CONGESTION;
	return inside == CAPABLE_0 && outside == CAPABLE_1 ? CAPABLE_1 : inside;
}

/* Makes room for a tunnel's headers in front of the frame; how much, or 0 if there is none. */
static __always_inline __u32 make_room(struct __sk_buff *skb, __u8 family)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
		      BPF_F_ADJ_ROOM_ENCAP_L2_ETH | BPF_F_ADJ_ROOM_ENCAP_L2(sizeof(struct ethhdr));

	/* IP has to be able to tell the length, of segments that are still to be cut as well. */
	if (skb->len + FRONT_V6 > 0xffff)
		return 0;
	if (family == FAMILY_V4) {
		flags |= BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
		return bpf_skb_adjust_room(skb, FRONT_V4, BPF_ADJ_ROOM_MAC, flags) ? 0 : FRONT_V4;
	}
	flags |= BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;
	return bpf_skb_adjust_room(skb, FRONT_V6, BPF_ADJ_ROOM_MAC, flags) ? 0 : FRONT_V6;
}

/* Takes a tunnel's headers away. What is left has the Ethernet header of the packet outside. */
static __always_inline int take_off(struct __sk_buff *skb, __u32 front, __u8 family)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | (family == FAMILY_V4 ? DECAP_IPV4 : DECAP_IPV6);

	return bpf_skb_adjust_room(skb, -(__s32)front, BPF_ADJ_ROOM_MAC, flags);
}

/* Writes a tunnel's headers into the room in front of a frame of this traffic class. */
static __always_inline int write_front(struct __sk_buff *skb, const struct flow_key *key,
				       const struct flow_entry *entry, __u8 class)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	const struct tunnel *tunnel = &entry->tunnel;
	struct ethhdr *ethernet = data;
	__u32 length = skb->len - sizeof(*ethernet);
	struct vxlanhdr *vxlan;
	struct udphdr *udp;

	if (tunnel->family == FAMILY_V4) {
		struct iphdr *ip = (void *)(ethernet + 1);
		__u32 *words = (__u32 *)ip;

		udp = (void *)(ip + 1);
		vxlan = (void *)(udp + 1);
		if ((void *)(vxlan + 1) > end)
			return -1;
		ethernet->h_proto = bpf_htons(ETH_P_IP);
		*(__u8 *)ip = 0x45;
		ip->tos = class;
		ip->tot_len = bpf_htons(length);
		ip->id = 0;
		/* The other end does not reassemble. */
		ip->frag_off = bpf_htons(DONT_FRAGMENT);
		ip->ttl = HOP_LIMIT;
		ip->protocol = IPPROTO_UDP;
		ip->check = 0;
		ip->saddr = *(__be32 *)(tunnel->own + 12);
		ip->daddr = *(__be32 *)(tunnel->peer + 12);
		ip->check = ~folded((__u64)words[0] + words[1] + words[2] + words[3] + words[4]);
		length -= sizeof(*ip);
	} else {
		struct ipv6hdr *ip = (void *)(ethernet + 1);

		udp = (void *)(ip + 1);
		vxlan = (void *)(udp + 1);
		if ((void *)(vxlan + 1) > end)
			return -1;
		length -= sizeof(*ip);
		ethernet->h_proto = bpf_htons(ETH_P_IPV6);
		*(__be32 *)ip = bpf_htonl(6 << 28 | class << 20);
		ip->payload_len = bpf_htons(length);
		ip->nexthdr = IPPROTO_UDP;
		ip->hop_limit = HOP_LIMIT;
		__builtin_memcpy(&ip->saddr, tunnel->own, 16);
		__builtin_memcpy(&ip->daddr, tunnel->peer, 16);
	}
	udp->source = tunnel->source_port ?: outer_port(key);
	udp->dest = tunnel->port;
	udp->len = bpf_htons(length);
	udp->check = 0;
	vxlan->flags = tunnel->flags;
	vxlan->network = tunnel->network;
	__builtin_memcpy(ethernet->h_dest, entry->destination_mac, 6);
	__builtin_memcpy(ethernet->h_source, entry->source_mac, 6);
	return 0;
}

/*
 * Rewrites headers and sends the packet on, which arrived by the uplink if there is an `arrival`.
 * -1 if it cannot be, and the packet is as it was.
 */
static __always_inline int forward(struct __sk_buff *skb, const struct packet *packet,
				   struct flow_entry *entry, __u64 now,
				   const struct arrival *arrival)
{
	__u32 segments = skb->gso_segs ?: 1, length = skb->len, front = 0;
	struct ethhdr *ethernet;
	__s64 difference = 0;
	void *end, *l3;
	__u8 class;

	if (arrival && arrival->front) {
		length -= arrival->front;
		if (take_off(skb, arrival->front, packet->key.family))
			return -1;
	} else if (!arrival && entry->tunnel.family) {
		front = make_room(skb, entry->tunnel.family);
		if (!front)
			return -1;
	}
	if (entry->translates &&
	    mend_transport(skb, packet, packet->l4 + front, entry, &difference))
		return TC_ACT_SHOT;
	ethernet = behind((void *)(long)skb->data, front);
	end = (void *)(long)skb->data_end;
	l3 = ethernet + 1;
	if (packet->key.family == FAMILY_V4) {
		struct iphdr *ip = l3;

		if ((void *)(ip + 1) > end)
			return TC_ACT_SHOT;
		if (arrival && arrival->front && (ip->tos & CONGESTION) != arrival->mark) {
			__u16 *word = l3;
			__u64 sum = (__u64)(__u16)~ip->check + (__u16)~*word;

			ip->tos = (ip->tos & ~CONGESTION) | arrival->mark;
			ip->check = ~folded(sum + *word);
		}
		class = ip->tos;
		lower_ttl(ip);
		if (entry->translates) {
			__u64 sum = (__u16)~ip->check;

			ip->check = ~folded(sum + (__u32)difference);
			ip->saddr = *(__be32 *)(entry->source + 12);
			ip->daddr = *(__be32 *)(entry->destination + 12);
		}
		ethernet->h_proto = bpf_htons(ETH_P_IP);
	} else {
		struct ipv6hdr *ip = l3;
		/* By which the sum over all of the packet changes, which hardware may have made. */
		__u64 change = (__u16)~bpf_htons(1);

		if ((void *)(ip + 1) > end)
			return TC_ACT_SHOT;
		if (arrival && arrival->front && (class_of(ip) & CONGESTION) != arrival->mark) {
			__u16 *word = l3;

			change += (__u16)~*word;
			ip->flow_lbl[0] = (ip->flow_lbl[0] & ~(CONGESTION << 4)) |
					  arrival->mark << 4;
			change += *word;
		}
		class = class_of(ip);
		ip->hop_limit--;
		if (entry->translates) {
			change += (__u32)difference;
			__builtin_memcpy(&ip->saddr, entry->source, 16);
			__builtin_memcpy(&ip->daddr, entry->destination, 16);
		}
		bpf_csum_update(skb, folded(change));
		ethernet->h_proto = bpf_htons(ETH_P_IPV6);
	}
	__builtin_memcpy(ethernet->h_dest, entry->destination_mac, 6);
	__builtin_memcpy(ethernet->h_source, entry->source_mac, 6);
	if (front && write_front(skb, &packet->key, entry, class))
		return TC_ACT_SHOT;
	if (packet->has_fin)
		entry->had_fin = 1;
	entry->used_ns = now;
	__sync_fetch_and_add(&entry->packets, segments);
	__sync_fetch_and_add(&entry->bytes, length);
	count(COUNTER_FORWARDED, segments);
	count(COUNTER_FORWARDED_BYTES, length);
	if (entry->on_wire)
		return bpf_redirect(entry->egress, 0);
	/* It was addressed to the switch, which the kernel does not know. */
	bpf_skb_change_type(skb, PACKET_HOST);
	return bpf_redirect_peer(entry->egress, 0);
}

/* Whether an entry counts for a packet; a reason otherwise. */
static __always_inline int find_fault(const struct flow_entry *entry, const struct packet *packet,
				      const struct settings *set, __u64 now)
{
	if (!is_current(entry))
		return REASON_OLD_GENERATION;
	if (!set || now >= set->good_until_ns)
		return REASON_NO_HEARTBEAT;
	if (packet->has_fin && (!entry->takes_fin || now >= set->fins_until_ns))
		return REASON_OPENS_OR_ENDS;
	if (entry->mtu && packet->length > entry->mtu)
		return REASON_TOO_LONG;
	return -1;
}

/*
 * Whether a port may put one more frame on the punt link. All ports share its rings. A port that
 * floods fills its share and no more until the switch takes frames of it, so that there is room
 * for the others. Frames that were lost on the way count until the next round, which begins a
 * moment after the queue was empty. Two processors may count one frame too few, which changes
 * nothing.
 */
static __always_inline int has_room(const struct port *port)
{
	__u32 number = port->tag[4] << 8 | port->tag[5], queue = port->queue, place = QUEUES + number;
	struct share *share = bpf_map_lookup_elem(&shares, &number);
	__u32 *round = bpf_map_lookup_elem(&progress, &queue);
	__u32 *taken = bpf_map_lookup_elem(&progress, &place);
	__u32 now, had;

	if (!share || !round || !taken)
		return 0;
	now = *(volatile __u32 *)round;
	had = *(volatile __u32 *)taken;
	if (share->round != now) {
		share->round = now;
		share->frames = 0;
		share->taken = had;
	}
	if ((__s32)(share->frames - (had - share->taken)) < SHARE) {
		__sync_fetch_and_add(&share->frames, 1);
		return 1;
	}
	__sync_fetch_and_add(&share->dropped, 1);
	count(COUNTER_OVER_SHARE, 1);
	return 0;
}

/*
 * Whether the kernel has yet to write a checksum that ends before so many bytes of a pod's frame. A
 * process in the pod chooses the place of an unfinished checksum (packet(7), PACKET_VNET_HDR), which
 * may be an address, a port or the tag; it is written when the frame leaves. Such a frame is cut
 * here, and has to be dropped.
 */
static __always_inline int writes_before(struct __sk_buff *skb, __u32 bytes)
{
	__u16 word = 0;

	/*
	 * The helper adds to an unfinished checksum and subtracts from others. It does so with bytes of
	 * the destination's MAC address, which are written anew in any case.
	 */
	if (bpf_skb_store_bytes(skb, 0, &word, sizeof(word), 0) ||
	    bpf_l4_csum_replace(skb, 0, 0, 1, BPF_F_PSEUDO_HDR) ||
	    bpf_skb_load_bytes(skb, 0, &word, sizeof(word)))
		return 1;
	/* No frame can be made so short that its unfinished checksum has no place. */
	return word == 1 && bpf_skb_change_tail(skb, bytes - 1, 0) != -EINVAL;
}

/* Has the switch decide. */
static __always_inline int punt(struct __sk_buff *skb, const struct settings *set, __u32 reason)
{
	__u32 ifindex = skb->ifindex;
	struct port *port = bpf_map_lookup_elem(&interfaces, &ifindex);

	if (port && writes_before(skb, sizeof(struct ethhdr) + sizeof(struct iphdr))) {
		count(REASON_MALFORMED, 1);
		return TC_ACT_SHOT;
	}
	if (!port || !set || bpf_skb_store_bytes(skb, 0, port->tag, sizeof(port->tag), 0)) {
		count(COUNTER_NO_PORT, 1);
		return TC_ACT_SHOT;
	}
	if (!has_room(port))
		return TC_ACT_SHOT;
	count(reason, 1);
	/* As if it had come by this queue: the kernel sends it by the one of that number. */
	skb->queue_mapping = port->queue + 1;
	return bpf_redirect(set->punt, 0);
}

/* A port's share, if it may have one more connection opened that the switch has not taken note of. */
static __always_inline struct share *share_to_open(__u32 number)
{
	__u32 place = QUEUES + PORTS + number;
	struct share *share = bpf_map_lookup_elem(&shares, &number);
	__u32 *noted = bpf_map_lookup_elem(&progress, &place);

	if (!share || !noted || (__s32)(share->opened - *(volatile __u32 *)noted) >= OPENINGS)
		return NULL;
	return share;
}

/* Whether a packet goes to the switch for so many bytes of reports that wait: some that wake it, then all. */
static __always_inline int wakes_switch(__u64 waiting)
{
	return waiting >= BACKLOG &&
	       (waiting >= MOST_BACKLOG || !(bpf_get_prandom_u32() % WAKING));
}

/*
 * The backend that the switch chooses for a connection to a service, counted from 1, and the generation of
 * services in which it does; 0 if the destination is no service's that templates lead to.
 */
static __always_inline __u32 choose(const struct flow_key *flow, __u32 *generation)
{
	struct choice_key key = {
		.destination_port = flow->destination_port,
		.protocol = flow->protocol,
		.family = flow->family,
	};
	struct choice *choice;
	__u64 hash, place;

	__builtin_memcpy(key.destination, flow->destination, 16);
	choice = bpf_map_lookup_elem(&choices, &key);
	if (!choice)
		return 0;
	hash = mix(0x2545f4914f6cdd1d, half_of(flow->source, 1));
	hash = mix(hash, half_of(flow->source, 0));
	hash = mix(hash, (__u64)bpf_ntohs(flow->source_port) << 32 |
				 (__u32)bpf_ntohs(flow->destination_port) << 16 | flow->protocol);
	hash = mix(hash, half_of(flow->destination, 1));
	place = ((hash >> 32) * choice->size + ((__u32)hash * (__u64)choice->size >> 32)) >> 32;
	*generation = choice->generation;
	if (place >= CHOICE_PLACES) {
		key.part = place / CHOICE_PLACES;
		choice = bpf_map_lookup_elem(&choices, &key);
		if (!choice || choice->generation != *generation)
			return 0;
	}
	return choice->backends[place & (CHOICE_PLACES - 1)] + 1;
}

/* Whether a packet in a tunnel came from the tunnel's other end. */
static __always_inline int is_from(const struct arrival *arrival, const struct tunnel *tunnel)
{
	return arrival->family == tunnel->family && arrival->network == tunnel->network &&
	       arrival->hop_limit >= tunnel->hop_limit &&
	       is_same_address(arrival->own, tunnel->own) &&
	       is_same_address(arrival->peer, tunnel->peer);
}

/* The template of a connection, found by its key as it is known without a service. */
static __always_inline struct template *find_template(const struct flow_key *flow,
						      struct template_key *key)
{
	struct template *template = bpf_map_lookup_elem(&templates, key);
	__u32 generation;

	if (template)
		return template;
	key->backend = choose(flow, &generation);
	if (!key->backend)
		return NULL;
	template = bpf_map_lookup_elem(&templates, key);
	/* Another generation may number its backends otherwise. */
	return template && template->forward.generations[GUARDS - 1] == generation ? template : NULL;
}

/*
 * Opens a connection like one that the switch has allowed, and reports it; 0 if the switch has to
 * decide. The report comes before every packet that the switch gets of the connection. Without room
 * for it nothing is opened.
 */
static __always_inline int open(struct __sk_buff *skb, const struct settings *set,
				const struct packet *packet, const __u8 *mac,
				const struct arrival *arrival, __u8 protocol, __u64 now)
{
	__u64 length = sizeof(struct ethhdr) + packet->length + (arrival ? arrival->front : 0);
	__u32 most = protocol == IPPROTO_UDP ? QUESTION_FRAME :
		     arrival                 ? TUNNELLED_FRAME :
					       OPENING_FRAME;
	__u32 ifindex = skb->ifindex, number;
	struct flow_key reverse = {
		.source_port = packet->key.destination_port,
		.destination_port = packet->key.source_port,
		.protocol = protocol,
		.family = packet->key.family,
	};
	struct template_key key = {
		.ingress = packet->key.ingress,
		.destination_port = packet->key.destination_port,
		.protocol = protocol,
		.family = packet->key.family,
	};
	struct template *template;
	struct opened *report;
	struct share *share;
	__u8 *frame;

	/* What comes with data, and what is still to be cut, is rare. */
	if (packet->data || skb->gso_size || !set || now >= set->opens_until_ns)
		return 0;
	__builtin_memcpy(key.source, packet->key.source, 16);
	__builtin_memcpy(key.destination, packet->key.destination, 16);
	template = find_template(&packet->key, &key);
	if (!template || find_fault(&template->forward, packet, set, now) >= 0)
		return 0;
	if (arrival ? arrival->front && !is_from(arrival, &template->forward.tunnel) :
		      !is_same_mac(mac, template->forward.ingress_mac))
		return 0;
	if (wakes_switch(bpf_ringbuf_query(&reports, BPF_RB_AVAIL_DATA)))
		return 0;
	report = bpf_ringbuf_reserve(&reports,
				     protocol == IPPROTO_UDP ? sizeof(struct asked_by_pod) :
				     arrival                 ? sizeof(struct opened_by_uplink) :
							       sizeof(struct opened_by_pod), 0);
	if (!report)
		return 0;
	frame = (__u8 *)(report + 1);
	/* The compiler must compare the same number that it passes. */
	asm volatile("" : "+r"(length));
	if (length < HEADERS_V4 || length > most || bpf_skb_load_bytes(skb, 0, frame, length))
		goto discard;
	report->report = REPORT_OPENED;
	report->length = length;
	if (arrival) {
		number = template->port & (PORTS - 1);
		__builtin_memset(frame, 0, 6);
		frame[4] = number >> 8;
		frame[5] = number;
	} else {
		struct port *port = bpf_map_lookup_elem(&interfaces, &ifindex);

		if (!port)
			goto discard;
		__builtin_memcpy(frame, port->tag, 6);
		number = port->tag[4] << 8 | port->tag[5];
	}
	reverse.ingress = template->responder;
	if (template->forward.translates) {
		__builtin_memcpy(reverse.source, template->forward.destination, 16);
		reverse.source_port = template->forward.destination_port;
	} else {
		__builtin_memcpy(reverse.source, packet->key.destination, 16);
	}
	__builtin_memcpy(report->responder, reverse.source, 16);
	report->responder_port = reverse.source_port;
	__builtin_memset(report->zero, 0, sizeof(report->zero));
	report->backend = key.backend;
	report->key = packet->key;
	__builtin_memcpy(reverse.destination, packet->key.source, 16);
	share = share_to_open(number);
	if (!share ||
	    bpf_map_update_elem(&flows, &packet->key, &template->forward, BPF_NOEXIST))
		goto discard;
	/* One that is there is another connection's. */
	if (bpf_map_update_elem(&flows, &reverse, &template->reverse, BPF_NOEXIST)) {
		bpf_map_delete_elem(&flows, &packet->key);
		goto discard;
	}
	__sync_fetch_and_add(&share->opened, 1);
	count(COUNTER_OPENED, 1);
	bpf_ringbuf_submit(report, BPF_RB_NO_WAKEUP);
	return 1;
discard:
	bpf_ringbuf_discard(report, BPF_RB_NO_WAKEUP);
	return 0;
}

/* Removes the entries of a connection that is over, and reports what they counted. */
static __always_inline int end(const struct flow_key *initiators, const struct flow_entry *forward,
			       const struct flow_key *responders, const struct flow_entry *reverse)
{
	struct ended *report = bpf_ringbuf_reserve(&reports, sizeof(*report), 0);

	/* The switch finds the FINs in the entries. */
	if (!report)
		return 0;
	/* Another processor may do it at the same time. */
	if (bpf_map_delete_elem(&flows, initiators)) {
		bpf_ringbuf_discard(report, BPF_RB_NO_WAKEUP);
		return 0;
	}
	bpf_map_delete_elem(&flows, responders);
	report->report = REPORT_ENDED;
	report->by_template = forward->by_template;
	report->ports[0] = forward->guards[0] - GUARD_PORTS;
	report->ports[1] = forward->guards[1] - GUARD_PORTS;
	report->key = *initiators;
	report->zero = 0;
	report->packets[0] = forward->packets;
	report->packets[1] = reverse->packets;
	report->bytes[0] = forward->bytes;
	report->bytes[1] = reverse->bytes;
	report->used_ns[0] = forward->used_ns;
	report->used_ns[1] = reverse->used_ns;
	bpf_ringbuf_submit(report, BPF_RB_NO_WAKEUP);
	return 1;
}

/*
 * Does so if both ends have closed the connection of this packet, whose sender has, or if a resolver has answered all
 * that it was asked.
 */
static __always_inline int end_if_over(const struct packet *packet, const struct flow_entry *entry)
{
	const struct flow_key *key = &packet->key;
	const struct flow_entry *other;
	/* What leaves in a tunnel is answered in it. */
	struct flow_key reverse = {
		.ingress = entry->egress |
			   (entry->on_wire && entry->tunnel.family ? TUNNELLED : 0),
		.source_port = key->destination_port,
		.destination_port = key->source_port,
		.protocol = key->protocol,
		.family = key->family,
	};

	__builtin_memcpy(reverse.source, key->destination, 16);
	__builtin_memcpy(reverse.destination, key->source, 16);
	if (entry->translates) {
		reverse.source_port = entry->destination_port ?: key->destination_port;
		reverse.destination_port = entry->source_port ?: key->source_port;
		__builtin_memcpy(reverse.source, entry->destination, 16);
		__builtin_memcpy(reverse.destination, entry->source, 16);
	}
	other = bpf_map_lookup_elem(&flows, &reverse);
	if (!other)
		return 0;
	if (key->protocol == IPPROTO_UDP ? other->packets > entry->packets : !other->had_fin)
		return 0;
	if (entry->role == ROLE_INITIATOR)
		return end(key, entry, &reverse, other);
	return end(&reverse, other, key, entry);
}

/*
 * Opens the connection of an initiator's first packet by a template, unless its port's last one goes on; 0 if it is the
 * switch's.
 */
static __always_inline int open_anew(struct __sk_buff *skb, const struct settings *set,
				     const struct packet *packet, const __u8 *mac,
				     const struct arrival *arrival)
{
	struct flow_entry *entry = bpf_map_lookup_elem(&flows, &packet->key);

	if (entry && (!entry->role || !entry->had_fin || !end_if_over(packet, entry)))
		return 0;
	return open(skb, set, packet, mac, arrival, IPPROTO_TCP, bpf_ktime_get_coarse_ns());
}

/*
 * Whether an entry takes a packet with a SYN or a reset: the first one of a template's connection, what answers it, and
 * a reset of a connection whose ends are known.
 */
static __always_inline int takes_event(const struct flow_entry *entry, const struct packet *packet)
{
	if (entry && entry->role && !(packet->flags & TCP_SYN))
		return 1;
	if (!entry || !entry->by_template)
		return 0;
	if (packet->flags == TCP_SYN)
		return entry->role == ROLE_INITIATOR && !entry->packets;
	return packet->flags == (TCP_SYN | TCP_ACK) && entry->role != ROLE_INITIATOR;
}

/* Whether a packet is for the port of a resolver. */
static __always_inline int is_question(const struct packet *packet)
{
	return packet->key.protocol == IPPROTO_UDP &&
	       packet->key.destination_port == bpf_htons(RESOLVER_PORT);
}

/* Reports a reset that is forwarded next; 0 if it is the switch's. */
static __always_inline int report_reset(const struct settings *set, const struct flow_key *key,
					struct flow_entry *entry, __u64 now)
{
	struct reset *report;

	if (!set || now >= set->fins_until_ns || entry->had_reset)
		return 0;
	report = bpf_ringbuf_reserve(&reports, sizeof(*report), 0);
	if (!report)
		return 0;
	entry->had_reset = 1;
	report->report = REPORT_RESET;
	report->key = *key;
	bpf_ringbuf_submit(report, BPF_RB_NO_WAKEUP);
	return 1;
}

/* Notes what a packet that was forwarded says about its connection. */
static __always_inline void note_forwarded(const struct packet *packet, struct flow_entry *entry)
{
	if (entry->role == ROLE_ASKED && packet->flags & TCP_SYN)
		entry->role = ROLE_RESPONDER;
	/* An answer, or behind both FINs what acknowledges the other end's. */
	if (entry->role && (packet->key.protocol == IPPROTO_UDP ?
				    entry->role != ROLE_INITIATOR :
				    entry->had_fin && !packet->has_fin))
		end_if_over(packet, entry);
}

/* Where the checksum's field ends in a transport header. */
static __always_inline __u32 checksum_end(__u8 protocol)
{
	return protocol == IPPROTO_TCP ? __builtin_offsetof(struct tcphdr, urg_ptr) : sizeof(struct udphdr);
}

/*
 * Forwards what a pod or the node's kernel sends by its entry, whose key has this number; the
 * reason if it has none that counts.
 */
static __always_inline int by_own_entry(struct __sk_buff *skb, const struct settings *set,
					__u32 ingress, int *action)
{
	struct packet packet = {};
	struct flow_entry *entry;
	void *data, *end;
	int reason;
	__u64 now;

	if (pull_headers(skb, 0))
		return REASON_MALFORMED;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	reason = read_packet(skb, data, end, skb->len, &packet);
	if (reason >= 0 &&
	    (reason != REASON_OPENS_OR_ENDS || ingress == HOST ||
	     !(packet.flags & (TCP_SYN | TCP_RST))))
		return reason;
	packet.key.ingress = ingress;
	entry = bpf_map_lookup_elem(&flows, &packet.key);
	now = bpf_ktime_get_coarse_ns();
	if (reason >= 0 && !takes_event(entry, &packet)) {
		if (packet.flags == TCP_SYN)
			bpf_tail_call(skb, &stages, STAGE_POD_OPENS);
		return reason;
	}
	if (!entry) {
		if (ingress != HOST && is_question(&packet))
			bpf_tail_call(skb, &stages, STAGE_POD_ASKS);
		return packet.has_fin ? REASON_OPENS_OR_ENDS : REASON_NO_ENTRY;
	}
	if (!is_same_mac(((struct ethhdr *)data)->h_source, entry->ingress_mac))
		return REASON_WRONG_MAC;
	reason = find_fault(entry, &packet, set, now);
	if (reason >= 0)
		return reason;
	/* A pod looks at what it gets before it finishes anything; what leaves is not looked at again. */
	if (ingress != HOST && entry->on_wire &&
	    writes_before(skb, packet.l4 + checksum_end(packet.key.protocol))) {
		count(REASON_MALFORMED, 1);
		return -1;
	}
	if (packet.flags & TCP_RST && !report_reset(set, &packet.key, entry, now))
		return REASON_OPENS_OR_ENDS;
	*action = forward(skb, &packet, entry, now, NULL);
	if (*action < 0)
		return REASON_TUNNEL;
	if (ingress != HOST)
		note_forwarded(&packet, entry);
	return -1;
}

SEC("tc")
int from_pod(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	int action = TC_ACT_SHOT, reason = by_own_entry(skb, set, skb->ifindex, &action);

	return reason < 0 ? action : punt(skb, set, reason);
}

/* What a pod opens. */
SEC("tc")
int pod_opens(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	struct packet packet = {};
	void *data, *end;

	if (!pull_headers(skb, 0)) {
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (read_packet(skb, data, end, skb->len, &packet) == REASON_OPENS_OR_ENDS &&
		    packet.flags == TCP_SYN &&
		    open_anew(skb, set, &packet, ((struct ethhdr *)data)->h_source, NULL))
			bpf_tail_call(skb, &stages, STAGE_POD);
	}
	return punt(skb, set, REASON_OPENS_OR_ENDS);
}

/* What a pod asks a resolver. */
SEC("tc")
int pod_asks(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	struct packet packet = {};
	void *data, *end;

	if (!pull_headers(skb, 0)) {
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (read_packet(skb, data, end, skb->len, &packet) < 0 && is_question(&packet) &&
		    open(skb, set, &packet, ((struct ethhdr *)data)->h_source, NULL, IPPROTO_UDP,
			 bpf_ktime_get_coarse_ns()))
			bpf_tail_call(skb, &stages, STAGE_POD);
	}
	return punt(skb, set, REASON_NO_ENTRY);
}

/* At the egress of the kernel's end of the host port, at whose other end the switch is. */
SEC("tc")
int from_host(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	int action = TC_ACT_SHOT, reason = by_own_entry(skb, set, HOST, &action);

	if (reason < 0)
		return action;
	count(reason, 1);
	return TC_ACT_UNSPEC;
}

/*
 * Reads what an entry may be about from a packet that arrived by the uplink; a reason otherwise, and `NOTHING` if the
 * packet is about none.
 */
#define NOTHING (-2)
static __always_inline int read_arrival(struct __sk_buff *skb, struct packet *packet,
					struct arrival *arrival)
{
	struct uplink_settings *filter;
	struct ethhdr *ethernet;
	void *data, *end;
	__u32 zero = 0;
	int reason;

	if (pull_headers(skb, 0))
		return NOTHING;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	/* Of the packet outside; the one in a tunnel is looked at below. */
	if (data + sizeof(*ethernet) > end || ((struct ethhdr *)data)->h_source[0] & 1)
		return NOTHING;
	filter = bpf_map_lookup_elem(&uplink_settings, &zero);
	if (filter && filter->vxlan_port &&
	    read_tunnel(skb, filter->vxlan_port, data, end, arrival)) {
		if (pull_headers(skb, arrival->front))
			return NOTHING;
	} else {
		arrival->front = 0;
	}
	ethernet = behind((void *)(long)skb->data, arrival->front);
	end = (void *)(long)skb->data_end;
	reason = read_packet(skb, ethernet, end, skb->len - arrival->front, packet);
	if ((void *)(ethernet + 1) > end || ethernet->h_source[0] & 1)
		return NOTHING;
	if (arrival->front)
		packet->key.ingress |= TUNNELLED;
	return reason;
}

/* Forwards what arrived by the uplink by its entry; the reason if it has none that counts. */
static __always_inline int by_entry(struct __sk_buff *skb, const struct settings *set, int *action)
{
	struct arrival arrival = {};
	struct packet packet = {};
	struct flow_entry *entry;
	int reason, mark;
	__u64 now;

	reason = read_arrival(skb, &packet, &arrival);
	if (reason == NOTHING)
		return REASON_MALFORMED;
	if (reason >= 0 &&
	    (reason != REASON_OPENS_OR_ENDS || !(packet.flags & (TCP_SYN | TCP_RST))))
		return reason;
	entry = bpf_map_lookup_elem(&flows, &packet.key);
	now = bpf_ktime_get_coarse_ns();
	if (reason >= 0 && !takes_event(entry, &packet)) {
		if (packet.flags == TCP_SYN)
			bpf_tail_call(skb, &stages, STAGE_UPLINK_OPENS);
		return reason;
	}
	if (!entry)
		return packet.has_fin ? REASON_OPENS_OR_ENDS : REASON_NO_ENTRY;
	if (arrival.front) {
		struct ethhdr *ethernet = behind((void *)(long)skb->data, arrival.front);
		__u8 *inside = (__u8 *)(ethernet + 1);

		if (!is_from(&arrival, &entry->tunnel) ||
		    (void *)(inside + 2) > (void *)(long)skb->data_end)
			return REASON_TUNNEL;
		mark = combined_mark(packet.key.family == FAMILY_V4 ? inside[1] : inside[1] >> 4,
				     arrival.class);
		if (mark < 0)
			return REASON_TUNNEL;
		arrival.mark = mark;
	}
	reason = find_fault(entry, &packet, set, now);
	if (reason >= 0)
		return reason;
	if (packet.flags & TCP_RST && !report_reset(set, &packet.key, entry, now))
		return REASON_OPENS_OR_ENDS;
	*action = forward(skb, &packet, entry, now, &arrival);
	if (*action < 0)
		return REASON_TUNNEL;
	note_forwarded(&packet, entry);
	return -1;
}

/* Has the switch decide about what it takes of the uplink; the kernel has the rest. */
static __always_inline int leave(struct __sk_buff *skb, const struct settings *set, __u32 reason)
{
	if (skb->vlan_present && skb->vlan_tci & VLAN_ID)
		return TC_ACT_UNSPEC;
	switch (classify(skb, skb->vlan_present ? 1 : 0)) {
	case TAKEN:
		break;
	case DROPPED:
		return TC_ACT_SHOT;
	default:
		return TC_ACT_UNSPEC;
	}
	if (!set) {
		count(COUNTER_NO_PORT, 1);
		return TC_ACT_SHOT;
	}
	count(reason, 1);
	/* By flow, as interfaces choose their queues; those that are not there count from the first. */
	skb->queue_mapping = (bpf_get_hash_recalc(skb) & (QUEUES - 1)) + 1;
	return bpf_redirect(set->uplink_link, 0);
}

/*
 * Whether a packet claims to come from another node's pods, in a tunnel, or from another node to what gets encrypted
 * packets from there, and did not arrive encrypted although what does is.
 */
static __always_inline int is_clear_text(struct __sk_buff *skb)
{
	struct uplink_settings *filter;
	struct ip_packet packet = {};
	__u32 zero = 0, from, to, *wireguard_port = bpf_map_lookup_elem(&sealed, &zero);
	enum reading reading;

	if (skb->mark == SEALED_MARK) {
		skb->mark = 0;
		return 0;
	}
	if (!wireguard_port || !*wireguard_port)
		return 0;
	if (skb->vlan_present && skb->vlan_tci & VLAN_ID)
		return 0;
	reading = read_frame(skb, skb->vlan_present ? 1 : 0, &packet);
	if (reading == NOT_IP || reading == TOO_MANY_TAGS)
		return 0;
	from = kind_in(&sealed_networks, &packet.source);
	if (from & PODS)
		return 1;
	if (from & NODE) {
		to = kind_in(&sealed_networks, &packet.destination);
		if (to & OWN || (from & HOSTS && to & SELF &&
				 !is_below(skb, &packet, DESTINATION, *wireguard_port)))
			return 1;
	}
	filter = bpf_map_lookup_elem(&uplink_settings, &zero);
	return reading == READ && filter && is_tunnel(skb, &packet, filter->vxlan_port);
}

/* At the ingress of the uplink, which the node uses as well. */
SEC("tc")
int from_uplink(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	int reason = REASON_NOT_IP, action = TC_ACT_SHOT;

	if (skb->pkt_type == PACKET_OTHERHOST)
		return TC_ACT_UNSPEC;
	if (is_clear_text(skb)) {
		count(COUNTER_CLEAR_TEXT, 1);
		return TC_ACT_SHOT;
	}
	if (skb->pkt_type == PACKET_HOST) {
		reason = by_entry(skb, set, &action);
		if (reason < 0)
			return action;
	}
	return leave(skb, set, reason);
}

/* What is opened from the uplink. Without a switch there are no stages, and the packet is lost. */
SEC("tc")
int uplink_opens(struct __sk_buff *skb)
{
	__u32 zero = 0, stage = STAGE_UPLINK_LEAVES;
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	struct arrival arrival = {};
	struct packet packet = {};

	if (read_arrival(skb, &packet, &arrival) == REASON_OPENS_OR_ENDS &&
	    packet.flags == TCP_SYN && open_anew(skb, set, &packet, NULL, &arrival)) {
		stage = STAGE_UPLINK;
		/* It came from there, past the look at how it arrived. */
		skb->mark = SEALED_MARK;
	}
	bpf_tail_call(skb, &stages, stage);
	return TC_ACT_SHOT;
}

/* What the switch has to open. */
SEC("tc")
int uplink_leaves(struct __sk_buff *skb)
{
	__u32 zero = 0;

	return leave(skb, bpf_map_lookup_elem(&settings, &zero), REASON_OPENS_OR_ENDS);
}

/* What the switch sends out of the uplink. */
SEC("tc")
int to_uplink(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);

	return set ? bpf_redirect(set->uplink, 0) : TC_ACT_SHOT;
}

/* What the switch sends into a pod. */
SEC("tc")
int from_switch(struct __sk_buff *skb)
{
	__u8 tag[6] __attribute__((aligned(2)));
	struct port *port;
	__u32 number;

	if (bpf_skb_load_bytes(skb, 0, tag, sizeof(tag)))
		goto drop;
	number = tag[4] << 8 | tag[5];
	port = bpf_map_lookup_elem(&ports, &number);
	if (!port || !port->ifindex || !is_same_mac(tag, port->tag))
		goto drop;
	if (bpf_skb_store_bytes(skb, 0, port->mac, sizeof(port->mac), 0))
		goto drop;
	bpf_skb_change_type(skb, PACKET_HOST);
	return bpf_redirect_peer(port->ifindex, 0);
drop:
	count(COUNTER_NO_PORT, 1);
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
