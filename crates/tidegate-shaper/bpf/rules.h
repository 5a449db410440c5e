/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The class of a packet: the first rule that it meets decides.
 *
 * Rules of a kind look at the same fields, and are found by what these hold, however many there are: a lookup for each kind.
 * Rules that differ in ports alone are looked at one after another.
 * Source: Fast Packet Classification using Tuple Space Search, 1999. */
#ifndef TIDEGATE_RULES_H
#define TIDEGATE_RULES_H

/* Neither a place nor a class. */
#define NO_RULE (~0ULL)

/* The number of the rules in force, which changes with them. */
static __always_inline u32 rules_in_force(void)
{
	u32 only = 0, *number = bpf_map_lookup_elem(&rules_number, &only);

	return number ? *number : 0;
}

static __always_inline u32 has_port(const struct packet *packet, const struct rule *rule)
{
	u16 local = packet->key.local_port, remote = packet->key.remote_port;

	return (local >= rule->port_first && local <= rule->port_last) || (remote >= rule->port_first && remote <= rule->port_last);
}

static __always_inline void read_key(struct __sk_buff *skb, const struct packet *packet, const struct kind *kind, struct rule_key *key)
{
	u32 flags = kind->flags;

	if (flags & RULE_MARK)
		key->mark = skb->mark & kind->mark_mask;
	if (flags & RULE_PRIORITY)
		key->priority = skb->priority;
	if (flags & RULE_VLAN)
		key->vlan = packet->key.vlan;
	if (flags & RULE_PROTOCOL)
		key->protocol = packet->key.protocol;
	for (int i = 0; i < 4; i++) {
		key->local[i] = packet->key.local[i] & kind->local_mask[i];
		key->remote[i] = packet->key.remote[i] & kind->remote_mask[i];
	}
	if (flags & RULE_CGROUP)
		key->cgroup = bpf_skb_ancestor_cgroup_id(skb, kind->cgroup_level);
}

/* The first rule of a kind that fits: its place among all and its class, in 32 bits each. Not static, so that the verifier
 * goes through it once. */
__noinline u64 rule_of_kind(struct __sk_buff *skb, const struct packet *packet, u32 number, u32 at)
{
	u32 half = number & 1, index = half * MAX_KINDS + at;
	struct rule_key key = { .kind = index };
	const struct kind *kind = bpf_map_lookup_elem(&kinds, &index);

	if (!packet || !kind)
		return NO_RULE;
	read_key(skb, packet, kind, &key);
	for (u16 same = 0; same < MAX_SAME; same++) {
		const struct rule *rule;

		key.same = same;
		rule = bpf_map_lookup_elem(&rules, &key);
		if (!rule)
			break;
		if (!(kind->flags & RULE_PORT) || has_port(packet, rule))
			return (u64)rule->place << 32 | rule->class;
		if (!rule->more)
			break;
	}
	return NO_RULE;
}

static __always_inline u32 classify(struct __sk_buff *skb, const struct packet *packet, u32 number)
{
	u32 half = number & 1;
	const struct rule_set *set = bpf_map_lookup_elem(&rule_sets, &half);
	u64 first = NO_RULE;

	if (!set)
		return NO_CLASS;
	for (u32 i = 0; i < MAX_KINDS && i < set->kinds; i++) {
		u32 index = half * MAX_KINDS + i;
		const struct kind *kind = bpf_map_lookup_elem(&kinds, &index);

		/* Kinds are in the order of their first rules. */
		if (!kind || kind->first > first >> 32)
			break;
		first = min_of(first, rule_of_kind(skb, packet, number, i));
	}
	return first == NO_RULE ? set->default_class : (u32)first;
}

#endif
