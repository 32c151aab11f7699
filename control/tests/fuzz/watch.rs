//! Any bytes as the answer to a watch of the API server.

use control::api_server::{Event, InitialSync, parse_watch, parse_watch_protobuf};
use control::{Control, Kind, Scope};

/// Applies the events to a cluster; the first byte chooses the kind, and its highest bit protobuf.
pub(crate) fn check(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    let kind = Kind::ALL[usize::from(first & 0x7f) % Kind::ALL.len()];
    let parse = if *first < 0x80 { parse_watch } else { parse_watch_protobuf };
    let events = parse(kind, rest);
    assert_eq!(parse(kind, rest), events, "a stream has one meaning");
    let of_kind = |event: &Event| match event {
        Event::Resync(of, objects, _) => *of == kind && objects.iter().all(|it| it.kind() == kind),
        Event::Apply(object, _) => object.kind() == kind,
        Event::Delete(reference) => reference.kind == kind,
        _ => true,
    };
    assert!(events.iter().all(of_kind), "a watch reports its own kind");
    let mut control = Control::new(Scope::All);
    let mut buffer = InitialSync::default();
    for event in &events {
        buffer.take(event.clone());
        control.handle(event.clone());
        control.commit();
    }
    // The initial-sync buffer leads to the same objects.
    let mut buffered = Control::new(Scope::All);
    buffer.work_in(&mut buffered);
    buffered.commit();
    assert_eq!(buffered.counts(), control.counts());
}
