//! The switch of a whole node: services, tunnels, answers.
//!
//! One worker over memory ports, packet by packet; two of them with joined uplinks where the
//! way leads from one node to another.

mod answers;
mod attacks;
mod dns;
mod floods;
mod fragments;
mod generations;
mod load;
mod long;
mod overlay;
mod rejects;
mod rig;
mod services;
mod sessions;
mod shares;
mod staged;
mod trace;
mod verify;
