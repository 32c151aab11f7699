//! Addresses with a meaning of their own.

use std::net::IpAddr;

/// Whether an address means no host outside: RFC 6890's special ones that packets could still be
/// sent to.
pub(crate) fn is_special(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [first, ..] = v4.octets();
            v4.is_loopback()
                || v4.is_link_local()
                || v4.is_multicast()
                || first == 0
                || first >= 240
        }
        IpAddr::V6(v6) => {
            let is_embedded = v6.to_ipv4().is_some();
            v6.is_loopback() || v6.is_unicast_link_local() || v6.is_multicast() || is_embedded
        }
    }
}
