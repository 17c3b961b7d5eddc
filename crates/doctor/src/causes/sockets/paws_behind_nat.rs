//! Timestamps that go back: several hosts behind one address.

use crate::causes::{Cause, EvidenceView, Group};
use crate::command::{sh, sysctl};
use crate::evidence::{DropGroup, EvidenceSource, Namespace, Tuple};
use crate::finding::{Claim, Confidence, Finding, Fix, Severity};
use crate::recipe::{LabHost, Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "paws-behind-nat",
    title: "new connections refused for old timestamps (PAWS)",
    about: "TCP drops a segment whose timestamp is older than one that it has seen on the same connection (PAWS, RFC \
            7323). A server that closed first remembers the last timestamp of an address and port for a minute \
            (TIME_WAIT). When several hosts share one address behind a NAT, the next one to come with the same port has a \
            clock of its own; if it is behind, its SYN is dropped without an answer, and again when it is repeated after 1 \
            and 3 seconds. Others, whose clock is ahead, notice nothing.",
    must: &[
        "segments dropped as TCP_RFC7323_TW_PAWS, or SYNs as TCP_RFC7323_PAWS; TcpExt PAWSEstab or PAWSTimewait grows with them",
    ],
    should: &["all from a few addresses that many hosts share"],
    must_not: &["only segments with data of connections that go on: those are late duplicates, and no loss"],
    lookalikes: &[
        ("accept-queue-full", "SYNs are lost as well, and ListenOverflows grows"),
        ("syn-backlog-full", "SYNs are lost as well, and ListenDrops grows"),
    ],
    remedy: "On the NAT: more outside addresses, and ports chosen at random (`masquerade random`), so that none comes again within \
             a minute. On the server: let the clients close first. Timestamps off (net.ipv4.tcp_timestamps=0) is the last resort, \
             since PAWS and round-trip times go with them.",
    sources: &[
        "net/ipv4/tcp_minisocks.c: tcp_timewait_state_process; net/ipv4/tcp_input.c: tcp_validate_incoming",
        "RFC 7323 section 5, RFC 6191",
    ],
    recipes,
    ..Cause::of(Group::Sockets, |view| view.each(in_namespace))
};

const SYN: u8 = 2;

/// True of a group that holds refused SYNs. TIME_WAIT refuses late FINs for the same reason (`tcp_timewait_state_process`), so
/// its samples decide; without any it is blamed.
fn refuses_new(drops: &DropGroup) -> bool {
    let syn = drops.samples.iter().any(|s| s.tcp_flags().is_some_and(|f| f & SYN != 0));
    match drops.reason.as_str() {
        "TCP_RFC7323_TW_PAWS" => syn || drops.samples.is_empty(),
        "TCP_RFC7323_PAWS" => syn,
        _ => false,
    }
}

/// Late duplicates of a connection that goes on, which the other side has had acknowledged long since.
fn is_late(drops: &DropGroup) -> bool {
    let reasons = ["TCP_RFC7323_PAWS", "TCP_RFC7323_PAWS_ACK", "TCP_RFC7323_TW_PAWS", "TCP_RFC7323_TSECR"];
    reasons.contains(&drops.reason.as_str()) && !refuses_new(drops)
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let taken = view.take(namespace, refuses_new);
    let late = view.take(namespace, is_late);
    let names = ["tcpext.PAWSEstab", "tcpext.PAWSTimewait", "tcpext.PAWSActive"];
    let counted: u64 = names.iter().map(|name| namespace.grew(name)).sum();
    let lost = if view.sees_drops() { taken.packets } else { counted };
    if lost + late.packets == 0 {
        return None;
    }
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.claims = taken.claims.clone();
    finding.claims.extend(late.claims.iter().cloned());
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops]);
    if lost == 0 {
        finding.severity = Severity::Note;
        finding.summary = format!(
            "{} segments came after newer ones of their connection; nothing is lost by that.",
            late.packets
        );
        return Some(finding);
    }
    if taken.is_empty() {
        finding.claims = vec![view.counted(namespace, "tcpext.PAWSEstab", counted)];
        finding.severity = finding.severity.min(Severity::Warning);
        finding.confidence = Confidence::Low;
    } else {
        finding.confidence = Confidence::High;
    }
    finding.summary = format!(
        "{lost} segments were refused because their timestamp was older than one seen before from the same port."
    );
    finding.grew_by(namespace, &names);
    for group in &taken.groups {
        finding.seen(EvidenceSource::Drops, format!("{} packets dropped as {}", group.packets, group.reason));
    }
    if let Some(t) = taken.example() {
        finding.object = format!("{} to {}:{}", t.source, t.destination, t.destination_port);
        finding.claims.extend(echoes(view, t));
        finding.summary = format!(
            "{lost} segments from {} were refused for old timestamps: several hosts share that address.",
            t.source
        );
        finding.fixes.push(Fix::look(
            "see whether that address is a NAT: its connections differ in clock",
            [sh!("tcpdump -nn -c 20 'src {} and tcp[tcpflags] & tcp-syn != 0'", t.source)],
        ));
    }
    finding.fixes.push(last_resort(namespace));
    Some(finding)
}

/// Never tuned by itself: what a NAT should do better is not mended here.
fn last_resort(namespace: &Namespace) -> Fix {
    let now = namespace.setting("net.ipv4.tcp_timestamps").unwrap_or(1);
    let set = |value: u64| sysctl::set("net.ipv4.tcp_timestamps", value);
    Fix::new(
        "last resort, if the NAT is not yours: no timestamps",
        "no PAWS at all, coarser round-trip times, no window scaling for connections made by SYN cookies",
        [set(0)],
        [set(now)],
    )
}

/// The server answers a refused SYN with the acknowledgement of the connection that is over, which a client of this machine
/// throws away in its turn: no loss of its own.
fn echoes(view: &EvidenceView<'_>, refused: Tuple) -> impl Iterator<Item = Claim> {
    let is_answer =
        move |t: Tuple| (t.source, t.source_port) == (refused.destination, refused.destination_port);
    let groups = view.evidence.drops.iter().enumerate();
    groups
        .filter(|(_, d)| matches!(d.reason.as_str(), "TCP_INVALID_ACK_SEQUENCE" | "TCP_ACK_UNSENT_DATA"))
        .filter(move |(_, d)| d.samples.iter().filter_map(|s| s.tuple()).any(is_answer))
        .map(|(group, d)| Claim::Drops { group, packets: d.packets })
}

fn recipes() -> Vec<Recipe> {
    // Two hosts share one address and 24 ports, each with a clock of its own (net/core/secure_seq.c), and the server closes
    // first.
    let server = "exec perl -MIO::Socket::INET -e '\
                  my $s = IO::Socket::INET->new(LocalPort => 7087, Listen => 64, ReuseAddr => 1) or die; \
                  while (1) { my $c = $s->accept or next; sysread $c, my $b, 64; close $c }'";
    let nat = "nft 'add table ip n; add chain ip n post { type nat hook postrouting priority 100; }; \
               add rule ip n post oifname outside ip protocol tcp masquerade to :40000-40023'; \
               sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_time_wait=1 net.netfilter.nf_conntrack_tcp_timeout_syn_sent=1 \
               net.netfilter.nf_conntrack_tcp_timeout_close=1 net.netfilter.nf_conntrack_tcp_timeout_last_ack=1 \
               net.netfilter.nf_conntrack_tcp_timeout_close_wait=1 net.netfilter.nf_conntrack_tcp_timeout_fin_wait=1";
    let second = "ip addr add 198.18.0.3/24 dev eth0";
    let client = |from: &str| {
        format!(
            "exec perl -MIO::Socket::INET -e 'while (1) {{ my $c = IO::Socket::INET->new(LocalAddr => \"{from}\", \
             PeerAddr => \"198.19.0.2:7087\", Timeout => 1); if ($c) {{ syswrite $c, \"x\"; sysread $c, my $b, 64; close $c }} \
             select undef, undef, undef, 0.1 }}'"
        )
    };
    vec![Recipe {
        at: LabHost::Responder,
        setup: vec![
            Step::responder("perl -MIO::Socket::INET -e 1"),
            Step::gateway(nat),
            Step::initiator(second),
        ],
        traffic: vec![
            Traffic::Script(LabHost::Responder, server.into()),
            Traffic::Script(LabHost::Initiator, client("198.18.0.2")),
            Traffic::Script(LabHost::Initiator, client("198.18.0.3")),
        ],
        needs: vec!["perl", "nft"],
        also: vec!["snat-ports-exhausted", "not-on-this-host"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{blind_to_drops, dropped, host, packet, seen};
    use super::*;

    #[test]
    fn syns_refused_in_time_wait_are_found_with_their_address() {
        let mut refused = dropped("TCP_RFC7323_TW_PAWS", "tcp_v4_rcv", 6, 60);
        refused.samples = vec![packet(6, "203.0.113.9:40001", "198.19.0.2:80", SYN); 2];
        let found =
            &(CAUSE.examine)(&EvidenceView::of(&seen(host(&[("tcpext.PAWSEstab", 60)]), vec![refused])))[0];
        assert_eq!(
            (found.object.as_str(), found.confidence),
            ("203.0.113.9 to 198.19.0.2:80", Confidence::High)
        );
        assert!(found.severity >= Severity::Warning);
    }

    #[test]
    fn late_duplicates_are_a_note() {
        const FIN_ACK: u8 = 17;
        for (reason, place, flags) in [
            ("TCP_RFC7323_PAWS", "tcp_rcv_established", 16),
            // A FIN sent again to a host that has acknowledged it and waits.
            ("TCP_RFC7323_TW_PAWS", "tcp_v4_rcv", FIN_ACK),
        ] {
            let mut late = dropped(reason, place, 6, 60);
            late.samples = vec![packet(6, "203.0.113.9:40001", "198.19.0.2:80", flags)];
            let found =
                &(CAUSE.examine)(&EvidenceView::of(&seen(host(&[("tcpext.PAWSEstab", 60)]), vec![late])))[0];
            assert_eq!(found.severity, Severity::Note, "{reason}");
        }
    }

    #[test]
    fn without_a_view_of_drops_it_is_a_guess() {
        let found =
            &(CAUSE.examine)(&EvidenceView::of(&blind_to_drops(host(&[("tcpext.PAWSEstab", 60)]))))[0];
        assert_eq!(found.confidence, Confidence::Low);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&blind_to_drops(host(&[])))), []);
    }
}
