//! Checks changes of policies before the API server stores them: faults, and invariants that would no longer hold.
//!
//! ```text
//! watches ─▶ Cluster ─ slice ─▶ Prover, with the change and without ─▶ Findings ─▶ answer
//! AdmissionReview ─ reader ─▶ Change ─┘
//! ```
//!
//! A change of a NetworkPolicy affects the pods of its namespace alone. So a statement is proved in a slice of the
//! cluster: that namespace, and those that the statement names. Representatives stand for the pods of all other
//! namespaces, whose NetworkPolicies are assumed to permit everything: a proof in the slice holds in the cluster. A
//! refutation by such a pod is verified in the whole cluster, if that is small enough.
//!
//! - `cluster`: the policies and namespaces that are watched, and slices of them,
//! - `decisions`: changes that were allowed and that the watches have not shown,
//! - `turns`: whose change is judged when,
//! - `review`: the API server's question and the answer.

mod cluster;
mod decisions;
mod review;
mod turns;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use control::{Object, ObjectRef};
use ipnet::IpNet;

pub use crate::policy::prove::read_any as read;
use crate::policy::prove::{Counterexample, Prover, Statement};
use crate::policy::suite::Side;
use crate::probe::{DomainAddresses, Endpoint};
pub use cluster::{Cluster, KINDS};
pub use review::{Mode, Question};
pub use turns::{Turn, Turns};

/// A change of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The object.
    pub object: ObjectRef,
    /// The object after the change; `None`: deleted.
    pub after: Option<Object>,
}

/// Objections to a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Parts of the object that cannot be read, each with its field.
    pub faults: Vec<String>,
    /// Statements that hold before the change and not after it.
    pub refuted: Vec<String>,
    /// Statements of which it is not known whether they hold after the change, each with the
    /// reason.
    pub undecided: Vec<String>,
    /// Other remarks.
    pub notes: Vec<String>,
}

/// Why a statement is undecided whose evaluation took too long.
pub(crate) const LATE: &str = "there is no time left for it";

/// Maximum number of policies of a cluster that is evaluated as a whole.
const MOST_WHOLE: usize = 1_000;

/// Statements that must hold.
#[derive(Clone, Debug, Default)]
pub struct Invariants {
    statements: Vec<Statement>,
    /// Networks of pods; without any, those of the nodes.
    networks: Vec<IpNet>,
}

impl Invariants {
    /// Takes statements about pods in these networks.
    ///
    /// # Errors
    /// Names each statement about a pod, a service or a domain name: these are not watched.
    pub fn new(statements: Vec<Statement>, networks: Vec<IpNet>) -> Result<Self, Vec<String>> {
        let is_watched = |side: &Side| match side {
            Side::One(endpoint) => {
                matches!(endpoint, Endpoint::Address(_) | Endpoint::Node(_))
            }
            _ => true,
        };
        let unusable = statements.iter().filter(|it| !it.sides().all(is_watched));
        let fault = |it: &Statement| {
            let Statement { name, line, .. } = it;
            format!("{name} (line {line}): names a pod, a service or a domain; name labels instead")
        };
        let faults: Vec<String> = unusable.map(fault).collect();
        if faults.is_empty() { Ok(Self { statements, networks }) } else { Err(faults) }
    }

    /// Returns the number of statements.
    pub fn count(&self) -> usize {
        self.statements.len()
    }

    /// Evaluates a change of the cluster as the watches show it, and after the changes that were
    /// allowed since. What is not decided by `deadline` is undecided.
    pub fn judge(
        &self,
        cluster: &Cluster,
        change: &Change,
        deadline: Instant,
        findings: &mut Findings,
    ) {
        let decided = cluster.decided(Instant::now());
        for statement in &self.statements {
            let judged = [Some(cluster), decided.as_ref()].into_iter().flatten().map(|cluster| {
                if Instant::now() >= deadline {
                    return Err(LATE.to_owned());
                }
                self.refuted_by(statement, cluster, change, deadline)
            });
            let name = &statement.name;
            let (mut refuted, mut undecided) = (None, None);
            for judged in judged {
                match judged {
                    Ok(Standing::Holds) => {}
                    Ok(Standing::Refuted(by)) => refuted = Some(format!("{name}: {by}")),
                    Ok(Standing::Undecided(by)) => {
                        undecided = Some(format!("{name}: may no longer hold: {by}"));
                    }
                    Err(problem) => {
                        undecided = Some(format!("{name}: is not decided: {problem}"));
                    }
                }
            }
            match (refuted, undecided) {
                (Some(refuted), _) => findings.refuted.push(refuted),
                (None, undecided) => findings.undecided.extend(undecided),
            }
        }
    }

    fn refuted_by(
        &self,
        statement: &Statement,
        cluster: &Cluster,
        change: &Change,
        deadline: Instant,
    ) -> Result<Standing, String> {
        let own = change.object.namespace.as_deref();
        // No decision about others depends on it.
        if own.is_some_and(|own| !statement.concerns(own)) {
            return Ok(Standing::Holds);
        }
        let mut inside: BTreeSet<Arc<str>> = change.object.namespace.iter().cloned().collect();
        inside.extend(statement.sides().filter_map(|side| match side {
            Side::Pods(pods) => pods.namespace().map(Arc::from),
            _ => None,
        }));
        let prover = self.prover(statement, cluster.slice(&inside, Some(change)), deadline)?;
        let is_known = |name: &str| inside.contains(name) || !cluster.has_namespace(name);
        // A slice without a namespace proves nothing about existing ones.
        let is_decided =
            !inside.is_empty() || !statement.sides().any(|it| *it == Side::ExistingNamespace);
        if is_decided && let Some(by) = prover.refute_among(statement, [&is_known; 3])? {
            // A statement that did not hold before is no objection.
            let before = self.prover(statement, cluster.slice(&inside, None), deadline)?;
            let was = before.refute_among(statement, [&is_known; 3])?.is_some();
            return Ok(if was { Standing::Holds } else { Standing::Refuted(by) });
        }
        // Connections with pods of other namespaces, as far as the change concerns them. Those of the files are not in the
        // slice.
        let wide = statement.widened();
        let is_own = |name: &str| own.is_none_or(|own| own == name);
        let is_any = |_: &str| true;
        let found = match statement.is_over_a_pod() {
            true => prover.refute_among(&wide, [&is_any; 3])?,
            false => match prover.refute_among(&wide, [&is_own, &is_any, &is_any])? {
                None => prover.refute_among(&wide, [&is_any, &is_any, &is_own])?,
                found => found,
            },
        };
        let Some(by) = found else { return Ok(Standing::Holds) };
        if cluster.count() > MOST_WHOLE {
            return Ok(Standing::Undecided(by));
        }
        let of_whole =
            |change| self.prover(statement, cluster.whole(change), deadline)?.refute(statement);
        let Some(by) = of_whole(Some(change))? else { return Ok(Standing::Holds) };
        let was = of_whole(None)?.is_some();
        Ok(if was { Standing::Holds } else { Standing::Refuted(by) })
    }

    fn prover(
        &self,
        statement: &Statement,
        objects: Vec<Object>,
        deadline: Instant,
    ) -> Result<Prover, String> {
        let (statements, names) = (std::iter::once(statement), DomainAddresses::default());
        let prover = Prover::new(objects.into(), statements, names, &self.networks)?;
        if Instant::now() >= deadline { Err(LATE.to_owned()) } else { Ok(prover.until(deadline)) }
    }
}

/// A statement after a change.
enum Standing {
    /// It holds, or did not hold before.
    Holds,
    /// It held, and this connection refutes it.
    Refuted(Counterexample),
    /// This connection may refute it; it depends on policies elsewhere.
    Undecided(Counterexample),
}
