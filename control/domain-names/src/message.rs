//! DNS messages (RFC 1035): the question of one, and the addresses that an answer gives for it.
//!
//! Parsing is that of the crate `domain`. It reads in place and passes over records of other types.

use std::net::IpAddr;

use domain::base::iana::{Class, Opcode, Rcode, Rtype};
use domain::base::name::ParsedName;
use domain::base::{Message, Question as WireQuestion, ToName};
use domain::rdata::{A, Aaaa, Cname};

use crate::pattern::is_plain;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// The message's identifier.
    pub id: u16,
    /// The name in the letter case of the message, without a full stop at the end.
    pub name: Box<str>,
    /// The type of the records, by number: 1 for A, 28 for AAAA.
    pub rtype: u16,
}

/// An answer and its question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The question that it repeats.
    pub question: Question,
    /// True if it was truncated to fit a datagram; the client repeats the question over TCP.
    pub is_truncated: bool,
    /// Addresses at the end of the chain of aliases, of the type that was asked for, with the
    /// seconds they may be used; none if it is truncated or reports an error.
    pub addresses: Vec<(IpAddr, u32)>,
}

/// Most aliases followed from a name to its addresses.
const MOST_ALIASES: usize = 16;
/// Most records looked at in an answer.
const MOST_RECORDS: usize = 1024;

/// Reads a question for addresses. `None` for other messages, and for names with characters that no
/// policy can name.
pub fn question(message: &[u8]) -> Option<Question> {
    let message = Message::from_octets(message).ok()?;
    let header = message.header();
    if header.qr() || header.opcode() != Opcode::QUERY {
        return None;
    }
    asked(&message).map(|(question, _)| question)
}

/// Reads the answer to a question for addresses; `None` for other messages, and for one that cannot
/// be read to the end of its answers.
pub fn response(message: &[u8]) -> Option<Response> {
    let message = Message::from_octets(message).ok()?;
    let header = message.header();
    if !header.qr() || header.opcode() != Opcode::QUERY {
        return None;
    }
    let (question, name) = asked(&message)?;
    let is_truncated = header.tc();
    if is_truncated || header.rcode() != Rcode::NOERROR {
        return Some(Response { question, is_truncated, addresses: Vec::new() });
    }
    let addresses = addresses(&message, name, Rtype::from_int(question.rtype))?;
    Some(Response { question, is_truncated, addresses })
}

/// The only question of a message, if it is for addresses in the class of the internet.
fn asked<'a>(message: &'a Message<&'a [u8]>) -> Option<(Question, ParsedName<&'a [u8]>)> {
    let question: WireQuestion<ParsedName<&[u8]>> = message.sole_question().ok()?;
    let rtype = question.qtype();
    let is_for_addresses = matches!(rtype, Rtype::A | Rtype::AAAA | Rtype::ANY);
    if question.qclass() != Class::IN || !is_for_addresses {
        return None;
    }
    let name = text(question.qname())?;
    let id = message.header().id();
    Some((Question { id, name, rtype: rtype.to_int() }, question.into_qname()))
}

/// A name as text; `None` if a label has other characters than those of host names and underscores.
fn text(name: &ParsedName<&[u8]>) -> Option<Box<str>> {
    let mut text = String::new();
    for label in name.iter().filter(|label| !label.is_root()) {
        let label = std::str::from_utf8(label.as_slice()).ok().filter(|it| is_plain(it))?;
        if !text.is_empty() {
            text.push('.');
        }
        text.push_str(label);
    }
    Some(text.into())
}

/// Follows the aliases of `name` inside the answer. The seconds are the least along the chain.
fn addresses<'a>(
    message: &'a Message<&'a [u8]>,
    name: ParsedName<&'a [u8]>,
    rtype: Rtype,
) -> Option<Vec<(IpAddr, u32)>> {
    let mut aliases = Vec::new();
    let mut found: Vec<(ParsedName<&[u8]>, IpAddr, u32)> = Vec::new();
    for record in message.answer().ok()?.take(MOST_RECORDS) {
        let record = record.ok()?;
        if record.class() != Class::IN {
            continue;
        }
        let (owner, ttl_s) = (record.owner(), record.ttl().as_secs());
        let is_wanted = rtype == Rtype::ANY || rtype == record.rtype();
        match record.rtype() {
            Rtype::CNAME => {
                let record = record.into_record::<Cname<ParsedName<&[u8]>>>().ok()??;
                let (owner, alias) = (*record.owner(), record.into_data());
                aliases.push((owner, alias.into_cname(), ttl_s));
            }
            Rtype::A if is_wanted => {
                let data = record.to_record::<A>().ok()??.into_data();
                found.push((owner.deref_octets(), data.addr().into(), ttl_s));
            }
            Rtype::AAAA if is_wanted => {
                let data = record.to_record::<Aaaa>().ok()??.into_data();
                found.push((owner.deref_octets(), data.addr().into(), ttl_s));
            }
            _ => {}
        }
    }
    let (mut name, mut most_s) = (name, u32::MAX);
    for _ in 0..MOST_ALIASES {
        let alias =
            aliases.iter().find(|(owner, ..): &&(ParsedName<_>, _, _)| owner.name_eq(&name));
        let Some((_, target, ttl_s)) = alias else { break };
        (name, most_s) = (*target, most_s.min(*ttl_s));
    }
    let of_name = found.into_iter().filter(|(owner, ..)| owner.name_eq(&name));
    Some(of_name.map(|(_, address, ttl_s)| (address, ttl_s.min(most_s))).collect())
}
