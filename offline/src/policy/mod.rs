//! Tools for the authors of policies: test, compare, check.
//!
//! - [`suite`] and [`run`]: cases with selectors, and whether they hold,
//! - [`diff`]: the connections that differ between two versions,
//! - [`lint`]: mistakes in manifests,
//! - [`matrix`]: decisions about pairs of addresses, many at a time.

pub mod diff;
pub mod lint;
pub mod matrix;
pub mod run;
pub mod suite;
