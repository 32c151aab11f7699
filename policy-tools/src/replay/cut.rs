//! Packets that a capture has the beginning of.

use dataplane::capture::Record;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Bytes of a transport header that policies and sessions look at.
const TRANSPORT: usize = 8;
/// Bytes of the fixed header of IPv6.
const IPV6: usize = 40;

/// Fills a packet that was cut behind its headers up with zeros, so that it is decided about by these; returns whether
/// it was.
pub(super) fn completed(record: &mut Record) -> bool {
    let headers = headers(&record.data);
    let is_cut = record.is_truncated() && headers.is_some_and(|it| it <= record.data.len());
    if is_cut {
        record.data.resize(record.original_length as usize, 0);
    }
    is_cut
}

/// The length of the headers of an IP packet, without options of IPv6.
fn headers(frame: &[u8]) -> Option<usize> {
    match (frame.get(12..ETHERNET)?, frame.get(ETHERNET)?) {
        ([8, 0], first) => Some(ETHERNET + usize::from(first & 0xf) * 4 + TRANSPORT),
        ([0x86, 0xdd], _) => Some(ETHERNET + IPV6 + TRANSPORT),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use testkit::packet::tcp;

    use super::*;

    #[test]
    fn a_packet_is_filled_up_where_its_headers_are_there() {
        let whole: Vec<u8> = tcp("10.1.1.2:1", "10.1.1.3:2").syn().into();
        let record = |length: usize| Record {
            data: whole[..length].to_vec(),
            original_length: whole.len() as u32,
            ..Record::default()
        };
        for (length, is_cut) in [(whole.len(), false), (42, true), (41, false), (13, false)] {
            let mut cut = record(length);
            assert_eq!(completed(&mut cut), is_cut, "{length}");
            let expected = if is_cut { whole.len() } else { length };
            assert_eq!(cut.data.len(), expected, "{length}");
        }
    }
}
