//! Gateways that translate prefixes of IPv6, by the rules that an administrator would write.

use weir_gateway::Role;
use weir_gateway::custom::Custom;
use weir_text::order;

/// The network of the inside hosts, and the outside one that stands for it.
const PREFIXES: &str = "near=${WEIR_INITIATOR%::*}::/64 far=${WEIR_SPARE_OUTSIDE%::*}::/64";

/// Rules of nft: they need connection tracking, and change the prefix only.
pub(super) fn by_nft() -> Custom {
    let rules = "table ip6 weir_$WEIR_TAG {
         chain out { type nat hook postrouting priority srcnat;
             oifname $WEIR_OUTSIDE_INTERFACE ip6 saddr $near snat ip6 prefix to $far; };
         chain in { type nat hook prerouting priority dstnat;
             iifname $WEIR_OUTSIDE_INTERFACE ip6 daddr $far dnat ip6 prefix to $near; }; }";
    let apply = format!("{PREFIXES}; nft \"{rules}\"");
    let remove = "nft destroy table ip6 weir_$WEIR_TAG 2>/dev/null || nft delete table ip6 weir_$WEIR_TAG";
    custom("nft, prefix to prefix", &[&apply], &[remove])
}

/// The targets of the kernel that follow RFC 6296.
pub(super) fn by_ip6tables() -> Custom {
    let rule = |change: char| {
        let out = "POSTROUTING -o $WEIR_OUTSIDE_INTERFACE -s $near -j SNPT --src-pfx $near --dst-pfx $far";
        let back = "PREROUTING -i $WEIR_OUTSIDE_INTERFACE -d $far -j DNPT --src-pfx $far --dst-pfx $near";
        [out, back].map(|rule| format!("{PREFIXES}; ip6tables -w -t mangle -{change} {rule}"))
    };
    let ([out, back], [no_out, no_back]) = (rule('A'), rule('D'));
    custom("ip6tables SNPT and DNPT, prefix to prefix", &[&out, &back], &[&no_back, &no_out])
}

/// A variant of commands at the gateway.
pub(super) fn custom(describe: &str, apply: &[&str], remove: &[&str]) -> Custom {
    let on_gateway =
        |lines: &[&str]| order::map([(Role::Gateway, lines.iter().map(|l| (*l).to_owned()).collect())]);
    Custom {
        describe: describe.to_owned(),
        apply: on_gateway(apply),
        remove: on_gateway(remove),
        ..Custom::default()
    }
}
