//! The options with the values in force, as `podgate show config` prints them.

use std::net::IpAddr;

use control::api_server::Access;
use control::model::Stage;
use dataplane::switch::RxMode as SwitchRxMode;
use ipnet::IpNet;

use super::{Config, Cores, Span, each_timeout};

impl Config {
    /// Every option by name with the value in force.
    pub fn describe(&self) -> Vec<(&'static str, String)> {
        let list = |items: Vec<String>| items.join(",");
        let manifests = self.manifests.iter().map(|path| path.display().to_string()).collect();
        let mut described = vec![
            ("node-name", self.node_name.clone()),
            ("manifests", list(manifests)),
            ("kubeconfig", self.api_server.iter().map(Access::to_string).collect()),
            ("socket", self.socket.display().to_string()),
            ("listen", self.listen.to_string()),
            ("listen-names", self.listen_names.join(",")),
            ("web-page", on_off(self.web_page)),
            ("state-dir", self.state_dir.display().to_string()),
            (
                "takeover-wait",
                self.takeover_wait.map(|it| Span(it).to_string()).unwrap_or_default(),
            ),
            ("aggregate", if self.aggregate { "endpoints" } else { "off" }.to_owned()),
            ("cores", Cores(self.cores.clone()).to_string()),
            ("workers", self.workers.to_string()),
            ("rx-mode", rx_mode_name(self.rx_mode).to_owned()),
            ("enforcer", format!("{:?}", self.enforcer).to_lowercase()),
            ("pod-networks", list(self.pod_networks.iter().map(IpNet::to_string).collect())),
            ("host-network-policies", on_off(self.host_network_policies)),
            ("socket-policies", format!("{:?}", self.socket_policies).to_lowercase()),
            ("socket-error", format!("{:?}", self.socket_error).to_lowercase()),
            ("cgroup-root", self.cgroup_root.display().to_string()),
            ("bpf-fs", self.bpf_fs.display().to_string()),
            ("denied-reply", self.denied_reply.to_string()),
            ("stage-all", on_off(self.default_stage == Stage::Staged)),
            ("node-readiness", on_off(self.node_readiness)),
            ("umem-frames", self.umem_frames.to_string()),
            ("hugepages", format!("{:?}", self.hugepages).to_lowercase()),
            ("frames-per-port", self.frames_per_port.to_string()),
            ("max-ports", self.max_ports.to_string()),
            ("sessions", self.sessions.to_string()),
        ];
        let mut timeouts = self.timeouts;
        let timeouts = each_timeout(&mut timeouts).map(|(name, it)| (name, Span(*it).to_string()));
        described.extend(timeouts);
        described.extend([
            ("session-accounting", on_off(self.session_accounting)),
            ("dns-min-ttl", Span(self.dns_min_ttl).to_string()),
            ("attach-timeout", Span(self.attach_timeout).to_string()),
            ("host-port", on_off(self.host_port)),
            ("node-addresses", list(self.node_addresses.iter().map(IpAddr::to_string).collect())),
            ("mtu", self.mtu.to_string()),
        ]);
        described.extend(self.network.describe());
        described.extend(self.metrics.describe());
        described.push(("flow-offload", on_off(self.flow_offload)));
        described.push(("flow-offload-grace", Span(self.flow_offload_grace).to_string()));
        described.extend(self.flow_export.describe());
        let journal = self.journal.map(|size| size.to_string()).unwrap_or_default();
        described.push(("journal", journal));
        described.push(("verify-decisions", self.verify_decisions.to_string()));
        described.extend(self.hubble.describe());
        described.push(("log-level", format!("{:?}", self.log_level).to_lowercase()));
        described.push(("log-format", format!("{:?}", self.log_format).to_lowercase()));
        described
    }
}

/// The name of a receive mode, as the option has it.
pub fn rx_mode_name(mode: SwitchRxMode) -> &'static str {
    match mode {
        SwitchRxMode::Polling => "polling",
        SwitchRxMode::Adaptive => "adaptive",
        SwitchRxMode::Interrupt => "interrupt",
    }
}

pub(super) fn on_off(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}
