//! Events of a namespace's network: interfaces, neighbours, routes.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netlink_packet_route::RouteNetlinkMessage;

use super::error::Error;
use super::link::Link;
use super::neighbour::{Neighbour, read_neighbour};
use super::netlink::Netlink;
use crate::MacAddress;

/// A kind of event, and how the kernel reports it.
pub trait Event: Sized {
    /// The multicast groups that carry it, a bit mask of `RTMGRP_…`.
    const GROUPS: u32;
    /// Its subject, for errors.
    const ABOUT: &'static str;

    /// Converts a message to an event.
    fn read(message: RouteNetlinkMessage) -> Option<Self>;

    /// Events came faster than they were read.
    fn missed() -> Self;
}

/// An event of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// It was created or changed.
    Changed(Link),
    /// It was deleted, or moved to another namespace.
    Gone(Link),
    /// Events were lost, since they came faster than they were read: compare the known interfaces
    /// with [`Netlink::links`].
    Missed,
}

/// An event of neighbours or routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathEvent {
    /// A neighbour's Ethernet address was resolved, changed, or expired.
    Neighbour {
        /// Number of its interface.
        link: u32,
        /// Its address.
        address: IpAddr,
        /// MAC address of frames for it.
        mac: Option<MacAddress>,
    },
    /// A route was added or removed.
    Routes,
    /// Events were lost: query everything again.
    Missed,
}

/// The events of a namespace from the moment this is opened (rtnetlink(7)).
///
/// As an iterator it blocks for the next event and never ends; [`next_within`](Self::next_within)
/// has a timeout.
#[derive(Debug)]
pub struct Events<E> {
    netlink: Netlink,
    waiting: VecDeque<E>,
}

/// The events of interfaces.
pub type LinkEvents = Events<LinkEvent>;
/// The events of neighbours and routes.
pub type PathEvents = Events<PathEvent>;

impl<E: Event> Events<E> {
    /// Listens in the calling thread's network namespace. To miss nothing, open this before reading
    /// the present state.
    ///
    /// # Errors
    /// Fails if the kernel gives no socket.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { netlink: Netlink::open_for(E::GROUPS)?, waiting: VecDeque::new() })
    }

    /// The next event, or `None` if there is none within `timeout`.
    ///
    /// # Errors
    /// Fails if the socket fails; that is final.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<E>, Error> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(Some(event));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.receive(Some(left))? && left.is_zero() {
                return Ok(None);
            }
        }
    }

    fn receive(&mut self, timeout: Option<Duration>) -> Result<bool, Error> {
        match self.netlink.events(timeout) {
            Ok(None) => Ok(false),
            Ok(Some(messages)) => {
                self.waiting.extend(messages.into_iter().filter_map(E::read));
                Ok(true)
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                self.waiting.push_back(E::missed());
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!("{} events: {error}", E::ABOUT);
                self.waiting.push_back(E::missed());
                Ok(true)
            }
            Err(error) => Err(Error::new(format!("listen to {} events", E::ABOUT), error)),
        }
    }
}

impl<E: Event> Iterator for Events<E> {
    type Item = Result<E, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(Ok(event));
            }
            if let Err(error) = self.receive(None) {
                return Some(Err(error));
            }
        }
    }
}

impl Event for LinkEvent {
    const GROUPS: u32 = libc::RTMGRP_LINK as u32;
    const ABOUT: &'static str = "interface";

    fn read(message: RouteNetlinkMessage) -> Option<Self> {
        match message {
            RouteNetlinkMessage::NewLink(link) => Some(Self::Changed(Link::from_message(&link))),
            RouteNetlinkMessage::DelLink(link) => Some(Self::Gone(Link::from_message(&link))),
            _ => None,
        }
    }

    fn missed() -> Self {
        Self::Missed
    }
}

impl Event for PathEvent {
    const GROUPS: u32 =
        (libc::RTMGRP_NEIGH | libc::RTMGRP_IPV4_ROUTE | libc::RTMGRP_IPV6_ROUTE) as u32;
    const ABOUT: &'static str = "neighbour and route";

    fn read(message: RouteNetlinkMessage) -> Option<Self> {
        match message {
            RouteNetlinkMessage::NewRoute(_) | RouteNetlinkMessage::DelRoute(_) => {
                Some(Self::Routes)
            }
            RouteNetlinkMessage::NewNeighbour(message) => {
                let Neighbour { link, address, mac } = read_neighbour(&message)?;
                Some(Self::Neighbour { link, address, mac })
            }
            RouteNetlinkMessage::DelNeighbour(message) => {
                let Neighbour { link, address, .. } = read_neighbour(&message)?;
                Some(Self::Neighbour { link, address, mac: None })
            }
            _ => None,
        }
    }

    fn missed() -> Self {
        Self::Missed
    }
}
