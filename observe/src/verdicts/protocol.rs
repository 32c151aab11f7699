//! Protocols and TCP flags by name.

use dataplane::wire::protocol;

/// Protocols with a name, and their IP numbers (IANA).
const NAMED: [(&str, u8); 5] = [
    ("TCP", protocol::TCP),
    ("UDP", protocol::UDP),
    ("SCTP", protocol::SCTP),
    ("ICMP", protocol::ICMP),
    ("ICMPv6", protocol::ICMPV6),
];

/// Name of the protocol with this IP number, or the number.
pub fn protocol_name(number: u8) -> String {
    let named = NAMED.into_iter().find(|(_, it)| *it == number);
    named.map_or_else(|| number.to_string(), |(name, _)| name.to_owned())
}

/// The protocol of a name in whatever case, or of a number.
///
/// # Errors
/// Returns the names.
pub(crate) fn protocol_number(text: &str) -> Result<u8, String> {
    let named = NAMED.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    let number = named.map(|(_, number)| number).or_else(|| text.parse().ok());
    number.ok_or_else(|| NAMED.map(|(name, _)| name).join(", "))
}

/// RFC 9293, section 3.1.
pub fn flag_names(flags: u8) -> String {
    const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
    let set = NAMES.iter().enumerate().filter(|(bit, _)| flags >> bit & 1 == 1);
    set.map(|(_, name)| *name).collect::<Vec<_>>().join(",")
}
