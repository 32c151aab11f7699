// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Stands in front of an interface that the node itself uses.
 *
 * It takes the switch's packets (`uplink.h`) and passes everything else to the kernel, as if it were
 * not there. The switch's it drops where no socket is bound (the switch is starting, or was killed):
 * the kernel would answer with resets, and end connections that go on once the switch is back.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

typedef struct xdp_md uplink_context;
#define load_bytes bpf_xdp_load_bytes
#include "uplink.h"

#define QUEUES 256

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* Packets for the socket of each queue, got or not. Each processor counts its own. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, QUEUES);
	__type(key, __u32);
	__type(value, __u64);
} handed SEC(".maps");

static __always_inline int to_socket(__u32 queue)
{
	__u64 *count = bpf_map_lookup_elem(&handed, &queue);

	if (count)
		*count += 1;
	return bpf_redirect_map(&sockets, queue, XDP_DROP);
}

SEC("xdp.frags")
int uplink(struct xdp_md *context)
{
	switch (classify(context, 0)) {
	case TAKEN:
		return to_socket(context->rx_queue_index);
	case DROPPED:
		return XDP_DROP;
	default:
		return XDP_PASS;
	}
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
