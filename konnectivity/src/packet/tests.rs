use proptest::prelude::*;

use super::*;

fn hex(packet: &Packet) -> String {
    let mut out = Vec::new();
    packet.encode(&mut out);
    out.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden_bytes() {
    let dial =
        Packet::DialRequest { protocol: "tcp".into(), address: "127.0.0.1:80".into(), random: 300 };
    assert_eq!(hex(&dial), "1216 0a03746370 120c3132372e302e302e313a3830 18ac02".replace(' ', ""));
    let answer = Packet::DialResponse { error: String::new(), connection: 1, random: 300 };
    assert_eq!(hex(&answer), "08011a05100118ac02");
    let refused = Packet::DialResponse { error: "no".into(), connection: 0, random: 1 };
    assert_eq!(hex(&refused), "08011a060a026e6f1801");
    assert_eq!(hex(&Packet::CloseRequest { connection: 1, half: false }), "08022a020801");
    assert_eq!(hex(&Packet::CloseResponse { error: String::new(), connection: 1 }), "080332021001");
    let data = Packet::Data { connection: 1, error: String::new(), bytes: "hi".into() };
    assert_eq!(hex(&data), "080422060801 1a026869".replace(' ', ""));
    assert_eq!(hex(&Packet::DialClosed { random: 5 }), "08053a020805");
    assert_eq!(hex(&Packet::Drain), "08064200");
    // A negative number takes ten bytes.
    assert_eq!(hex(&Packet::DialClosed { random: -1 }), "08053a0b08ffffffffffffffffff01");
    // Both ends have to agree before this one is sent.
    assert_eq!(
        hex(&Packet::Credit { connection: 1, bytes: 2 }),
        "0840820404 0801 1002".replace(' ', "")
    );
}

#[test]
fn unknown_fields_are_skipped_and_order_does_not_matter() {
    let bytes = Bytes::from_static(&[
        0x2a, 0x02, 0x08, 0x07, // close request, connection 7
        0x79, 1, 2, 3, 4, 5, 6, 7, 8, // field 15, eight bytes
        0x7d, 1, 2, 3, 4, // field 15, four bytes
        0x08, 0x02, // type
    ]);
    assert_eq!(Packet::decode(&bytes), Ok(Packet::CloseRequest { connection: 7, half: false }));
}

#[test]
fn faults_are_told_with_their_offset() {
    let fault = |bytes: &[u8]| Packet::decode(&Bytes::copy_from_slice(bytes)).unwrap_err();
    assert_eq!(fault(&[]), PacketError::Payload("DIAL_REQ"));
    assert_eq!(fault(&[0x08]), PacketError::Cut(1));
    assert_eq!(fault(&[0x08, 0x09]), PacketError::Type(9));
    assert_eq!(fault(&[0x08, 0x04, 0x22, 0x05, 0x08]), PacketError::Cut(4));
    assert_eq!(fault(&[0x0b]), PacketError::Field(0));
    assert_eq!(fault(&[0x00, 0x00]), PacketError::Field(0));
    assert_eq!(fault(&[0xff; 11]), PacketError::Number(0));
    assert_eq!(fault(&[0x12, 0x03, 0x0a, 0x01, 0xff]), PacketError::Text(4));
    // The type says one thing, the payload another.
    assert_eq!(fault(&[0x08, 0x04, 0x3a, 0x00]), PacketError::Payload("DATA"));
}

fn packets() -> impl Strategy<Value = Packet> {
    let text = "[a-z0-9.:]{0,20}";
    prop_oneof![
        (text, text, any::<i64>()).prop_map(|(protocol, address, random)| Packet::DialRequest {
            protocol,
            address,
            random
        }),
        (text, any::<i64>(), any::<i64>()).prop_map(|(error, connection, random)| {
            Packet::DialResponse { error, connection, random }
        }),
        (any::<i64>(), any::<bool>())
            .prop_map(|(connection, half)| Packet::CloseRequest { connection, half }),
        (text, any::<i64>())
            .prop_map(|(error, connection)| Packet::CloseResponse { error, connection }),
        (any::<i64>(), text, proptest::collection::vec(any::<u8>(), 0..300)).prop_map(
            |(connection, error, bytes)| Packet::Data { connection, error, bytes: bytes.into() }
        ),
        any::<i64>().prop_map(|random| Packet::DialClosed { random }),
        Just(Packet::Drain),
        (any::<i64>(), any::<i64>())
            .prop_map(|(connection, bytes)| Packet::Credit { connection, bytes }),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(packet in packets()) {
        let mut out = Vec::new();
        packet.encode(&mut out);
        prop_assert_eq!(Packet::decode(&out.into()), Ok(packet));
    }

    #[test]
    fn any_bytes_are_a_packet_or_a_fault(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let bytes = Bytes::from(bytes);
        if let Ok(packet) = Packet::decode(&bytes) {
            let mut again = Vec::new();
            packet.encode(&mut again);
            prop_assert_eq!(Packet::decode(&again.into()), Ok(packet));
        }
    }
}
