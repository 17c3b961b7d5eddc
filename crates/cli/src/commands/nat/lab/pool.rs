//! Gateways with a pool of outside addresses, by the rule that an administrator would write.

use weir_gateway::custom::Custom;

use super::prefix::custom;

/// Network of the pool, and its first and last address. As many as fit a network of IPv4: the kernel chooses by a hash, which must not give
/// two destinations or two hosts the same one by chance.
const POOL: &str = "case $WEIR_FAMILY in \
     ipv4) net=${WEIR_SPARE_OUTSIDE%.*}.0/24 first=${WEIR_SPARE_OUTSIDE%.*}.1 last=${WEIR_SPARE_OUTSIDE%.*}.250;; \
     *) net=${WEIR_SPARE_OUTSIDE%::*}::/64 first=${WEIR_SPARE_OUTSIDE%::*}::1 last=${WEIR_SPARE_OUTSIDE%::*}::fa;; esac";

/// Source NAT to the pool with this option; the gateway answers for its addresses.
pub(super) fn by_nft(option: &str) -> Custom {
    let rule = format!(
        "table inet weir_$WEIR_TAG {{
         chain out {{ type nat hook postrouting priority srcnat;
             oifname $WEIR_OUTSIDE_INTERFACE snat $ip to $first-$last {option}; }}; }}"
    );
    let version = "ip=ip; test $WEIR_FAMILY = ipv4 || ip=ip6";
    let apply = format!("{POOL}; {version}; ip route replace local $net dev lo && nft \"{rule}\"");
    let no_rule = "nft destroy table inet weir_$WEIR_TAG 2>/dev/null || nft delete table inet weir_$WEIR_TAG";
    let no_route = format!("{POOL}; ip route del local $net dev lo 2>/dev/null || true");
    let words = ["nft snat to 250 addresses", option].join(", ");
    custom(words.trim_end_matches(", "), &[&apply], &[no_rule, &no_route])
}
