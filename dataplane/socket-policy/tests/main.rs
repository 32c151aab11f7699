//! Programs at cgroups, with real processes in them.

mod arrivals;
mod attacks;
mod binds;
mod common;
mod evasions;
mod outliving;
mod rules;
