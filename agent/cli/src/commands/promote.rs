//! `podgate policy promote`: the manifest of a staged policy, if it changed nothing for long enough.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::SystemTime;

use acl::Origin;
use agent::run::Table;
use cli_runtime::{NO, Socket, Span, UNUSABLE, fail, note, plain, print};
use control::model::Stage;
use local_api::{Request, Show};
use observe::time::moment;
use policy_tools::commands::promote::{StagedPolicy, Wanted};
use serde_json::Value;

use super::Ended;

/// Arguments of `podgate policy promote`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The manifest is printed without podgate.io/stage, and with podgate.io/stages: NAME under that \
name. Where the Namespace or --stage-all stages it, podgate.io/stage: enforced is set. The connections are those \
of this node's switch: ask all nodes by kubectl podgate staged. All staged policies are evaluated \
together; what several of them change together is held against each.

Examples:
  kubectl get netpol -n shop db -o yaml | podgate policy promote shop/db --manifests - | kubectl apply -f -
  podgate policy promote shop/db --manifests deploy/ --quiet-for 7d

Exit code: 0 if the policy changed nothing; 1 if it did, or was staged for less time, with the reasons on \
stderr; 2 if the input cannot be used or there is no answer."
)]
pub struct Args {
    #[command(flatten)]
    wanted: Wanted,

    /// Time for which the policy must have been staged without a connection that it would deny or allow
    #[arg(long, value_name = "TIME", default_value = "24h")]
    quiet_for: Span,

    #[command(flatten)]
    socket: Socket,
}

/// Prints the manifest, or what speaks against it.
pub(super) fn run(args: &Args) -> Ended {
    let policy = args.wanted.find().map_err(|faults| {
        fail(UNUSABLE, faults.iter().map(|it| plain(it)).collect::<Vec<_>>().join("\npodgate: "))
    })?;
    let table = |what: &str| -> Result<Table, ExitCode> {
        let limit = Some(u32::MAX);
        let show = Show { what: what.to_owned(), limit, ..Show::default() };
        // 1 says that the policy is not to be promoted.
        args.socket.call(&Request::Show(show)).map_err(|_| ExitCode::from(UNUSABLE))
    };
    let (connections, policies) = (table("staged")?, table("policies")?);
    let since = SystemTime::now().checked_sub(args.quiet_for.0).unwrap_or(SystemTime::UNIX_EPOCH);
    let quiet = Quiet { since, span: args.quiet_for };
    match quiet.holds(&policy, &policies, &connections) {
        Ok(default) => {
            if policy.replaces().is_some() {
                note(format_args!("{} is to be deleted once this is applied", policy.title()));
            }
            Ok(print(&policy.promoted(default)))
        }
        Err(reasons) => Err(fail(NO, format_args!("{}: {}", policy.title(), reasons.trim_end()))),
    }
}

/// The required time without a difference.
struct Quiet {
    since: SystemTime,
    span: Span,
}

impl Quiet {
    /// The stage that the policy has without annotation, if nothing speaks against it.
    fn holds(
        &self,
        policy: &StagedPolicy,
        policies: &Table,
        connections: &Table,
    ) -> Result<Stage, String> {
        let columns = ["kind", "policy", "stage", "default_stage", "state", "since"];
        let [kind, name, stage, default, state, since] = policies.places(columns)?;
        let [last] = policies.places(["last_difference"])?;
        let is_meant =
            |row: &&Vec<Value>| row[kind] == policy.kind() && row[name] == policy.place().as_str();
        let row = policies.rows.iter().find(is_meant).ok_or("the switch does not know it")?;
        if row[stage] != "staged" {
            return Err("it is not staged".to_owned());
        }
        if row[state] == "pending" {
            return Err("the switch is about to take a newer version".to_owned());
        }
        let staged = policies.rows.iter().filter(|row| row[stage] == "staged");
        let staged = staged.map(|row| format!("{} {}", text(&row[kind]), text(&row[name])));
        let staged: BTreeSet<String> = staged.collect();
        let [by, seen] = connections.places(["by", "last_seen"])?;
        let rows = connections.rows.iter().filter(|row| {
            self.is_recent(&row[seen]) && concerns(text(&row[by]), &policy.title(), &staged)
        });
        let rows: Vec<Vec<Value>> = rows.cloned().collect();
        if !rows.is_empty() {
            let table = Table { columns: connections.columns.clone(), rows, left_out: 0 };
            return Err(format!("it would change connections:\n{table}"));
        }
        if self.is_recent(&row[last]) {
            let last = text(&row[last]);
            return Err(format!("it would have changed a connection at {last}"));
        }
        if self.is_recent(&row[since]) {
            let (since, span) = (text(&row[since]), self.span);
            return Err(format!("it is staged since {since}, for less than {span}"));
        }
        Ok(if row[default] == "staged" { Stage::Staged } else { Stage::Enforced })
    }

    /// Whether a time of a table is within the required time.
    fn is_recent(&self, time: &Value) -> bool {
        time.as_str().is_some_and(|time| moment(time).is_none_or(|time| time >= self.since))
    }
}

/// Whether a connection that `by` decides otherwise about is held against a policy: it is among those that
/// decide, or none of them is staged, so that the change is one of what no longer decides.
fn concerns(by: &str, title: &str, staged: &BTreeSet<String>) -> bool {
    let mut policies = by.split(", ").map(|it| Origin::from(it).policies_in_words());
    policies.clone().any(|it| it == title) || !policies.any(|it| staged.contains(&it))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use observe::time::utc;

    use super::*;

    #[test]
    fn a_change_is_held_against_the_staged_policies_that_may_cause_it() {
        let staged = ["NetworkPolicy shop/next".to_owned(), "NetworkPolicy shop/b".to_owned()];
        let staged = BTreeSet::from(staged);
        let of = |by: &str| concerns(by, "NetworkPolicy shop/next", &staged);
        assert!(of("NetworkPolicy shop/next ingress[0]"));
        assert!(of("default-deny of NetworkPolicy shop/a, NetworkPolicy shop/next"));
        assert!(!of("default-deny of NetworkPolicy shop/a, NetworkPolicy shop/b"));
        assert!(!of("NetworkPolicy shop/b ingress[0]"));
        // The next version may select nothing any more.
        assert!(of("default-deny of NetworkPolicy shop/a"));
        assert!(of("default-allow"));
        assert!(!of("NetworkPolicy shop/next-one ingress[0], NetworkPolicy shop/b ingress[1]"));
    }

    #[test]
    fn what_speaks_against_a_policy_is_said() {
        let now = SystemTime::now();
        let ago = |hours: u64| utc(now - std::time::Duration::from_secs(3600 * hours));
        let quiet = Quiet {
            since: now - std::time::Duration::from_secs(24 * 3600),
            span: "24h".parse().unwrap(),
        };
        let policy = StagedPolicy::new(&serde_json::json!({"kind": "NetworkPolicy",
            "metadata": {"name": "db", "namespace": "shop"}}));
        let policies = |stage: &str, state: &str, since: u64, last: Option<u64>| {
            let mut table = Table::new(&agent::run::POLICY_COLUMNS);
            let last = last.map_or(Value::Null, |hours| ago(hours).into());
            let texts = ["NetworkPolicy", "shop/db", stage, "enforced"];
            let mut row: Vec<Value> = texts.map(Value::from).to_vec();
            row.extend([1.into(), state.into(), ago(since).into(), last]);
            row.extend([0.into(), 0.into(), "".into()]);
            table.rows.push(row);
            table
        };
        let connections = |seen: &[u64]| {
            let mut table = Table::new(&["from", "last_seen", "by"]);
            let row = |hours: &u64| {
                vec![
                    "shop/web".into(),
                    ago(*hours).into(),
                    "NetworkPolicy shop/db ingress[0]".into(),
                ]
            };
            table.rows.extend(seen.iter().map(row));
            table
        };
        let holds = |policies: &Table, seen: &[u64]| {
            quiet
                .holds(&policy, policies, &connections(seen))
                .map_err(|why| why.lines().next().unwrap().to_owned())
        };
        let staged = |since, last| policies("staged", "staged", since, last);
        assert_eq!(holds(&staged(30, None), &[]), Ok(Stage::Enforced));
        assert_eq!(holds(&staged(30, Some(25)), &[25]), Ok(Stage::Enforced));
        assert_eq!(holds(&staged(30, Some(2)), &[2]).unwrap_err(), "it would change connections:");
        assert!(holds(&staged(30, Some(2)), &[]).unwrap_err().starts_with("it would have changed"));
        assert!(holds(&staged(5, None), &[]).unwrap_err().ends_with("for less than 1d"));
        let enforced = policies("enforced", "in-force", 30, None);
        assert_eq!(holds(&enforced, &[]).unwrap_err(), "it is not staged");
        let pending = policies("staged", "pending", 30, None);
        assert!(holds(&pending, &[]).unwrap_err().contains("newer version"));
        let unknown = Table::new(&agent::run::POLICY_COLUMNS);
        assert_eq!(holds(&unknown, &[]).unwrap_err(), "the switch does not know it");
    }
}
