/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A token bucket of 2 ms that drops what it does not hold, at the device's egress. */
#include "bpf.h"
#include <linux/pkt_cls.h>

#define BURST_NS 2000000ULL

SEC("tc")
int police(struct __sk_buff *skb)
{
	if (queue_ns() > BURST_NS)
		return TC_ACT_SHOT;
	let_through(skb->wire_len);
	return TC_ACT_OK;
}
