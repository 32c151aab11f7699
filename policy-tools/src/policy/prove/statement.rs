//! Statements about connections.

use acl::Direction;

use crate::policy::suite::Side;
use crate::probe::{Port, ProbeVerdict, Protocol};

/// One statement.
#[derive(Clone, Debug)]
pub struct Statement {
    /// Its name; made of its fields where it has none.
    pub name: String,
    /// Its line in the file.
    pub line: u64,
    pub(super) from: From,
    pub(super) to: Side,
    /// `None`: every protocol.
    pub(super) protocol: Option<Protocol>,
    /// `None`: every port.
    pub(super) port: Option<Port>,
    /// Connections that it leaves out, by protocol and port; `None`: every port.
    pub(super) except: Vec<(Protocol, Option<u16>)>,
    /// Connections over an intermediate pod count too.
    pub(super) over_a_pod: bool,
    pub(super) expect: Expect,
}

/// The ends that open connections.
#[derive(Clone, Debug)]
pub(super) enum From {
    These(Side),
    /// All pods and addresses but these.
    AllBut(Vec<Side>),
}

/// The verdict that a statement expects of each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// Its verdict.
    Verdict(ProbeVerdict),
    /// It is denied unless a rule of this direction allows it.
    DefaultDeny(Direction),
}

impl Statement {
    /// The statement that no connection at all may be opened between these ends.
    pub(super) fn about_every_connection(&self) -> Self {
        let expect = Expect::Verdict(ProbeVerdict::Deny);
        Self { protocol: None, port: None, except: Vec::new(), expect, ..self.clone() }
    }

    /// Returns whether it excludes connections to a port.
    pub(super) fn excepts(&self, protocol: Protocol, port: u16) -> bool {
        self.except
            .iter()
            .any(|(of, number)| *of == protocol && number.is_none_or(|number| number == port))
    }

    /// Widens the statement from existing namespaces to those that could exist.
    pub(crate) fn widened(&self) -> Self {
        let mut wide = self.clone();
        let from = match &mut wide.from {
            From::These(side) => std::slice::from_mut(side),
            // Wider exceptions would weaken the statement.
            From::AllBut(_) => &mut [],
        };
        for side in from.iter_mut().chain([&mut wide.to]) {
            if *side == Side::ExistingNamespace {
                *side = Side::AnyPod;
            }
        }
        wide
    }

    /// Returns whether it concerns pods of a namespace.
    pub(crate) fn concerns(&self, namespace: &str) -> bool {
        let has = |side: &Side| match side {
            Side::Pods(of) => of.namespace().is_none_or(|own| own == namespace),
            Side::AnyPod | Side::AnyNamespace | Side::ExistingNamespace | Side::Any => true,
            Side::One(_) | Side::Internet | Side::Nodes => false,
        };
        let from = match &self.from {
            From::These(side) => has(side),
            From::AllBut(_) => true,
        };
        from || self.over_a_pod || has(&self.to)
    }

    /// Returns whether it covers connections over an intermediate pod.
    pub(crate) fn is_over_a_pod(&self) -> bool {
        self.over_a_pod
    }

    /// The ends that it names.
    pub(crate) fn sides(&self) -> impl Iterator<Item = &Side> {
        let from = match &self.from {
            From::These(side) => std::slice::from_ref(side),
            From::AllBut(sides) => sides,
        };
        from.iter().chain([&self.to])
    }
}
