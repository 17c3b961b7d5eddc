//! A client, a gateway and a server in namespaces of their own, for `weir nat check` and `weir nat ports`.
#![allow(dead_code, reason = "each test program uses a part of it")]

use serde_json::Value;
use weir_testkit::{Background, CommandOutput, World};

use crate::documents;

/// The program under test.
pub(crate) const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A client, a gateway that masquerades, and a server with two addresses.
pub(crate) const PATH: &str = "set -e
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
ip netns exec gateway sysctl -qw net.ipv4.ip_forward=1
echo 'table ip nat { chain post { type nat hook postrouting priority srcnat; oifname out0 masquerade; }; }' |
  ip netns exec gateway nft -f -
(umask 077; echo 0123456789abcdef > key)
";

pub(crate) fn in_client(world: &World, args: &[&str]) -> CommandOutput {
    let mut command = world.command("ip");
    command.args(["netns", "exec", "client", WEIR, "nat"]).args(args);
    world.run(command)
}

pub(crate) fn json(world: &World, kind: &str, args: &[&str]) -> Value {
    documents::read(&in_client(world, &[args, &["--json"]].concat()).expect(0).stdout, kind)
}

pub(crate) fn verdict<'a>(check: &'a Value, id: &str) -> &'a str {
    let rows = check["rows"].as_array().unwrap();
    rows.iter().find(|row| row["id"] == id).unwrap()["verdict"].as_str().unwrap()
}

/// The observations of a check that its file of progress has.
pub(crate) fn kept(world: &World, file: &str) -> Value {
    let output = world.run(world.shell(&format!("cat {file}")));
    let content: Option<Value> = (output.code == 0).then(|| serde_json::from_str(&output.stdout).unwrap());
    content.map_or(Value::Null, |content| content["gateways"]["check"]["seen"].clone())
}

/// `weir serve` on the server.
pub(crate) fn serve(world: &World) -> Background {
    serve_with(world, &[])
}

/// The same with more options.
pub(crate) fn serve_with(world: &World, options: &[&str]) -> Background {
    let mut server = world.command("ip");
    server.args(["netns", "exec", "server", WEIR, "serve", "--key-file", "key"]);
    server.args(["--nat-address", "198.19.0.2", "--nat-address", "198.19.0.3"]);
    server.args(options);
    world.start("serve", server)
}
