/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What programs and switch share; `src/layout.rs` has the same. Numbers are in host byte order, ports and
 * addresses in that of the wire. An IPv4 address stands in the first four bytes of its field.
 */
#ifndef SOCKET_H
#define SOCKET_H

#include <linux/types.h>

/* Ranges of ports, and endpoints, of one generation; there is room for two. */
#define RANGES (1 << 16)
#define ENDPOINTS (1 << 15)
/* Endpoints of a service that are asked about; with more of them the switch decides. */
#define ASKED 64

#define V4 4
#define V6 6

/* Of `pod.flags`. */
#define POD_KNOWN 1
/* It is on the host network: its addresses are the node's, which pods let in, and it is never closed. */
#define POD_HOST 2

enum verdict { NOTHING, ALLOW, DENY };

/* Data of a cgroup that the programs are attached to. */
struct pod {
	/* Its table of rules about connections that it opens. */
	__u32 number;
	__u32 flags;
	/* Its own addresses, IPv4 and IPv6; 0 without one. */
	__u8 own[2][16];
};

struct settings {
	/* Of the rules in force; 0 before the first. */
	__u32 generation;
	/* Whether nothing opens before rules are known. */
	__u32 closed;
	/* The error of a denied connect, negative; 0 is EPERM. */
	__s32 error;
	__u32 zero;
};

/* A network of the other end, in a table. */
struct rule_key {
	__u32 prefix;
	__u32 generation;
	__u32 table;
	__u8 family;
	__u8 transport;
	__u8 zero[2];
	__u8 address[16];
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

/* An address of a pod on this node, whose table decides about what arrives there. */
struct local_key {
	__u32 generation;
	__u32 family;
	__u8 address[16];
};

/* A destination with a service. */
struct service_key {
	__u32 generation;
	__u8 family;
	__u8 transport;
	__be16 port;
	__u8 address[16];
};

struct endpoint {
	__u8 address[16];
	__be16 port;
	__u8 family;
	__u8 zero[5];
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
	__u8 address[16];
	__u8 command[16];
};

enum counter { ASKED_ABOUT, DENIED, CLOSED, LOST, COUNTERS };

_Static_assert(sizeof(struct pod) == 40, "");
_Static_assert(sizeof(struct settings) == 16, "");
_Static_assert(sizeof(struct rule_key) == 32, "");
_Static_assert(sizeof(struct range) == 12, "");
_Static_assert(sizeof(struct local_key) == 24, "");
_Static_assert(sizeof(struct service_key) == 24, "");
_Static_assert(sizeof(struct endpoint) == 24, "");
_Static_assert(sizeof(struct event) == 56, "");

#endif
