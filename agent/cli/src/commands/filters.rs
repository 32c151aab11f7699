//! Filters of verdicts, as `podgate observe` and `kubectl podgate observe` have them.

use clap::ValueEnum;
use local_api::{ObserveFilters, Verdict};

/// Filters of verdicts, without their namespace.
#[derive(Debug, clap::Args)]
pub(crate) struct Filters {
    /// Only this verdict
    #[arg(long, value_enum)]
    verdict: Option<VerdictArg>,

    /// Only packets that this pod sent, or that are for it
    #[arg(long, value_name = "[NS/]POD")]
    pod: Option<String>,

    /// Only packets that this pod sent
    #[arg(long, value_name = "[NS/]POD")]
    from_pod: Option<String>,

    /// Only packets for this pod
    #[arg(long, value_name = "[NS/]POD")]
    to_pod: Option<String>,

    /// Only packets from pods in this namespace
    #[arg(long, value_name = "NS")]
    from_namespace: Option<String>,

    /// Only packets to pods in this namespace
    #[arg(long, value_name = "NS")]
    to_namespace: Option<String>,

    /// Only packets from or to this address or network
    #[arg(long, value_name = "ADDRESS")]
    ip: Option<String>,

    /// Only packets from this address or network
    #[arg(long, value_name = "ADDRESS")]
    from_ip: Option<String>,

    /// Only packets to this address or network
    #[arg(long, value_name = "ADDRESS")]
    to_ip: Option<String>,

    /// Only packets to an address of this service
    #[arg(long, value_name = "NS/NAME")]
    to_service: Option<String>,

    /// Only this protocol: TCP, UDP, SCTP, ICMP, ICMPv6 or a number
    #[arg(long)]
    protocol: Option<String>,

    /// Only packets with this port at either end
    #[arg(long, value_name = "N")]
    port: Option<u16>,

    /// Only packets from this port
    #[arg(long, value_name = "N")]
    from_port: Option<u16>,

    /// Only packets to this port
    #[arg(long, value_name = "N")]
    to_port: Option<u16>,

    /// Only verdicts with this reason; podgate show errors lists them
    #[arg(long)]
    reason: Option<String>,

    /// Only verdicts by this policy
    #[arg(long, value_name = "[NS/]NAME")]
    policy: Option<String>,

    /// Only verdicts of this node
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
}

/// A verdict on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum VerdictArg {
    /// It went on
    #[value(name = "forward", alias = "forwarded")]
    Forwarded,
    /// It ended in the switch
    #[value(name = "drop", alias = "dropped")]
    Dropped,
}

impl Filters {
    /// The filters as the switch takes them.
    pub(crate) fn wanted(&self) -> ObserveFilters {
        ObserveFilters {
            verdict: self.verdict.map(|verdict| match verdict {
                VerdictArg::Forwarded => Verdict::Forwarded,
                VerdictArg::Dropped => Verdict::Dropped,
            }),
            pod: self.pod.clone(),
            from_pod: self.from_pod.clone(),
            to_pod: self.to_pod.clone(),
            from_namespace: self.from_namespace.clone(),
            to_namespace: self.to_namespace.clone(),
            ip: self.ip.clone(),
            from_ip: self.from_ip.clone(),
            to_ip: self.to_ip.clone(),
            to_service: self.to_service.clone(),
            protocol: self.protocol.clone(),
            port: self.port,
            from_port: self.from_port,
            to_port: self.to_port,
            reason: self.reason.clone(),
            policy: self.policy.clone(),
            node: self.node.clone(),
            ..ObserveFilters::default()
        }
    }
}
