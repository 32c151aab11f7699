//! The events that an observer receives.

use super::{Event, Filter};

/// The events that an observer receives, of the past and from now on.
pub struct Wanted {
    /// Decides about each event; runs under the broker's lock.
    pub matches: Box<dyn Fn(&Event) -> bool + Send>,
    /// The past events, of those that match.
    pub past: Past,
    /// True to receive new events too.
    pub follow: bool,
}

/// A number of past events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Past {
    /// The newest ones.
    Newest(usize),
    /// The oldest ones that are kept.
    Oldest(usize),
}

impl From<Filter> for Wanted {
    fn from(filter: Filter) -> Self {
        let past = filter.first().map_or(Past::Newest(filter.last()), Past::Oldest);
        let follow = filter.follow();
        Self { matches: Box::new(move |event| filter.matches(event)), past, follow }
    }
}
