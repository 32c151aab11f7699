//! The table `errors`: the outcomes of packets, with their meaning and what to do about them.

use dataplane::Outcome;

use super::shared_status::SharedStatus;
use super::table::Table;

/// The outcomes that packets had since the start; with `all` every outcome, and what to do about it.
pub(super) fn errors(shared: &SharedStatus, all: bool) -> Table {
    table(all, |outcome| Some(shared.switch.counters().map(|worker| worker.of(outcome)).sum()))
}

/// Every outcome with what to do about it, without a switch that counts.
pub fn all_errors() -> Table {
    table(true, |_| None)
}

fn table(all: bool, count: impl Fn(Outcome) -> Option<u64>) -> Table {
    let columns = ["verdict", "reason", "packets", "meaning", "do"];
    let mut table = Table::new(&columns[..if all { 5 } else { 4 }]);
    for outcome in Outcome::ALL {
        let count = count(*outcome);
        if !all && count == Some(0) {
            continue;
        }
        let mut row = vec![
            outcome.verdict().name().into(),
            outcome.name().into(),
            count.into(),
            outcome.meaning().into(),
        ];
        row.extend(all.then(|| remedy(*outcome).into()));
        table.add(row);
    }
    table
}

/// Advice for packets that have an outcome which they should not have.
const fn remedy(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::PolicyAllowed | Outcome::NoPolicy => {
            "To deny it, write a policy; podgate policy explain names the rule that allows it."
        }
        Outcome::OwnNode => "Nothing: a node reaches its own pods, for the kubelet's probes.",
        Outcome::Session
        | Outcome::Related
        | Outcome::Fragment
        | Outcome::ArpReply
        | Outcome::ArpIgnored
        | Outcome::NdReply
        | Outcome::NdIgnored => "Nothing.",
        Outcome::PolicyDenied => {
            "podgate observe names the policy; podgate policy explain shows the closest rule."
        }
        Outcome::Closed => "podgate status names the pod that waits, or the object with a fault.",
        Outcome::Truncated
        | Outcome::MalformedEthernet
        | Outcome::MalformedIp
        | Outcome::MalformedTransport
        | Outcome::BadChecksum => "podgate capture the sender: its software or driver is at fault.",
        Outcome::UnknownEthertype => "Nothing, unless pods need a protocol other than IP.",
        Outcome::Martian => "Correct the address in the sender's configuration.",
        Outcome::SourceRoute => "Nothing: routing headers are a way around policies.",
        Outcome::ReservedAddress => "Use addresses outside of 240.0.0.0/4.",
        Outcome::LinkLocal => "Add the destination to link-local-destinations, if pods need it.",
        Outcome::SpoofedMac | Outcome::SpoofedAddress => {
            "Look for a VPN or a bridge in the pod; between nodes compare podCIDRs with addresses."
        }
        Outcome::PodVlan => "Send frames without a VLAN tag: a pod's interface belongs to no VLAN.",
        Outcome::NoSession => {
            "Send keep-alives within the idle timeout, and let replies take the way of requests."
        }
        Outcome::FragmentUnknown | Outcome::FragmentLimit => {
            "Send datagrams that fit the MTU; fragments may be lost on the way."
        }
        Outcome::Multicast => "Use unicast.",
        Outcome::NoRoute => "Check the destination, the Nodes' podCIDRs, and ip route of the node.",
        Outcome::NotLocal => "Check the routes of other nodes: they sent it to the wrong one.",
        Outcome::TtlExpired => "Look for a routing loop; traceroute causes it on purpose.",
        Outcome::TooBig => "Lower the pods' MTU, or let ICMP pass firewalls on the way.",
        Outcome::NoEndpoint => {
            "Check the Service's port, its selector, and that its pods are ready."
        }
        Outcome::SourceNotAdmitted => "Add the client to the Service's loadBalancerSourceRanges.",
        Outcome::NoTranslationPort => "Widen translation-ports.",
        Outcome::NoNeighbour => "Check that the other node is up, and answers ARP or ND.",
        Outcome::TunnelRefused => {
            "Check the other node's address in its Node, and that no router is between, or its hop limit."
        }
        Outcome::CongestionLost => "Nothing: the sender does not support ECN, and slows down.",
        Outcome::SessionTableFull => "Raise sessions, or lower the idle timeouts.",
        Outcome::SessionQuota => "Look at the pod in podgate top: it opens more than its share.",
        Outcome::TxFull | Outcome::HandoffFull => "Add a worker (workers, cores).",
        Outcome::TooManyFrames => "Lower the MTU, or turn off GRO and GSO at the sender.",
        Outcome::PortGone => "Nothing: its pod ended while packets were on their way.",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn every_reason_has_a_meaning_and_says_what_to_do() {
        let table = all_errors();
        assert_eq!(table.rows.len(), Outcome::ALL.len());
        for row in &table.rows {
            assert_eq!(row[2], Value::Null);
            assert!(row[3..].iter().all(|text| text.as_str().unwrap().ends_with('.')), "{row:?}");
        }
    }

    #[test]
    fn those_that_no_packet_had_are_shown_if_all_are() {
        let folder = testkit::TempDir::new("errors");
        let shared = crate::run::shared_status::tests::started(folder.path());
        assert_eq!(errors(&shared, false).rows.len(), 0);
        let all = errors(&shared, true);
        assert_eq!((all.rows.len(), &all.rows[0][2]), (Outcome::ALL.len(), &Value::from(0)));
    }
}
