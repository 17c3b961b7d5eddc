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

#[cfg(test)]
mod tests {
    use weir_nat::{Compliance, Limits, Table, measure};
    use weir_testkit::World;

    use super::super::*;

    /// The judgements of one gateway on pooling and mapping, for UDP and TCP.
    fn verdicts(site: &Site, which: LabGateway) -> [Compliance; 4] {
        let table = with_gateway(site, which, || {
            let mut ends = LabEnds::attach(site, Limits::default(), &Stop::default()).unwrap();
            Table::of(&measure(&mut ends, &mut |step| step != "icmp-hairpin").unwrap())
        });
        let Ok((table, _)) = table else { panic!("{} cannot be built", which.name()) };
        ["udp-pooling", "tcp-pooling", "udp-mapping", "tcp-mapping"]
            .map(|row| table.line(row).unwrap().judgement.verdict)
    }

    /// find_best_ips_proto in net/netfilter/nf_nat_core.c hashes the source and, without persistent, the destination; ports that have a
    /// mapping keep it.
    #[test]
    fn root_a_host_keeps_its_address_of_a_pool_only_if_the_rule_is_persistent() {
        if World::lacks_root() || World::lacks(&["nft"]) {
            return;
        }
        for family in [Family::Ipv4, Family::Ipv6] {
            let all = [LabGateway::NftPool, LabGateway::NftPoolPersistent];
            let specs = all.map(site_of);
            let name = format!("test-nat-pools-{family:?}-{}", std::process::id()).to_lowercase();
            let lab = Lab::build(&name, &LabOptions { family, ..LabOptions::default() }, &specs).unwrap();
            let [pool, persistent] = [0, 1].map(|n| verdicts(&lab.sites()[n], all[n]));
            use Compliance::{Fails, Meets};
            assert_eq!(pool, [Fails, Fails, Meets, Meets], "{family:?}");
            assert_eq!(persistent, [Meets; 4], "{family:?}");
        }
    }
}
