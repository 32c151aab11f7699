//! AF_XDP ports over real veth pairs, each test in network namespaces of its own (as root).

mod closing;
mod filter;
mod frames;
mod pair;
mod sums;
mod uplink;
mod xsk_peer;
