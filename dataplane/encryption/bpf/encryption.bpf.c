// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Sends what pods of different nodes say to each other through a WireGuard device.
 *
 *   the switch, its programs, the kernel ──▶ uplink ──▶ seal ─┬─ of pods ──▶ WireGuard device ──▶ encrypted ──▶ uplink
 *                                                             └─ else ─────▶ wire
 *   wire ──▶ the kernel's UDP ──▶ WireGuard device ──▶ unseal ─┬─ entry of flow offload ──▶ pod
 *                                                              └─ else ──▶ uplink's ingress, with a mark
 *
 * `seal` stands at the egress of the uplink. A packet is of pods if it is a tunnel's, if it goes to another node's pod
 * network, or from this node's pod networks to another node; with some nodes what their processes say counts as well.
 * What has no peer to go to is dropped, never sent in clear.
 * `unseal` stands at the ingress of the device, which has verified that the source is the peer's; it lets pass what
 * `seal` sends. The program at the ingress of the uplink drops what claims to be of pods without the mark.
 */
#include <linux/pkt_cls.h>

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

typedef struct __sk_buff uplink_context;
#define load_bytes bpf_skb_load_bytes
#include "../../bpf/ip.h"
#include "../../bpf/sealed.h"

struct settings {
	/* In host order; 0 without an overlay. */
	__u32 vxlan_port;
	/* Of encrypted packets, in host order. */
	__u32 wireguard_port;
	/* Numbers of the WireGuard device, of the second one, and of the uplink. */
	__u32 device;
	__u32 second;
	__u32 uplink;
	__u8 uplink_mac[6];
	__u8 zeros[2];
};

enum counter { SEALED, UNSEALED, WITHOUT_PEER, UNEXPECTED, COUNTERS };
#include "../../bpf/counters.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

struct sealed_networks networks SEC(".maps");

/* The program that forwards by entries of flow offload; none without a switch. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} forwarder SEC(".maps");

static __always_inline __u32 kind_of(const struct address *address)
{
	return kind_in(&networks, address);
}

/* Whether the kinds of both ends, or the port, say that a packet is to be encrypted. */
static __always_inline int is_to_seal(struct __sk_buff *skb, const struct settings *set,
				      const struct ip_packet *packet, enum reading reading,
				      __u32 to)
{
	__u32 from;

	if (to & PODS || (reading == READ && is_tunnel(skb, packet, set->vxlan_port)))
		return 1;
	if (!(to & NODE))
		return 0;
	from = kind_of(&packet->source);
	return from & OWN || (to & HOSTS && from & SELF &&
			      !is_below(skb, packet, SOURCE, set->wireguard_port));
}

SEC("tc")
int seal(struct __sk_buff *skb)
{
	struct ip_packet packet = {};
	struct settings *set;
	enum reading reading;
	__u32 zero = 0, to, device;

	set = bpf_map_lookup_elem(&settings, &zero);
	if (!set)
		return TC_ACT_SHOT;
	if (skb->vlan_present && skb->vlan_tci & VLAN_ID)
		return TC_ACT_UNSPEC;
	reading = read_frame(skb, skb->vlan_present ? 1 : 0, &packet);
	if (reading == NOT_IP)
		return TC_ACT_UNSPEC;
	if (reading == TOO_MANY_TAGS)
		return TC_ACT_SHOT;
	to = kind_of(&packet.destination);
	if (!is_to_seal(skb, set, &packet, reading, to))
		return TC_ACT_UNSPEC;
	device = to & SECOND && set->second ? set->second : set->device;
	if (reading != READ || !(to & KEYED) || !device) {
		count(WITHOUT_PEER, 1);
		return TC_ACT_SHOT;
	}
	count(SEALED, 1);
	return bpf_redirect(device, 0);
}

/* Whether it is what `seal` of the other node sends. */
static __always_inline int is_sealed(struct __sk_buff *skb, const struct settings *set,
				     const struct ip_packet *packet)
{
	__u32 from = kind_of(&packet->source), to;

	if (from & PODS)
		return 1;
	if (!(from & NODE))
		return 0;
	to = kind_of(&packet->destination);
	return to & OWN || (from & HOSTS && to & SELF) || is_tunnel(skb, packet, set->vxlan_port);
}

/* What arrives has no Ethernet header. */
SEC("tc")
int unseal(struct __sk_buff *skb)
{
	struct ip_packet packet = {};
	struct ethhdr ethernet = {};
	struct settings *set;
	__u32 zero = 0;
	int bad;

	set = bpf_map_lookup_elem(&settings, &zero);
	if (!set || !set->uplink)
		return TC_ACT_SHOT;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		bad = read_v4(skb, 0, &packet);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		bad = read_v6(skb, 0, &packet);
	else
		bad = -1;
	if (bad || !is_sealed(skb, set, &packet)) {
		count(UNEXPECTED, 1);
		return TC_ACT_SHOT;
	}
	ethernet.h_proto = skb->protocol;
	__builtin_memcpy(ethernet.h_dest, set->uplink_mac, sizeof(ethernet.h_dest));
	/* Another one than the destination, of no interface. */
	ethernet.h_source[0] = 2;
	if (bpf_skb_change_head(skb, sizeof(ethernet), 0) ||
	    bpf_skb_store_bytes(skb, 0, &ethernet, sizeof(ethernet), 0))
		return TC_ACT_SHOT;
	count(UNSEALED, 1);
	bpf_tail_call(skb, &forwarder, 0);
	skb->mark = SEALED_MARK;
	return bpf_redirect(set->uplink, BPF_F_INGRESS);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
