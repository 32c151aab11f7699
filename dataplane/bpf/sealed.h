/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The mark of packets that arrived encrypted, between the program at the WireGuard device and the one at the uplink,
 * which clears it. What comes from the wire or from another network namespace has no mark.
 */
#ifndef SEALED_H
#define SEALED_H

#define SEALED_MARK 0x9d6a7e01

#endif
