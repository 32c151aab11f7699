//! The headings under which `podgate run --help` lists the options.

/// The heading of an option that no other one fits.
const OTHER: &str = "Other";

/// Returns the heading of an option, by its field.
pub(super) fn heading(field: &str) -> &'static str {
    match field {
        "node_name" | "manifests" | "kubeconfig" | "aggregate" | "node_readiness"
        | "node_addresses" => "Node and objects",
        "socket" | "state_dir" | "takeover_wait" | "cores" | "workers" | "rx_mode"
        | "attach_timeout" | "log_level" | "log_format" => "Process",
        "enforcer"
        | "pod_networks"
        | "host_network_policies"
        | "denied_reply"
        | "stage_all"
        | "verify_decisions"
        | "dns_min_ttl"
        | "dns_max_hold" => "Policies",
        "socket_policies" | "socket_error" | "socket_rules" | "socket_endpoints"
        | "socket_exchanges" | "cgroup_root" | "bpf_fs" => "Socket policies",
        "host_port"
        | "mtu"
        | "uplink"
        | "underlay"
        | "vxlan_network"
        | "vxlan_port"
        | "vxlan_group"
        | "masquerade"
        | "translation_ports"
        | "link_local_destinations" => "Network",
        "external_ips" | "service_networks" | "node_port_addresses" => "Services",
        "flow_offload" | "flow_offload_grace" => "Flow offload",
        "encryption" | "encryption_port" | "encryption_host_network" => "Encryption",
        "umem_frames" | "hugepages" | "frames_per_port" | "max_ports" | "memory_limit" => "Memory",
        "sessions"
        | "tcp_established_timeout"
        | "tcp_transient_timeout"
        | "tcp_closed_timeout"
        | "udp_timeout"
        | "dns_timeout"
        | "icmp_timeout"
        | "other_timeout"
        | "unanswered_timeout"
        | "session_accounting" => "Sessions",
        "listen" | "listen_names" | "web_page" | "metrics_listen" | "metrics_cert_file"
        | "metrics_key_file" => "Metrics and page",
        "flow_export"
        | "flow_export_max_size_mb"
        | "flow_export_max_backups"
        | "flow_export_filter"
        | "journal"
        | "journal_dir" => "Export and journal",
        "hubble_listen" | "hubble_cert_file" | "hubble_key_file" | "hubble_client_ca_file" => {
            "Hubble"
        }
        _ => OTHER,
    }
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;
    use crate::config::Options;

    #[test]
    fn every_option_has_a_heading() {
        let command = Options::augment_args(clap::Command::new("run"));
        for option in command.get_arguments() {
            let name = option.get_id().as_str();
            assert!(option.get_help_heading().is_some_and(|it| it != OTHER), "{name}");
        }
    }
}
