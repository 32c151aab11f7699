//! Any bytes as a capture file.

use std::io::Cursor;

use dataplane::capture::{Reader, Writer};

/// Reads a capture to its end or its first fault, and what was written of it once more.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(reader) = Reader::new("fuzz", Cursor::new(bytes)) else { return };
    let mut writer = Writer::new(Vec::new()).expect("memory does not fail");
    let mut records = Vec::new();
    for record in reader {
        let Ok(record) = record else { break };
        let length = record.original_length.max(record.data.len() as u32);
        let interface = record.interface.as_deref();
        if writer.write(interface, record.time, &record.data, length).is_ok() {
            records.push(record.data);
        }
    }
    let written = writer.finish().expect("memory does not fail");
    let again = Reader::new("again", Cursor::new(&written)).expect("what was written is a capture");
    let again: Vec<Vec<u8>> =
        again.map(|record| record.expect("whatever was written can be read").data).collect();
    assert_eq!(again, records);
}
