//! Parses a client's bytes as a server does, without a socket: for tests and fuzzing.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::grpc::Assembler;
use http2::{Field, Handler, Link, Receiver, Role, Settings};

/// The result of parsing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Headers and resets, in their order.
    pub events: Vec<String>,
    /// By stream: its packets, and its fault.
    pub packets: BTreeMap<u32, Vec<String>>,
    /// The fault that ended the connection.
    pub fault: Option<String>,
}

/// Reads a client's connection that arrives in pieces of this many bytes.
pub fn survey(bytes: &[u8], piece: usize) -> Survey {
    let settings = Settings { stream_window: 65_535, connection_window: 65_535, streams: 100 };
    let link = Link::new(Role::Server, settings);
    let mut receiver = Receiver::new(Role::Server);
    let mut surveyor = Surveyor::default();
    for chunk in bytes.chunks(piece.max(1)) {
        if let Err(fault) = receiver.receive(chunk, 0, &link, &mut surveyor) {
            surveyor.survey.fault = Some(fault.to_string());
            break;
        }
    }
    surveyor.survey
}

#[derive(Default)]
struct Surveyor {
    survey: Survey,
    assemblers: BTreeMap<u32, Option<Assembler>>,
}

impl Surveyor {
    fn event(&mut self, text: String) {
        self.survey.events.push(text);
    }
}

impl Handler for Surveyor {
    fn headers(&mut self, _link: &Arc<Link>, stream: u32, fields: Vec<Field>, end: bool) {
        let fields: Vec<String> =
            fields.iter().map(|field| format!("{}={}", field.name, field.value)).collect();
        self.event(format!("{stream}: {} end={end}", fields.join(" ")));
        self.assemblers.entry(stream).or_insert_with(|| Some(Assembler::default()));
    }

    fn data(&mut self, link: &Arc<Link>, stream: u32, bytes: &[u8], end: bool) {
        link.release(stream, bytes.len());
        let packets = self.survey.packets.entry(stream).or_default();
        if let Some(Some(assembler)) = self.assemblers.get_mut(&stream) {
            let pushed = assembler.push(bytes, |it| {
                packets.push(format!("{:?}", it.packet));
                true
            });
            if let Err(error) = pushed {
                packets.push(error.to_string());
                self.assemblers.insert(stream, None);
            }
        }
        if end {
            self.event(format!("{stream}: end"));
        }
    }

    fn reset(&mut self, _link: &Arc<Link>, stream: u32, code: u32) {
        self.event(format!("{stream}: reset {code}"));
    }
}
