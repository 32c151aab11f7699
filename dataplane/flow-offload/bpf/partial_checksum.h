// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Finds where the kernel has yet to write a checksum (CHECKSUM_PARTIAL). */

/*
 * The fields of the kernel's struct sk_buff that tell. The loader takes their offsets from the kernel's type
 * information (BTF, CO-RE).
 */
struct sk_buff___checksum {
	unsigned char *head, *data;
	__u16 csum_start, csum_offset;
	__u8 ip_summed : 2;
} __attribute__((preserve_access_index));

/* Of `ip_summed`: the checksum from `csum_start` on is written when the frame leaves. */
#define CHECKSUM_PARTIAL 3

/*
 * Whether the kernel has yet to write a checksum that ends before so many bytes of a frame. The process that sends
 * a frame chooses the place (packet(7), PACKET_VNET_HDR), which may be an address, a port or the tag. A frame that
 * cannot be read counts as one.
 *
 * The context of a program is the kernel's own structure, as bpf_cast_to_kern_ctx() has it from Linux 6.2 on. 6.1
 * lacks that function.
 */
static __always_inline int writes_before(struct __sk_buff *skb, __u32 bytes)
{
	const struct sk_buff___checksum *kernel = (const void *)skb;
	unsigned char *head, *data;
	__u16 start, offset;

	if (BPF_CORE_READ_BITFIELD_PROBED(kernel, ip_summed) != CHECKSUM_PARTIAL)
		return 0;
	if (bpf_core_read(&start, sizeof(start), &kernel->csum_start) ||
	    bpf_core_read(&offset, sizeof(offset), &kernel->csum_offset) ||
	    bpf_core_read(&head, sizeof(head), &kernel->head) ||
	    bpf_core_read(&data, sizeof(data), &kernel->data))
		return 1;
	return head + start + offset + sizeof(__sum16) < data + bytes;
}
