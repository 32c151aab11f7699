//! The cases, each a list of packets with their verdicts.
//!
//! Unless a case says otherwise, its nodes are `node1` (192.168.0.11, pods
//! 10.1.1.0/24 and fd00:1:1::/64), whose switch it is, and `node2` (192.168.0.12, pods
//! 10.1.2.0/24 and fd00:1:2::/64).

mod broken;
mod fragments;
mod icmp;
mod ipv6;
mod neighbours;
mod peers;
mod policies;
mod ports;
mod services;
mod sessions;
mod traps;
mod tunnels;
mod vlan;

use crate::Scenario;

/// Every scenario, in the order of the README.
pub fn all() -> Vec<Scenario> {
    vec![
        policies::redis_policy(),
        policies::one_way(),
        policies::udp_dns(),
        policies::named_ports(),
        policies::selectors(),
        policies::ip_block(),
        peers::pod_phases(),
        peers::both_ends(),
        peers::any_and_all(),
        icmp::icmp_echo(),
        icmp::icmp_errors(),
        ipv6::ipv6(),
        fragments::ipv4_fragments(),
        fragments::reordered_fragments(),
        vlan::vlan(),
        broken::malformed(),
        neighbours::arp_nd(),
        ports::spoofing(),
        ports::remote_pods(),
        ports::host_port(),
        ports::classic_pcap(),
        ports::other_interfaces(),
        sessions::tcp_states(),
        sessions::idle_sessions(),
        sessions::sctp_is_not_tcp(),
        services::services(),
        services::external_services(),
        tunnels::tunnels(),
        traps::parser_traps(),
        traps::quotes(),
    ]
}
