//! Captures written by hand in every dialect, cut, mutated and made up.

use std::io::Cursor;
use std::time::Duration;

use proptest::prelude::*;

use super::bytes::ByteOrder;
use super::*;

/// Writes numbers in one byte order, and blocks around them.
#[derive(Clone)]
struct Bytes {
    order: ByteOrder,
    bytes: Vec<u8>,
}

impl Bytes {
    fn new(order: ByteOrder) -> Self {
        Self { order, bytes: Vec::new() }
    }

    fn u16(mut self, number: u16) -> Self {
        match self.order {
            ByteOrder::Big => self.bytes.extend(number.to_be_bytes()),
            ByteOrder::Little => self.bytes.extend(number.to_le_bytes()),
        }
        self
    }

    fn u32(mut self, number: u32) -> Self {
        match self.order {
            ByteOrder::Big => self.bytes.extend(number.to_be_bytes()),
            ByteOrder::Little => self.bytes.extend(number.to_le_bytes()),
        }
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    fn padded(self, bytes: &[u8]) -> Self {
        let padding = bytes.len().wrapping_neg() % 4;
        self.raw(bytes).raw(&[0; 3][..padding])
    }

    fn option(self, code: u16, value: &[u8]) -> Self {
        self.u16(code).u16(value.len() as u16).padded(value)
    }

    fn block(self, kind: u32, body: impl FnOnce(Self) -> Self) -> Self {
        let body = body(Self::new(self.order)).bytes;
        let length = body.len() as u32 + 12;
        self.u32(kind).u32(length).raw(&body).u32(length)
    }

    fn section(self) -> Self {
        self.block(0x0a0d_0d0a, |b| b.u32(0x1a2b_3c4d).u16(1).u16(0).raw(&[0xff; 8]))
    }

    fn interface(self, options: impl FnOnce(Self) -> Self) -> Self {
        self.block(1, |b| options(b.u16(1).u16(0).u32(0)))
    }

    fn enhanced(self, interface: u32, ticks: u64, data: &[u8]) -> Self {
        self.block(6, |b| {
            let b = b.u32(interface).u32((ticks >> 32) as u32).u32(ticks as u32);
            b.u32(data.len() as u32).u32(data.len() as u32).padded(data)
        })
    }

    /// A pcap header and two records: 1.5 s whole, 2 s cut by the snap length.
    fn pcap(self, magic: u32, ticks: u32) -> Self {
        let header = self.u32(magic).u16(2).u16(4).u32(0).u32(0).u32(65535).u32(1);
        let first = header.u32(1).u32(ticks).u32(3).u32(3).raw(b"abc");
        first.u32(2).u32(0).u32(2).u32(60).raw(b"de")
    }
}

fn read(bytes: &[u8]) -> Result<Vec<Record>, Error> {
    Reader::new("in", bytes)?.collect()
}

/// The records before the error, and the error.
fn read_until_error(bytes: &[u8]) -> (usize, Error) {
    let mut reader = match Reader::new("in", bytes) {
        Ok(reader) => reader,
        Err(error) => return (0, error),
    };
    let whole = reader.by_ref().take_while(Result::is_ok).count();
    assert!(reader.next().is_none(), "nothing follows an error");
    // `take_while` swallowed the error: read again up to it.
    let error = Reader::new("in", bytes).expect("it began well before").nth(whole);
    (whole, error.expect("an error").expect_err("an error"))
}

const ORDERS: [ByteOrder; 2] = [ByteOrder::Big, ByteOrder::Little];

/// Every kind of block that is read, and one that is not.
fn pcapng(order: ByteOrder) -> Vec<u8> {
    Bytes::new(order)
        .section()
        .interface(|b| b.option(2, b"default/db").option(9, &[9]).option(0, &[]))
        .interface(|b| b.option(2, b"uplink"))
        .enhanced(0, 1_500_000_000, b"first")
        .block(0x0bad, |b| b.raw(&[7; 64]))
        .enhanced(1, 2_000_000, b"second!!")
        .block(3, |b| b.u32(3).padded(b"abc"))
        .block(2, |b| b.u16(1).u16(9).u32(0).u32(3_000_000).u32(1).u32(60).padded(b"x"))
        .bytes
}

#[test]
fn pcap_in_both_orders_and_resolutions() {
    for order in ORDERS {
        for (magic, ticks) in [(0xa1b2_c3d4, 500_000), (0xa1b2_3c4d, 500_000_000)] {
            let records = read(&Bytes::new(order).pcap(magic, ticks).bytes).expect("a capture");
            assert_eq!(records.len(), 2);
            assert_eq!(records[0].time, Duration::from_millis(1500));
            assert_eq!((&records[0].data[..], records[0].is_truncated()), (&b"abc"[..], false));
            assert_eq!((&records[1].data[..], records[1].original_length), (&b"de"[..], 60));
            assert!(records[1].is_truncated());
            assert_eq!((records[0].offset, records[1].offset), (24, 24 + 16 + 3));
            assert_eq!(records[0].interface, None);
        }
    }
}

#[test]
fn pcapng_in_both_orders() {
    for order in ORDERS {
        let records = read(&pcapng(order)).expect("a capture");
        let seen: Vec<_> = records
            .iter()
            .map(|r| (r.interface.as_deref(), r.time.as_millis(), &r.data[..], r.is_truncated()))
            .collect();
        assert_eq!(
            seen,
            [
                (Some("default/db"), 1500, &b"first"[..], false),
                (Some("uplink"), 2000, b"second!!", false),
                (Some("default/db"), 2000, b"abc", false),
                (Some("uplink"), 3000, b"x", true),
            ]
        );
    }
}

#[test]
fn sections_in_turn_have_their_own_order_and_interfaces() {
    let mut bytes = pcapng(ByteOrder::Big);
    let second = bytes.len() as u64;
    bytes.extend(pcapng(ByteOrder::Little));
    assert_eq!(read(&bytes).expect("a capture").len(), 8);

    // The interfaces of the first section do not count in the second.
    bytes.truncate(second as usize);
    bytes.extend(Bytes::new(ByteOrder::Little).section().enhanced(0, 0, b"x").bytes);
    let (whole, error) = read_until_error(&bytes);
    assert_eq!((whole, error.offset), (4, second + 28));
    assert!(matches!(error.fault, Fault::UnknownInterface { interface: 0, described: 0 }));
}

#[test]
fn a_simple_packet_ends_at_the_snap_length() {
    let bytes = Bytes::new(ByteOrder::Little)
        .section()
        .block(1, |b| b.u16(1).u16(0).u32(5))
        .block(3, |b| b.u32(60).padded(b"12345"))
        .bytes;
    let records = read(&bytes).expect("a capture");
    assert_eq!((&records[0].data[..], records[0].original_length), (&b"12345"[..], 60));
}

#[test]
fn what_is_no_capture() {
    let fault = |bytes: &[u8]| read(bytes).expect_err("no capture").fault;
    assert!(matches!(fault(b""), Fault::Empty));
    assert!(matches!(fault(b"ab"), Fault::NotACapture));
    assert!(matches!(fault(b"apiVersion: v1\nkind: Pod\n"), Fault::NotACapture));
    let error = Reader::open("/nonexistent/in.pcap").expect_err("no file");
    assert!(error.to_string().starts_with("/nonexistent/in.pcap: No such file"), "{error}");
}

#[test]
fn other_link_types_and_versions_are_refused() {
    let little = || Bytes::new(ByteOrder::Little);
    let pcap = little().u32(0xa1b2_c3d4).u16(2).u16(4).raw(&[0; 12]).u32(127).bytes;
    let error = read(&pcap).expect_err("radiotap");
    assert_eq!(
        error.to_string(),
        "in: offset 0: link type 127 is not supported: Ethernet (1), raw IP (101) and Linux's cooked captures (113, 276) are"
    );
    let old = little().u32(0xa1b2_c3d4).u16(1).u16(4).raw(&[0; 16]).bytes;
    assert!(matches!(read(&old), Err(Error { fault: Fault::Version { major: 1, .. }, .. })));
}

/// Packets of an interface that nothing here understands are counted, and those of others read.
#[test]
fn one_interface_of_another_kind_hides_no_other() {
    let packet = |interface: u32| {
        move |b: Bytes| b.u32(interface).u32(0).u32(0).u32(4).u32(4).raw(&[0x45, 1, 2, 3])
    };
    let file = Bytes::new(ByteOrder::Little)
        .section()
        .block(1, |b| b.u16(127).u16(0).u32(0))
        .block(1, |b| b.u16(101).u16(0).u32(0))
        .block(6, packet(0))
        .block(6, packet(1))
        .bytes;
    let mut reader = Reader::new("in", &file[..]).expect("a capture");
    let records: Vec<Record> = reader.by_ref().map(|it| it.expect("a record")).collect();
    assert_eq!((records.len(), reader.passed_over()), (1, 1));
    assert_eq!(
        (&records[0].data[12..], records[0].original_length),
        (&[8, 0, 0x45, 1, 2, 3][..], 18)
    );
}

#[test]
fn lengths_that_cannot_be() {
    let little = || Bytes::new(ByteOrder::Little).section();
    let cases = [
        (little().u32(6).u32(8).u32(8).bytes, "length of 8"),
        (little().u32(77).u32(14).raw(&[0; 6]).bytes, "length of 14"),
        (little().u32(77).u32(12).u32(16).bytes, "begins with length 12 and ends with length 16"),
        (little().interface(|b| b).block(6, |b| b.raw(&[0; 8])).bytes, "length of 20"),
        (little().interface(|b| b).block(6, |b| b.raw(&[0; 12]).u32(9).u32(9)).bytes, "of 32"),
        (
            little().interface(|b| b).block(6, |b| b.raw(&[0; 12]).u32(1 << 30).u32(9)).bytes,
            "1073741824 bytes of packet",
        ),
    ];
    for (bytes, part) in cases {
        let error = read(&bytes).expect_err(part);
        assert!(error.to_string().contains(part), "{error}");
    }
    let pcap = Bytes::new(ByteOrder::Big).pcap(0xa1b2_c3d4, 0).u32(0).u32(0).u32(1 << 20).u32(9);
    let (whole, error) = read_until_error(&pcap.bytes);
    assert_eq!((whole, error.offset), (2, 24 + 19 + 18));
}

/// Cut anywhere, a capture gives the records that are whole, then the offset of the one that is not.
#[test]
fn cut_anywhere() {
    let pcap = Bytes::new(ByteOrder::Little).pcap(0xa1b2_c3d4, 0).bytes;
    for bytes in [pcap, pcapng(ByteOrder::Big), pcapng(ByteOrder::Little)] {
        let whole = read(&bytes).expect("a capture");
        for end in 5..bytes.len() {
            let cut = &bytes[..end];
            let Ok(reader) = Reader::new("in", cut) else { continue };
            let mut records = Vec::new();
            for record in reader {
                match record {
                    Ok(record) => records.push(record),
                    Err(error) => {
                        assert!(matches!(error.fault, Fault::Cut { .. }), "at {end}: {error}");
                        assert!(error.offset < end as u64);
                        assert!(records.iter().all(|record| record.offset < error.offset));
                        assert!(whole.iter().filter(|r| r.offset < error.offset).eq(&records));
                    }
                }
            }
            assert_eq!(records, whole[..records.len()]);
        }
    }
}

#[test]
fn written_and_read_again() {
    let mut writer = Writer::new(Vec::new()).expect("memory");
    writer.interface(Some("host")).expect("memory");
    let packets = [
        (Some("default/db"), Duration::new(1_800_000_000, 123_456_789), &b"12345"[..], 5),
        (None, Duration::ZERO, b"", 0),
        (Some("uplink"), Duration::from_nanos(u64::MAX), b"1234", 1500),
        (Some("default/db"), Duration::from_nanos(1), b"1", 1),
    ];
    for (interface, time, data, length) in packets {
        writer.write(interface, time, data, length).expect("memory");
    }
    let bytes = writer.finish().expect("memory");
    let records = read(&bytes).expect("what was written");
    let seen =
        records.iter().map(|r| (r.interface.as_deref(), r.time, &r.data[..], r.original_length));
    assert!(seen.eq(packets));
}

#[test]
fn an_input_that_fails_is_an_error() {
    struct Failing;
    impl std::io::Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("the disk is gone"))
        }
    }
    let input = std::io::Read::chain(Cursor::new(pcapng(ByteOrder::Big)), Failing);
    let error = Reader::new("in", input).expect("it begins well").last().expect("an error");
    assert!(error.expect_err("an error").to_string().ends_with("the disk is gone"));
}

proptest! {
    #[test]
    fn no_bytes_are_harmful(
        magic in prop::sample::select(vec![
            vec![], vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0], b"\n\r\r\n\x1c\0\0\0\x4d\x3c\x2b\x1a\x01\0".to_vec(),
        ]),
        bytes in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let _ = read(&[magic, bytes].concat());
    }

    /// Whatever is changed, the records before the first change stay.
    #[test]
    fn mutated_captures_are_read_up_to_the_change(
        which in 0..3usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let whole = match which {
            0 => Bytes::new(ByteOrder::Little).pcap(0xa1b2_c3d4, 7).bytes,
            1 => pcapng(ByteOrder::Big),
            _ => pcapng(ByteOrder::Little),
        };
        let mut bytes = whole.clone();
        for (index, byte) in changes {
            bytes[index.index(whole.len())] = byte;
        }
        let same = whole.iter().zip(&bytes).take_while(|(a, b)| a == b).count() as u64;
        let before = read(&whole).expect("a capture");
        let ends = before.iter().skip(1).map(|r| r.offset).chain([whole.len() as u64]);
        // A record lies before the change if the next one does.
        let sure = ends.take_while(|end| *end <= same).count();
        let mut after = Vec::new();
        if let Ok(reader) = Reader::new("in", &bytes[..]) {
            after.extend(reader.map_while(Result::ok));
        }
        prop_assert_eq!(&before[..sure], after.get(..sure).unwrap_or_default());
    }
}
