// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Sends a packet on by its entry, or to the switch. */

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
	/* Nobody looks at its sequence number: what the same end sends behind it takes it back. */
	if (packet->has_fin)
		entry->had_fin = 1;
	else if (packet->data && entry->had_fin)
		entry->had_fin = 0;
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

/* Frames on the punt link, of a port or of a queue, of which the switch has taken so many by now. */
static __always_inline __s32 frames_on_link(struct share *share, __u32 round, __u32 taken)
{
	if (share->round != round) {
		share->round = round;
		share->frames = 0;
		share->taken = taken;
	}
	return share->frames - (taken - share->taken);
}

/*
 * Whether a port may put one more frame on the punt link. All ports share its rings. A port has no
 * more frames there than it leaves free, so that however many flood, of whatever tenant, the next
 * one finds room (dynamic thresholds: Choudhury and Hahne, 1998), and no more than a share. Frames
 * that were lost on the way count until the next round, which begins a moment after the queue was
 * empty. Two processors may count one frame too few, which changes nothing.
 */
static __always_inline int has_room(const struct port *port)
{
	__u32 number = port->tag[4] << 8 | port->tag[5], queue = port->queue, place = QUEUES + number;
	__u32 of_queue = PORTS + queue, place_of_queue = QUEUES + 2 * PORTS + queue;
	struct share *share = bpf_map_lookup_elem(&shares, &number);
	struct share *all = bpf_map_lookup_elem(&shares, &of_queue);
	__u32 *round = bpf_map_lookup_elem(&progress, &queue);
	__u32 *taken = bpf_map_lookup_elem(&progress, &place);
	__u32 *all_taken = bpf_map_lookup_elem(&progress, &place_of_queue);
	__s32 own, left;
	__u32 now;

	if (!share || !all || !round || !taken || !all_taken)
		return 0;
	now = *(volatile __u32 *)round;
	own = frames_on_link(share, now, *(volatile __u32 *)taken);
	left = QUEUE_FRAMES - frames_on_link(all, now, *(volatile __u32 *)all_taken);
	if (own < SHARE && (own < left || own < LEAST_SHARE)) {
		__sync_fetch_and_add(&share->frames, 1);
		__sync_fetch_and_add(&all->frames, 1);
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

	/* On the punt link the frame would lose its tag. Number 0 says a priority alone. */
	if (skb->vlan_present && skb->vlan_tci & VLAN_ID) {
		count(REASON_VLAN, 1);
		return TC_ACT_SHOT;
	}
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
