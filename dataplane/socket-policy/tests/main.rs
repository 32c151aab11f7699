//! Programs at cgroups, with real processes in them.

mod attacks;
mod common;
mod outliving;
mod rules;
