// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The XDP program in front of the AF_XDP sockets of all ports.
 *
 * Every frame is redirected to the socket of its queue. Without a socket (the switch
 * is starting, or was killed) the fallback decides: drop on a pod's interface, so
 * that no frame bypasses the policies; pass on an interface that the node
 * itself uses.
 *
 * One program serves all interfaces: the kernel waits for all processors for each
 * program that it attaches for the first time.
 *
 * Packets may have several fragments (xdp.frags), so interfaces may have a large MTU.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* The largest number of queues. */
#define SLOTS 16384

struct queue {
	__u32 interface;
	__u32 number;
};

/* The slot of each queue in `sockets`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SLOTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct queue);
	__type(value, __u32);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

static __always_inline int to_socket(struct xdp_md *context, int fallback)
{
	struct queue queue = {
		.interface = context->ingress_ifindex,
		.number = context->rx_queue_index,
	};
	__u32 *slot = bpf_map_lookup_elem(&slots, &queue);

	if (!slot)
		return fallback;
	return bpf_redirect_map(&sockets, *slot, fallback);
}

SEC("xdp.frags")
int else_drop(struct xdp_md *context)
{
	return to_socket(context, XDP_DROP);
}

SEC("xdp.frags")
int else_pass(struct xdp_md *context)
{
	return to_socket(context, XDP_PASS);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
