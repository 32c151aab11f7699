//! SCTP's checksum: CRC32c (RFC 9260, appendix A).

/// The checksum's bytes in SCTP's common header; sent in little-endian order.
pub(crate) const FIELD: std::ops::Range<usize> = 8..12;

/// Writes the checksum of an SCTP packet. Packets without a whole common header stay as they are.
pub fn finish(packet: &mut [u8]) {
    let Some(field) = packet.get_mut(FIELD) else { return };
    field.fill(0);
    let sum = of(packet);
    packet[FIELD].copy_from_slice(&sum.to_le_bytes());
}

/// The CRC of some bytes.
pub fn of(bytes: &[u8]) -> u32 {
    !more(!0, bytes)
}

/// The CRC register after more bytes, which starts as `!0` and is inverted at the end.
pub(crate) fn more(crc: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(crc, |crc: u32, byte| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)])
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let (mut crc, mut bit) = (n as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[n] = crc;
        n += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    #[test]
    fn the_checksum_of_the_catalogue() {
        assert_eq!(super::of(b"123456789"), 0xe306_9283);
    }
}
