//! The meaning of a survey, in words, with the settings to use.

use schemars::JsonSchema;
use serde::Serialize;
use weir_record::{PathCause, PathFinding};
use weir_text::order;
use weir_text::units::count;

use crate::fragments::{Fate, Fragments};
use crate::hops::LossPoint;
use crate::net::overhead;
use crate::prober::Way;
use crate::search::{Limit, PathMtu};
use crate::survey::{Method, Survey};

/// Payload of DNS over UDP that crosses nearly every path unsplit (DNS Flag Day 2020; RFC 9715).
const EDNS: u32 = 1232;

/// A survey in words.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PathVerdict {
    /// The problems, the gravest first; empty if none.
    pub findings: Vec<PathFinding>,
    /// The longest packet that is known to pass both ways, bytes.
    pub path_mtu_bytes: Option<u32>,
    /// The largest UDP payload that crosses the path unsplit, bytes.
    pub safe_payload_bytes: Option<u32>,
    /// The MSS that fits it, bytes.
    pub safe_mss_bytes: Option<u32>,
    /// One sentence for the whole.
    pub summary: String,
}

/// The EDNS buffer size that DNS servers and clients should have on a path: 1,232 bytes, or the path's safe UDP payload (bytes) where
/// that is less, since answers that fill it would be split or lost.
pub fn edns(safe_payload: u32) -> u32 {
    EDNS.min(safe_payload)
}

/// Describes how to make a router hold TCP to segments of that many bytes.
pub fn clamp(ipv6: bool, mss: u32) -> String {
    let (family, program) = if ipv6 { ("ipv6", "ip6tables") } else { ("ipv4", "iptables") };
    format!(
        "on a router of the path, clamp TCP's MSS: `nft add rule inet filter forward meta nfproto {family} tcp flags syn tcp option \
         maxseg size set {mss}`, or `{program} -t mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss {mss}`"
    )
}

impl PathVerdict {
    /// Returns the verdict on a survey.
    pub fn of(survey: &Survey) -> Self {
        let path = survey.path_mtu();
        let ipv6 = survey.is_ipv6();
        let payload = path.map(|mtu| mtu.saturating_sub(overhead(ipv6)));
        let mss = path.map(|mtu| mtu.saturating_sub(if ipv6 { 60 } else { 40 }));
        let mut verdict = PathVerdict {
            findings: Vec::new(),
            path_mtu_bytes: path,
            safe_payload_bytes: payload,
            safe_mss_bytes: mss,
            summary: String::new(),
        };
        let words = Words { survey, payload: payload.unwrap_or(0), mss: mss.unwrap_or(0) };
        verdict.findings.extend(words.fragments());
        verdict.findings.extend(words.black_hole());
        verdict.findings.extend(words.wrong_claims());
        verdict.findings.extend(words.smaller());
        verdict.findings.extend(words.asymmetry());
        verdict.findings.extend(words.reordered());
        order::by_key(&mut verdict.findings, |f| f.cause);
        verdict.summary = match verdict.findings.first() {
            Some(gravest) => format!("{}.", gravest.summary),
            None => words.clean(path),
        };
        verdict
    }
}

struct Words<'a> {
    survey: &'a Survey,
    payload: u32,
    mss: u32,
}

fn way_words(way: Way) -> &'static str {
    match way {
        Way::Egress => "on the way there",
        Way::Ingress => "on the way back",
    }
}

impl Words<'_> {
    fn clean(&self, path: Option<u32>) -> String {
        let Some(path) = path else {
            return "Nothing is known of the path's MTU: too much is lost at any length, or the time was up."
                .to_owned();
        };
        let fragments = match (self.survey.egress_fragments.fate, self.survey.ingress_fragments.fate) {
            (a, b) if a.is_good() && b.is_good() => "fragments arrive both ways",
            (Fate::Lossy, _) | (_, Fate::Lossy) => "of datagrams in fragments some arrive and others do not",
            (a, _) if a.is_good() => "fragments arrive, of the way back nothing is known",
            _ => "what becomes of fragments is not known",
        };
        let at_least = if self.survey.egress.is_exact() { "" } else { "at least " };
        format!(
            "The path carries {at_least}{} bytes, and {fragments}: UDP payloads of up to {} bytes go unsplit (-l {}).",
            count(path),
            count(self.payload),
            self.payload
        )
    }

    /// `send at most 1,472 bytes (-l 1472)`.
    fn send_at_most(&self) -> String {
        format!("send at most {} bytes (-l {})", count(self.payload), self.payload)
    }

    fn clamp(&self) -> String {
        clamp(self.survey.is_ipv6(), self.mss)
    }

    fn fragments(&self) -> Option<PathFinding> {
        let (there, back) = (&self.survey.egress_fragments, &self.survey.ingress_fragments);
        let bad: Vec<&Fragments> = [there, back].into_iter().filter(|f| f.fate.is_bad()).collect();
        // A fate that only one end can observe is reported for both: on the way back a gateway that tracks connections keeps a
        // first fragment whose others are missing.
        let gravest = bad.iter().min_by_key(|f| match f.fate {
            Fate::FirstOnly => 0,
            Fate::Gone => 1,
            _ => 2,
        })?;
        let on = match bad.as_slice() {
            [_, _] => "on the path",
            [one]
                if one.way == Way::Egress
                    && (self.survey.method == Method::Echo || back.fate == Fate::Unknown) =>
            {
                "on the path"
            }
            _ => way_words(gravest.way),
        };
        let (cause, what) = match gravest.fate {
            Fate::FirstOnly => (
                PathCause::HeaderlessFragmentsDropped,
                format!("Fragments of UDP datagrams that carry no UDP header are dropped {on}"),
            ),
            Fate::Gone => {
                (PathCause::FragmentsDropped, format!("All fragments of UDP datagrams are dropped {on}"))
            }
            _ => (
                PathCause::LargeDatagramsVanish,
                format!("UDP datagrams that are split into fragments are lost {on}"),
            ),
        };
        let mut advice: Vec<String> = bad.iter().map(|f| told(f)).collect();
        let (payload, edns) = (self.payload, edns(self.payload));
        advice.push(format!("iperf3 -u -l {payload}; DNS servers: an EDNS buffer size of {edns}"));
        advice.push("or let fragments pass where they are dropped: a stateless rule that asks for UDP ports matches none of those".into());
        Some(PathFinding { cause, summary: format!("{what}: {}", self.send_at_most()), advice })
    }

    fn directions(&self) -> impl Iterator<Item = &PathMtu> {
        std::iter::once(&self.survey.egress).chain(&self.survey.ingress)
    }

    fn black_hole(&self) -> Option<PathFinding> {
        let silent: Vec<&PathMtu> = self.directions().filter(|d| d.limit == Limit::Silence).collect();
        let first = silent.first()?;
        let bytes = silent.iter().filter_map(|d| d.bytes).min()?;
        let on = self.one_way(&silent);
        let place = match self.survey.black_hole {
            Some(LossPoint::Between { after, address, before }) => {
                let whose = match (after, address) {
                    (0, _) => "this host".to_owned(),
                    (n, Some(ip)) => format!("hop {n} ({ip})"),
                    (n, None) => format!("hop {n}"),
                };
                format!(", between {whose} and hop {before}")
            }
            _ => String::new(),
        };
        let summary = format!(
            "Packets of more than {} bytes vanish{on}{place}, and no ICMP too-big says so: {}, and clamp TCP's MSS to {}",
            count(bytes),
            self.send_at_most(),
            count(self.mss)
        );
        let mut advice = vec![
            "the router there must be let send ICMP: type 3 code 4 of IPv4, type 2 of ICMPv6 (RFC 2923, RFC 4890)".to_owned(),
            self.clamp(),
            "or on the hosts: sysctl net.ipv4.tcp_mtu_probing=1 (RFC 4821)".to_owned(),
        ];
        advice.extend(range(first));
        Some(PathFinding { cause: PathCause::PathMtuBlackHole, summary, advice })
    }

    /// The direction in words, if something was found in one of two.
    fn one_way(&self, found: &[&PathMtu]) -> String {
        match found {
            [one] if self.survey.ingress.is_some() => format!(" {}", way_words(one.way)),
            _ => String::new(),
        }
    }

    fn wrong_claims(&self) -> Option<PathFinding> {
        let wrong = self.directions().find(|d| d.claim.is_some_and(|c| c.right == Some(false)))?;
        let (claim, bytes) = (wrong.claim?, wrong.bytes?);
        // A second, narrower link behind the one that spoke is no mistake of its router.
        if claim.mtu > bytes && wrong.limit == Limit::Told && self.told_again(wrong, bytes) {
            return None;
        }
        let who = claim.from.map_or("a router".to_owned(), |f| f.to_string());
        let summary = format!(
            "{who} says that its link carries {} bytes, and the path carries {}: {}",
            count(claim.mtu),
            count(bytes),
            self.send_at_most()
        );
        Some(PathFinding { cause: PathCause::TooBigWrong, summary, advice: vec![self.clamp()] })
    }

    /// True if a packet that was too long was refused with the right MTU.
    fn told_again(&self, found: &PathMtu, bytes: u32) -> bool {
        found
            .tries
            .iter()
            .any(|t| matches!(t.outcome, crate::ProbeOutcome::TooBig { mtu, .. } if mtu == bytes))
    }

    fn smaller(&self) -> Option<PathFinding> {
        let told: Vec<&PathMtu> = self.directions().filter(|d| d.limit == Limit::Told).collect();
        let first = told.first()?;
        let bytes = told.iter().filter_map(|d| d.bytes).min()?;
        let who = told.iter().find_map(|d| d.claim?.from).map_or("a router".to_owned(), |f| f.to_string());
        let on = self.one_way(&told);
        let summary = format!(
            "The path carries {} bytes{on}, less than this link's {} (a tunnel, say), and {who} says so by ICMP: {}",
            count(bytes),
            count(self.survey.link_mtu),
            self.send_at_most()
        );
        let mut advice =
            vec![format!("TCP and QUIC find it out by themselves; UDP programs: -l {}", self.payload)];
        advice.extend(range(first));
        Some(PathFinding { cause: PathCause::SmallerMtu, summary, advice })
    }

    fn asymmetry(&self) -> Option<PathFinding> {
        let (egress, ingress) = (&self.survey.egress, self.survey.ingress.as_ref()?);
        let (there, back) = (egress.bytes?, ingress.bytes?);
        if !egress.is_exact() || !ingress.is_exact() || there == back {
            return None;
        }
        // One that was not tried with more is no less.
        if (ingress.limit == Limit::OwnLink && back < self.survey.link_mtu)
            || (egress.limit == Limit::OwnLink && there < self.survey.link_mtu)
        {
            return None;
        }
        let summary = format!(
            "The path carries {} bytes on the way there and {} on the way back: {}",
            count(there),
            count(back),
            self.send_at_most()
        );
        Some(PathFinding { cause: PathCause::AsymmetricMtu, summary, advice: Vec::new() })
    }

    fn reordered(&self) -> Option<PathFinding> {
        let ways = [&self.survey.egress_fragments, &self.survey.ingress_fragments];
        let swapped: Vec<&&Fragments> = ways.iter().filter(|f| f.fate == Fate::OutOfOrder).collect();
        let on = match swapped.as_slice() {
            [] => return None,
            [one] if self.survey.method == Method::FarEnd => way_words(one.way),
            _ => "on the path",
        };
        let summary = format!(
            "Fragments of UDP datagrams arrive out of order {on}: hosts put them together, firewalls and NAT that look at single \
             packets may not, so {}",
            self.send_at_most()
        );
        let advice = swapped.iter().map(|f| told(f)).collect();
        Some(PathFinding { cause: PathCause::FragmentsReordered, summary, advice })
    }
}

/// Lengths that were not tried, if there are any.
fn range(found: &PathMtu) -> Option<String> {
    if found.is_exact() {
        return None;
    }
    Some(match (found.bytes, found.too_long) {
        (Some(passes), Some(fails)) => {
            format!("{} bytes pass and {} do not; in between was not tried", count(passes), count(fails))
        }
        _ => "no length is known to fail".to_owned(),
    })
}

/// Describes the observations of fragments in one sentence.
pub fn told(seen: &Fragments) -> String {
    let datagrams = format!(
        "{}: {} of {} datagrams of {} bytes, {} fragments each, were put together",
        way_words(seen.way),
        seen.whole,
        seen.sent,
        count(seen.payload_bytes),
        seen.pieces
    );
    match (seen.first, seen.later) {
        (Some(first), Some(later)) => {
            format!("{datagrams}; {first} fragments with a UDP header arrived, and {later} without")
        }
        _ => datagrams,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path that carries packets of so many bytes and loses fragments without a UDP header.
    fn headerless(target: &str, mtu: u32) -> Survey {
        let path = |way| PathMtu {
            way,
            bytes: Some(mtu),
            too_long: Some(mtu + 1),
            limit: Limit::Told,
            claim: None,
            tries: Vec::new(),
        };
        let fragments = |way| Fragments { fate: Fate::FirstOnly, ..Fragments::unknown(way) };
        Survey {
            target: target.parse().unwrap(),
            port: 9347,
            method: Method::FarEnd,
            link_mtu: 1500,
            round_trip_ms: None,
            egress: path(Way::Egress),
            ingress: Some(path(Way::Ingress)),
            egress_fragments: fragments(Way::Egress),
            ingress_fragments: fragments(Way::Ingress),
            segments: None,
            hops: Vec::new(),
            black_hole: None,
            unknown: Vec::new(),
            took_s: 0.0,
        }
    }

    #[test]
    fn the_edns_size_that_is_advised_goes_through_the_path() {
        for (target, mtu, size) in [
            ("192.0.2.1", 1500, 1232),
            ("192.0.2.1", 1260, 1232),
            ("192.0.2.1", 1259, 1231),
            ("192.0.2.1", 576, 548),
            ("2001:db8::1", 1500, 1232),
            // The least that IPv6 has.
            ("2001:db8::1", 1280, 1232),
        ] {
            let verdict = PathVerdict::of(&headerless(target, mtu));
            let fragments = &verdict.findings[0];
            assert_eq!(fragments.cause, PathCause::HeaderlessFragmentsDropped);
            let said = fragments.advice.join("\n");
            assert!(said.contains(&format!("an EDNS buffer size of {size}\n")), "{mtu}: {said}");
            assert_eq!(edns(verdict.safe_payload_bytes.unwrap()), size);
        }
    }
}
