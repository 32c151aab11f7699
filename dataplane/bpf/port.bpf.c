// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * What stands in front of a port's AF_XDP socket.
 *
 * Every frame that enters the interface goes to the socket of its queue. Where no
 * socket is bound (the switch is starting, or was killed), the fallback decides:
 * a pod's interface drops, so that no frame reaches the kernel unjudged; an
 * interface that the cluster node itself uses passes.
 *
 * Packets may come in several fragments (xdp.frags): so interfaces may have a large MTU.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define QUEUES 64

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

SEC("xdp.frags")
int else_drop(struct xdp_md *context)
{
	return bpf_redirect_map(&sockets, context->rx_queue_index, XDP_DROP);
}

SEC("xdp.frags")
int else_pass(struct xdp_md *context)
{
	return bpf_redirect_map(&sockets, context->rx_queue_index, XDP_PASS);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
