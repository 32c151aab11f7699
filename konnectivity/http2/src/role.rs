//! The two sides of a connection.

/// The role of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The accepting side.
    Server,
    /// The connecting side.
    Client,
}
