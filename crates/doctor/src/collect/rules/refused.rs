//! Which rule refuses a packet of a table's kinds, and which may translate its connections: the rules are evaluated for packets
//! that are made up.

use weir_netlink::nftables::{Hook, Tables};

use super::decide::Sets;
use super::listing::Lister;
use super::made::{KINDS, Kind, OPENING, Path, pass};
use super::old::AllTables;
use super::packet::Names;
use super::walk::{Decider, Walker, Way};
use crate::evidence::{Namespace, NatHost, NatTable, Refused};

/// Rules that are asked at most.
const RULES: u64 = 1_000_000;
/// Connection tracking puts fragments together here (NF_IP_PRI_CONNTRACK_DEFRAG): later chains see none.
const REASSEMBLY: i32 = -400;

/// Fills [`NatHost::refused`], [`NatHost::asked`] and the protocols of its rules, whose places are `places`.
pub(super) fn ask(
    all: &AllTables,
    lister: &Lister<'_>,
    inside: &Namespace,
    table: &NatTable,
    places: &[usize],
    host: &mut NatHost,
) {
    let Some(path) = Path::of(table) else { return };
    let names = Names::of(&inside.interfaces);
    let mut walker = Walker::new(&all.tables, &names, RULES);
    let mut sets = Sets::open();
    for kind in KINDS {
        host.asked.push(kind.name.to_owned());
        let mut way = Way::default();
        pass(kind, &path, &mut |packet| {
            walker.hook(packet, &mut sets, &mut way);
            way.ends
        });
        let Some((decider, hook)) = first(&way, &all.tables, kind) else { continue };
        let (backend, chain) = all.chain(lister, decider);
        host.refused.push(Refused {
            packet: kind.name.to_owned(),
            hook: hook.name().to_owned(),
            sure: way.ends && way.deciders.len() == 1,
            rule: match decider {
                Decider::Rule(place) => Some(all.rule(lister, place)),
                Decider::Policy(_) => None,
            },
            backend,
            chain,
        });
    }
    if table.is_of_lab() {
        return;
    }
    for rule in &mut host.rules {
        rule.protocols.clear();
    }
    for kind in OPENING {
        let mut way = Way::default();
        pass(kind, &path, &mut |packet| {
            if packet.hook == Hook::Postrouting {
                walker.translate(packet, &mut sets, &mut way);
            }
            way.ends
        });
        for (rule, _) in
            host.rules.iter_mut().zip(places).filter(|(_, place)| way.translators.contains(place))
        {
            rule.protocols.push(kind.name.to_owned());
        }
    }
}

/// The first decider; for fragments only one that sees fragments.
fn first(way: &Way, tables: &Tables, kind: &Kind) -> Option<(Decider, Hook)> {
    let sees = |(decider, hook): &&(Decider, Hook)| {
        !kind.fragment || *hook == Hook::Ingress || priority(tables, *decider) < REASSEMBLY
    };
    way.deciders.iter().find(sees).copied()
}

fn priority(tables: &Tables, decider: Decider) -> i32 {
    let at = match decider {
        Decider::Policy(place) => Some(place),
        Decider::Rule(place) => {
            let rule = &tables.rules[place];
            let same = |c: &weir_netlink::nftables::Chain| {
                c.family == rule.family && c.table == rule.table && c.name == rule.chain
            };
            tables.chains.iter().position(same)
        }
    };
    at.and_then(|at| tables.chains[at].base.as_ref()).map_or(0, |base| base.priority)
}
