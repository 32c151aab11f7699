//! `podgate-cni` as a container runtime calls it: the real program, real
//! namespaces, the real `host-local` plugin. Only the switch itself is played by
//! a [`stand_in`], so that it can also fail.

mod add;
mod failures;
mod node;
mod others;
mod stand_in;
