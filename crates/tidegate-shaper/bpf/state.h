/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What the programs remember. The layouts are part of the interface to the agent, which fills `class_configs`, the rules
 * and flows that were open before it, and reads the rest. */
#ifndef TIDEGATE_STATE_H
#define TIDEGATE_STATE_H

#define MAX_CLASSES 256
/* Rules on a device, kinds of them, and rules of a kind that differ in ports alone. */
#define MAX_RULES 4096
#define MAX_KINDS 64
#define MAX_SAME 64
#define MAX_FLOWS 65536
#define MAX_OPENING 16384
#define MAX_STRANGERS 16384
#define MAX_OTHERS 16384
#define RTT_BUCKETS 96
#define TCP_LEAF_COUNT 16
#define NO_CLASS 0xffff
/* In counts of flows: those that were open before and sent nothing yet, and all. */
#define UNCLASSIFIED MAX_CLASSES
#define ALL_CLASSES (MAX_CLASSES + 1)

enum occupancy { OCCUPANCY_DIRECT = 0, OCCUPANCY_VIRTUAL = 1, OCCUPANCY_TRACEPOINT = 2 };

/* Fixed when the programs are loaded. */
struct settings {
	u32 link_bytes;    /* of the link header: 0 on devices without one */
	u32 occupancy;
	u32 classifies;    /* packets are put into classes, not only recognised */
	u32 under_test;    /* time, queue and random numbers are told */
	u32 device;        /* its number, and its namespace's: the tracepoints see all devices */
	u32 namespace;
};

const volatile struct settings settings = { .link_bytes = 14, .classifies = 1 };

/* By the differential test. */
struct told {
	u64 now;
	s64 queue;
	u64 drained;
	u32 random;
	u32 pad;
};

struct told told;

struct class_config {
	u64 rate;      /* bytes per second */
	u64 setpoint;  /* ns */
	u64 burst;     /* ns: what an idle class may send at once */
	u64 ceil;      /* bytes per second; at least `rate` */
	u64 debt;      /* ns that HTB lets it owe before a packet; with the tracepoint */
	u32 classid;   /* of HTB; without isolation the leaf */
	u32 mode;
	u32 isolation; /* leaves as in crates/tidegate-shaper/src/machine/tree.rs */
	u32 ecn;
};

/* The agent writes what a class begins with: its window, a segment, an epoch that is not 0. */
struct class_state {
	u64 window;
	s64 queue_sum;
	u64 samples;
	u64 above;
	u64 next_update;
	u64 epoch;
	u64 base;
	u64 enqueued;     /* bytes into TCP's own leaves, with isolation */
	u64 dequeued_at;  /* the leaves' count of bytes when `enqueued` was 0 */
	u64 busy_until;   /* token bucket of the virtual queue and of the tracepoint */
	u64 sparse_until; /* budget of sparse flows */
	s64 queue_last;
	u32 limited_now;
	u32 limited_last;
	u32 mss;
	u32 alpha;
	u64 leaf_epoch;
	struct drain drain;
	u32 leaf_now[TCP_LEAF_COUNT];  /* flows that were limited in this epoch and the last one */
	u32 leaf_last[TCP_LEAF_COUNT];
};

struct class_counts {
	u64 sent_packets;
	u64 sent_bytes;
	u64 segments;
	u64 acks;
	u64 rewritten;
	u64 other_packets;
	u64 other_bytes;
	u64 marks_seen;
	u64 marks_echoed;
	u64 limited;
	u64 updates;
	u64 flows_made;
	u64 flows_ended;
	u64 unscaled;
	u32 rtt[RTT_BUCKETS]; /* quarter octaves of microseconds */
};

/* What entered the device's queue and did not leave it. A round ends when the queue is empty: counts of an earlier one are 0. */
struct waiting {
	u64 bytes;
	u64 round;
	u64 left; /* of the class, in all; no round ends this */
};

struct watched {
	u64 round;
	u32 requeues; /* the queue's own count, as it was */
	u32 again;    /* packets of those that are still to come by */
};

struct flow_key {
	u32 local[4];
	u32 remote[4];
	u16 local_port;
	u16 remote_port;
	u16 vlan;
	u16 protocol;
};

enum flow_flags {
	KNOWS_SCALE = 1,
	OFFERS_SCALE = 2,    /* the side that was heard first */
	FRESH = 4,           /* sequence numbers still to be learnt */
	LOCAL_FIN = 8,
	REMOTE_FIN = 16,
	NATIVE_ECN = 32,     /* the guests negotiate it themselves */
	OFFERS_ECN = 64,
	MARK_PENDING = 128,  /* to be echoed with the next acknowledgement */
};

#define NO_LEAF 0xff

struct flow {
	u64 sample_at;
	u64 sample_queue;
	u64 epoch;
	u64 base;
	struct network network;
	u32 sample_end;
	u32 una;
	u32 next;
	u32 edge;
	u32 mss;
	u16 class;
	u8 scale;
	u8 flags;
	u8 leaf;
	u8 timed;
	u8 opens; /* its window opened with the last acknowledgement, and not in clumps */
	u8 pad;
	u32 rules; /* the rules by which `class` was found */
	u32 seen;  /* when it last sent, in units of 2^30 ns */
	u32 pad2;
};

struct other {
	u64 debt_until;
	u64 in_turn;
};

enum rule_flags {
	RULE_CGROUP = 1,
	RULE_MARK = 2,
	RULE_LOCAL = 4,
	RULE_REMOTE = 8,
	RULE_PORT = 16,
	RULE_VLAN = 32,
	RULE_PROTOCOL = 64,
	RULE_PRIORITY = 128,
};

/* What rules of a kind look at: fields and the bits of them that count. */
struct kind {
	u32 flags;
	u32 first; /* place of its first rule among all rules */
	u32 cgroup_level;
	u32 mark_mask;
	u32 local_mask[4];
	u32 remote_mask[4];
};

/* What these bits hold; 0 where a kind does not look. */
struct rule_key {
	u64 cgroup;
	u32 local[4];
	u32 remote[4];
	u32 mark;
	u32 priority;
	u16 vlan;
	u16 protocol;
	u16 kind;
	u16 same; /* counts rules that differ in ports alone */
};

struct rule {
	u32 place;
	u32 class;
	u16 port_first;
	u16 port_last;
	u32 more; /* another one differs in ports alone */
};

/* There are two sets of rules: one is in force while the other is written. */
struct rule_set {
	u32 kinds;
	u32 default_class; /* of what meets no rule, or NO_CLASS */
};

/* Flows of a class in the table. What the agent took out of it is in `forgotten_flows`. */
struct held_flows {
	u64 held;
	u64 unheld; /* the class had no room for them */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CLASSES);
	__type(key, u32);
	__type(value, struct class_config);
} class_configs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CLASSES);
	__type(key, u32);
	__type(value, struct class_state);
} class_states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_CLASSES);
	__type(key, u32);
	__type(value, struct class_counts);
} class_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CLASSES);
	__type(key, u32);
	__type(value, struct waiting);
} waiting_bytes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct watched);
} watched_device SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} rules_number SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct rule_set);
} rule_sets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * MAX_KINDS);
	__type(key, u32);
	__type(value, struct kind);
} kinds SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2 * MAX_RULES);
	__type(key, struct rule_key);
	__type(value, struct rule);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_OPENING);
	__type(key, struct flow_key);
	__type(value, struct flow);
} opening SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_STRANGERS);
	__type(key, struct flow_key);
	__type(value, struct flow);
} strangers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ALL_CLASSES + 1);
	__type(key, u32);
	__type(value, struct held_flows);
} held SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ALL_CLASSES + 1);
	__type(key, u32);
	__type(value, u64);
} forgotten_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_OTHERS);
	__type(key, struct flow_key);
	__type(value, struct other);
} others SEC(".maps");

#endif
