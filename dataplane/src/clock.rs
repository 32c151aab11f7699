//! Time, as it is handed to the graph.

use std::time::Duration;

/// The moment at which a vector is handled, counted from a start that only the caller knows.
/// Sessions and fragments only ever compare moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Now(pub Duration);

impl Now {
    /// Whole seconds.
    #[inline]
    pub fn seconds(self) -> u32 {
        self.0.as_secs() as u32
    }
}
