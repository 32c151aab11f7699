//! Identities: numbers for what addresses have in common.

/// Stands for "in exactly these peer sets"; [`Identity::NONE`] is in none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Identity(pub u32);

impl Identity {
    /// The identity of an address that is in no peer set.
    pub const NONE: Self = Self(0);
}
