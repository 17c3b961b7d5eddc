//! `weir nat check --stun` against coturn's server, compared with coturn's own client, behind the kernel's NAT.

mod documents;

use weir_testkit::{CommandOutput, PATIENCE, World, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A client, a gateway, and a server with two addresses.
const PATH: &str = "set -e
for n in client gateway server; do
  ip netns add $n
  ip -n $n link set lo up
done
ip -n client link add eth0 type veth peer name in0 netns gateway
ip -n gateway link add out0 type veth peer name eth0 netns server
ip -n client addr add 198.18.0.2/24 dev eth0
ip -n gateway addr add 198.18.0.1/24 dev in0
ip -n gateway addr add 198.19.0.1/24 dev out0
ip -n server addr add 198.19.0.2/24 dev eth0
ip -n server addr add 198.19.0.3/24 dev eth0
for l in client/eth0 gateway/in0 gateway/out0 server/eth0; do ip -n ${l%/*} link set ${l#*/} up; done
ip -n client route add default via 198.18.0.1
ip -n server route add 198.18.0.0/24 via 198.19.0.1
ip netns exec gateway sysctl -qw net.ipv4.ip_forward=1
";

const TURNSERVER: &str = "turnserver --stun-only --no-cli --no-tls --no-dtls --no-tcp --log-file stdout --simple-log \
                          --pidfile /run/turn.pid --db /run/turn.db -c /dev/null \
                          -L 198.19.0.2 -L 198.19.0.3 -p 3478 --alt-listening-port 3479";

fn in_client(world: &World, program: &str, args: &[&str]) -> CommandOutput {
    let mut command = world.command("ip");
    command.args(["netns", "exec", "client", program]).args(args);
    world.run(command)
}

/// The client of coturn in the words of this test: mapping and filtering, and all that it printed.
fn coturn(world: &World) -> (String, String, String) {
    let kind = |flag: &str, what: &str| {
        let seen = in_client(world, "turnutils_natdiscovery", &[flag, "-p", "3478", "198.19.0.2"]);
        let text = format!("{}{}", seen.stdout, seen.stderr);
        let words = [
            (format!("Endpoint Independent {what}"), "endpoint-independent"),
            (format!("Address and Port Dependent {what}"), "address-and-port"),
            (format!("Address Dependent {what}"), "address"),
        ];
        let found = words.iter().find(|(words, _)| text.contains(words));
        (found.unwrap_or_else(|| panic!("{flag}: {text}")).1.to_owned(), text)
    };
    let (mapping, text) = kind("-m", "Mapping");
    let (filtering, more) = kind("-f", "Filtering");
    (mapping, filtering, text + &more)
}

#[test]
fn root_coturn_sees_the_same() {
    if World::lacks(&["ip", "nft", "turnserver", "turnutils_natdiscovery"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    world.sh(PATH);
    let mut server = world.command("ip");
    server.args(["netns", "exec", "server", "sh", "-c", TURNSERVER]);
    let _server = world.start("turnserver", server);
    let check =
        |more: &[&str]| in_client(&world, WEIR, &[&["nat", "check", "--stun", "198.19.0.2"], more].concat());
    until("the STUN server answers", PATIENCE, || (check(&[]).code == 0).then_some(()));
    let table = |rule: &str| {
        format!(
            "table ip nat {{ chain post {{ type nat hook postrouting priority srcnat; oifname out0 {rule}; }}; }}"
        )
    };
    for (rule, classic) in [
        (None, None),
        (Some("masquerade"), Some("port restricted cone")),
        (Some("masquerade fully-random"), Some("symmetric")),
    ] {
        world.sh("ip netns exec gateway nft flush ruleset");
        if let Some(rule) = rule {
            world.sh(&format!("echo '{}' | ip netns exec gateway nft -f -", table(rule)));
        }
        let seen = documents::read(&check(&["--json"]).expect(0).stdout, "nat-check");
        let kind = &seen["kind"];
        assert_eq!(kind["classic"].as_str(), classic, "{rule:?}: {seen:#}");
        assert_eq!(kind["translates"], rule.is_some());
        let (mapping, filtering, text) = coturn(&world);
        assert_eq!(
            (kind["mapping"].as_str(), kind["filtering"].as_str()),
            (Some(&*mapping), Some(&*filtering)),
            "{text}{seen:#}"
        );
    }
    let page = check(&["--fail-on-must"]).expect(3).stdout;
    assert!(page.starts_with("symmetric (APDM, APDF)\n"), "{page}");
}

#[test]
fn bad_servers_are_one_message() {
    let world = World::plain(WEIR);
    for wrong in ["", "a b", "192.0.2.7:0"] {
        let mut command = world.command(WEIR);
        command.args(["nat", "check", "--stun", wrong]);
        assert!(world.run(command).expect(2).stderr.contains("HOST:PORT"), "{wrong}");
    }
}
