/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Maps by which the switch waits for an RCU grace period. */
#ifndef PODGATE_BARRIER_H
#define PODGATE_BARRIER_H

/*
 * No program reads it. The kernel returns from a change of a map of maps only when every program that ran before
 * has ended.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_ARRAY);
		__uint(max_entries, 1);
		__type(key, __u32);
		__type(value, __u32);
	});
} barrier SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} barrier_value SEC(".maps");

#endif
