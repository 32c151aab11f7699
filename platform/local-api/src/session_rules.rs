//! Session rules on the wire, for proxies on the node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use session_rules::{Action, End, Ports, Rule, Scope, Transport};

/// One step towards the rules in force. A stream begins with steps that add all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRuleStep {
    /// Tags of removed rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delete: Vec<String>,
    /// New rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<SessionRule>,
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
    /// Whether matching connections are allowed.
    pub allow: bool,
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
            transport: match rule.transport {
                Transport::Tcp => Protocol::Tcp,
                Transport::Udp => Protocol::Udp,
            },
            local: end(&rule.local),
            remote: end(&rule.remote),
            allow: rule.action != Action::Deny,
        }
    }

    /// Converts to a rule of a stack.
    ///
    /// # Errors
    /// If the ports are no range.
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
            transport: match self.transport {
                Protocol::Tcp => Transport::Tcp,
                Protocol::Udp => Transport::Udp,
            },
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
