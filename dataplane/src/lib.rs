//! Frames, ports, the graph, sessions and workers of the switch.

pub mod capture;
