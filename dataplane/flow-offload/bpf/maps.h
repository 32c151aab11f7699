// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The maps that programs and switch share. */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 18);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow_key);
	__type(value, struct flow_entry);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GUARD_PORTS + PORTS);
	__type(key, __u32);
	__type(value, __u32);
} generations SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 14);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct template_key);
	__type(value, struct template);
} templates SEC(".maps");

/* How services that templates lead to choose their backends. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 14);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct choice_key);
	__type(value, struct choice);
} choices SEC(".maps");

/*
 * Programs that others go on to, and return from by the same map. Together they would be more than the kernel
 * verifies, which looks at all paths through a program.
 */
enum stage {
	STAGE_POD,
	STAGE_POD_OPENS,
	STAGE_POD_ASKS,
	STAGE_UPLINK,
	STAGE_UPLINK_OPENS,
	STAGE_UPLINK_LEAVES,
	STAGES,
};

int from_pod(struct __sk_buff *skb);
int pod_opens(struct __sk_buff *skb);
int pod_asks(struct __sk_buff *skb);
int from_uplink(struct __sk_buff *skb);
int uplink_opens(struct __sk_buff *skb);
int uplink_leaves(struct __sk_buff *skb);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, STAGES);
	__uint(key_size, sizeof(__u32));
	__array(values, int(void *));
} stages SEC(".maps") = {
	.values = {
		[STAGE_POD] = (void *)&from_pod,
		[STAGE_POD_OPENS] = (void *)&pod_opens,
		[STAGE_POD_ASKS] = (void *)&pod_asks,
		[STAGE_UPLINK] = (void *)&from_uplink,
		[STAGE_UPLINK_OPENS] = (void *)&uplink_opens,
		[STAGE_UPLINK_LEAVES] = (void *)&uplink_leaves,
	},
};

/* What the switch has to know of connections that it has not seen open or end. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 19);
} reports SEC(".maps");

/* By the number of the interface. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PORTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct port);
} interfaces SEC(".maps");

/* The same by the number of the port. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORTS);
	__type(key, __u32);
	__type(value, struct port);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	/* Behind the ports, the queues of the punt link: what all of their ports have. */
	__uint(max_entries, PORTS + QUEUES);
	__type(key, __u32);
	__type(value, struct share);
} shares SEC(".maps");

/*
 * What the switch writes: the round of each queue of the punt link, and behind that how many frames
 * of each port its workers have taken, connections, and frames of each queue.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * QUEUES + 2 * PORTS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u32);
} progress SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

/* Where traffic between nodes is encrypted: their networks, and those of this one. */
struct sealed_networks sealed_networks SEC(".maps");

/* The UDP port of encrypted packets in host order; 0 where traffic is not encrypted. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sealed SEC(".maps");
