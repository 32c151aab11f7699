// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Reads the headers of a packet, and mends them after they are rewritten. */

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

/* Whether a frame has this source, where it is not zero. */
static __always_inline int comes_from(struct __sk_buff *skb, const __u8 *mac)
{
	struct ethhdr *ethernet = (void *)(long)skb->data;
	const __u16 *words = (const __u16 *)mac;

	return !(words[0] | words[1] | words[2]) ||
	       ((void *)(ethernet + 1) <= (void *)(long)skb->data_end &&
		is_same_mac(ethernet->h_source, mac));
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
