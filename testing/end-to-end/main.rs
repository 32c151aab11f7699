//! The whole product on one machine: `podgate run` with AF_XDP ports in a namespace that plays
//! the node, pods attached by `podgate-cni` as a runtime would, real clients and servers.

mod aggregate;
mod api_server;
mod captures;
mod chained;
mod chaos;
mod clients;
mod cluster_node;
mod connections;
mod denial_race;
mod encryption;
mod foreign;
mod host_firewall;
mod host_ports;
mod hostile;
mod journal;
mod lan;
mod mtu;
mod names;
mod nftables;
mod node_addresses;
mod offload;
mod own_processes;
mod pod;
mod policies;
mod proxy;
mod queues;
mod rejects;
mod servers;
mod several_nodes;
mod sockets;
mod staged;
mod storm;
mod trouble;
mod tunnels;
mod upgrade;
mod world;

use cluster_node::ClusterNode;

/// Skips a test on machines that lack a requirement beside root.
macro_rules! requires_the_machine {
    ($($program:literal),*) => {
        testkit::requires_root!();
        testkit::requires!(
            testkit::has_program("/usr/lib/cni/host-local"),
            "host-local is not installed (Debian: containernetworking-plugins)"
        );
        $(testkit::requires!(
            testkit::has_program($program),
            concat!($program, " is not installed")
        );)*
    };
}
pub(crate) use requires_the_machine;
