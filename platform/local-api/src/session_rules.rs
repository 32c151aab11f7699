//! Session rules on the wire, for proxies on the node.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use session_rules::{Action, End, Ports, Rule, Scope, Service, Transport};

/// One step towards the rules in force. A stream begins with steps that add all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRuleStep {
    /// Tags of removed rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delete: Vec<String>,
    /// New rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<SessionRule>,
    /// Services that are new, changed or removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<SessionService>,
    /// Set in the last step of a change: the pods of this node, `NAMESPACE/NAME`, with
    /// their addresses. The steps before it take effect together with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<BTreeMap<String, Vec<IpAddr>>>,
}

/// A session rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRule {
    /// Unique among the rules of a stream.
    pub tag: String,
    /// The policies it comes from, `KIND NS/NAME ingress[0]`.
    pub by: String,
    /// The pod, `NAMESPACE/NAME`, whose own connections it matches; without one it matches arriving
    /// connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// TCP or UDP.
    pub transport: Protocol,
    /// This node's end.
    pub local: RuleEnd,
    /// The other end.
    pub remote: RuleEnd,
    /// True if matching connections are allowed.
    pub allow: bool,
}

/// A service at one destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionService {
    /// The destination; an unspecified address stands for all of the node's own.
    pub at: SocketAddr,
    /// TCP or UDP.
    pub transport: Protocol,
    /// Clients that it admits; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<Vec<IpNet>>,
    /// True if a client keeps its endpoint.
    #[serde(default)]
    pub affinity: bool,
    /// Where connections go; without them the service is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<Vec<SocketAddr>>,
}

impl SessionService {
    /// Converts a service for sending; `None` is a removed one.
    pub fn new(at: SocketAddr, transport: Transport, service: Option<&Service>) -> Self {
        Self {
            at,
            transport: transport.into(),
            sources: service.and_then(|it| it.sources.clone()),
            affinity: service.is_some_and(|it| it.affinity),
            endpoints: service.map(|it| it.endpoints.clone()),
        }
    }

    /// Converts to a service of a stack; `None` is a removed one.
    pub fn service(self) -> Option<Service> {
        let Self { sources, affinity, .. } = self;
        self.endpoints.map(|endpoints| Service {
            sources,
            affinity,
            endpoints,
            ..Service::default()
        })
    }
}

/// Protocols that have session rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// TCP.
    #[serde(rename = "TCP")]
    Tcp,
    /// UDP.
    #[serde(rename = "UDP")]
    Udp,
}

impl From<Transport> for Protocol {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Tcp => Self::Tcp,
            Transport::Udp => Self::Udp,
        }
    }
}

impl From<Protocol> for Transport {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::Tcp,
            Protocol::Udp => Self::Udp,
        }
    }
}

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleEnd {
    /// A network; without one every address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net: Option<IpNet>,
    /// First and last port.
    pub ports: [u16; 2],
}

impl SessionRule {
    /// Converts a rule for sending, with the names of its policies.
    pub fn new(rule: &Rule, by: &str) -> Self {
        let end = |end: &End| RuleEnd { net: end.net, ports: [end.ports.first, end.ports.last] };
        Self {
            tag: rule.tag.to_string(),
            by: by.to_owned(),
            pod: match &rule.scope {
                Scope::Local(pod) => Some(pod.to_string()),
                Scope::Global => None,
            },
            transport: rule.transport.into(),
            local: end(&rule.local),
            remote: end(&rule.remote),
            allow: rule.action != Action::Deny,
        }
    }

    /// Converts to a rule of a stack.
    ///
    /// # Errors
    /// Fails if the ports are not a range.
    pub fn rule(&self) -> Result<Rule, String> {
        let end = |end: &RuleEnd| match end.ports {
            [first, last] if first <= last => {
                Ok(End { net: end.net, ports: Ports { first, last } })
            }
            [first, last] => Err(format!("session rule {}: ports {first}-{last}", self.tag)),
        };
        Ok(Rule {
            scope: match &self.pod {
                Some(pod) => Scope::Local(pod.as_str().into()),
                None => Scope::Global,
            },
            transport: self.transport.into(),
            local: end(&self.local)?,
            remote: end(&self.remote)?,
            action: if self.allow { Action::Allow } else { Action::Deny },
            tag: self.tag.as_str().into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_survive_the_wire() {
        let rule = Rule {
            scope: Scope::Local("default/web".into()),
            transport: Transport::Udp,
            local: End::ANY,
            remote: End { net: Some("10.0.0.0/8".parse().unwrap()), ports: Ports::one(53) },
            action: Action::Deny,
            tag: "podgate-1".into(),
        };
        let sent = SessionRule::new(&rule, "NetworkPolicy default/web egress[0]");
        let text = serde_json::to_string(&sent).unwrap();
        let received: SessionRule = serde_json::from_str(&text).unwrap();
        assert_eq!((received.rule(), received), (Ok(rule), sent));
    }

    #[test]
    fn services_survive_the_wire() {
        let at = "0.0.0.0:30080".parse().unwrap();
        let service = Service {
            sources: Some(vec!["192.0.2.0/24".parse().unwrap()]),
            affinity: true,
            endpoints: vec!["10.1.0.2:8080".parse().unwrap()],
            ..Service::default()
        };
        for service in [Some(service), Some(Service::default()), None] {
            let sent = SessionService::new(at, Transport::Tcp, service.as_ref());
            let text = serde_json::to_string(&sent).unwrap();
            let received: SessionService = serde_json::from_str(&text).unwrap();
            assert_eq!((received.clone(), received.service()), (sent, service));
        }
    }

    #[test]
    fn ports_are_a_range() {
        let mut sent = SessionRule::new(
            &Rule {
                scope: Scope::Global,
                transport: Transport::Tcp,
                local: End::ANY,
                remote: End::ANY,
                action: Action::Allow,
                tag: "a".into(),
            },
            "",
        );
        sent.local.ports = [2, 1];
        assert!(sent.rule().unwrap_err().contains("ports 2-1"));
    }
}
