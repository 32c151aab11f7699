//! Filters of verdicts, as `podgate observe` and `kubectl podgate observe` have them.

use clap::ValueEnum;
use local_api::{AnyOf, ObserveFilters, Verdict};

/// Declares options, each with its values' type, their name and its help, which are filters of the same name.
macro_rules! filters {
    ($($field:ident: $type:ident, $value:literal, $help:literal;)*) => {
        /// Filters of verdicts, without their namespace. Each may be repeated: one of its values has to match.
        #[derive(Debug, clap::Args)]
        pub(crate) struct Filters {
            /// Only this verdict
            #[arg(long, value_enum)]
            verdict: Vec<VerdictArg>,

            $(
                #[arg(long, value_name = $value, help = $help)]
                $field: Vec<$type>,
            )*

            /// Only connections towards a pod of the node (ingress) or from one (egress)
            #[arg(long, value_name = "DIRECTION")]
            traffic_direction: Vec<String>,
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
                    $($field: AnyOf(self.$field.clone()),)*
                    ..ObserveFilters::default()
                }
            }
        }
    };
}

filters! {
    pod: String, "[NS/]POD", "Only packets that this pod sent, or that are for it";
    from_pod: String, "[NS/]POD", "Only packets that this pod sent";
    to_pod: String, "[NS/]POD", "Only packets for this pod";
    from_namespace: String, "NS", "Only packets from pods in this namespace";
    to_namespace: String, "NS", "Only packets to pods in this namespace";
    label: String, "SELECTOR", "Only packets from or to pods with these labels, such as app=db,tier!=test";
    from_label: String, "SELECTOR", "Only packets from pods with these labels";
    to_label: String, "SELECTOR", "Only packets to pods with these labels";
    workload: String, "[KIND/]NAME", "Only packets from or to pods of this workload";
    from_workload: String, "[KIND/]NAME", "Only packets from pods of this workload";
    to_workload: String, "[KIND/]NAME", "Only packets to pods of this workload";
    ip: String, "ADDRESS", "Only packets from or to this address or network";
    from_ip: String, "ADDRESS", "Only packets from this address or network";
    to_ip: String, "ADDRESS", "Only packets to this address or network";
    fqdn: String, "NAME", "Only packets from or to an address of this domain name of policies; * stands for any text";
    from_fqdn: String, "NAME", "Only packets from an address of this domain name";
    to_fqdn: String, "NAME", "Only packets to an address of this domain name";
    service: String, "NS/NAME", "Only packets from or to an address of this service";
    from_service: String, "NS/NAME", "Only packets from an address of this service";
    to_service: String, "NS/NAME", "Only packets to an address of this service";
    protocol: String, "PROTOCOL", "Only this protocol: TCP, UDP, SCTP, ICMP, ICMPv6 or a number";
    port: u16, "N", "Only packets with this port at either end";
    from_port: u16, "N", "Only packets from this port";
    to_port: u16, "N", "Only packets to this port";
    tcp_flags: String, "FLAGS", "Only TCP packets with all of these flags, such as SYN,ACK";
    reason: String, "REASON", "Only verdicts with this reason; podgate show errors lists them";
    policy: String, "[NS/]NAME", "Only verdicts by this policy";
    node: String, "NAME", "Only verdicts of this node";
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
