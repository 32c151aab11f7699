// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Forwards packets of connections that the switch has allowed, without the switch.
 *
 *   pod ── veth ──▶ from_pod ─┬─ entry ─────────▶ rewritten, into the other pod or out of the uplink
 *                             └─ anything else ─▶ punt link ──▶ XDP ──▶ AF_XDP ──▶ the switch
 *   the switch ──▶ punt link ──▶ from_switch ───▶ into the pod that the tag names
 *
 * `from_pod` stands at the ingress of a pod's host-side interface and passes nothing to the
 * kernel's own stack. It never decides whether a connection is allowed: without an entry whose
 * generations are current and whose switch lives, the packet is the switch's.
 *
 * An entry is found by the interface and both ends, so that a packet that matches has the source
 * address that the switch has held to that interface.
 */
#include <linux/bpf.h>
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

#include "flow.h"

/* More fragments, and the place of this one. */
#define FRAGMENT 0x3fff
/* Ethernet, IPv6 and TCP without options: what has to be in one piece. */
#define HEADERS (sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + sizeof(struct tcphdr))
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

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
	__uint(max_entries, QUEUES + PORTS);
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

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* A packet's headers, as far as entries are about them. */
struct packet {
	struct flow_key key;
	/* Of the transport header, from the start of the frame. */
	__u32 l4;
	/* Bytes of the IP packet, or of the longest segment it will be cut into. */
	__u32 length;
};

static __always_inline void count(__u32 counter, __u64 n)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &counter);

	if (value)
		*value += n;
}

static __always_inline int is_same_mac(const __u8 *a, const __u8 *b)
{
	const __u16 *x = (const __u16 *)a, *y = (const __u16 *)b;

	return !((x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]));
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
		if (flags & (TCP_SYN | TCP_FIN | TCP_RST))
			return REASON_OPENS_OR_ENDS;
		if (!(flags & TCP_ACK))
			return REASON_MALFORMED;
		packet->key.source_port = tcp->source;
		packet->key.destination_port = tcp->dest;
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

/* Reads what an entry may be about; a reason otherwise. */
static __always_inline int read_packet(struct __sk_buff *skb, void *data, void *end,
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
		if (total < sizeof(*ip) || sizeof(*ethernet) + total > skb->len || !has_right_sum(ip))
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
		if (sizeof(*ethernet) + sizeof(*ip) + rest > skb->len)
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
					  const struct flow_entry *entry, __s64 *difference)
{
	__u32 field = packet->l4 + __builtin_offsetof(struct tcphdr, check);
	__u64 zero = 0;
	__be32 from, to;

	if (packet->key.protocol == IPPROTO_UDP) {
		field = packet->l4 + __builtin_offsetof(struct udphdr, check);
		zero = BPF_F_MARK_MANGLED_0;
	}
	/* Source and destination stand side by side in both. */
	*difference = bpf_csum_diff((__be32 *)packet->key.source, 32, (__be32 *)entry->source, 32, 0);
	if (*difference < 0 ||
	    bpf_l4_csum_replace(skb, field, 0, *difference, BPF_F_PSEUDO_HDR | zero))
		return -1;
	__builtin_memcpy(&from, &packet->key.source_port, 4);
	__builtin_memcpy(&to, &entry->source_port, 4);
	if (from != to && bpf_l4_csum_replace(skb, field, from, to, sizeof(to) | zero))
		return -1;
	return bpf_skb_store_bytes(skb, packet->l4, &entry->source_port, 4, 0);
}

/* Rewrites headers and sends the packet on; -1 if it cannot be. */
static __always_inline int forward(struct __sk_buff *skb, const struct packet *packet,
				   struct flow_entry *entry, __u64 now)
{
	__s64 difference = 0;
	struct ethhdr *ethernet;
	void *data, *end, *l3;

	if (entry->translates && mend_transport(skb, packet, entry, &difference))
		return -1;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	ethernet = data;
	l3 = ethernet + 1;
	if (packet->key.family == FAMILY_V4) {
		struct iphdr *ip = l3;

		if ((void *)(ip + 1) > end)
			return -1;
		lower_ttl(ip);
		if (entry->translates) {
			__u64 sum = (__u16)~ip->check;

			ip->check = ~folded(sum + (__u32)difference);
			ip->saddr = *(__be32 *)(entry->source + 12);
			ip->daddr = *(__be32 *)(entry->destination + 12);
		}
	} else {
		struct ipv6hdr *ip = l3;

		if ((void *)(ip + 1) > end)
			return -1;
		ip->hop_limit--;
		if (entry->translates) {
			__builtin_memcpy(&ip->saddr, entry->source, 16);
			__builtin_memcpy(&ip->daddr, entry->destination, 16);
		}
	}
	__builtin_memcpy(ethernet->h_dest, entry->destination_mac, 6);
	__builtin_memcpy(ethernet->h_source, entry->source_mac, 6);
	entry->used_ns = now;
	__sync_fetch_and_add(&entry->packets, skb->gso_segs ?: 1);
	__sync_fetch_and_add(&entry->bytes, skb->len);
	count(COUNTER_FORWARDED, skb->gso_segs ?: 1);
	count(COUNTER_FORWARDED_BYTES, skb->len);
	if (entry->on_wire)
		return bpf_redirect(entry->egress, 0);
	/* It was addressed to the switch, which the kernel does not know. */
	bpf_skb_change_type(skb, PACKET_HOST);
	return bpf_redirect_peer(entry->egress, 0);
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

/* Has the switch decide. */
static __always_inline int punt(struct __sk_buff *skb, const struct settings *set, __u32 reason)
{
	__u32 ifindex = skb->ifindex;
	struct port *port = bpf_map_lookup_elem(&interfaces, &ifindex);

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

SEC("tc")
int from_pod(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct packet packet = {};
	struct flow_entry *entry;
	int reason, action;
	__u64 now;

	if (data + HEADERS > end) {
		/* Shorter, or not in one piece. */
		__u32 length = skb->len < HEADERS ? skb->len : HEADERS;

		if (bpf_skb_pull_data(skb, length))
			return punt(skb, set, REASON_MALFORMED);
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
	}
	reason = read_packet(skb, data, end, &packet);
	if (reason >= 0)
		return punt(skb, set, reason);
	entry = bpf_map_lookup_elem(&flows, &packet.key);
	if (!entry)
		return punt(skb, set, REASON_NO_ENTRY);
	if (!is_same_mac(((struct ethhdr *)data)->h_source, entry->ingress_mac))
		return punt(skb, set, REASON_WRONG_MAC);
	if (!is_current(entry))
		return punt(skb, set, REASON_OLD_GENERATION);
	now = bpf_ktime_get_coarse_ns();
	if (!set || now >= set->good_until_ns)
		return punt(skb, set, REASON_NO_HEARTBEAT);
	if (entry->mtu && packet.length > entry->mtu)
		return punt(skb, set, REASON_TOO_LONG);
	action = forward(skb, &packet, entry, now);
	/* Half-written headers go nowhere. */
	return action < 0 ? TC_ACT_SHOT : action;
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
