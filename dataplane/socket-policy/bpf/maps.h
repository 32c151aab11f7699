// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The maps that programs and switch share. */

struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_STORAGE);
	__type(key, __u64);
	__type(value, struct pod);
} pods SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct rule_key);
	__type(value, struct piece);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	/* The switch sets it, as of endpoints. */
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct range);
} ranges SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 14);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct local_key);
	__type(value, __u32);
} locals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct service_key);
	__type(value, struct piece);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

/*
 * Exchanges of datagrams that pods began, and that others did: two maps, so that what comes from outside takes no room
 * from what pods sent. Each pod has places of its own, so that none has those of others forgotten.
 */
struct exchanges {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 22);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct exchange_place);
	__type(value, struct exchange);
};

struct exchanges sent SEC(".maps");
struct exchanges heard SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} events SEC(".maps");
