//! Protocols and TCP flags by name.

use dataplane::wire::protocol;

/// Name of the protocol with this IP number (IANA).
pub fn protocol_name(number: u8) -> String {
    match number {
        protocol::TCP => "TCP".to_owned(),
        protocol::UDP => "UDP".to_owned(),
        protocol::SCTP => "SCTP".to_owned(),
        protocol::ICMP => "ICMP".to_owned(),
        protocol::ICMPV6 => "ICMPv6".to_owned(),
        other => other.to_string(),
    }
}

/// RFC 9293, section 3.1.
pub fn flag_names(flags: u8) -> String {
    const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
    let set = NAMES.iter().enumerate().filter(|(bit, _)| flags >> bit & 1 == 1);
    set.map(|(_, name)| *name).collect::<Vec<_>>().join(",")
}
