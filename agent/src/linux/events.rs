//! Interfaces that come, change and vanish.

use std::io;
use std::time::{Duration, Instant};

use netlink_packet_route::RouteNetlinkMessage;

use super::error::Error;
use super::link::Link;
use super::netlink::Netlink;

/// What happened to an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// It is new, or something about it changed.
    Changed(Link),
    /// It was deleted, or moved to another namespace.
    Gone(Link),
    /// Events came faster than they were read and some are lost: what is known
    /// about interfaces has to be compared with [`Netlink::links`].
    Missed,
}

/// The events of a namespace's interfaces from the moment it is opened
/// (`RTMGRP_LINK`, rtnetlink(7)).
///
/// As an iterator it blocks for the next event and never ends by itself; with
/// [`next_within`](Self::next_within) a loop can look after other things.
#[derive(Debug)]
pub struct LinkEvents {
    netlink: Netlink,
    waiting: std::collections::VecDeque<LinkEvent>,
}

impl LinkEvents {
    /// Listens in the calling thread's network namespace. To miss nothing, open
    /// this first and list the interfaces afterwards.
    ///
    /// # Errors
    /// If the kernel gives no socket.
    pub fn open() -> Result<Self, Error> {
        let netlink = Netlink::open_for(libc::RTMGRP_LINK as u32)?;
        Ok(Self { netlink, waiting: Default::default() })
    }

    /// The next event, or `None` if there is none within `timeout`.
    ///
    /// # Errors
    /// If the socket fails; that is final.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<LinkEvent>, Error> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(Some(event));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.hear(Some(left))? && left.is_zero() {
                return Ok(None);
            }
        }
    }

    fn hear(&mut self, timeout: Option<Duration>) -> Result<bool, Error> {
        match self.netlink.heard(timeout) {
            Ok(None) => Ok(false),
            Ok(Some(messages)) => {
                self.waiting.extend(messages.into_iter().filter_map(event));
                Ok(true)
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                self.waiting.push_back(LinkEvent::Missed);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                log::warn!("interface events: {error}");
                self.waiting.push_back(LinkEvent::Missed);
                Ok(true)
            }
            Err(error) => Err(Error::new("listen to interface events", error)),
        }
    }
}

impl Iterator for LinkEvents {
    type Item = Result<LinkEvent, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(Ok(event));
            }
            if let Err(error) = self.hear(None) {
                return Some(Err(error));
            }
        }
    }
}

fn event(message: RouteNetlinkMessage) -> Option<LinkEvent> {
    match message {
        RouteNetlinkMessage::NewLink(link) => Some(LinkEvent::Changed(Link::from_message(&link))),
        RouteNetlinkMessage::DelLink(link) => Some(LinkEvent::Gone(Link::from_message(&link))),
        _ => None,
    }
}
