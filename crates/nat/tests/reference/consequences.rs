//! The rows that each defect changes, from the verdicts of a NAT without any.

use weir_nat::Compliance;

use super::Defect;

/// The rows that a defect changes.
pub(crate) fn consequences(defect: Defect) -> &'static [(&'static str, Compliance)] {
    match defect {
        // The defect needs one outside address for both hosts.
        Defect::PortsOverlap => &[
            ("icmp-query-hairpin", Compliance::Described),
            ("tcp-port-reuse", Compliance::Meets),
            ("tcp-mapping", Compliance::Partly),
            ("tcp-overloading", Compliance::Partly),
            ("tcp-port-randomness", Compliance::Meets),
            ("udp-port-randomness", Compliance::Meets),
            ("udp-deterministic", Compliance::Fails),
            ("udp-mapping", Compliance::Partly),
            ("udp-overloading", Compliance::Partly),
            ("tcp-pooling", Compliance::NotTestable),
            ("udp-pooling", Compliance::NotTestable),
        ],
        Defect::PortsOverload => &[
            ("tcp-overloading", Compliance::Fails),
            ("udp-overloading", Compliance::Fails),
            ("tcp-pooling", Compliance::NotTestable),
            ("udp-pooling", Compliance::NotTestable),
            ("udp-port-reuse", Compliance::Fails),
            ("tcp-port-reuse", Compliance::Fails),
            ("tcp-first-syns", Compliance::Fails),
            ("icmp-query-hairpin", Compliance::Described),
        ],
        Defect::PoolArbitrary => &[
            ("tcp-pooling", Compliance::Fails),
            ("udp-pooling", Compliance::Fails),
            ("icmp-query-hairpin", Compliance::Described),
        ],
        Defect::TcpPoolArbitrary => &[("tcp-pooling", Compliance::Fails)],
        Defect::LowPortsRaised => &[("udp-port-range", Compliance::Fails)],
        Defect::ParityLost => &[
            ("icmp-query-hairpin", Compliance::Described),
            ("udp-parity", Compliance::Fails),
            ("tcp-port-randomness", Compliance::Fails),
            ("udp-port-randomness", Compliance::Fails),
        ],
        Defect::FilterByPort => &[("tcp-filtering", Compliance::Fails), ("udp-filtering", Compliance::Fails)],
        Defect::NoHairpin => &[
            ("tcp-hairpin", Compliance::Fails),
            ("tcp-hairpin-source", Compliance::NotTestable),
            ("udp-hairpin", Compliance::Fails),
            ("udp-hairpin-source", Compliance::NotTestable),
            ("icmp-error-hairpin", Compliance::NotTestable),
            ("icmp-query-hairpin", Compliance::Fails),
        ],
        Defect::HairpinInsideSource => &[
            ("icmp-query-hairpin", Compliance::Fails),
            ("tcp-hairpin-source", Compliance::Fails),
            ("udp-hairpin-source", Compliance::Fails),
            ("icmp-error-hairpin", Compliance::NotTestable),
        ],
        Defect::NoRefreshFromInside => &[("udp-refresh-out", Compliance::Fails)],
        Defect::NoTcpRefreshFromInside => &[("tcp-refresh-out", Compliance::Fails)],
        Defect::ErrorsRefresh => &[("udp-refresh-error", Compliance::Fails)],
        Defect::ResetsRefresh => &[("tcp-refresh-reset", Compliance::Fails)],
        Defect::ShortUnanswered => &[("udp-idle-unanswered", Compliance::Fails)],
        Defect::ShortIdle => &[
            ("udp-idle-answered", Compliance::Fails),
            ("udp-idle-default", Compliance::Fails),
            ("udp-idle-unanswered", Compliance::Fails),
        ],
        Defect::TcpMappingDependent => &[("tcp-mapping", Compliance::Fails)],
        Defect::SynReset => &[("tcp-unsolicited-syn", Compliance::Fails)],
        Defect::NoSimultaneousOpen => {
            &[("tcp-simultaneous-open", Compliance::Fails), ("tcp-syn-data-in", Compliance::NotTestable)]
        }
        Defect::ShortOpening => &[("tcp-idle-opening", Compliance::Fails)],
        _ => icmp_and_ip(defect),
    }
}

/// The rows that a defect of ICMP or of the IP header changes.
fn icmp_and_ip(defect: Defect) -> &'static [(&'static str, Compliance)] {
    match defect {
        Defect::QueriesDropped => &[
            ("icmp-query", Compliance::Fails),
            ("icmp-query-mapping", Compliance::NotSure),
            ("icmp-query-hairpin", Compliance::NotSure),
            ("icmp-error-about-query", Compliance::NotSure),
            ("icmp-error-out-about-query", Compliance::NotSure),
            ("icmp-error-keeps-query", Compliance::NotSure),
            ("icmp-query-idle", Compliance::NotSure),
            ("icmp-refresh-error", Compliance::NotTestable),
        ],
        Defect::ShortQuery => &[("icmp-query-idle", Compliance::Fails)],
        Defect::QueriesPerDestination => &[("icmp-query-mapping", Compliance::Fails)],
        Defect::QueryErrorsDropped => &[("icmp-error-about-query", Compliance::Fails)],
        Defect::QueryErrorsRefresh => &[("icmp-refresh-error", Compliance::Fails)],
        Defect::ErrorsInDropped | Defect::InnerKept => {
            if defect == Defect::InnerKept {
                return &[
                    ("icmp-error-checksum", Compliance::NotTestable),
                    ("icmp-error-in", Compliance::Fails),
                    ("icmp-error-types", Compliance::Fails),
                    ("icmp-too-big-in", Compliance::Fails),
                    ("icmp-error-out", Compliance::Fails),
                    ("tcp-icmp-error-out", Compliance::Fails),
                    ("icmp-error-out-about-query", Compliance::Fails),
                    ("tcp-icmp-error-in", Compliance::Fails),
                    ("icmp-error-hairpin", Compliance::Fails),
                    ("icmp-error-about-query", Compliance::Fails),
                    ("icmp-error-quote-options", Compliance::Fails),
                    ("icmp-error-quote-unchecked", Compliance::Fails),
                    ("icmp-error-short-quote", Compliance::Fails),
                ];
            }
            &[
                ("icmp-error-types", Compliance::Fails),
                ("icmp-too-big-in", Compliance::Fails),
                ("icmp-error-checksum", Compliance::NotTestable),
                ("icmp-error-in", Compliance::Fails),
                ("tcp-icmp-error-in", Compliance::Fails),
                ("icmp-error-about-query", Compliance::Fails),
                ("icmp-error-quote-options", Compliance::Fails),
                ("icmp-error-quote-unchecked", Compliance::Fails),
                ("icmp-error-short-quote", Compliance::Fails),
            ]
        }
        Defect::ErrorsOutDropped => &[
            ("icmp-error-hairpin", Compliance::Fails),
            ("icmp-error-out", Compliance::Fails),
            ("tcp-icmp-error-out", Compliance::Fails),
            ("icmp-error-out-about-query", Compliance::Fails),
        ],
        Defect::TcpErrorsOutDropped => &[("tcp-icmp-error-out", Compliance::Fails)],
        Defect::ReplyErrorsDropped => &[("icmp-error-out-about-query", Compliance::Fails)],
        Defect::ErrorOutSourceKept => &[
            ("icmp-error-out", Compliance::Fails),
            ("tcp-icmp-error-out", Compliance::Fails),
            ("icmp-error-out-about-query", Compliance::Fails),
        ],
        Defect::InnerChecksumStale => &[
            ("icmp-error-checksum", Compliance::Fails),
            ("icmp-error-out", Compliance::Fails),
            ("tcp-icmp-error-out", Compliance::Fails),
            ("tcp-icmp-error-in", Compliance::Fails),
        ],
        Defect::InnerIpChecksumStale => &[
            ("icmp-error-checksum", Compliance::Fails),
            ("icmp-error-out", Compliance::Fails),
            ("tcp-icmp-error-out", Compliance::Fails),
            ("icmp-error-out-about-query", Compliance::Fails),
            ("tcp-icmp-error-in", Compliance::Fails),
            ("icmp-error-about-query", Compliance::Fails),
        ],
        Defect::ProhibitedDropped => &[("icmp-error-types", Compliance::Partly)],
        Defect::TooBigDropped => {
            &[("icmp-error-types", Compliance::Partly), ("icmp-too-big-in", Compliance::Fails)]
        }
        Defect::TooBigMtuChanged => &[("icmp-too-big-in", Compliance::Fails)],
        // Only described.
        Defect::ProblemsDropped => &[],
        Defect::ErrorCodeChanged => &[
            ("icmp-error-types", Compliance::Fails),
            ("icmp-too-big-in", Compliance::Fails),
            ("icmp-error-in", Compliance::Fails),
            ("tcp-icmp-error-in", Compliance::Fails),
            ("icmp-error-about-query", Compliance::Fails),
        ],
        Defect::ErrorsEndMapping => &[
            ("tcp-icmp-keeps-mapping", Compliance::Fails),
            ("udp-icmp-keeps-mapping", Compliance::Fails),
            ("icmp-error-keeps-query", Compliance::Fails),
        ],
        Defect::BadErrorsPass => &[("icmp-error-bad-checksum", Compliance::Fails)],
        Defect::BadQuotesPass => &[("icmp-error-bad-quote", Compliance::Fails)],
        Defect::QuotesChecked => &[("icmp-error-quote-unchecked", Compliance::Fails)],
        Defect::QuoteOptionsUnread => &[("icmp-error-quote-options", Compliance::Fails)],
        Defect::ShortQuotesDropped => &[("icmp-error-short-quote", Compliance::Fails)],
        Defect::UnmappedErrorsPass => &[("icmp-error-unmapped", Compliance::Fails)],
        Defect::FragmentsDropped | Defect::FragmentsLeaked => {
            &[("udp-fragments-in-order", Compliance::Fails), ("udp-fragments-reversed", Compliance::Fails)]
        }
        Defect::FragmentsInOrderOnly => &[("udp-fragments-reversed", Compliance::Fails)],
        Defect::TooLongVanishes | Defect::TooLongWrongMtu => &[("udp-too-long", Compliance::Fails)],
        // Fragments that were put together are too long too.
        Defect::NothingFragmented => &[
            ("udp-fragments-in-order", Compliance::Partly),
            ("udp-fragments-reversed", Compliance::Partly),
            ("udp-too-long-fragmented", Compliance::Fails),
        ],
        Defect::TtlKept => &[("ip-ttl", Compliance::Fails)],
        // Only described: no RFC of the table asks for it.
        Defect::TosCleared => &[],
        // Only a translator of IPv6 has it.
        Defect::PrefixNotNeutral => &[],
        // Without DF the long packet is fragmented.
        Defect::DfCleared => &[("udp-too-long", Compliance::Fails)],
        _ => carriage(defect),
    }
}

/// The rows that a defect of TCP, of identifications or of other protocols changes.
fn carriage(defect: Defect) -> &'static [(&'static str, Compliance)] {
    match defect {
        // Only described.
        Defect::OptionsStripped | Defect::OptionsInStripped | Defect::MssLowered | Defect::OverlapsJoined => {
            &[]
        }
        Defect::HalfCloseInEnds => &[("tcp-half-close-in", Compliance::Fails)],
        Defect::SynAckDataDropped => &[("tcp-syn-ack-data", Compliance::Fails)],
        Defect::SynDataDropped => &[("tcp-syn-data", Compliance::Fails)],
        Defect::HalfCloseEnds => {
            &[("tcp-half-close", Compliance::Fails), ("tcp-idle-half-closed", Compliance::NotSure)]
        }
        Defect::ShortEstablished => {
            &[("tcp-idle-established", Compliance::Fails), ("tcp-idle-half-closed", Compliance::Fails)]
        }
        Defect::ShortHalfClosed => &[("tcp-idle-half-closed", Compliance::Fails)],
        Defect::ShortReset => {
            &[("tcp-idle-reset-in", Compliance::Fails), ("tcp-idle-reset-out", Compliance::Fails)]
        }
        Defect::ResetDropped => {
            &[("tcp-reset", Compliance::Fails), ("tcp-idle-reset-in", Compliance::NotSure)]
        }
        Defect::ResetEndsMapping => &[
            ("tcp-data-after-reset", Compliance::Fails),
            ("tcp-idle-reset-in", Compliance::Fails),
            ("tcp-reset-window", Compliance::Fails),
        ],
        // Both defects need one outside address for both hosts.
        Defect::IdKept => &[
            ("icmp-query-hairpin", Compliance::Described),
            ("tcp-port-reuse", Compliance::Meets),
            ("ip-identification", Compliance::Fails),
            ("tcp-pooling", Compliance::NotTestable),
            ("udp-pooling", Compliance::NotTestable),
            ("tcp-port-randomness", Compliance::Meets),
            ("udp-port-randomness", Compliance::Meets),
        ],
        Defect::PortsNextFree => &[
            ("icmp-query-hairpin", Compliance::Described),
            ("tcp-port-reuse", Compliance::Meets),
            ("tcp-pooling", Compliance::NotTestable),
            ("udp-pooling", Compliance::NotTestable),
            ("tcp-port-randomness", Compliance::Fails),
            ("udp-port-randomness", Compliance::Fails),
        ],
        Defect::OthersLeaked => &[
            ("protocol-dccp", Compliance::Fails),
            ("protocol-esp", Compliance::Fails),
            ("protocol-gre", Compliance::Fails),
            ("protocol-sctp", Compliance::Fails),
            ("protocol-udp-lite", Compliance::Fails),
        ],
        Defect::OtherAnswersDropped => &[
            ("protocol-dccp", Compliance::Partly),
            ("protocol-esp", Compliance::Partly),
            ("protocol-gre", Compliance::Partly),
            ("protocol-sctp", Compliance::Partly),
            ("protocol-udp-lite", Compliance::Partly),
        ],
        _ => exhaustion(defect),
    }
}

/// The rows that a defect at the end of ports changes.
fn exhaustion(defect: Defect) -> &'static [(&'static str, Compliance)] {
    match defect {
        Defect::ExhaustionSilent => &[("udp-exhaustion-told", Compliance::Fails)],
        Defect::ExhaustionWrongCode => &[("udp-exhaustion-told", Compliance::Partly)],
        Defect::ExhaustionLeaks | Defect::ExhaustionShares => {
            &[("udp-exhaustion-told", Compliance::NotTestable), ("udp-exhaustion-dropped", Compliance::Fails)]
        }
        // Room is made for every packet: the ports have no end.
        Defect::ExhaustionEvicts => &[
            ("udp-exhaustion-told", Compliance::NotTestable),
            ("udp-exhaustion-dropped", Compliance::NotTestable),
            ("udp-exhaustion-keeps", Compliance::Fails),
            ("udp-host-limit", Compliance::NotTestable),
        ],
        Defect::TcpExhaustionSilent => &[("tcp-exhaustion-told", Compliance::Fails)],
        Defect::TcpExhaustionWrongCode | Defect::TcpExhaustionResets => {
            &[("tcp-exhaustion-told", Compliance::Partly)]
        }
        Defect::TcpExhaustionLeaks | Defect::TcpExhaustionShares => {
            &[("tcp-exhaustion-told", Compliance::NotTestable), ("tcp-exhaustion-dropped", Compliance::Fails)]
        }
        Defect::TcpExhaustionEvicts => &[
            ("tcp-exhaustion-told", Compliance::NotTestable),
            ("tcp-exhaustion-dropped", Compliance::NotTestable),
            ("tcp-exhaustion-keeps", Compliance::Fails),
        ],
        Defect::HairpinErrorsDropped | Defect::HairpinErrorHalf => {
            &[("icmp-error-hairpin", Compliance::Fails)]
        }
        Defect::PortsReusedAtOnce => &[
            ("icmp-query-hairpin", Compliance::Described),
            ("tcp-port-reuse", Compliance::Meets),
            ("udp-port-reuse", Compliance::Fails),
            ("tcp-pooling", Compliance::NotTestable),
            ("udp-pooling", Compliance::NotTestable),
            ("tcp-port-randomness", Compliance::Meets),
            ("udp-port-randomness", Compliance::Meets),
        ],
        Defect::TcpPortsForgotten => &[
            ("icmp-query-hairpin", Compliance::Described),
            ("tcp-port-reuse", Compliance::Fails),
            ("tcp-pooling", Compliance::NotTestable),
            ("udp-pooling", Compliance::NotTestable),
            ("tcp-port-randomness", Compliance::Meets),
            ("udp-port-randomness", Compliance::Meets),
        ],
        Defect::WildResetEnds => &[("tcp-reset-window", Compliance::Fails)],
        Defect::FirstSynsLost => &[("tcp-first-syns", Compliance::Partly)],
        Defect::FirstSynsShared => &[("tcp-first-syns", Compliance::Fails)],
        Defect::SynDataInDropped => &[("tcp-syn-data-in", Compliance::Fails)],
        Defect::QueriesNotHairpinned => &[("icmp-query-hairpin", Compliance::Fails)],
        Defect::FirstPacketsLost | Defect::FirstPacketsSplit => &[("udp-first-packets", Compliance::Fails)],
        // Only described.
        Defect::SequenceChecked | Defect::SequenceLeaks => &[],
        other => unreachable!("{other:?} has no entry"),
    }
}
