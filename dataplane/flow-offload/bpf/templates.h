// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Opens connections by templates, and removes the entries of those that are over. */

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
	/*
	 * The compiler must compare the same number that it passes, and each bound by itself: of two that it
	 * merges, verifiers up to Linux 6.18 lose the upper one.
	 */
	asm volatile("" : "+r"(length));
	if (length < HEADERS_V4)
		goto discard;
	asm volatile("" : "+r"(length));
	if (length > most || bpf_skb_load_bytes(skb, 0, frame, length))
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
