//! The programs between two namespaces, over boringtun in the place of the kernel's WireGuard.

mod rig;
mod traffic;
