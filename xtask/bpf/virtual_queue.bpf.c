/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A virtual queue at a control group's egress that marks and drops, as the kernel's samples/bpf/hbm_out_kern.c did: from
 * MARK bytes on ever more packets are marked, or their sender is told where they cannot be; from DROP on they are dropped. */
#include "bpf.h"

#define PACKET 1500ULL
#define MARK (40 * PACKET)
#define DROP (400 * PACKET)
#define ETHERNET 14

#define REFUSE 0
#define PASS 1
#define REFUSE_AND_TELL 2
#define PASS_AND_TELL 3

/* Packets that were dropped. */
__u64 refused;

SEC("cgroup_skb/egress")
int virtual_queue(struct __sk_buff *skb)
{
	__u64 queue = queue_ns() / 1000 * (RATE) / 1000000;

	if (queue > DROP) {
		__sync_fetch_and_add(&refused, skb->gso_segs ? skb->gso_segs : 1);
		return REFUSE_AND_TELL;
	}
	let_through(ETHERNET + on_the_wire(skb));
	if (queue < MARK || bpf_get_prandom_u32() % (DROP - MARK) > queue - MARK)
		return PASS;
	return bpf_skb_ecn_set_ce(skb) ? PASS : PASS_AND_TELL;
}
