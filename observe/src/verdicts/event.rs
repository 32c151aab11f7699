//! One verdict, as scripts and people read it.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use acl::{Direction, Origin};
use dataplane::wire::protocol;
use serde::{Deserialize, Serialize};

use super::{Protocol, Reason, StagedVerdict, TcpFlags, Workload, workload};
use crate::time::utc;
use local_api::Verdict;

/// One verdict. The names of its fields are fixed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Time of the verdict.
    #[serde(with = "crate::time::in_json")]
    pub time: SystemTime,
    /// The node whose switch decided.
    pub node: Arc<str>,
    /// Verdict on the packet.
    pub verdict: Verdict,
    /// The outcome.
    pub reason: Reason,
    /// The origins of the rules that decided.
    #[serde(default)]
    pub by: Vec<Origin>,
    /// The sending end.
    pub from: End,
    /// The receiving end.
    pub to: End,
    /// The IP protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Type of an ICMP or ICMPv6 message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp_type: Option<u8>,
    /// The flags of a TCP packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_flags: Option<TcpFlags>,
    /// The port it came in by: `ns/pod`, `host` or `uplink`.
    #[serde(rename = "in", default, skip_serializing_if = "Option::is_none")]
    pub in_port: Option<Arc<str>>,
    /// The port it left or would have left by.
    #[serde(rename = "out", default, skip_serializing_if = "Option::is_none")]
    pub out_port: Option<Arc<str>>,
    /// The process whose call was denied before there was a packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
    /// The decision of staged policies, if they would decide differently. The connection has another event, without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staged: Option<StagedVerdict>,
    /// The direction whose policies denied it.
    #[serde(
        rename = "direction",
        default,
        skip_serializing_if = "Option::is_none",
        with = "direction_in_json"
    )]
    pub denied: Option<Direction>,
}

impl Event {
    /// The packet in words: its protocol, with flags or type.
    pub fn in_words(&self) -> String {
        let Some(protocol) = self.protocol else { return String::new() };
        let flags = self.tcp_flags.map(|flags| format!(" Flags: {flags}")).unwrap_or_default();
        let kind = match (self.icmp_type, protocol.0) {
            (Some(8), protocol::ICMP) | (Some(128), protocol::ICMPV6) => " EchoRequest".to_owned(),
            (Some(0), protocol::ICMP) | (Some(129), protocol::ICMPV6) => " EchoReply".to_owned(),
            (Some(number), _) => format!(" type {number}"),
            (None, _) => String::new(),
        };
        format!("{protocol}{flags}{kind}")
    }

    /// The direction of the connection: of the policies that denied it, else towards a pod of this node or from
    /// one; `None` if neither end is one.
    pub fn direction(&self) -> Option<Direction> {
        let is_pod = |port: &Option<Arc<str>>| port.as_ref().is_some_and(|it| it.contains('/'));
        let decided = self.denied.or_else(|| self.by.iter().find_map(Origin::direction));
        match decided {
            Some(direction) if self.verdict == Verdict::Dropped => Some(direction),
            _ if is_pod(&self.out_port) => Some(Direction::Ingress),
            _ if is_pod(&self.in_port) => Some(Direction::Egress),
            _ => None,
        }
    }
}

/// A direction by the name of its field in policies.
mod direction_in_json {
    use acl::Direction;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        direction: &Option<Direction>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        direction.map(Direction::field).serialize(serializer)
    }

    /// Reads a name; another one, of a later version, is none.
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Direction>, D::Error> {
        let name = Option::<String>::deserialize(deserializer)?;
        Ok(Direction::BOTH.into_iter().find(|it| name.as_deref() == Some(it.field())))
    }
}

/// A process of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number, as the node counts.
    pub pid: u32,
    /// Its name, 15 bytes at most.
    pub command: Arc<str>,
}

/// Labels of a pod, by key.
pub type PodLabels = Arc<[(Arc<str>, Arc<str>)]>;

/// One end of the connection; a field is absent if it is not known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct End {
    /// The pod, `ns/pod`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Arc<str>>,
    /// Its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<IpAddr>,
    /// Its port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The service that has the address, `ns/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Arc<str>>,
    /// The domain name of a policy that DNS gave the address for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Arc<str>>,
    /// The pod's labels; only within this process, and only if the broker is given labels.
    #[serde(skip)]
    pub labels: Option<PodLabels>,
}

impl End {
    /// Returns the workload of a pod with known labels.
    pub fn workload(&self) -> Option<Workload<'_>> {
        let (_, pod) = self.pod.as_deref()?.split_once('/')?;
        let labels = self.labels.as_ref()?;
        let label = |wanted: &str| {
            labels.iter().find(|(key, _)| &**key == wanted).map(|(_, value)| &**value)
        };
        Some(workload(pod, label))
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v6 =
            self.pod.is_none() && self.port.is_some() && self.ip.is_some_and(|ip| ip.is_ipv6());
        match (&self.pod, &self.ip) {
            (Some(pod), _) => f.write_str(pod)?,
            (None, Some(ip)) if v6 => write!(f, "[{ip}]")?,
            (None, Some(ip)) => write!(f, "{ip}")?,
            (None, None) => f.write_str("?")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))?;
        self.service.as_ref().map_or(Ok(()), |service| write!(f, " (service {service})"))?;
        self.name.as_ref().map_or(Ok(()), |name| write!(f, " ({name})"))
    }
}

impl fmt::Display for Event {
    /// `TIME: FROM -> TO REASON VERDICT (TCP Flags: SYN) by POLICY`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, reason, .. } = self;
        write!(f, "{}: {from} -> {to} {reason} {}", utc(self.time), self.verdict.shown())?;
        if self.protocol.is_some() {
            write!(f, " ({})", self.in_words())?;
        }
        if let (None, Some(port)) = (&self.from.ip, &self.in_port) {
            write!(f, " in {port}")?;
        }
        if !self.by.is_empty() {
            write!(f, " by {}", Origin::list(&self.by))?;
        }
        if let Some(Process { pid, command }) = &self.process {
            write!(f, " in {command}[{pid}]")?;
        }
        self.staged.as_ref().map_or(Ok(()), |staged| write!(f, "; {staged}"))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::time::moment;

    pub(crate) fn denied() -> Event {
        Event {
            time: moment("2026-11-21T02:25:35.123Z").unwrap(),
            node: "node-a".into(),
            verdict: Verdict::Dropped,
            reason: "policy-denied".into(),
            by: vec!["default-deny of NetworkPolicy default/db".into()],
            from: End {
                pod: Some("default/frontend".into()),
                ip: Some("10.1.0.3".parse().unwrap()),
                port: Some(41000),
                ..End::default()
            },
            to: End {
                pod: Some("default/db".into()),
                ip: Some("10.1.0.2".parse().unwrap()),
                port: Some(6379),
                ..End::default()
            },
            protocol: Some(Protocol(protocol::TCP)),
            icmp_type: None,
            tcp_flags: Some(TcpFlags(2)),
            in_port: Some("default/frontend".into()),
            out_port: Some("default/db".into()),
            process: None,
            staged: None,
            denied: None,
        }
    }

    #[test]
    fn field_names_are_fixed() {
        let line = serde_json::to_string(&denied()).unwrap();
        let expected = concat!(
            r#"{"time":"2026-11-21T02:25:35.123Z","node":"node-a","verdict":"drop","#,
            r#""reason":"policy-denied","by":["default-deny of NetworkPolicy default/db"],"#,
            r#""from":{"pod":"default/frontend","ip":"10.1.0.3","port":41000},"#,
            r#""to":{"pod":"default/db","ip":"10.1.0.2","port":6379},"protocol":"TCP","#,
            r#""tcp_flags":"SYN","in":"default/frontend","out":"default/db"}"#,
        );
        assert_eq!(line, expected);
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), denied());
        let ingress = Event { denied: Some(Direction::Ingress), ..denied() };
        let line = serde_json::to_string(&ingress).unwrap();
        assert!(line.ends_with(r#","out":"default/db","direction":"ingress"}"#), "{line}");
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), ingress);
    }

    #[test]
    fn for_people() {
        assert_eq!(
            denied().to_string(),
            "2026-11-21T02:25:35.123Z: default/frontend:41000 -> default/db:6379 policy-denied \
             DROPPED (TCP Flags: SYN) by default-deny of NetworkPolicy default/db"
        );
        let ping = Event {
            verdict: Verdict::Forwarded,
            reason: "policy-allowed".into(),
            by: vec![],
            from: End { ip: Some("2001:db8::1".parse().unwrap()), ..End::default() },
            to: End { ip: Some("2001:db8::2".parse().unwrap()), port: Some(7), ..End::default() },
            protocol: Some(Protocol(protocol::ICMPV6)),
            icmp_type: Some(128),
            tcp_flags: None,
            ..denied()
        };
        assert_eq!(
            ping.to_string(),
            "2026-11-21T02:25:35.123Z: 2001:db8::1 -> [2001:db8::2]:7 policy-allowed FORWARDED \
             (ICMPv6 EchoRequest)"
        );
        let refused = Event {
            from: End { port: None, ..denied().from },
            tcp_flags: None,
            process: Some(Process { pid: 4711, command: "curl".into() }),
            ..denied()
        };
        assert_eq!(
            refused.to_string(),
            "2026-11-21T02:25:35.123Z: default/frontend -> default/db:6379 policy-denied DROPPED \
             (TCP) by default-deny of NetworkPolicy default/db in curl[4711]"
        );
        let line = serde_json::to_string(&refused).unwrap();
        assert!(line.contains(r#""process":{"pid":4711,"command":"curl"}"#), "{line}");
        let broken = Event {
            reason: "truncated".into(),
            by: vec![],
            from: End::default(),
            to: End::default(),
            protocol: None,
            tcp_flags: None,
            ..denied()
        };
        assert_eq!(
            broken.to_string(),
            "2026-11-21T02:25:35.123Z: ? -> ? truncated DROPPED in default/frontend"
        );
    }
}
