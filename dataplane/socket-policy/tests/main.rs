//! Programs at cgroups, with real processes in them.

mod arrivals;
mod attacks;
mod common;
mod outliving;
mod rules;
