/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Counters of a program, numbered below `COUNTERS`; each processor has its own of each. */
#ifndef PODGATE_COUNTERS_H
#define PODGATE_COUNTERS_H

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(__u32 counter, __u64 n)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &counter);

	if (value)
		*value += n;
}

#endif
