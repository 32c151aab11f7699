//! Tests of the switch over memory, captures and AF_XDP, as one program.

mod af_xdp;
mod checksums;
mod fuzz;
mod nodes;
mod queues;
mod switch;
mod trunk;
