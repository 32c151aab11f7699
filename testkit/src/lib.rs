//! Helpers shared by tests.

pub mod packet;
