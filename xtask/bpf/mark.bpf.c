/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A switch's port that marks: all packets that arrive while more than MARK_NS wait, as DCTCP's switches do. The port's HTB
 * sends at RATE and sees the same packets, so that its queue is this one. */
#include "bpf.h"
#include <linux/pkt_cls.h>

#ifndef MARK_NS
#define MARK_NS 65000ULL
#endif

/* What arriving packets found. */
__u64 arrived, waited_ns, marked;

SEC("tc")
int mark(struct __sk_buff *skb)
{
	__u64 queue = queue_ns();

	let_through(skb->wire_len);
	__sync_fetch_and_add(&arrived, 1);
	__sync_fetch_and_add(&waited_ns, queue);
	if (queue > MARK_NS && bpf_skb_ecn_set_ce(skb))
		__sync_fetch_and_add(&marked, 1);
	return TC_ACT_OK;
}
