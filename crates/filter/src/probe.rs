//! A packet to ask a program with.

use std::net::IpAddr;

/// TC_ACT_SHOT (include/uapi/linux/pkt_cls.h).
pub(crate) const SHOT: u32 = 2;

/// A frame of nothing but headers from that source to an address of documentation.
pub(crate) fn frame_from(source: IpAddr) -> Vec<u8> {
    match source {
        IpAddr::V4(_) => frame(source, IpAddr::from([192, 0, 2, 1])),
        IpAddr::V6(_) => frame(source, IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1])),
    }
}

/// A frame between two addresses of one family; if they are of two, the destination is left out and too little remains.
pub(crate) fn frame(source: IpAddr, destination: IpAddr) -> Vec<u8> {
    let mut frame = vec![2; 12];
    match source {
        IpAddr::V4(source) => {
            frame.extend([0x08, 0x00, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0]);
            frame.extend(source.octets());
        }
        IpAddr::V6(source) => {
            // 59: no next header.
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 59, 64]);
            frame.extend(source.octets());
        }
    }
    match (source, destination) {
        (IpAddr::V4(_), IpAddr::V4(destination)) => frame.extend(destination.octets()),
        (IpAddr::V6(_), IpAddr::V6(destination)) => frame.extend(destination.octets()),
        _ => {}
    }
    frame
}
