/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The kernel's types as far as the shaper's programs read them. Only names and types of the fields count: libbpf finds
 * their places in the BTF of the running kernel. */
#ifndef TIDEGATE_VMLINUX_H
#define TIDEGATE_VMLINUX_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;
typedef s16 __s16;
typedef s32 __s32;
typedef s64 __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u64 __be64;
typedef u16 __sum16;
typedef u32 __wsum;
typedef _Bool bool;

/* The context of a program at tc. Its layout is part of the kernel's interface and is not relocated. */
struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
	__u32 tc_index;
	__u32 cb[5];
	__u32 hash;
	__u32 tc_classid;
	__u32 data;
	__u32 data_end;
	__u32 napi_id;
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port;
	__u32 local_port;
	__u32 data_meta;
	__u64 flow_keys;
	__u64 tstamp;
	__u32 wire_len;
	__u32 gso_segs;
	__u64 sk;
	__u32 gso_size;
	__u8 tstamp_type;
	__u32 : 24;
	__u64 hwtstamp;
};

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_LPM_TRIE = 11,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_NO_PREALLOC = 1,
	BPF_F_RECOMPUTE_CSUM = 1,
	BPF_F_MMAPABLE = 1024,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct hlist_node {
	struct hlist_node *next;
};

struct hlist_head {
	struct hlist_node *first;
};

struct qdisc_skb_head {
	u32 qlen;
};


/* Begins with the count of bytes, wrapped in structs that differ between kernels. */
struct gnet_stats_basic_sync {
};

struct gnet_stats_queue {
	u32 backlog;
	u32 drops;
	u32 requeues;
};

struct Qdisc_ops {
	char id[16];
};

struct Qdisc {
	const struct Qdisc_ops *ops;
	u32 handle;
	struct qdisc_skb_head q;
	struct gnet_stats_queue qstats;
	long privdata[0];
};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	struct Qdisc *qdisc;
	int ifindex;
	possible_net_t nd_net;
};

struct netdev_queue {
	struct net_device *dev;
};

struct sk_buff {
	struct sk_buff *next;
	struct net_device *dev;
	u8 ip_summed : 2;
	char cb[48];
};

/* What the queue has of `cb`; `data` is `cb` of the context at tc. */
struct qdisc_skb_cb {
	unsigned int pkt_len;
	unsigned char data[20];
};

struct Qdisc_class_common {
	u32 classid;
	struct hlist_node hnode;
};

struct Qdisc_class_hash {
	struct hlist_head *hash;
	unsigned int hashsize;
	unsigned int hashmask;
};

struct psched_ratecfg {
	u64 rate_bytes_ps;
};

struct htb_class_leaf {
	struct Qdisc *q;
};

struct htb_class {
	struct Qdisc_class_common common;
	struct psched_ratecfg rate;
	struct psched_ratecfg ceil;
	s64 buffer;
	s64 cbuffer;
	int level;
	struct htb_class *parent;
	struct gnet_stats_basic_sync bstats;
	s64 tokens;
	s64 ctokens;
	s64 t_c;
	union {
		struct htb_class_leaf leaf;
	};
};

struct htb_sched {
	struct Qdisc_class_hash clhash;
};

#pragma clang attribute pop

#endif
