// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Reads, removes and writes the headers of tunnels. */

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

/* `gso_size` of SCTP: the segments are as long as the parts of a list (GSO_BY_FRAGS of linux/skbuff.h). */
#define SEGMENTS_BY_LIST 0xffff

/*
 * Has a frame's headers in one piece. No more than that: segments that are still to be cut have little
 * else in one piece, and what is pulled is copied out of the payload's pages. Nothing is pulled from a list of
 * segments, as their lengths would no longer be those of its parts, for which the kernel panics when it cuts them.
 */
static __always_inline int pull_headers(struct __sk_buff *skb, __u32 front)
{
	struct ethhdr *ethernet;

	if (skb->gso_size == SEGMENTS_BY_LIST || pull(skb, front, HEADERS_V4))
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
