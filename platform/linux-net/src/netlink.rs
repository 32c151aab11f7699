//! An rtnetlink socket with one request at a time.

use std::borrow::Cow;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use netlink_packet_core::{
    ErrorMessage, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_DUMP_INTR,
    NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload, NlasIterator,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::error::Error;
use super::raw_netlink::{HEADER as HEADER_BYTES, PATIENCE, RECEIVE_BYTES};
use super::sys;

/// A route netlink socket (rtnetlink(7)). It acts in the network namespace of
/// the thread that opened it.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
    /// The kernel's explanation of the last request it refused.
    words: Option<String>,
}

const NO_ANSWER: &str = "no answer from the kernel";
/// Changes that are requested with one call: their acknowledgements fit into the socket's buffer.
const TOGETHER: usize = 64;
/// Retries of a list that changed while it was read.
const ATTEMPTS: usize = 10;

impl Netlink {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// Fails if the kernel gives no socket.
    pub fn open() -> Result<Self, Error> {
        Self::open_for(0)
    }

    /// Opens a socket that also receives the multicast `groups` (a bit mask of `RTMGRP_…`).
    pub(super) fn open_for(groups: u32) -> Result<Self, Error> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind(&SocketAddr::new(0, groups))?;
            // Errors come with an explanation, and without a copy of the whole request.
            socket.set_ext_ack(true)?;
            socket.set_cap_ack(true)?;
            Ok(socket)
        };
        let socket = open().map_err(|cause| Error::new("open a netlink socket", cause))?;
        Ok(Self { socket, sequence: 0, words: None })
    }

    /// Requests a change and waits for the kernel's acknowledgement. `flags` are `NLM_F_…` besides
    /// REQUEST and ACK; `what` names the change in errors.
    pub(super) fn change(
        &mut self,
        what: &str,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<(), Error> {
        let sent = self.send(message, flags | NLM_F_ACK);
        let result = sent.and_then(|()| self.answers(|_| {}));
        result.map(drop).map_err(|cause| self.error(what, cause))
    }

    /// Requests changes as [`change`](Self::change) does, many with one call; the result of each, in their order.
    pub(super) fn change_all(
        &mut self,
        changes: impl IntoIterator<Item = (String, RouteNetlinkMessage)>,
        flags: u16,
    ) -> Vec<Result<(), Error>> {
        let (names, messages): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
        let mut results = Vec::new();
        for messages in messages.chunks(TOGETHER) {
            results.extend(self.change_some(messages, flags));
        }
        let named = names.into_iter().zip(results);
        named
            .map(|(what, (result, words))| {
                result.map_err(|cause| Error::new(what, cause).with_words(words))
            })
            .collect()
    }

    /// The results, each with the kernel's explanation.
    fn change_some(
        &mut self,
        messages: &[RouteNetlinkMessage],
        flags: u16,
    ) -> Vec<(io::Result<()>, Option<String>)> {
        let first = self.sequence.wrapping_add(1);
        let mut request = Vec::new();
        for message in messages {
            request.extend(self.encode(message.clone(), flags | NLM_F_ACK));
            request.resize(request.len().next_multiple_of(4), 0);
        }
        let mut results: Vec<Option<(io::Result<()>, Option<String>)>> = Vec::new();
        results.resize_with(messages.len(), || None);
        let mut read = || -> io::Result<()> {
            self.socket.send_to(&request, &SocketAddr::new(0, 0), 0)?;
            while results.iter().any(Option::is_none) {
                if !sys::readable(self.socket.as_fd(), Some(PATIENCE))? {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, NO_ANSWER));
                }
                for_each_message(&self.receive()?, |message| {
                    let place = message.header.sequence_number.wrapping_sub(first) as usize;
                    if let Some(result) = results.get_mut(place)
                        && let NetlinkPayload::Error(error) = message.payload
                    {
                        *result = Some(match error.code {
                            None => (Ok(()), None),
                            Some(_) => {
                                let words = explanation(&error, message.header.flags);
                                (Err(error.to_io()), words)
                            }
                        });
                    }
                })?;
            }
            Ok(())
        };
        let failed = read().err();
        let missing = || {
            let (kind, text) = match &failed {
                Some(error) => (error.kind(), error.to_string()),
                None => (io::ErrorKind::TimedOut, NO_ANSWER.to_owned()),
            };
            (Err(io::Error::new(kind, text)), None)
        };
        results.into_iter().map(|result| result.unwrap_or_else(missing)).collect()
    }

    /// Requests one object.
    pub(super) fn one(
        &mut self,
        what: &str,
        message: RouteNetlinkMessage,
    ) -> Result<RouteNetlinkMessage, Error> {
        let mut found = None;
        let sent = self.send(message, NLM_F_ACK);
        let result = sent.and_then(|()| self.answers(|answer| found = Some(answer)));
        result.map_err(|cause| self.error(what, cause))?;
        found.ok_or_else(|| Error::invalid(what, "the kernel's answer is empty"))
    }

    /// Requests all objects of a kind, as of one moment.
    pub(super) fn all(
        &mut self,
        what: &str,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, Error> {
        for _ in 0..ATTEMPTS {
            let mut found = Vec::new();
            let sent = self.send(message.clone(), NLM_F_DUMP);
            let result = sent.and_then(|()| self.answers(|one| found.push(one)));
            if result.map_err(|cause| self.error(what, cause))? {
                return Ok(found);
            }
        }
        Err(Error::new(what, io::Error::from_raw_os_error(libc::EAGAIN)))
    }

    /// Returns the next messages of the multicast groups; `None` when `timeout` ran out. `ENOBUFS`
    /// means that messages were lost.
    pub(super) fn events(
        &mut self,
        timeout: Option<Duration>,
    ) -> io::Result<Option<Vec<RouteNetlinkMessage>>> {
        if !sys::readable(self.socket.as_fd(), timeout)? {
            return Ok(None);
        }
        let buffer = self.receive()?;
        let mut received = Vec::new();
        for_each_message(&buffer, |message| {
            if let NetlinkPayload::InnerMessage(inner) = message.payload {
                received.push(inner);
            }
        })?;
        Ok(Some(received))
    }

    fn error(&mut self, what: &str, cause: io::Error) -> Error {
        Error::new(what, cause).with_words(self.words.take())
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let request = self.encode(message, flags);
        self.socket.send_to(&request, &SocketAddr::new(0, 0), 0).map(drop)
    }

    /// The bytes of the next request.
    fn encode(&mut self, message: RouteNetlinkMessage, flags: u16) -> Vec<u8> {
        self.sequence = self.sequence.wrapping_add(1);
        self.words = None;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut buffer = vec![0; message.buffer_len()];
        message.serialize(&mut buffer);
        buffer
    }

    /// Reads the answer to the last request to its end; returns whether it is consistent (nothing
    /// changed while it was written).
    fn answers(&mut self, mut each: impl FnMut(RouteNetlinkMessage)) -> io::Result<bool> {
        let mut consistent = true;
        loop {
            if !sys::readable(self.socket.as_fd(), Some(PATIENCE))? {
                return Err(io::Error::new(io::ErrorKind::TimedOut, NO_ANSWER));
            }
            let (mut end, mut words) = (None, None);
            let buffer = self.receive()?;
            for_each_message(&buffer, |message| {
                // Left over from an abandoned request.
                if message.header.sequence_number != self.sequence {
                    return;
                }
                consistent &= message.header.flags & NLM_F_DUMP_INTR == 0;
                match message.payload {
                    NetlinkPayload::InnerMessage(inner) => each(inner),
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        words = explanation(&error, message.header.flags);
                        end = Some(Err(error.to_io()));
                    }
                    NetlinkPayload::Error(_) => end = Some(Ok(())),
                    NetlinkPayload::Done(done) if done.code < 0 => {
                        end = Some(Err(io::Error::from_raw_os_error(-done.code)));
                    }
                    NetlinkPayload::Done(_) => end = Some(Ok(())),
                    _ => {}
                }
            })?;
            self.words = self.words.take().or(words);
            if let Some(result) = end {
                return result.map(|()| consistent);
            }
        }
    }

    fn receive(&self) -> io::Result<Vec<u8>> {
        loop {
            let mut buffer = Vec::with_capacity(RECEIVE_BYTES);
            let (bytes, sender) = self.socket.recv_from(&mut buffer, libc::MSG_TRUNC)?;
            if bytes > buffer.len() {
                let text = format!("an answer of {bytes} bytes is longer than {RECEIVE_BYTES}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            // Other processes may write to a netlink socket; only the kernel is port 0.
            if sender.port_number() == 0 {
                return Ok(buffer);
            }
        }
    }
}

/// The address family of an address.
pub(super) fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn for_each_message(
    buffer: &[u8],
    mut each: impl FnMut(NetlinkMessage<RouteNetlinkMessage>),
) -> io::Result<()> {
    let mut rest = buffer;
    while rest.len() >= HEADER_BYTES {
        let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
        if length < HEADER_BYTES || length > rest.len() {
            let text = format!("a netlink message claims {length} bytes of {}", rest.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let (message, after) = rest.split_at(length);
        // Messages and attributes that the library does not know are skipped.
        match NetlinkMessage::deserialize(&thinned(message)) {
            Ok(message) => each(message),
            Err(error) => tracing::debug!("netlink message skipped: {error}"),
        }
        let padding = length.next_multiple_of(4) - length;
        rest = after.get(padding..).unwrap_or_default();
    }
    Ok(())
}

/// A message about an interface without the attributes that [`Link`](crate::Link) has no field for: counters and
/// settings of each protocol, which are most of its bytes and take the longest to parse.
fn thinned(message: &[u8]) -> Cow<'_, [u8]> {
    let is_of_link = message.len() > LINK_HEADER_BYTES && message[4..6] == NEW_LINK.to_ne_bytes();
    if !is_of_link {
        return Cow::Borrowed(message);
    }
    let (header, mut rest) = message.split_at(LINK_HEADER_BYTES);
    let mut kept = header.to_vec();
    while let Some([a, b, c, d]) = rest.first_chunk() {
        let (length, kind) = (u16::from_ne_bytes([*a, *b]), u16::from_ne_bytes([*c, *d]));
        let whole = usize::from(length).max(4).next_multiple_of(4).min(rest.len());
        let (attribute, after) = rest.split_at(whole);
        if READ_OF_LINKS.contains(&(kind & KIND)) {
            kept.extend_from_slice(attribute);
        }
        rest = after;
    }
    let length = (kept.len() as u32).to_ne_bytes();
    kept[..4].copy_from_slice(&length);
    Cow::Owned(kept)
}

/// `RTM_NEWLINK` of linux/rtnetlink.h.
const NEW_LINK: u16 = 16;
/// Bytes of `struct nlmsghdr` and `struct ifinfomsg`.
const LINK_HEADER_BYTES: usize = HEADER_BYTES + 16;
/// The attributes of interfaces that are read: `IFLA_ADDRESS`, `IFNAME`, `MTU`, `LINK`, `MASTER`, `LINKINFO`,
/// `IFALIAS` and `XDP` of linux/if_link.h.
const READ_OF_LINKS: [u16; 8] = [1, 3, 4, 5, 10, 18, 20, 43];
/// `NLA_TYPE_MASK` of linux/netlink.h: an attribute's kind without flags.
const KIND: u16 = 0x3fff;

/// The text among the attributes that follow an error: `NLMSGERR_ATTR_MSG` of
/// linux/netlink.h, behind the refused request's header.
fn explanation(error: &ErrorMessage, flags: u16) -> Option<String> {
    const MESSAGE: u16 = 1;
    if flags & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    let request = error.header.get(..4)?.try_into().ok()?;
    let copied = if flags & NLM_F_CAPPED == 0 { u32::from_ne_bytes(request) as usize } else { 0 };
    let attributes = error.header.get(copied.max(HEADER_BYTES).next_multiple_of(4)..)?;
    let text = NlasIterator::new(attributes)
        .map_while(Result::ok)
        .find(|attribute| attribute.kind() == MESSAGE)?;
    let text = String::from_utf8_lossy(text.value()).trim_end_matches('\0').to_owned();
    (!text.is_empty()).then_some(text)
}
