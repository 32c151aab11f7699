//! `flow.DropReason`: the numbers that clients have words for.

use dataplane::Outcome;

use crate::messages::flow::DropReason;

/// The reason that comes closest to a dropped packet's outcome; 0 for an outcome that drops nothing.
/// The flow's summary has the outcome itself.
pub fn drop_reason(outcome: Outcome) -> i32 {
    match outcome {
        Outcome::PolicyDenied => DropReason::PolicyDenied as i32,
        // The pod's policies are not in force yet.
        Outcome::Closed => 203,
        Outcome::SpoofedAddress | Outcome::Martian | Outcome::ReservedAddress => 132,
        Outcome::SpoofedMac | Outcome::PodVlan => 130,
        Outcome::Truncated
        | Outcome::MalformedEthernet
        | Outcome::MalformedIp
        | Outcome::SourceRoute
        | Outcome::TooManyFrames => 134,
        Outcome::MalformedTransport => 135,
        Outcome::BadChecksum => 153,
        Outcome::UnknownEthertype => 139,
        Outcome::NoSession => 163,
        Outcome::FragmentUnknown | Outcome::FragmentLimit => 175,
        Outcome::Multicast => 201,
        Outcome::NoRoute | Outcome::NotLocal | Outcome::LinkLocal => 151,
        Outcome::NoNeighbour => 169,
        Outcome::TtlExpired => 196,
        Outcome::TooBig => 136,
        Outcome::NoEndpoint => 158,
        Outcome::SourceNotAdmitted => 177,
        Outcome::NoTranslationPort => 167,
        Outcome::TunnelRefused | Outcome::CongestionLost => 170,
        Outcome::SessionTableFull | Outcome::SessionQuota => 155,
        Outcome::TxFull | Outcome::HandoffFull => 198,
        Outcome::PortGone => 150,
        // What drops nothing.
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane::Verdict;

    #[test]
    fn every_drop_has_a_reason_and_nothing_else() {
        for outcome in Outcome::ALL {
            let is_drop = outcome.verdict() == Verdict::Drop;
            assert_eq!(drop_reason(*outcome) >= 130, is_drop, "{outcome}");
        }
    }
}
