/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Reads the headers of a packet: Ethernet or none, up to two VLAN tags, IPv4, IPv6 with extension headers, TCP. */
#ifndef TIDEGATE_PACKET_H
#define TIDEGATE_PACKET_H

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86DD
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88A8
#define PROTOCOL_TCP 6
#define PROTOCOL_UDP 17
#define HEADERS_MOST 256
/* What timestamps take of each segment. */
#define TIMESTAMP_BYTES 12

#define TCP_FIN 1
#define TCP_SYN 2
#define TCP_RST 4
#define TCP_ACK 16
#define TCP_ECE 64
#define TCP_CWR 128

#define ECN_MASK 3
#define ECN_ECT0 2
#define ECN_CE 3

struct packet {
	struct flow_key key; /* as of a packet that leaves */
	u32 seq;
	u32 ack;
	u32 payload;
	u32 ip_at;
	u32 tcp_at;
	u32 options; /* bytes */
	u16 window;
	u8 flags;
	u8 is_ip;
	u8 is_tcp;
	u8 is_ipv6;
	u8 ecn;
};

static __always_inline u16 load16(const u8 *at)
{
	return at[0] << 8 | at[1];
}

static __always_inline u32 load32(const u8 *at)
{
	return (u32)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
}

/* Skips VLAN tags that stand in the packet; the type of what follows, at `*at`. */
static __always_inline u16 skip_tags(const u8 *data, const u8 *end, u16 type, u32 *at, u16 *vlan)
{
	for (int i = 0; i < 2; i++) {
		if (type != ETH_P_8021Q && type != ETH_P_8021AD)
			break;
		const u8 *tag = data + *at;

		if (tag + 4 > end)
			return 0;
		if (!*vlan)
			*vlan = load16(tag) & 0xfff;
		type = load16(tag + 2);
		*at += 4;
	}
	return type;
}

/* The protocol and place of what IPv6 carries; NO_PROTOCOL for fragments and what is too long. */
#define NO_PROTOCOL 0xff

static __always_inline u8 skip_extensions(const u8 *data, const u8 *end, u8 next, u32 *at)
{
	for (int i = 0; i < 8; i++) {
		u16 header;

		if (next != 0 && next != 43 && next != 51 && next != 60)
			return next == 44 ? NO_PROTOCOL : next;
		if (*at > HEADERS_MOST || data + *at + 8 > end)
			return NO_PROTOCOL;
		/* One load: the verifier follows one pointer. */
		header = bpf_ntohs(*(u16 *)(data + *at));
		*at += next == 51 ? ((header & 0xff) + 2) * 4 : ((header & 0xff) + 1) * 8;
		next = header >> 8;
		if (*at > HEADERS_MOST)
			return NO_PROTOCOL;
	}
	return next == 0 || next == 43 || next == 51 || next == 60 ? NO_PROTOCOL : next;
}

/* What `read_headers` found: all there is to know, or too little in the packet's first part. */
enum headers { WHOLE = 0, SHORT = 1 };

/* `total` is where the segment ends. */
static __always_inline enum headers read_tcp(const u8 *data, const u8 *end, struct packet *packet, u32 at, u32 total)
{
	const u8 *tcp = data + at;
	u32 header;

	if (at > HEADERS_MOST || tcp + 20 > end)
		return SHORT;
	header = (tcp[12] >> 4) * 4;
	if (header < 20 || at + header > total)
		return WHOLE;
	packet->is_tcp = 1;
	packet->tcp_at = at;
	packet->key.local_port = load16(tcp);
	packet->key.remote_port = load16(tcp + 2);
	packet->seq = load32(tcp + 4);
	packet->ack = load32(tcp + 8);
	packet->options = header - 20;
	packet->flags = tcp[13];
	packet->window = load16(tcp + 14);
	packet->payload = total - at - header;
	return WHOLE;
}

static __noinline enum headers read_headers(struct __sk_buff *skb, struct packet *packet)
{
	u32 at = settings.link_bytes, ip_end = 0;
	const u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	u16 type = bpf_ntohs(skb->protocol);
	u8 protocol;

	if (!packet)
		return WHOLE;
	if (skb->vlan_present)
		packet->key.vlan = skb->vlan_tci & 0xfff;
	type = skip_tags(data, end, type, &at, &packet->key.vlan);
	packet->ip_at = at;
	if (type == ETH_P_IP) {
		const u8 *ip = data + at;
		if (ip + 20 > end)
			return SHORT;
		/* No host takes such a one; its addresses and ports would be anything. */
		if (ip[0] >> 4 != 4 || (ip[0] & 15) < 5)
			return WHOLE;
		packet->is_ip = 1;
		packet->ecn = ip[1] & ECN_MASK;
		packet->key.local[2] = packet->key.remote[2] = 0xffff;
		packet->key.local[3] = load32(ip + 12);
		packet->key.remote[3] = load32(ip + 16);
		ip_end = load16(ip + 2) ? at + load16(ip + 2) : skb->len;
		protocol = ip[9];
		/* Fragments have no whole segment. */
		if (load16(ip + 6) & 0x3fff)
			return WHOLE;
		at += (ip[0] & 15) * 4;
	} else if (type == ETH_P_IPV6) {
		const u8 *ip = data + at;
		if (ip + 40 > end)
			return SHORT;
		if (ip[0] >> 4 != 6)
			return WHOLE;
		packet->is_ip = packet->is_ipv6 = 1;
		packet->ecn = ip[1] >> 4 & ECN_MASK;
		for (int i = 0; i < 4; i++) {
			packet->key.local[i] = load32(ip + 8 + 4 * i);
			packet->key.remote[i] = load32(ip + 24 + 4 * i);
		}
		ip_end = load16(ip + 4) ? at + 40 + load16(ip + 4) : skb->len;
		at += 40;
		protocol = skip_extensions(data, end, ip[6], &at);
	} else {
		return WHOLE;
	}
	packet->key.protocol = protocol;
	if (protocol == PROTOCOL_TCP)
		return read_tcp(data, end, packet, at, ip_end);
	if (protocol == PROTOCOL_UDP && at <= HEADERS_MOST) {
		const u8 *udp = data + at;
		if (udp + 4 > end)
			return SHORT;
		packet->key.local_port = load16(udp);
		packet->key.remote_port = load16(udp + 2);
	}
	return WHOLE;
}

/* The first part of a packet holds its headers as a rule; else they are brought there, which copies. */
static __always_inline void read_packet(struct __sk_buff *skb, struct packet *packet)
{
	if (read_headers(skb, packet) == SHORT && !bpf_skb_pull_data(skb, skb->len < HEADERS_MOST ? skb->len : HEADERS_MOST))
		read_headers(skb, packet);
}

struct offers {
	s32 scale; /* -1: none */
	u32 mss;
};

/* What a SYN offers. */
static __always_inline void read_offers(struct __sk_buff *skb, const struct packet *packet, struct offers *offers)
{
	u32 at = packet->tcp_at + 20, end = at + packet->options;

	offers->scale = -1;
	offers->mss = 536;
	for (int i = 0; i < 40; i++) {
		u8 option[4] = {};
		u32 left = end - at;

		if (at >= end)
			break;
		if (left > 4)
			left = 4;
		if (left < 1 || bpf_skb_load_bytes(skb, at, option, left))
			break;
		if (option[0] == 0)
			break;
		if (option[0] == 1) {
			at++;
			continue;
		}
		if (option[1] < 2 || at + option[1] > end)
			break;
		if (option[0] == 2 && option[1] == 4)
			offers->mss = load16(option + 2);
		else if (option[0] == 3 && option[1] == 3)
			offers->scale = option[2] > 14 ? 14 : option[2];
		at += option[1];
	}
}

static __always_inline void turn(struct flow_key *key)
{
	u16 port = key->local_port;

	key->local_port = key->remote_port;
	key->remote_port = port;
	for (int i = 0; i < 4; i++) {
		u32 word = key->local[i];
		key->local[i] = key->remote[i];
		key->remote[i] = word;
	}
}

/* Changes the two bits of ECN and IPv4's checksum. */
static __always_inline void set_ecn(struct __sk_buff *skb, const struct packet *packet, u8 ecn)
{
	u16 old, new;

	if (bpf_skb_load_bytes(skb, packet->ip_at, &old, 2))
		return;
	if (packet->is_ipv6)
		new = (old & bpf_htons(~(ECN_MASK << 4))) | bpf_htons(ecn << 4);
	else
		new = (old & bpf_htons(~ECN_MASK)) | bpf_htons(ecn);
	if (!packet->is_ipv6)
		bpf_l3_csum_replace(skb, packet->ip_at + 10, old, new, 2);
	bpf_skb_store_bytes(skb, packet->ip_at, &new, 2, packet->is_ipv6 ? BPF_F_RECOMPUTE_CSUM : 0);
}

/* Changes one word of the TCP header, and its checksum, also one that the device is still to fill in. */
static __always_inline void set_tcp_word(struct __sk_buff *skb, const struct packet *packet, u32 at, u16 old, u16 new)
{
	u16 from = bpf_htons(old), to = bpf_htons(new);

	bpf_l4_csum_replace(skb, packet->tcp_at + 16, from, to, 2);
	bpf_skb_store_bytes(skb, packet->tcp_at + at, &to, 2, 0);
}

/* The same for the window, in place, which takes a third of the time; `to_be_summed`: the checksum covers the addresses only
 * and the rest is added later. RFC 1624, equation 3. */
static __always_inline void set_window(struct __sk_buff *skb, const struct packet *packet, u16 new, u32 to_be_summed)
{
	u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end, *tcp;
	u32 at = packet->tcp_at, sum;

	if (at > HEADERS_MOST)
		return;
	tcp = data + at;
	if (tcp + 20 > end)
		return;
	*(u16 *)(tcp + 14) = bpf_htons(new);
	if (to_be_summed)
		return;
	sum = (u16)~*(u16 *)(tcp + 16);
	sum += (u16)~bpf_htons(packet->window);
	sum += bpf_htons(new);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	*(u16 *)(tcp + 16) = ~sum;
}

static __always_inline void set_flags(struct __sk_buff *skb, const struct packet *packet, u8 flags)
{
	u8 word[2];

	if (bpf_skb_load_bytes(skb, packet->tcp_at + 12, word, 2))
		return;
	set_tcp_word(skb, packet, 12, word[0] << 8 | word[1], word[0] << 8 | flags);
}

#endif
