/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Exchanges of datagrams: a reply is no connection of its own. A part of `socket.bpf.c`.
 *
 * An exchange stands in one of the places of a set, which its hash chooses; a new one takes the place of the one that was
 * seen longest ago. `src/exchanges.rs` looks them up in the same way.
 */
#ifndef EXCHANGES_H
#define EXCHANGES_H

/* The first place of an exchange's set. */
static __always_inline __u32 first_place(const struct settings *known, const struct exchange *it)
{
	__u64 ends = (__u64)it->family << 32 | (__u32)it->port << 16 | it->own_port;
	__u64 hash = it->address[0] * 0x9e3779b97f4a7c15ULL;

	hash = (hash ^ hash >> 32 ^ it->address[1]) * 0xbf58476d1ce4e5b9ULL;
	hash = (hash ^ hash >> 32 ^ ends) * 0x94d049bb133111ebULL;
	return ((__u32)(hash >> 32) & known->sets) * WAYS;
}

static __always_inline int is_same_exchange(const struct exchange *one, const struct exchange *other)
{
	return is_same(one->address, other->address) && one->own_port == other->own_port &&
	       one->port == other->port && one->family == other->family;
}

/* Finds an exchange of a pod; without one, the place for it. */
static __always_inline struct exchange *find_place(void *exchanges, __u32 pod,
						   const struct settings *known,
						   const struct exchange *wanted,
						   struct exchange_place *room)
{
	__u32 first = first_place(known, wanted);
	struct exchange_place at = { .pod = pod };
	__u64 oldest = ~0ULL;

	*room = (struct exchange_place){ .pod = pod, .place = first };
	for (int way = 0; way < WAYS; way++) {
		struct exchange *found;
		__u64 seen = 0;

		at.place = first + way;
		found = bpf_map_lookup_elem(exchanges, &at);
		if (found) {
			if (is_same_exchange(found, wanted)) {
				*room = at;
				return found;
			}
			seen = found->seen;
		}
		if (seen < oldest) {
			oldest = seen;
			*room = at;
		}
	}
	return 0;
}

/* Whether a datagram of an exchange was seen not long ago; then one is seen now. */
static __always_inline int is_seen(void *exchanges, __u32 pod, const struct settings *known,
				   const struct exchange *wanted)
{
	__u64 now = bpf_ktime_get_ns();
	struct exchange_place room;
	struct exchange *found = find_place(exchanges, pod, known, wanted, &room);

	if (!found || now - found->seen >= EXCHANGE)
		return 0;
	found->seen = now;
	return 1;
}

/* Remembers a datagram that was let through, in the exchange that the other end began, or else in one that this end begins. */
static __always_inline void note_exchange(void *own, void *others, __u32 pod,
					  const struct settings *known, struct exchange *noted)
{
	struct exchange_place room;
	struct exchange *found;

	if (is_seen(others, pod, known, noted))
		return;
	noted->seen = bpf_ktime_get_ns();
	found = find_place(own, pod, known, noted, &room);
	if (found)
		found->seen = noted->seen;
	else
		bpf_map_update_elem(own, &room, noted, BPF_ANY);
}

static __always_inline void forget_exchange(void *exchanges, __u32 pod,
					    const struct settings *known,
					    const struct exchange *wanted)
{
	struct exchange_place room;

	if (find_place(exchanges, pod, known, wanted, &room))
		bpf_map_delete_elem(exchanges, &room);
}

#endif
