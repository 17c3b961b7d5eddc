//! Publishes ports until its standard input ends, and then says what was counted.
//!
//!     publish_port OUTER-INTERFACE CONTAINER-INTERFACE tcp 198.18.0.1:80 198.19.0.2:8080 [udp ...]

use std::io::Read;

use weir_publish::{Links, Mapping, Protocol, Publish};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [outer, container, rest @ ..] = &words[..] else {
        return Err("expected OUTER-INTERFACE CONTAINER-INTERFACE (tcp|udp PUBLISHED CONTAINER)...".into());
    };
    let mut mappings = Vec::new();
    for mapping in rest.chunks(3) {
        let [protocol, published, inner] = mapping else {
            return Err("a mapping is a protocol, a published address with port, and the container's".into());
        };
        let protocol = match protocol.as_str() {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            _ => return Err("a protocol is tcp or udp".into()),
        };
        mappings.push(Mapping { protocol, published: published.parse()?, container: inner.parse()? });
    }
    let mut publish = Publish::load(&mappings, Links::find(outer, container)?)?;
    publish.attach()?;
    eprintln!("published");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    for (direction, reason, count) in publish.status()?.reasons {
        println!("{direction:?} {reason:?}: {} packets, {} bytes", count.packets, count.bytes);
    }
    Ok(())
}
