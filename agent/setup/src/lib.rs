//! Podgate on a machine: checked before it runs, installed, removed.
//!
//! - [`preflight`]: what the machine allows the switch to do, and what the switch costs on it,
//! - [`install`]: the CNI plugin and its configuration put in place; everything taken off again.

pub mod install;
pub mod preflight;
mod sys;
