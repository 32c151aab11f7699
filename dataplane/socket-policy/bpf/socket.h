/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What programs and switch share; `src/layout.rs` has the same. Numbers are in host byte order, ports and
 * addresses in that of the wire. An IPv4 address stands in the first four bytes of its field.
 */
#ifndef SOCKET_H
#define SOCKET_H

#include <linux/types.h>

#define V4 4
#define V6 6

/* Of `pod.flags`. */
#define POD_KNOWN 1
/* It is on the host network: its addresses are the node's, which pods let in, and it is never closed. */
#define POD_HOST 2
/* Its datagrams are remembered, so that replies are told from what is opened. */
#define POD_DATAGRAMS 4
/* It opens no raw sockets; on the host network none of UDP-Lite, and no packet of either leaves, nor one that may name a way. */
#define POD_NO_RAW 8

/* In place of the number of a pod's table: the address is one of the node's. */
#define NODE 0

/* In front of the number of a table about what a pod on the host network accepts. */
#define ACCEPTS (1U << 30)

/* In place of the number of a service's endpoints: nothing is known of them, and no pod with rules reaches it. */
#define UNKNOWN 0xffffffffU

/* Places of a pod's exchanges in which one may stand. */
#define WAYS 4

/* Nanoseconds for which datagrams in both directions are one exchange; as the switch has it for UDP. */
#define EXCHANGE (120ULL * 1000 * 1000 * 1000)
/* Least nanoseconds between two reports of packets that a pod was not to get. */
#define REPORT (50ULL * 1000 * 1000)

enum verdict { NOTHING, ALLOW, DENY };

/* Data of a cgroup that the programs are attached to. */
struct pod {
	/* Its table of rules about connections that it opens. */
	__u32 number;
	__u32 flags;
	/* Its own addresses, IPv4 and IPv6; 0 without one. */
	__u64 own[2][2];
	/* When a packet for it was last reported. */
	__u64 reported;
};

struct settings {
	/* Of the rules in force; 0 before the first. */
	__u32 generation;
	/* Whether nothing opens before rules are known. */
	__u32 closed;
	/* The error of a denied connect, negative; 0 is EPERM. */
	__s32 error;
	/* Sets of `WAYS` places for the exchanges of a pod, less 1: a power of two. */
	__u32 sets;
};

/* A network of the other end, in a table. */
struct rule_key {
	__u32 prefix;
	__u32 generation;
	__u32 table;
	__u8 family;
	__u8 transport;
	__u8 zero[2];
	__u64 address[2];
};

/* A piece of an array. */
struct piece {
	__u32 first;
	__u32 count;
};

/* Sorted and disjoint in its piece. */
struct range {
	__u16 first;
	__u16 last;
	__u32 verdict;
	/* Number of the policies' names. */
	__u32 by;
};

/* An address of a pod on this node, whose table decides about what arrives there, or of the node. */
struct local_key {
	__u32 generation;
	__u32 family;
	__u64 address[2];
};

/* A destination with a service. */
struct service_key {
	__u32 generation;
	__u8 family;
	__u8 transport;
	__be16 port;
	__u64 address[2];
};

struct endpoint {
	__u64 address[2];
	__be16 port;
	__u8 family;
	__u8 zero[5];
};

/* A place for an exchange of a pod. */
struct exchange_place {
	__u32 pod;
	__u32 place;
};

/* Datagrams between a pod's port and another end. */
struct exchange {
	__u64 address[2];
	/* In host byte order. */
	__u16 own_port;
	__be16 port;
	__u8 family;
	__u8 zero[3];
	/* When one was last seen. */
	__u64 seen;
};

/* A connection that was denied. */
struct event {
	__u32 pod;
	/* Number of the policies' names, in this generation. */
	__u32 by;
	__u32 generation;
	__u32 process;
	__u32 user;
	__u8 family;
	__u8 transport;
	__be16 port;
	__u64 address[2];
	__u8 command[16];
	/* The pod's port, in host byte order, if the connection came to it; else 0. */
	__u16 own_port;
	__u8 zero[6];
};

enum counter { ASKED_ABOUT, DENIED, CLOSED, LOST, KEPT_OUT, RAW, COUNTERS };

_Static_assert(sizeof(struct pod) == 48, "");
_Static_assert(sizeof(struct settings) == 16, "");
_Static_assert(sizeof(struct rule_key) == 32, "");
_Static_assert(sizeof(struct range) == 12, "");
_Static_assert(sizeof(struct local_key) == 24, "");
_Static_assert(sizeof(struct service_key) == 24, "");
_Static_assert(sizeof(struct endpoint) == 24, "");
_Static_assert(sizeof(struct exchange) == 32, "");
_Static_assert(sizeof(struct event) == 64, "");

#endif
