/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the programs and the switch share, in host byte order where nothing else is said.
 * `src/layout/` has the same structures; both sides assert their sizes.
 *
 * Addresses are kept as IPv6, IPv4 among them as ::ffff:a.b.c.d.
 */
#ifndef FLOW_H
#define FLOW_H

#include <linux/types.h>

/* Ports of the switch, by number. */
#define PORTS 32768
/* Queues of the punt link. */
#define QUEUES 256
/* Frames of one port that may be on the punt link at a time. */
#define SHARE 512
/* Those that it may have in any case. */
#define LEAST_SHARE 16
/* Frames that a queue of the punt link has room for. */
#define QUEUE_FRAMES 2048
/* Connections of a pod that templates have opened and the switch has not taken note of. */
#define OPENINGS 4096
/* Bytes of reports that wait: beyond them, one in so many connections is the switch's and wakes it, then all. */
#define BACKLOG (3 << 14)
#define WAKING 32
#define MOST_BACKLOG (6 * BACKLOG)
/* Bytes of a frame that opens a TCP connection: the longest headers, and no data; and in a tunnel. */
#define OPENING_FRAME 120
#define TUNNELLED_FRAME (OPENING_FRAME + 72)
/* Bytes of a frame that asks a resolver; longer ones are the switch's. */
#define QUESTION_FRAME 200
/* Of UDP: the port of resolvers, whose connections are over with their answers. */
#define RESOLVER_PORT 53
/* Places of a service's table in one value of `choices`. */
#define CHOICE_PLACES 256
/* Guards of an entry. */
#define GUARDS 3
/* Places of generations: one that never changes, that of services, those of ports. */
#define GUARD_NONE 0
#define GUARD_SERVICES 1
#define GUARD_PORTS 2

#define FAMILY_V4 4
#define FAMILY_V6 6

/* Of an interface's number in a key: the packet arrived by it in a tunnel. */
#define TUNNELLED 0x80000000
/* In place of an interface's number in a key: the node's own kernel sends the packet. */
#define HOST 0x40000000

/* One direction of a connection, as it enters. */
struct flow_key {
	/* Number of the interface that it enters by, and whether in a tunnel. */
	__u32 ingress;
	__u8 source[16];
	__u8 destination[16];
	__be16 source_port;
	__be16 destination_port;
	__u8 protocol;
	__u8 family;
	__u8 zero[2];
};

/* A VXLAN tunnel to another node. */
struct tunnel {
	/* This node's end, and the other one's. */
	__u8 own[16];
	__u8 peer[16];
	/* Of packets that leave; 0 if it follows from the connection. */
	__be16 source_port;
	__be16 port;
	/* The words of the VXLAN header: flags and group, which are written only, and the network. */
	__be32 flags;
	__be32 network;
	/* Of the tunnel's ends; 0 without a tunnel. */
	__u8 family;
	/* Packets with a smaller hop limit are not taken from it. */
	__u8 hop_limit;
	__u8 zeros[2];
};

/* What becomes of its packets. */
struct flow_entry {
	/* The entry counts while each of these generations is what it was. */
	__u32 guards[GUARDS];
	__u32 generations[GUARDS];
	/* Number of the interface that the packets leave by: the host side of a pod's, or another one. */
	__u32 egress;
	/* Bytes of the largest IP packet that may leave there; 0 if any may. */
	__u16 mtu;
	/* Whether addresses and ports are rewritten to those below; a port of 0 stays what it is. */
	__u8 translates;
	/* Whether they leave by the interface, in place of going past it into the pod behind it. */
	__u8 on_wire;
	/*
	 * The only source that packets may enter with: from a pod or the node's kernel, and
	 * by the uplink outside of tunnels where it is not zero.
	 */
	__u8 ingress_mac[6];
	__u8 destination_mac[6];
	__u8 source_mac[6];
	/* Whether its FINs are forwarded too; every SYN of the initiator passes the punt link then. */
	__u8 takes_fin;
	/* Written by the programs: whether one was. */
	__u8 had_fin;
	__be16 source_port;
	__be16 destination_port;
	__u8 source[16];
	__u8 destination[16];
	/* The tunnel that packets of pods leave in, and others arrive in. */
	struct tunnel tunnel;
	/* Written by the programs. */
	__u64 packets;
	__u64 bytes;
	/* Monotonic time of the last packet. */
	__u64 used_ns;
	/* The end that its packets come from (`enum role`); written by the programs too. */
	__u32 role;
	/* Whether a template opened the connection, so that its handshake is forwarded too. */
	__u16 by_template;
	/* Written by the programs: whether a reset was forwarded. Others are the switch's: it may have been forged. */
	__u16 had_reset;
};

/*
 * The end of a connection of a pod, but for those with the node itself, that an entry's packets come from: of TCP, and of
 * UDP with a resolver.
 */
enum role {
	/* Another connection's: its last packets do not remove the entries. */
	ROLE_NONE,
	ROLE_INITIATOR,
	ROLE_RESPONDER,
	/* The responder, which has not accepted the connection yet; of a question to a resolver, all the time. */
	ROLE_ASKED,
};

/* Connections that differ in the initiator's port alone. */
struct template_key {
	/* Number of the interface that the initiator's packets enter by. */
	__u32 ingress;
	__u8 source[16];
	__u8 destination[16];
	__be16 destination_port;
	__u8 protocol;
	__u8 family;
	/* The backend of the service that the destination is, counted from 1; else 0. */
	__u32 backend;
};

/* A part of a service's choice among its backends. */
struct choice_key {
	__u8 destination[16];
	__be16 destination_port;
	__u8 protocol;
	__u8 family;
	/* The places from `part * CHOICE_PLACES` on. */
	__u32 part;
};

struct choice {
	/* The generation of services that it is of. */
	__u32 generation;
	/* Places of the whole table. */
	__u32 size;
	/* By place: a backend, counted from 0. */
	__u8 backends[CHOICE_PLACES];
};

/* What opens a connection like one that the switch has allowed, while the same generations hold. */
struct template {
	/* Both entries, as they begin. */
	struct flow_entry forward;
	struct flow_entry reverse;
	/* Number of the interface that the responder's packets enter by. */
	__u32 responder;
	/* Number of the initiator's port. */
	__u32 port;
};

/* What the switch reads of programs, in the order in which it happened. */
enum report {
	REPORT_OPENED,
	REPORT_ENDED,
	REPORT_RESET,
};

/* A template has opened a connection; behind this, the frame, with its port's tag as on the punt link. */
struct opened {
	__u32 report;
	__u32 length;
	/* The initiator's packets. */
	struct flow_key key;
	/* What `struct template_key` has. */
	__u32 backend;
	/* The end that it leads to. */
	__u8 responder[16];
	__be16 responder_port;
	__u8 zero[6];
};

struct opened_by_pod {
	struct opened opened;
	__u8 frame[OPENING_FRAME];
};

struct opened_by_uplink {
	struct opened opened;
	__u8 frame[TUNNELLED_FRAME];
};

struct asked_by_pod {
	struct opened opened;
	__u8 frame[QUESTION_FRAME];
};

/* Both ends have closed a connection, or a resolver has answered; its entries are removed: what they were last. */
struct ended {
	__u32 report;
	__u32 by_template;
	/* The initiator's and the responder's. */
	__u32 ports[2];
	/* The initiator's packets. */
	struct flow_key key;
	__u32 zero;
	__u64 packets[2];
	__u64 bytes[2];
	__u64 used_ns[2];
};

/* An end has reset a connection; it sends by this key. */
struct reset {
	__u32 report;
	struct flow_key key;
};

/*
 * A port of the switch whose frames take the punt link. On that link the port stands as the tag in
 * the place of the destination's MAC address.
 */
struct port {
	__u32 ifindex;
	__u8 tag[6];
	/* The pod's. */
	__u8 mac[6];
	/* The queue of the punt link that its frames take. */
	__u32 queue;
};

/* What a port has of the punt link. */
struct share {
	/* The round of its queue that `frames` counts in. */
	__u32 round;
	/* Frames that went to the switch in this round. */
	__u32 frames;
	/* Frames that the switch had taken of the port when the round began. */
	__u32 taken;
	/* Connections that templates have opened. */
	__u32 opened;
	/* Frames that were dropped because the port had used up its share. */
	__u64 dropped;
};

struct settings {
	/* Monotonic time until which entries count: the switch's heartbeat moves it on. */
	__u64 good_until_ns;
	/* The same for FINs: no longer than the switch lives, which has to read of them. */
	__u64 fins_until_ns;
	/* The same for templates. */
	__u64 opens_until_ns;
	/* The kernel's end of the punt link. */
	__u32 punt;
	/* The uplink's interface, and the kernel's end of its link to the switch. */
	__u32 uplink;
	__u32 uplink_link;
	__u32 zero;
};

/* Why a frame was not forwarded by an entry; the place of its counter. */
enum reason {
	REASON_NOT_IP,
	REASON_OTHER_PROTOCOL,
	REASON_OPTIONS,
	REASON_FRAGMENT,
	REASON_TTL,
	REASON_MALFORMED,
	REASON_OPENS_OR_ENDS,
	REASON_NO_ENTRY,
	REASON_OLD_GENERATION,
	REASON_NO_HEARTBEAT,
	REASON_TOO_LONG,
	REASON_WRONG_MAC,
	REASON_TUNNEL,
	REASON_VLAN,
	REASONS,
};

/* Counters: the reasons of punted frames, then these. */
enum counter {
	COUNTER_FORWARDED = REASONS,
	COUNTER_FORWARDED_BYTES,
	/* Dropped: the interface is no port, or the tag on the punt link is none. */
	COUNTER_NO_PORT,
	/* Dropped: the port has as many frames on the punt link as it may. */
	COUNTER_OVER_SHARE,
	/* Connections that templates opened. */
	COUNTER_OPENED,
	/* Dropped: from another node, and not encrypted although that is required. */
	COUNTER_CLEAR_TEXT,
	COUNTERS,
};

_Static_assert(sizeof(struct flow_key) == 44, "as in layout.rs");
_Static_assert(sizeof(struct flow_entry) == 168, "as in layout.rs");
_Static_assert(sizeof(struct tunnel) == 48, "as in layout.rs");
_Static_assert(sizeof(struct port) == 20, "as in layout.rs");
_Static_assert(sizeof(struct share) == 24, "as in layout.rs");
_Static_assert(sizeof(struct settings) == 40, "as in layout.rs");
_Static_assert(sizeof(struct template_key) == 44, "as in layout.rs");
_Static_assert(sizeof(struct choice_key) == 24, "as in layout.rs");
_Static_assert(sizeof(struct choice) == 264, "as in layout.rs");
_Static_assert(sizeof(struct template) == 344, "as in layout.rs");
_Static_assert(sizeof(struct opened) == 80, "as in layout.rs");
_Static_assert(sizeof(struct ended) == 112, "as in layout.rs");
_Static_assert(sizeof(struct reset) == 48, "as in layout.rs");

#endif
