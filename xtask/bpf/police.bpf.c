/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A token bucket that drops what it does not hold, at a device's ingress. BURST_NS is given when it is compiled: its depth as a
 * time of the rate. It begins empty, so that what is measured is the rate and not the burst. */
#include "bpf.h"
#include <linux/pkt_cls.h>

__u64 is_begun;

SEC("tc")
int police(struct __sk_buff *skb)
{
	if (!__sync_lock_test_and_set(&is_begun, 1))
		free_at = bpf_ktime_get_ns() + (BURST_NS);
	if (queue_ns() > (BURST_NS))
		return TC_ACT_SHOT;
	let_through(on_the_wire(skb));
	return TC_ACT_OK;
}
