// Judges the packets of a UDP flow. A pure function of a flow and a packet, as that of TCP.
#pragma once

#define DNS_ANSWER 0x8000
#define DNS_TRUNCATED 0x0200
#define DNS_CODE 0x000f
// RFC 1035 section 4.1.1.
#define DNS_SERVFAIL 2
#define DNS_NXDOMAIN 3
#define DNS_REFUSED 5

// Whether an answer that comes now is too late. Cores may take the time of two packets in another order than they judge them.
static __always_inline bool is_late(const struct weir_query *q, __u64 now)
{
	return now > q->at && now - q->at > WEIR_DNS_PATIENCE;
}

// True if the query came before, and still waits.
static __always_inline bool waits(const struct weir_dns *dns, const struct weir_datagram *d)
{
	for (int i = 0; i < WEIR_QUERIES; i++) {
		const struct weir_query *q = &dns->waiting[i];

		if (q->at && q->id == d->id && q->port == d->port && !is_late(q, d->now))
			return true;
	}
	return false;
}

static __always_inline void put_in(struct weir_query *q, const struct weir_datagram *d)
{
	q->at = d->now;
	q->id = d->id;
	q->port = d->port;
}

// A query. Without a free place it takes that of another one, in turn.
static __always_inline void ask(struct weir_dns *dns, const struct weir_datagram *d)
{
	if (waits(dns, d)) {
		dns->repeated++;
		return;
	}
	dns->queries++;
	for (int i = 0; i < WEIR_QUERIES; i++) {
		struct weir_query *q = &dns->waiting[i];

		if (!q->at) {
			put_in(q, d);
			return;
		}
		if (is_late(q, d->now)) {
			dns->unanswered++;
			put_in(q, d);
			return;
		}
	}
	dns->unjudged++;
	put_in(&dns->waiting[dns->turn++ & (WEIR_QUERIES - 1)], d);
}

static __always_inline void count_code(struct weir_dns *dns, __u16 flags)
{
	__u16 code = flags & DNS_CODE;

	if (code == DNS_SERVFAIL)
		dns->servfail++;
	else if (code == DNS_NXDOMAIN)
		dns->nxdomain++;
	else if (code == DNS_REFUSED)
		dns->refused++;
	else if (code)
		dns->other_failure++;
	if (flags & DNS_TRUNCATED)
		dns->truncated++;
}

static __always_inline void answer(struct weir_dns *dns, const struct weir_datagram *d)
{
	for (int i = 0; i < WEIR_QUERIES; i++) {
		struct weir_query *q = &dns->waiting[i];
		__u64 asked = q->at;

		if (!asked || q->id != d->id || q->port != d->port)
			continue;
		q->at = 0;
		if (d->now > asked && d->now - asked > WEIR_DNS_PATIENCE) {
			dns->unanswered++;
			break;
		}
		dns->answers++;
		take_trip(&dns->times, d->now > asked ? d->now - asked : 0);
		count_code(dns, d->dns);
		return;
	}
	dns->unasked++;
}

static __always_inline void judge_udp(struct weir_udp_flow *f, const struct weir_datagram *d)
{
	struct weir_udp_side *s = &f->sides[d->side & 1], *other = &f->sides[(d->side & 1) ^ 1];

	if (!s->packets && !other->packets && !(d->side & 1))
		f->state |= WEIR_IS_OPENING;
	if (d->side & 1)
		f->state &= ~WEIR_IS_OPENING;
	f->state |= d->has & (WEIR_IS_DNS | WEIR_IS_QUIC);
	s->bytes += d->bytes;
	s->packets += d->segments;
	s->last = d->now;
	f->last = d->now;
	if (!s->unanswered)
		s->unanswered_at = d->now;
	else if (d->now > s->unanswered_at && d->now - s->unanswered_at > s->silence)
		s->silence = d->now - s->unanswered_at;
	s->unanswered += d->segments;
	other->unanswered = 0;
	if (!(d->has & WEIR_IS_DNS))
		return;
	if (d->side & 1)
		answer(&f->dns, d);
	else
		ask(&f->dns, d);
}
