/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The queue of a class as the kernel's HTB has it: bytes that wait and what its token buckets owe. */
#ifndef TIDEGATE_HTB_H
#define TIDEGATE_HTB_H

/* The form for kernels without BTF has no code that reads their structures: nothing to relocate, no kfunc to find. */
#ifdef WITHOUT_BTF
#define READS_KERNEL 0
#define WATCHES_QUEUE 0
#else
#define READS_KERNEL (settings.occupancy == OCCUPANCY_DIRECT)
#define WATCHES_QUEUE (settings.occupancy == OCCUPANCY_TRACEPOINT)
#endif

/* Classes above a leaf whose tokens are looked at. */
#define LEVELS 4
/* Classes of one bucket of the hash table. */
#define CHAIN 32

/* Weak: a kernel without them loads the programs with the virtual queue. */
extern void *bpf_cast_to_kern_ctx(void *) __ksym __weak;
extern void *bpf_rdonly_cast(const void *, u32) __ksym __weak;

#define CAST(address, type) ((struct type *)bpf_rdonly_cast((const void *)(address), bpf_core_type_id_kernel(struct type)))

static __always_inline struct Qdisc *root_of(struct __sk_buff *skb)
{
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);

	return kernel->dev->qdisc;
}

/* The checksum of what has not left the host yet. */
#define CHECKSUM_PARTIAL 3

static __always_inline u32 is_to_be_summed(struct __sk_buff *skb)
{
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);

	return BPF_CORE_READ_BITFIELD(kernel, ip_summed) == CHECKSUM_PARTIAL;
}

/* As the kernel's qdisc_class_find. */
static __always_inline struct htb_class *find_class(struct Qdisc *root, u32 classid)
{
	struct htb_sched *sched;
	struct hlist_node *node;
	u32 hash = classid;

	if (!root || root->handle >> 16 != classid >> 16)
		return 0;
	sched = CAST((u64)root + bpf_core_field_offset(struct Qdisc, privdata), htb_sched);
	hash ^= hash >> 8;
	hash ^= hash >> 4;
	hash &= sched->clhash.hashmask;
	node = CAST((u64)sched->clhash.hash + hash * sizeof(struct hlist_head), hlist_head)->first;
	for (int i = 0; i < CHAIN && node; i++) {
		struct htb_class *class = CAST((u64)node - bpf_core_field_offset(struct htb_class, common.hnode), htb_class);
		if (class->common.classid == classid)
			return class;
		node = node->next;
	}
	return 0;
}

static __always_inline s64 filled(s64 tokens, s64 buffer, s64 waited)
{
	if (waited > 0)
		tokens += waited;
	return tokens < buffer ? tokens : buffer;
}

/* Nanoseconds of tokens that the class can use, negative while it owes: its own or its parents', as far as its ceiling has
 * some. HTB keeps them as of `t_c`. */
static __always_inline s64 credit_of(struct htb_class *class, u64 now)
{
	/* What its parents have is worth no less than `low` and no more than `high`. */
	s64 low = -(1LL << 62), high = 1LL << 62;

	for (int i = 0; i < LEVELS && class; i++) {
		s64 waited = (s64)(now - class->t_c);
		s64 own = filled(class->tokens, class->buffer, waited);
		s64 ceiling = filled(class->ctokens, class->cbuffer, waited);

		if (own > ceiling)
			own = ceiling;
		own = own > low ? own : low;
		ceiling = ceiling > low ? ceiling : low;
		low = own < high ? own : high;
		high = ceiling < high ? ceiling : high;
		class = class->parent;
	}
	return low;
}

static __always_inline u64 dequeued_of(struct htb_class *class)
{
	u64 bytes = 0;

	bpf_probe_read_kernel(&bytes, sizeof(bytes), (void *)((u64)class + bpf_core_field_offset(struct htb_class, bstats)));
	return bytes;
}

#endif
