//! Matches answers to questions: an answer counts if the same pod asked the same resolver over the
//! same flow, with the same identifier, type and name, letter case included.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::Stream;
use crate::message::{self, Question};

/// A DNS packet between a pod and a resolver, with addresses and ports as the pod sees them.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The pod's end.
    pub pod: SocketAddr,
    /// The resolver's end.
    pub resolver: SocketAddr,
    /// True if the pod sent it.
    pub from_pod: bool,
    /// The place in the stream; `None` for UDP.
    pub segment: Option<Segment>,
    /// Bytes behind the transport header.
    pub payload: &'a [u8],
}

/// A TCP segment's place in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its sequence number.
    pub sequence: u32,
    /// True if it opens or accepts the connection (SYN).
    pub syn: bool,
    /// True if it resets the connection (RST).
    pub rst: bool,
}

/// Addresses for a name that a pod asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The name in lower case, without a full stop at the end.
    pub name: Arc<str>,
    /// The addresses and the seconds they may be used; maybe none.
    pub addresses: Vec<(IpAddr, u32)>,
}

/// Questions of pods without an answer yet.
///
/// Bounds, for each address of a pod: 256 questions, the oldest making room; 16 connections, the one
/// idle for longest making room. A question is remembered for 15 seconds, a connection for a minute
/// after its last packet.
#[derive(Debug, Default)]
pub struct Follower {
    pods: HashMap<IpAddr, Pod>,
}

#[derive(Debug, Default)]
struct Pod {
    asked: VecDeque<Asked>,
    connections: HashMap<Ends, Connection>,
}

/// Ports of a pod and its resolver's end.
type Ends = (u16, SocketAddr);

#[derive(Debug)]
struct Asked {
    ends: Ends,
    is_tcp: bool,
    question: Question,
    at: Duration,
}

#[derive(Debug)]
struct Connection {
    questions: Stream,
    /// Absent before the resolver accepted the connection.
    answers: Option<Stream>,
    last: Duration,
}

const MOST_QUESTIONS: usize = 256;
const MOST_CONNECTIONS: usize = 16;
/// Longest wait for an answer: longer than resolvers' clients wait.
const PATIENCE: Duration = Duration::from_secs(15);
const IDLE: Duration = Duration::from_secs(60);
/// Longest question over TCP.
const LONGEST_QUESTION: usize = 1024;
const LONGEST_ANSWER: usize = u16::MAX as usize;

impl Follower {
    /// Takes a packet. Remembers questions about names that the pod `wants`; returns the answers to
    /// remembered questions that this packet completes.
    pub fn take(
        &mut self,
        seen: &Seen<'_>,
        wants: impl Fn(&str) -> bool,
        now: Duration,
    ) -> Vec<Answer> {
        let ends = (seen.pod.port(), seen.resolver);
        let address = seen.pod.ip();
        if !seen.from_pod && !self.pods.contains_key(&address) {
            return Vec::new();
        }
        let pod = self.pods.entry(address).or_default();
        let mut answers = Vec::new();
        match seen.segment {
            None if seen.from_pod => pod.ask(ends, false, seen.payload, wants, now),
            None => answers.extend(pod.answer(ends, false, seen.payload, now)),
            Some(segment) => {
                let mut messages = Vec::new();
                pod.segment(seen, segment, now, |message| messages.push(message.to_vec()));
                for message in messages {
                    match seen.from_pod {
                        true => pod.ask(ends, true, &message, &wants, now),
                        false => answers.extend(pod.answer(ends, true, &message, now)),
                    }
                }
            }
        }
        answers
    }

    /// Forgets questions and connections that are too old.
    pub fn expire(&mut self, now: Duration) {
        self.pods.retain(|_, pod| {
            pod.expire(now);
            pod.connections.retain(|_, it| now.saturating_sub(it.last) < IDLE);
            !pod.asked.is_empty() || !pod.connections.is_empty()
        });
    }

    /// Questions that wait for their answers.
    pub fn questions(&self) -> usize {
        self.pods.values().map(|pod| pod.asked.len()).sum()
    }
}

impl Pod {
    fn expire(&mut self, now: Duration) {
        while self.asked.front().is_some_and(|it| now.saturating_sub(it.at) >= PATIENCE) {
            self.asked.pop_front();
        }
    }

    fn ask(
        &mut self,
        ends: Ends,
        is_tcp: bool,
        message: &[u8],
        wants: impl Fn(&str) -> bool,
        now: Duration,
    ) {
        let Some(question) = message::question(message).filter(|it| wants(&it.name)) else {
            return;
        };
        if self.asked.len() == MOST_QUESTIONS {
            self.asked.pop_front();
        }
        self.asked.push_back(Asked { ends, is_tcp, question, at: now });
    }

    /// Each question has one answer. One that was cut short leaves its question, which is asked
    /// again by TCP; so does nothing for UDP.
    fn answer(
        &mut self,
        ends: Ends,
        is_tcp: bool,
        message: &[u8],
        now: Duration,
    ) -> Option<Answer> {
        self.expire(now);
        let response = message::response(message)?;
        let at = self.asked.iter().position(|asked| {
            asked.question == response.question && asked.ends == ends && asked.is_tcp == is_tcp
        })?;
        self.asked.remove(at);
        let name = response.question.name.to_ascii_lowercase().into();
        Some(Answer { name, addresses: response.addresses })
    }

    /// Takes a segment; the messages that it completes go to `each`.
    fn segment(
        &mut self,
        seen: &Seen<'_>,
        segment: Segment,
        now: Duration,
        each: impl FnMut(&[u8]),
    ) {
        let ends = (seen.pod.port(), seen.resolver);
        if segment.rst {
            self.connections.remove(&ends);
            return;
        }
        // The opening flag takes a number of its own.
        let first = segment.sequence.wrapping_add(u32::from(segment.syn));
        if segment.syn && seen.from_pod {
            self.make_room(&ends);
            let questions = Stream::new(first, LONGEST_QUESTION);
            self.connections.insert(ends, Connection { questions, answers: None, last: now });
        }
        let Some(connection) = self.connections.get_mut(&ends) else { return };
        connection.last = now;
        if segment.syn && !seen.from_pod && connection.answers.is_none() {
            connection.answers = Some(Stream::new(first, LONGEST_ANSWER));
        }
        let stream = match seen.from_pod {
            true => &mut connection.questions,
            false => match &mut connection.answers {
                Some(answers) => answers,
                None => return,
            },
        };
        if stream.take(first, seen.payload, each).is_err() {
            self.connections.remove(&ends);
        }
    }

    fn make_room(&mut self, ends: &Ends) {
        if self.connections.len() < MOST_CONNECTIONS || self.connections.contains_key(ends) {
            return;
        }
        let oldest = self.connections.iter().min_by_key(|(_, it)| it.last).map(|(ends, _)| *ends);
        oldest.and_then(|oldest| self.connections.remove(&oldest));
    }
}
