//! Installs on a node what Podgate needs beside its process, and removes it.
//!
//! - `place`: files that appear whole or not at all,
//! - `configuration`: the CNI configuration, completed from the Node's pod networks,
//! - `uninstall`: CNI files, nftables tables, programs, interfaces with their routes, saved state.

mod configuration;
mod place;

mod uninstall;

pub use configuration::{DEFAULT_TEMPLATE, complete};
pub use place::{Change, place_file, place_text};
pub use uninstall::{Places, Removal, uninstall};

/// Name of the CNI plugin, as its file and as the `type` in configurations.
pub const PLUGIN: &str = "podgate-cni";
