/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The tables of flows: machine/flow/held.rs.
 *
 * A flow whose handshake is not complete is in `opening`, one whose handshake was not seen in `strangers`; in both the one
 * longest unused goes first. With the first packet after its handshake a flow is held: in `flows`, which forgets none for another
 * class. */
#ifndef TIDEGATE_FLOWS_H
#define TIDEGATE_FLOWS_H

/* A class holds no more flows than ROOM times what is free. Source: Dynamic Queue Length Thresholds for Shared-Memory Packet
 * Switches, 1998. */
#define ROOM 2

static __always_inline struct held_flows *held_by(u32 class)
{
	return bpf_map_lookup_elem(&held, &class);
}

static __always_inline u64 held_now(u32 class)
{
	u64 *forgotten = bpf_map_lookup_elem(&forgotten_flows, &class);
	struct held_flows *flows = held_by(class);
	s64 now = flows && forgotten ? flows->held - *forgotten : 0;

	return now > 0 ? now : 0;
}

static __always_inline u32 has_room(u32 class)
{
	u64 all = held_now(ALL_CLASSES);

	return all < MAX_FLOWS && held_now(class) < ROOM * (MAX_FLOWS - all);
}

static __always_inline void count_held(u32 class, s64 more)
{
	struct held_flows *flows = held_by(class);

	if (flows)
		__sync_fetch_and_add(&flows->held, more);
}

static __always_inline void count_unheld(u32 class)
{
	struct held_flows *flows = held_by(class), *all = held_by(ALL_CLASSES);

	if (flows)
		__sync_fetch_and_add(&flows->unheld, 1);
	if (all)
		__sync_fetch_and_add(&all->unheld, 1);
}

static __always_inline u32 held_as(const struct flow *flow)
{
	return flow->class < MAX_CLASSES ? flow->class : UNCLASSIFIED;
}

/* True if this processor took it out. */
static __always_inline u32 forget_held(const struct flow_key *key, u32 class)
{
	if (bpf_map_delete_elem(&flows, key))
		return 0;
	count_held(class, -1);
	count_held(ALL_CLASSES, -1);
	return 1;
}

/* Back to where flows are that open. True if this processor did it. */
static __always_inline u32 let_go(const struct flow_key *key, u32 class)
{
	struct flow *flow = bpf_map_lookup_elem(&flows, key);

	if (!flow)
		return 0;
	bpf_map_update_elem(&opening, key, flow, BPF_ANY);
	return forget_held(key, class);
}

/* A flow that begins with this packet, or is first seen with it. */
static __always_inline struct flow *new_flow(const struct flow_key *key, u32 opens)
{
	struct flow fresh = {
		.flags = FRESH,
		.mss = 1448,
		.class = NO_CLASS,
		.leaf = NO_LEAF,
		.network = { .window = NETWORK_WINDOW_MAX, .alpha = NETWORK_ALPHA_ONE },
	};

	if (opens) {
		bpf_map_update_elem(&opening, key, &fresh, BPF_ANY);
		return bpf_map_lookup_elem(&opening, key);
	}
	bpf_map_update_elem(&strangers, key, &fresh, BPF_ANY);
	return bpf_map_lookup_elem(&strangers, key);
}

/* A flow that is not held. */
static __always_inline struct flow *loose_flow(const struct flow_key *key)
{
	struct flow *flow = bpf_map_lookup_elem(&opening, key);

	return flow ? flow : bpf_map_lookup_elem(&strangers, key);
}

static __always_inline void forget_loose(const struct flow_key *key)
{
	bpf_map_delete_elem(&opening, key);
	bpf_map_delete_elem(&strangers, key);
}

/* A guest that begins a flow anew has ended the one before. What comes in proves nothing: anybody can send a SYN. */
static __always_inline void end_before(const struct flow_key *key)
{
	struct flow *before = bpf_map_lookup_elem(&flows, key);

	if (before)
		forget_held(key, held_as(before));
}

/* Its own class has room, or it is not held: its windows are its receiver's own. */
static __always_inline struct flow *hold(const struct flow_key *key, struct flow *flow, u32 class)
{
	if (!has_room(class)) {
		count_unheld(class);
		forget_loose(key);
		return 0;
	}
	if (!bpf_map_update_elem(&flows, key, flow, BPF_NOEXIST)) {
		count_held(class, 1);
		count_held(ALL_CLASSES, 1);
	}
	forget_loose(key);
	return bpf_map_lookup_elem(&flows, key);
}

/* Other rules are in force, or it was open before the programs. 0: it is not held any more. */
static __always_inline struct flow *move_held(const struct flow_key *key, struct flow *flow, u32 class, u32 rules)
{
	u32 before = flow->rules, from = held_as(flow);

	/* One of several processors does it. */
	if (__sync_val_compare_and_swap(&flow->rules, before, rules) != before || class == from)
		return flow;
	if (class >= MAX_CLASSES || !has_room(class)) {
		forget_held(key, from);
		count_unheld(class);
		return 0;
	}
	count_held(from, -1);
	count_held(class, 1);
	flow->class = class;
	return flow;
}

#endif
