//! Filters of verdicts, as `podgate observe` and `kubectl podgate observe` have them.

use clap::ValueEnum;
use local_api::{AnyOf, ObserveFilters, Verdict};

/// Filters of verdicts, without their namespace. Each may be repeated: one of its values has to match.
#[derive(Debug, clap::Args)]
pub(crate) struct Filters {
    /// Only this verdict
    #[arg(long, value_enum)]
    verdict: Vec<VerdictArg>,

    /// Only packets that this pod sent, or that are for it
    #[arg(long, value_name = "[NS/]POD")]
    pod: Vec<String>,

    /// Only packets that this pod sent
    #[arg(long, value_name = "[NS/]POD")]
    from_pod: Vec<String>,

    /// Only packets for this pod
    #[arg(long, value_name = "[NS/]POD")]
    to_pod: Vec<String>,

    /// Only packets from pods in this namespace
    #[arg(long, value_name = "NS")]
    from_namespace: Vec<String>,

    /// Only packets to pods in this namespace
    #[arg(long, value_name = "NS")]
    to_namespace: Vec<String>,

    /// Only packets from or to pods with these labels, such as app=db,tier!=test
    #[arg(long, value_name = "SELECTOR")]
    label: Vec<String>,

    /// Only packets from pods with these labels
    #[arg(long, value_name = "SELECTOR")]
    from_label: Vec<String>,

    /// Only packets to pods with these labels
    #[arg(long, value_name = "SELECTOR")]
    to_label: Vec<String>,

    /// Only packets from or to pods of this workload
    #[arg(long, value_name = "[KIND/]NAME")]
    workload: Vec<String>,

    /// Only packets from pods of this workload
    #[arg(long, value_name = "[KIND/]NAME")]
    from_workload: Vec<String>,

    /// Only packets to pods of this workload
    #[arg(long, value_name = "[KIND/]NAME")]
    to_workload: Vec<String>,

    /// Only packets from or to this address or network
    #[arg(long, value_name = "ADDRESS")]
    ip: Vec<String>,

    /// Only packets from this address or network
    #[arg(long, value_name = "ADDRESS")]
    from_ip: Vec<String>,

    /// Only packets to this address or network
    #[arg(long, value_name = "ADDRESS")]
    to_ip: Vec<String>,

    /// Only packets from or to an address of this domain name of policies; * stands for any text
    #[arg(long, value_name = "NAME")]
    fqdn: Vec<String>,

    /// Only packets from an address of this domain name
    #[arg(long, value_name = "NAME")]
    from_fqdn: Vec<String>,

    /// Only packets to an address of this domain name
    #[arg(long, value_name = "NAME")]
    to_fqdn: Vec<String>,

    /// Only packets from or to an address of this service
    #[arg(long, value_name = "NS/NAME")]
    service: Vec<String>,

    /// Only packets from an address of this service
    #[arg(long, value_name = "NS/NAME")]
    from_service: Vec<String>,

    /// Only packets to an address of this service
    #[arg(long, value_name = "NS/NAME")]
    to_service: Vec<String>,

    /// Only this protocol: TCP, UDP, SCTP, ICMP, ICMPv6 or a number
    #[arg(long, value_name = "PROTOCOL")]
    protocol: Vec<String>,

    /// Only packets with this port at either end
    #[arg(long, value_name = "N")]
    port: Vec<u16>,

    /// Only packets from this port
    #[arg(long, value_name = "N")]
    from_port: Vec<u16>,

    /// Only packets to this port
    #[arg(long, value_name = "N")]
    to_port: Vec<u16>,

    /// Only TCP packets with all of these flags, such as SYN,ACK
    #[arg(long, value_name = "FLAGS")]
    tcp_flags: Vec<String>,

    /// Only connections towards a pod of the node (ingress) or from one (egress)
    #[arg(long, value_name = "DIRECTION")]
    traffic_direction: Vec<String>,

    /// Only verdicts with this reason; podgate show errors lists them
    #[arg(long, value_name = "REASON")]
    reason: Vec<String>,

    /// Only verdicts by this policy
    #[arg(long, value_name = "[NS/]NAME")]
    policy: Vec<String>,

    /// Only verdicts of this node
    #[arg(long, value_name = "NAME")]
    node: Vec<String>,
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

/// The filters of these options, each of the same name.
macro_rules! each_of {
    ($options:ident: $($field:ident)*) => {
        ObserveFilters { $($field: AnyOf($options.$field.clone()),)* ..ObserveFilters::default() }
    };
}

impl Filters {
    /// The filters as the switch takes them.
    pub(crate) fn wanted(&self) -> ObserveFilters {
        let verdict = self.verdict.iter().map(|verdict| match verdict {
            VerdictArg::Forwarded => Verdict::Forwarded,
            VerdictArg::Dropped => Verdict::Dropped,
        });
        ObserveFilters {
            verdict: AnyOf(verdict.collect()),
            direction: AnyOf(self.traffic_direction.clone()),
            ..each_of! { self:
                pod from_pod to_pod from_namespace to_namespace label from_label to_label workload
                from_workload to_workload ip from_ip to_ip fqdn from_fqdn to_fqdn service from_service
                to_service protocol port from_port to_port tcp_flags reason policy node
            }
        }
    }
}
