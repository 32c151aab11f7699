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
#include <bpf/bpf_core_read.h>
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

#include "maps.h"
#include "packet.h"
#include "partial_checksum.h"
#include "tunnel.h"
#include "forward.h"
#include "templates.h"

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

	if (skb->gso_size == SEGMENTS_BY_LIST)
		return REASON_OTHER_PROTOCOL;
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

/*
 * Forwards what arrived by the uplink by its entry; the reason if it has none that counts. Of what was decrypted, which
 * stands at another interface now, templates open nothing.
 */
static __always_inline int by_entry(struct __sk_buff *skb, const struct settings *set,
				    int is_decrypted, int *action)
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
	if (is_decrypted)
		packet.key.ingress = set->uplink | (packet.key.ingress & TUNNELLED);
	entry = bpf_map_lookup_elem(&flows, &packet.key);
	now = bpf_ktime_get_coarse_ns();
	if (reason >= 0 && !takes_event(entry, &packet)) {
		if (!is_decrypted && packet.flags == TCP_SYN)
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
	} else if (!comes_from(skb, entry->ingress_mac)) {
		return REASON_WRONG_MAC;
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

enum arrival_of { CLEAR_TEXT, ENCRYPTED, ANYTHING };

/* Whether a packet is for a service, which leads to a pod. */
static __always_inline int is_for_service(struct __sk_buff *skb, const struct ip_packet *packet)
{
	__be16 port = bpf_htons(port_of(skb, packet, DESTINATION));

	return port && is_service(&packet->destination, packet->protocol, port);
}

/*
 * CLEAR_TEXT: a packet claims to come from another node's pods, in a tunnel, or from another node to a service or to what
 * gets encrypted packets from there, and did not arrive encrypted although what does is.
 * ENCRYPTED: it is for the WireGuard device. The kernel's socket has it, and whoever sent it is verified there.
 */
static __always_inline enum arrival_of how_it_arrived(struct __sk_buff *skb)
{
	struct uplink_settings *filter;
	struct ip_packet packet = {};
	__u32 zero = 0, from, to, *wireguard_port = bpf_map_lookup_elem(&sealed, &zero);
	enum reading reading;

	if (skb->mark == SEALED_MARK) {
		skb->mark = 0;
		return ANYTHING;
	}
	if (!wireguard_port || !*wireguard_port)
		return ANYTHING;
	if (skb->vlan_present && skb->vlan_tci & VLAN_ID)
		return ANYTHING;
	reading = read_frame(skb, skb->vlan_present ? 1 : 0, &packet);
	if (reading == NOT_IP || reading == TOO_MANY_TAGS)
		return ANYTHING;
	if (reading == READ && packet.place == WHOLE && packet.protocol == IPPROTO_UDP &&
	    port_of(skb, &packet, DESTINATION) == *wireguard_port && is_node(&packet.destination))
		return ENCRYPTED;
	from = kind_in(&sealed_networks, &packet.source);
	if (from & PODS)
		return CLEAR_TEXT;
	if (from & NODE) {
		to = kind_in(&sealed_networks, &packet.destination);
		if (to & OWN || (from & HOSTS && to & SELF &&
				 !is_below(skb, &packet, DESTINATION, *wireguard_port)))
			return CLEAR_TEXT;
		if (reading == READ && is_for_service(skb, &packet))
			return CLEAR_TEXT;
	}
	filter = bpf_map_lookup_elem(&uplink_settings, &zero);
	return reading == READ && filter && is_tunnel(skb, &packet, filter->vxlan_port) ?
		       CLEAR_TEXT : ANYTHING;
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
	switch (how_it_arrived(skb)) {
	case CLEAR_TEXT:
		count(COUNTER_CLEAR_TEXT, 1);
		return TC_ACT_SHOT;
	case ENCRYPTED:
		return TC_ACT_UNSPEC;
	default:
		break;
	}
	if (skb->pkt_type == PACKET_HOST) {
		reason = by_entry(skb, set, 0, &action);
		if (reason < 0)
			return action;
	}
	return leave(skb, set, reason);
}

/*
 * What a WireGuard device has decrypted, with an Ethernet header: by an entry into the pod at once, anything else by
 * the uplink's ingress. Called by the program at the device.
 */
SEC("tc")
int from_device(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	int action = TC_ACT_SHOT;

	if (!set || by_entry(skb, set, 1, &action) < 0)
		return action;
	skb->mark = SEALED_MARK;
	return bpf_redirect(set->uplink, BPF_F_INGRESS);
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
