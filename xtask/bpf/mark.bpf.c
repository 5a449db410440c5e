/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A switch's port that marks as DCTCP's switches do: each packet that arrives while more than MARK bytes wait in the port's
 * qdisc. What waits is read from the qdisc itself, so it is what packets really meet. */
#include "bpf.h"
#include <linux/pkt_cls.h>

/* 20 packets: what the authors of DCTCP take at 1 Gb/s. */
#define MARK (20 * 1514)
/* Buckets of found queues, 10 us each; the last one has all that are longer. */
#define BUCKETS 512
#define BUCKET_NS 10000ULL

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct gnet_stats_queue {
	__u32 backlog;
};

struct Qdisc {
	struct gnet_stats_queue qstats;
};

struct net_device {
	struct Qdisc *qdisc;
};

struct sk_buff {
	struct net_device *dev;
};

#pragma clang attribute pop

extern void *bpf_cast_to_kern_ctx(void *) __attribute__((section(".ksyms")));

/* Packets that arrived, nanoseconds that they found waiting, packets that were marked. */
__u64 arrived, waited_ns, marked;
__u64 found[BUCKETS];

SEC("tc")
int mark(struct __sk_buff *skb)
{
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	__u64 backlog = kernel->dev->qdisc->qstats.backlog, ns = NS_OF(backlog), bucket = ns / BUCKET_NS;

	__sync_fetch_and_add(&arrived, 1);
	__sync_fetch_and_add(&waited_ns, ns);
	/* Else the compiler divides and compares in 32 bits, and the verifier does not know the upper ones. */
	__asm__ volatile("" : "+r"(bucket));
	if (bucket >= BUCKETS)
		bucket = BUCKETS - 1;
	__sync_fetch_and_add(&found[bucket], 1);
	if (backlog > MARK && bpf_skb_ecn_set_ce(skb))
		__sync_fetch_and_add(&marked, 1);
	return TC_ACT_OK;
}
