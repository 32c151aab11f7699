use proptest::prelude::*;

use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let hex: String = hex.split_whitespace().collect();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn fields(list: &[(&str, &str)]) -> Vec<Field> {
    list.iter()
        .map(|(name, value)| Field { name: (*name).into(), value: (*value).into() })
        .collect()
}

/// RFC 7541, appendix C.3: three requests on one connection, without Huffman code.
#[test]
fn requests_of_the_rfc() {
    let mut decoder = Decoder::default();
    let base = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
    ];
    let first = bytes("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d");
    assert_eq!(decoder.decode(&first).unwrap(), fields(&base));
    let second = bytes("8286 84be 5808 6e6f 2d63 6163 6865");
    let expected = [&base[..], &[("cache-control", "no-cache")]].concat();
    assert_eq!(decoder.decode(&second).unwrap(), fields(&expected));
    let third = bytes("8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65");
    let expected = [
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ];
    assert_eq!(decoder.decode(&third).unwrap(), fields(&expected));
    assert_eq!(decoder.size, 164);
}

/// RFC 7541, appendix C.4: the same with Huffman code.
#[test]
fn requests_of_the_rfc_in_huffman_code() {
    let mut decoder = Decoder::default();
    let first = bytes("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff");
    assert_eq!(decoder.decode(&first).unwrap()[3].value, "www.example.com");
    let third = bytes("8287 85be 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf");
    let read = decoder.decode(&third).unwrap();
    assert_eq!(read[4], fields(&[("custom-key", "custom-value")])[0]);
}

#[test]
fn the_table_forgets_what_is_too_old() {
    let mut decoder = Decoder::default();
    // Room for one entry of 33 to 64 bytes.
    let mut block = vec![0x3f, 64 - 31];
    for name in ["a", "b"] {
        block.push(0x40);
        put_string(&mut block, name);
        put_string(&mut block, "1");
    }
    decoder.decode(&block).unwrap();
    assert_eq!(decoder.decode(&[0xbe]).unwrap(), fields(&[("b", "1")]));
    assert_eq!(decoder.decode(&[0xbf]), Err(HpackError::Index(63)));
    // An entry larger than the table empties it (section 4.4).
    let mut block = vec![0x40];
    put_string(&mut block, "c");
    put_string(&mut block, &"x".repeat(64));
    decoder.decode(&block).unwrap();
    assert_eq!(decoder.size, 0);
}

#[test]
fn faults() {
    let fault = |block: &[u8]| Decoder::default().decode(block).unwrap_err();
    assert_eq!(fault(&[0x80]), HpackError::Index(0));
    assert_eq!(fault(&[0xbe]), HpackError::Index(62));
    assert_eq!(fault(&[0x40]), HpackError::Cut);
    assert_eq!(fault(&[0x40, 0x05, b'a']), HpackError::Cut);
    assert_eq!(fault(&[0xff, 0xff, 0xff, 0xff, 0xff, 0x01]), HpackError::Number);
    assert_eq!(fault(&[0x3f, 0xe2, 0x1f]), HpackError::TableSize);
    // The table's size changes at the beginning of a block only.
    assert_eq!(fault(&[0x82, 0x20]), HpackError::TableSize);
    // A long value, indexed once and named very often.
    let mut block = vec![0x40];
    put_string(&mut block, "a");
    put_string(&mut block, &"x".repeat(4000));
    block.extend([0xbe; 17]);
    assert_eq!(fault(&block), HpackError::TooLong);
}

/// Sections 6.2.2 and 6.2.3: literals that stay out of the table.
#[test]
fn literals_without_index() {
    let mut decoder = Decoder::default();
    for first in [0x00, 0x10] {
        let mut block = vec![first];
        put_string(&mut block, "a");
        put_string(&mut block, "1");
        assert_eq!(decoder.decode(&block).unwrap(), fields(&[("a", "1")]));
        // A name from the table: `:path`.
        let mut block = vec![first | 4];
        put_string(&mut block, "/x");
        assert_eq!(decoder.decode(&block).unwrap(), fields(&[(":path", "/x")]));
    }
    assert_eq!(decoder.size, 0);
}

/// Section 4.4: a name may be that of an entry which the new one drives out.
#[test]
fn a_name_outlives_its_entry() {
    let mut decoder = Decoder::default();
    let mut block = vec![0x3f, 64 - 31, 0x40];
    put_string(&mut block, "name");
    put_string(&mut block, "1");
    block.push(0x40 | 62);
    put_string(&mut block, "2");
    assert_eq!(decoder.decode(&block).unwrap(), fields(&[("name", "1"), ("name", "2")]));
    assert_eq!(decoder.entries.len(), 1);
}

/// Section 4.3: a smaller table drops what no longer fits; a table of nothing drops all.
#[test]
fn a_smaller_table_evicts() {
    let mut decoder = Decoder::default();
    let mut block = Vec::new();
    for name in ["a", "b", "c"] {
        block.push(0x40);
        put_string(&mut block, name);
        put_string(&mut block, "1");
    }
    decoder.decode(&block).unwrap();
    assert_eq!(decoder.entries.len(), 3);
    // 68 bytes: two entries of 34. Then nothing, then the whole again, in one block.
    decoder.decode(&[0x3f, 68 - 31]).unwrap();
    assert_eq!(decoder.entries.len(), 2);
    decoder.decode(&[0x20, 0x3f, 0xe1, 0x1f]).unwrap();
    assert_eq!((decoder.entries.len(), decoder.limit), (0, 4096));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        list in proptest::collection::vec(("[a-z-]{1,12}", "[ -~]{0,200}"), 0..8)
    ) {
        let list: Vec<(&str, &str)> = list.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        let mut block = Vec::new();
        encode(list.iter().copied(), &mut block);
        prop_assert_eq!(Decoder::default().decode(&block).unwrap(), fields(&list));
    }

    #[test]
    fn any_bytes_are_headers_or_a_fault(
        blocks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 0..8)
    ) {
        let mut decoder = Decoder::default();
        for block in blocks {
            let fault = decoder.decode(&block).is_err();
            prop_assert!(decoder.size <= TABLE_BYTES);
            if fault {
                break;
            }
        }
    }
}
