//! Rules and the connections they are about.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

/// Transport protocols that have sessions. A rule is for one of them; a verdict about every
/// protocol is two rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// The point at which a rule is evaluated.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// At connect, in this application namespace (a pod).
    Local(Arc<str>),
    /// At arrival, for the whole node.
    Global,
}

/// An inclusive range of ports, in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ports {
    /// First port.
    pub first: u16,
    /// Last port; never below `first`.
    pub last: u16,
}

impl Ports {
    /// Every port.
    pub const ANY: Self = Self { first: 0, last: u16::MAX };

    /// Exactly one port.
    pub const fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// Whether `port` lies in the range.
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// Number of ports besides the first.
    pub(crate) const fn width(self) -> u16 {
        self.last - self.first
    }
}

/// One end of a connection as a rule sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct End {
    /// A network; `None` is any address of any family.
    pub net: Option<IpNet>,
    /// Ports.
    pub ports: Ports,
}

impl End {
    /// Any end.
    pub const ANY: Self = Self { net: None, ports: Ports::ANY };

    /// Whether the end is at this address and port.
    pub fn contains(&self, address: IpAddr, port: u16) -> bool {
        self.ports.contains(port) && self.net.is_none_or(|net| net.contains(&address))
    }

    /// The prefix length, any address being less than every network.
    pub(crate) fn length(&self) -> i16 {
        self.net.map_or(-1, |net| i16::from(net.prefix_len()))
    }
}

/// The action on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// It is refused.
    Deny,
    /// It is opened.
    Allow,
    /// No verdict; the stack behaves as if no rule had matched.
    DoNothing,
    /// It is handed to the application with this index.
    Redirect(u32),
}

/// One session rule. Two rules say the same if everything but their tags is equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    /// The point of evaluation.
    pub scope: Scope,
    /// For which transport.
    pub transport: Transport,
    /// This node's end.
    pub local: End,
    /// The other end.
    pub remote: End,
    /// The rule's verdict.
    pub action: Action,
    /// Its name, unique among the rules of a stack.
    pub tag: Arc<str>,
}

/// A connection to evaluate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The point of evaluation of the query.
    pub scope: Scope,
    /// Its transport.
    pub transport: Transport,
    /// Address and port of this node's end.
    pub local: (IpAddr, u16),
    /// Address and port of the other end.
    pub remote: (IpAddr, u16),
}

impl Rule {
    /// Returns whether the rule matches this connection.
    pub fn matches(&self, connection: &Connection) -> bool {
        self.scope == connection.scope
            && self.transport == connection.transport
            && self.local.contains(connection.local.0, connection.local.1)
            && self.remote.contains(connection.remote.0, connection.remote.1)
    }

    /// Grows with how specific the rule is; compared between rules that match the same.
    pub fn specificity(&self) -> (i16, i16, u16, u16) {
        let narrow = |ports: Ports| u16::MAX - ports.width();
        (
            self.remote.length(),
            self.local.length(),
            narrow(self.remote.ports),
            narrow(self.local.ports),
        )
    }

    /// All but the tag.
    pub(crate) fn meaning(&self) -> (&Scope, Transport, End, End, Action) {
        (&self.scope, self.transport, self.local, self.remote, self.action)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.net {
            None => f.write_str("any")?,
            Some(net) => write!(f, "{net}")?,
        }
        match self.ports {
            Ports::ANY => Ok(()),
            Ports { first, last } if first == last => write!(f, " port {first}"),
            Ports { first, last } => write!(f, " ports {first}-{last}"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.scope {
            Scope::Local(namespace) => write!(f, "local {namespace}")?,
            Scope::Global => f.write_str("global")?,
        }
        let transport = match self.transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        };
        write!(f, " {transport} {} <-> {} ", self.local, self.remote)?;
        match self.action {
            Action::Deny => f.write_str("deny")?,
            Action::Allow => f.write_str("allow")?,
            Action::DoNothing => f.write_str("do-nothing")?,
            Action::Redirect(index) => write!(f, "redirect {index}")?,
        }
        write!(f, " [{}]", self.tag)
    }
}
