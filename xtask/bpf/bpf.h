/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What the programs beside ours share. RATE is given when they are compiled, to those that use it: bytes per second. */
#ifndef XTASK_BPF_H
#define XTASK_BPF_H

#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))

static __u64 (*bpf_ktime_get_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static __u32 (*bpf_get_prandom_u32)(void) = (void *)BPF_FUNC_get_prandom_u32;
static long (*bpf_skb_ecn_set_ce)(struct __sk_buff *) = (void *)BPF_FUNC_skb_ecn_set_ce;

char licence[] SEC("license") = "Dual BSD/GPL";

#ifdef RATE
#define NS_OF(bytes) ((__u64)(bytes) * 1000000000ULL / (RATE))
/* Ethernet, IPv4 and TCP with time stamps, of each segment after the first. */
#define HEADERS 66

/* When all that was let through will have been sent at RATE. */
__u64 free_at;

/* Nanoseconds that a packet would wait now. */
static inline __u64 queue_ns(void)
{
	__u64 now = bpf_ktime_get_ns(), until = *(volatile __u64 *)&free_at;

	return until > now ? until - now : 0;
}

/* Adds a packet; a lost race of two CPUs is tried again a few times, then the packet counts as nothing. */
static inline void let_through(__u64 bytes)
{
	for (int i = 0; i < 8; i++) {
		__u64 now = bpf_ktime_get_ns(), was = *(volatile __u64 *)&free_at;
		__u64 start = was > now ? was : now;

		if (__sync_val_compare_and_swap(&free_at, was, start + NS_OF(bytes)) == was)
			return;
	}
}

/* Bytes of a frame whose `len` has the Ethernet header. Where it is no packet of TCP, there is one segment. */
static inline __u64 on_the_wire(const struct __sk_buff *skb)
{
	__u32 segments = skb->gso_segs;

	return skb->len + (segments > 1 ? (segments - 1) * HEADERS : 0);
}
#endif

#endif
