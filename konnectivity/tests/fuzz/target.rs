//! Checks that hold for any bytes that a client or an agent sends.

use bytes::Bytes;
use konnectivity::packet::Packet;
use konnectivity::survey::survey;

/// Checks it for these: the first byte says in which pieces the rest arrives.
pub(crate) fn check(bytes: &[u8]) {
    let Some((piece, rest)) = bytes.split_first() else { return };
    let mut connection = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    connection.extend_from_slice(rest);
    let whole = survey(&connection, connection.len());
    assert_eq!(survey(&connection, usize::from(*piece)), whole);
    if let Ok(packet) = Packet::decode(&Bytes::copy_from_slice(rest)) {
        let mut again = Vec::new();
        packet.encode(&mut again);
        assert_eq!(Packet::decode(&again.into()), Ok(packet));
    }
}
