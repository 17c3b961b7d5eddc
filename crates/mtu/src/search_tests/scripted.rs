//! Searches over answers that are written down: which lengths are tried, how many packets each takes, and what is concluded.

use super::*;

const SILENT: ProbeOutcome = ProbeOutcome::Silent;
const ARRIVED: ProbeOutcome = ProbeOutcome::Arrived;

/// Answers by the number of the exchange, the place in it and the length.
struct Script<F> {
    answer: F,
    far: Option<u32>,
    /// Exchanges after which the time is up.
    over_after: usize,
    /// Lengths and grace of each exchange.
    sent: Vec<(Vec<u32>, Duration)>,
}

impl<F: FnMut(usize, usize, u32) -> ProbeOutcome> Script<F> {
    fn of(answer: F) -> Self {
        Script { answer, far: None, over_after: usize::MAX, sent: Vec::new() }
    }
}

impl<F: FnMut(usize, usize, u32) -> ProbeOutcome> Prober for Script<F> {
    fn least(&self) -> u32 {
        56
    }

    fn exchange(&mut self, probes: &[Probe], grace: Duration) -> io::Result<Vec<ProbeOutcome>> {
        let nth = self.sent.len();
        self.sent.push((probes.iter().map(|p| p.size).collect(), grace));
        Ok(probes.iter().enumerate().map(|(place, p)| (self.answer)(nth, place, p.size)).collect())
    }

    fn far_mtu(&mut self) -> io::Result<Option<u32>> {
        Ok(self.far)
    }

    fn is_over(&self) -> bool {
        self.sent.len() >= self.over_after
    }
}

/// Longer packets vanish.
fn up_to(mtu: u32) -> impl FnMut(usize, usize, u32) -> ProbeOutcome {
    move |_, _, size| if size > mtu { SILENT } else { ARRIVED }
}

fn sizes(found: &PathMtu) -> Vec<u32> {
    found.tries.iter().map(|t| t.size).collect()
}

#[test]
fn a_length_is_blamed_as_soon_as_chance_is_ruled_out() {
    let mut script = Script::of(up_to(1400));
    let found = path_mtu(&mut script, Way::Egress, 1500).unwrap();
    let tries: Vec<_> = found.tries.iter().map(|t| (t.size, t.probes, t.controls, t.controls_lost)).collect();
    // By hand: with n controls before and none lost, k probes are blamed once (1 / (n + k + 2))^k < 0.0005.
    assert_eq!(
        tries,
        [
            (1500, 5, 5, 0), // (1/5)^3 = 0.008, (1/7)^5 = 0.00006
            (1392, 1, 1, 0),
            (1446, 5, 5, 0), // n = 6: (1/11)^3 = 0.00075
            (1424, 3, 3, 0), // n = 11: (1/16)^3 = 0.00024
            (1412, 3, 3, 0),
            (1406, 3, 3, 0),
            (1400, 1, 1, 0),
            (1401, 3, 3, 0),
        ]
    );
    assert_eq!((found.bytes, found.too_long, found.limit), (Some(1400), Some(1401), Limit::Silence));
    // One pair first, with the patience for routers; then two pairs at once.
    assert_eq!(script.sent[0], (vec![1500, 56], FIRST_GRACE));
    assert_eq!(script.sent[1], (vec![1500, 56, 1500, 56], GRACE));
    assert_eq!(script.sent[3], (vec![1392, 56], GRACE));
}

#[test]
fn lost_controls_count_against_the_blame() {
    // The first control of each exchange is lost: at 1500 bytes 1 of 1, 2 of 3, 3 of 5, ...
    let lossy = |_, place, size| if size > 1400 || place == 1 { SILENT } else { ARRIVED };
    let found = path_mtu(&mut Script::of(lossy), Way::Egress, 1500).unwrap();
    let Try { probes, controls, controls_lost, outcome, .. } = found.tries[0];
    // (9/17)^15 = 0.00007 is below 0.0005, (8/15)^13 = 0.00028 as well, (7/13)^11 = 0.0011 is not.
    assert_eq!((probes, controls, controls_lost, outcome), (13, 13, 7, SILENT));
}

#[test]
fn where_the_controls_vanish_too_no_length_is_blamed() {
    // Twenty-six controls arrive, then nothing does any more: that of 1401 bytes is not the fault of their length.
    let dead = |nth, _, size| if nth >= 14 || size > 1400 { SILENT } else { ARRIVED };
    let found = path_mtu(&mut Script::of(dead), Way::Egress, 1500).unwrap();
    let last = found.tries.last().unwrap();
    assert_eq!((last.probes, last.controls, last.controls_lost), (15, 15, 15), "{found:?}");
    assert_eq!((found.bytes, found.limit), (Some(1400), Limit::Open));
    assert!(!found.is_exact());

    let nothing = path_mtu(&mut Script::of(|_, _, _| SILENT), Way::Egress, 1500).unwrap();
    assert_eq!((nothing.bytes, nothing.too_long, nothing.limit), (None, None, Limit::Open));
    assert_eq!((nothing.tries.len(), nothing.tries[0].probes), (1, MOST_PROBES));
}

#[test]
fn one_probe_that_arrived_outweighs_every_other_answer() {
    let too_big = ProbeOutcome::TooBig { mtu: 1400, from: Some(router()) };
    for answers in [[ARRIVED, too_big], [too_big, ARRIVED]] {
        let script = |nth, place, size| match (nth, place, size) {
            (_, _, 56) => ARRIVED,
            (0, ..) => SILENT,
            (_, place, _) => answers[place / 2],
        };
        let found = path_mtu(&mut Script::of(script), Way::Egress, 1500).unwrap();
        assert_eq!((found.bytes, found.limit, found.claim), (Some(1500), Limit::OwnLink, None));
        assert_eq!((found.tries[0].outcome, found.tries[0].probes), (ARRIVED, 3));
    }
    // It needs no control.
    let alone = |_, _, size| if size == 56 { SILENT } else { ARRIVED };
    let found = path_mtu(&mut Script::of(alone), Way::Egress, 1500).unwrap();
    assert_eq!((found.bytes, found.limit), (Some(1500), Limit::OwnLink));
}

#[test]
fn the_end_of_the_time_leaves_open_what_is_not_known() {
    let until = |exchanges| {
        let mut script = Script { over_after: exchanges, ..Script::of(up_to(1400)) };
        path_mtu(&mut script, Way::Egress, 1500).unwrap()
    };
    let none = until(0);
    assert_eq!((none.bytes, none.limit, none.tries.len()), (None, Limit::Open, 0));
    // In the middle of a length: its two exchanges stand.
    let some = until(2);
    assert_eq!((some.bytes, some.too_long, some.limit, some.tries[0].probes), (None, None, Limit::Open, 3));
    // 1500 bytes are known to vanish, but the control alone is no result.
    let one = until(3);
    assert_eq!((one.bytes, one.too_long, one.limit), (None, Some(1500), Limit::Open));
    let two = until(4);
    assert_eq!((two.bytes, two.too_long, two.limit), (Some(1392), Some(1500), Limit::Open));
    // A named length stays untried.
    let told = ProbeOutcome::TooBig { mtu: 1300, from: Some(router()) };
    let answer = move |_, _, size| if size > 1300 { told } else { ARRIVED };
    let mut script = Script { over_after: 1, ..Script::of(answer) };
    let found = path_mtu(&mut script, Way::Egress, 1500).unwrap();
    assert_eq!(found.claim, Some(Claim { mtu: 1300, from: Some(router()), right: None }));
}

#[test]
fn the_smallest_packet_may_be_the_largest() {
    let found = path_mtu(&mut Script::of(up_to(56)), Way::Egress, 1500).unwrap();
    assert_eq!((found.bytes, found.too_long, found.limit), (Some(56), Some(57), Limit::Silence));
    // A link that carries less than the control is taken for one that carries the control.
    let found = path_mtu(&mut Script::of(up_to(56)), Way::Egress, 20).unwrap();
    assert_eq!((found.bytes, found.too_long, found.limit), (Some(56), None, Limit::OwnLink));
    assert_eq!(sizes(&found), [56]);
    // Routers refuse everything, and nothing ever arrives: that is no length that passes.
    let refused = ProbeOutcome::TooBig { mtu: 0, from: Some(router()) };
    let answer = move |_, _, size| if size == 56 { SILENT } else { refused };
    let found = path_mtu(&mut Script::of(answer), Way::Egress, 60).unwrap();
    assert_eq!((found.bytes, found.too_long, found.limit), (None, Some(57), Limit::Open));
}

#[test]
fn without_a_common_length_between_the_rest_is_halved() {
    // 67 fails and 56 passes: 61, 58, then a byte above what passes, then 60.
    let found = path_mtu(&mut Script::of(up_to(60)), Way::Egress, 67).unwrap();
    assert_eq!(sizes(&found), [67, 61, 58, 59, 60]);
    assert_eq!((found.bytes, found.too_long), (Some(60), Some(61)));
}

#[test]
fn the_lengths_that_routers_name_are_tried_where_they_make_sense() {
    let tried = |links: &[Hop]| {
        let (found, _) = find(Path::of(links), 1500);
        (sizes(&found), found.claim.unwrap())
    };
    let claim = |mtu, right| Claim { mtu, from: Some(router()), right };
    // A byte less than fails: it is known already that a byte more does not pass.
    assert_eq!(tried(&[hop(1500), hop(1499)]), (vec![1500, 1499], claim(1499, Some(true))));
    // A length that passes anyway is no news, nor is no length.
    let (sizes, said) = tried(&[Hop { mtu: 1400, says: Some(56) }]);
    assert_eq!((sizes[1], said), (1392, claim(56, Some(false))));
    assert_eq!(tried(&[Hop { mtu: 1400, says: Some(0) }]).1, claim(0, None));
    // A second router that names none does not replace what the first one named.
    assert_eq!(tried(&[hop(1400), Hop { mtu: 1300, says: Some(0) }]).1, claim(1400, Some(false)));
    assert_eq!(tried(&[hop(1400), hop(1300)]).1, claim(1300, Some(true)));
}

#[test]
fn a_link_of_the_far_end_names_its_own_length() {
    let here = ProbeOutcome::TooBigHere { mtu: 1400 };
    let mut script = Script::of(move |_, _, size| if size > 1400 { here } else { ARRIVED });
    let found = path_mtu(&mut script, Way::Ingress, 1500).unwrap();
    assert_eq!((found.bytes, found.too_long, found.limit), (Some(1400), Some(1401), Limit::FarLink));
    assert_eq!(sizes(&found), [1500, 1400, 1450, 1430, 1420, 1412, 1406, 1401]);
    assert_eq!(found.claim, None);
    // A link further on carries less still: that one is silent.
    let mut script = Script::of(move |_, _, size| match size {
        1401.. => here,
        1301.. => SILENT,
        _ => ARRIVED,
    });
    let found = path_mtu(&mut script, Way::Ingress, 1500).unwrap();
    assert_eq!((found.bytes, found.limit), (Some(1300), Limit::Silence));
}

#[test]
fn only_the_far_end_hears_what_routers_say_of_its_packets() {
    let search = |way, far| {
        let mut script = Script { far, ..Script::of(up_to(1400)) };
        path_mtu(&mut script, way, 1500).unwrap()
    };
    let heard = search(Way::Ingress, Some(1400));
    assert_eq!((heard.bytes, heard.limit), (Some(1400), Limit::Told));
    assert_eq!(heard.claim, Some(Claim { mtu: 1400, from: None, right: Some(true) }));
    assert_eq!(heard.tries[0].outcome, ProbeOutcome::TooBig { mtu: 1400, from: None });
    assert_eq!(sizes(&heard)[..3], [1500, 1400, 1401]);
    // Its assumption about its own link, which carries this length, says nothing.
    for (way, far) in [(Way::Ingress, Some(1500)), (Way::Ingress, None), (Way::Egress, Some(1400))] {
        let found = search(way, far);
        assert_eq!((found.bytes, found.limit, found.claim), (Some(1400), Limit::Silence, None), "{far:?}");
    }
}

#[test]
fn asked_again_a_router_or_the_far_end_may_say_more() {
    let ask = |way, far, outcome| {
        let mut script = Script { far, ..Script::of(move |_, place, _| [outcome, ARRIVED][place]) };
        let claim = told_after_all(&mut script, way, 1500).unwrap();
        assert_eq!(script.sent, [(vec![1500, 56], FIRST_GRACE)]);
        claim
    };
    let claim = |mtu, from| Some(Claim { mtu, from, right: None });
    let too_big = ProbeOutcome::TooBig { mtu: 1400, from: Some(router()) };
    assert_eq!(ask(Way::Egress, None, too_big), claim(1400, Some(router())));
    assert_eq!(ask(Way::Egress, Some(1400), SILENT), None);
    assert_eq!(ask(Way::Ingress, Some(1400), SILENT), claim(1400, None));
    assert_eq!(ask(Way::Ingress, Some(1500), SILENT), None);
    assert_eq!(ask(Way::Ingress, Some(9000), SILENT), None);
}

#[test]
fn an_exact_result_leaves_no_length_between() {
    let found = |bytes, too_long, limit| PathMtu {
        way: Way::Egress,
        bytes,
        too_long,
        limit,
        claim: None,
        tries: Vec::new(),
    };
    assert!(found(Some(1500), None, Limit::OwnLink).is_exact());
    assert!(!found(Some(1500), None, Limit::Open).is_exact());
    assert!(found(Some(1400), Some(1401), Limit::Told).is_exact());
    assert!(!found(Some(1400), Some(1402), Limit::Open).is_exact());
    assert!(!found(None, Some(57), Limit::Open).is_exact());
}
