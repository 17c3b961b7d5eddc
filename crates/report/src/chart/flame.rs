//! A flame graph: each box is a function, as wide as the time spent in it and in what it called, and stands on the function
//! that called it (B. Gregg, "The Flame Graph", ACM Queue 14(2), 2016). Boxes of one caller are in the order of their names.

use std::collections::BTreeMap;

use weir_record::Calls;
use weir_text::layout::ellipsis;

use crate::chart::{CHAR, begin, label, rect};
use crate::escape;
use crate::markup::Markup;
use crate::units::percent;
use crate::words::plural;

const WIDTH: f64 = 924.0;
const ROW: f64 = 17.0;

/// Narrower boxes, and all that they called, are left out: they are too small to see or to point at.
const NARROWEST: f64 = 2.0;

/// Deeper calls than this are left out; the kernel samples no more than 127.
const DEEPEST: usize = 128;

/// A function in one place of the tree.
#[derive(Default)]
struct Frame<'a> {
    own: u64,
    /// With all callees. A float, because the sum of whatever a record holds must not overflow.
    total: f64,
    callees: BTreeMap<&'a str, usize>,
}

/// Boxes that are drawn.
struct Drawn<'a> {
    name: &'a str,
    frame: usize,
    depth: usize,
    x: f64,
    width: f64,
}

/// Draws the stacks; false if there are none.
pub(crate) fn draw(out: &mut Markup, calls: &Calls, title: &str, id: &str) -> bool {
    let frames = frames(calls);
    let all = frames[0].total;
    if all <= 0.0 {
        return false;
    }
    let boxes = boxes(&frames);
    let deepest = boxes.iter().map(|b| b.depth).max().unwrap_or(0);
    let height = ROW * (deepest + 1) as f64 + 2.0;
    let description =
        format!("Flame graph of {}, outermost functions at the bottom", plural(all as usize, "sample"));
    begin(out, id, (WIDTH, height), &escape::line(title), &description);
    for b in &boxes {
        let frame = &frames[b.frame];
        let top = height - 1.0 - ROW * (b.depth + 1) as f64;
        let name = escape::line(b.name);
        out.open("g", &[]);
        let own = if frame.own > 0 { format!(", {} in itself", frame.own) } else { String::new() };
        let share = percent(frame.total / all);
        out.leaf("title", &[], &format!("{name}: {share}, {}{own}", plural(frame.total as usize, "sample")));
        rect(out, kind(b.name), b.x, top, b.width - 0.6, ROW - 1.0);
        let room = ((b.width - 6.0) / CHAR).floor();
        if room >= 3.0 {
            label(out, (b.x + 3.0, top + ROW - 5.0), "start", "call", &ellipsis(&name, room as usize));
        }
        out.close();
    }
    out.close();
    true
}

/// The tree with sums; number 0 is the root, on which the outermost functions stand.
fn frames(calls: &Calls) -> Vec<Frame<'_>> {
    let mut frames: Vec<Frame<'_>> = vec![Frame::default()];
    let mut callers: Vec<usize> = vec![0];
    // Frame number and depth of each call in the record.
    let mut here: Vec<(usize, usize)> = Vec::with_capacity(calls.nodes.len());
    for (caller, name, samples) in calls.valid() {
        let (caller, depth) = caller.map_or((0, 0), |at| here[at]);
        let frame = match frames[caller].callees.get(name) {
            Some(frame) => *frame,
            None if depth >= DEEPEST => caller,
            None => {
                frames.push(Frame::default());
                callers.push(caller);
                let frame = frames.len() - 1;
                frames[caller].callees.insert(name, frame);
                frame
            }
        };
        frames[frame].own = frames[frame].own.saturating_add(samples);
        here.push((frame, depth + 1));
    }
    // Callers come before what they call.
    for at in (0..frames.len()).rev() {
        frames[at].total += frames[at].own as f64;
        let total = frames[at].total;
        if at > 0 {
            frames[callers[at]].total += total;
        }
    }
    frames
}

fn boxes<'a>(frames: &[Frame<'a>]) -> Vec<Drawn<'a>> {
    let scale = WIDTH / frames[0].total;
    let mut drawn = Vec::new();
    let mut open = vec![(0, 0.0, 0)];
    while let Some((at, left, depth)) = open.pop() {
        let mut x = left;
        for (name, frame) in &frames[at].callees {
            let width = frames[*frame].total * scale;
            if width >= NARROWEST {
                drawn.push(Drawn { name, frame: *frame, depth, x, width });
                open.push((*frame, x, depth + 1));
            }
            x += width;
        }
    }
    drawn
}

/// Colour by subsystem, from the function's name.
fn kind(name: &str) -> &'static str {
    let begins = |with: &[&str]| with.iter().any(|start| name.trim_start_matches('_').starts_with(start));
    if begins(&["nf_", "nft_", "ipt_", "ip6t_", "iptable_", "ip6table_", "xt_", "ip_set_", "hash_conntrack"])
    {
        "fire netfilter"
    } else if begins(&["br_", "bpf_", "tcf_"]) {
        "fire bridge"
    } else if begins(&["ip_", "ip6_", "ipv6_", "fib", "inet", "neigh_", "arp_", "ndisc_", "dst_"]) {
        "fire ip"
    } else {
        "fire"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_stand_on_their_callers_and_are_as_wide_as_their_share() {
        let stacks = [("a", 10), ("a;c", 20), ("a;b", 10), ("a;b;d", 20), ("e", 40)];
        let calls = Calls::from_iter(stacks);
        let frames = frames(&calls);
        let found: Vec<(&str, usize, f64, f64)> =
            boxes(&frames).iter().map(|b| (b.name, b.depth, b.x / WIDTH, b.width / WIDTH)).collect();
        let find = |name: &str| *found.iter().find(|b| b.0 == name).unwrap();
        assert_eq!(found.len(), 5);
        // a: 60 of 100; b (30) before c (20) by name, both on a; d on b.
        for (name, depth, x, width) in [
            ("a", 0, 0.0, 0.6),
            ("b", 1, 0.0, 0.3),
            ("d", 2, 0.0, 0.2),
            ("c", 1, 0.3, 0.2),
            ("e", 0, 0.6, 0.4),
        ] {
            let b = find(name);
            assert_eq!(b.1, depth, "{name}");
            assert!((b.2 - x).abs() < 1e-9 && (b.3 - width).abs() < 1e-9, "{b:?}");
        }
    }

    #[test]
    fn what_nobody_could_see_is_left_out_and_the_rest_keeps_its_place() {
        let calls = Calls::from_iter([("a", 1), ("b", 100_000)]);
        let frames = frames(&calls);
        let found = boxes(&frames);
        assert_eq!(found.len(), 1);
        assert!((found[0].x - WIDTH / 100_001.0).abs() < 1e-9);
        let mut none = Markup::new();
        assert!(!draw(&mut none, &Calls::default(), "none", "f"));
    }

    #[test]
    fn any_tree_is_drawn_within_the_figure() {
        let deep: Vec<(u32, u32, u64)> = (0..1000).map(|i| (i, 0, u64::MAX / 7)).collect();
        let calls = Calls { functions: vec!["a".into()], nodes: deep };
        let frames = frames(&calls);
        let found = boxes(&frames);
        assert!(found.iter().all(|b| b.x >= 0.0 && b.x + b.width <= WIDTH + 1e-6 && b.depth < DEEPEST));
        assert_eq!(found.len(), DEEPEST);
    }
}
