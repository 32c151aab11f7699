//! `kubectl podgate wait`.

use std::process::ExitCode;
use std::time::Duration;

use agent::run::Table;
use cli_runtime::{NO, Span, note};
use control::api_server::{SwitchPod, generation};
use control::{Kind, ObjectRef};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::output::{self, Format};
use super::{At as _, Cluster, Failure, page, write};

/// Arguments of `kubectl podgate wait`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Waits for the policy as it is now at the API server: its generation, in force on every node with a \
switch. A staged policy counts once it is evaluated.

Examples:
  kubectl podgate wait networkpolicy/db -n shop
  kubectl podgate wait clusternetworkpolicy/default-deny --timeout 2m

Exit code: 0 if it is in force on all nodes; 1 if not within the time, with the nodes that are late; 2 if an \
argument cannot be used."
)]
pub(super) struct Args {
    #[command(flatten)]
    cluster: Cluster,

    /// The policy
    #[arg(value_name = "KIND/NAME")]
    policy: String,

    /// Namespace of the policy [default: the context's]
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,

    /// Wait up to this time
    #[arg(long, value_name = "TIME", default_value = "1m")]
    timeout: Span,

    /// Format of the table of nodes that are late
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// Pauses between two questions to the switches that are late: the first, and the longest.
const PAUSE: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];
/// Columns of the table of nodes that are late.
const COLUMNS: [&str; 4] = ["node", "state", "generation", "wanted"];

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (kind, name) = policy(&args.policy).map_err(Failure::Unusable)?;
    let deadline = Instant::now() + args.timeout.0;
    let connection = args.cluster.connect().await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| connection.namespace.clone());
    let namespace = kind.is_namespaced().then(|| namespace.into());
    let policy = ObjectRef { kind, namespace, name: name.into() };
    let wanted = generation(&connection, &policy).await.at(&connection)?;
    let switches = args.cluster.switches(&connection, None).await?;
    let place = policy.place();
    let query = utf8_percent_encode(&place, NON_ALPHANUMERIC);
    let path = format!("{}?policy={query}", page("policies"));
    let (mut late, mut pause) = (switches.all().to_vec(), PAUSE[0]);
    let rows = loop {
        let pages = switches.pages(&late, &path).await;
        let mut rows = Vec::new();
        let mut still_late: Vec<SwitchPod> = Vec::new();
        for (switch, answer) in late.into_iter().zip(pages) {
            let found = answer
                .map_err(|error| error.to_string())
                .and_then(|table| late_by(&table, kind, &place, wanted));
            let Some((state, known)) = found.unwrap_or_else(|why| Some((why, Value::Null))) else {
                continue;
            };
            rows.push(vec![json!(switch.node), json!(state), known, wanted.into()]);
            still_late.push(switch);
        }
        late = still_late;
        let rest = deadline.saturating_duration_since(Instant::now());
        if late.is_empty() || rest.is_zero() {
            break rows;
        }
        sleep(pause.min(rest)).await;
        pause = (2 * pause).min(PAUSE[1]);
    };
    let all = switches.all().len();
    let version = wanted.map(|it| format!(" generation {it}")).unwrap_or_default();
    note(format_args!("{policy}{version}: in force on {} of {all} nodes", all - late.len()));
    if rows.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    write(&output::rows(&COLUMNS, COLUMNS.len(), rows, args.output))?;
    Ok(ExitCode::from(NO))
}

/// The kind and the name of a policy, such as `networkpolicy/db`.
fn policy(text: &str) -> Result<(Kind, &str), String> {
    let kinds = || Kind::ALL.into_iter().filter(|kind| kind.closes());
    let unusable = || {
        let kinds: Vec<String> = kinds().map(|kind| kind.name().to_lowercase()).collect();
        format!("{}: is no KIND/NAME of a policy; kinds: {}", text.escape_debug(), kinds.join(", "))
    };
    let (kind, name) =
        text.split_once('/').filter(|(_, name)| !name.is_empty()).ok_or_else(unusable)?;
    let wanted = kind.to_lowercase();
    let is_meant = |kind: &Kind| {
        let is_short = wanted == "netpol" && *kind == Kind::NetworkPolicy;
        is_short || wanted == kind.name().to_lowercase() || wanted == kind.plural()
    };
    Ok((kinds().find(is_meant).ok_or_else(unusable)?, name))
}

/// The state and the generation of a policy in a switch; `None` if it is the wanted generation, or a later one, in force.
fn late_by(
    table: &Table,
    kind: Kind,
    place: &str,
    wanted: Option<i64>,
) -> Result<Option<(String, Value)>, String> {
    let [kinds, policies, generation, state] =
        table.places(["kind", "policy", "generation", "state"])?;
    let is_meant = |row: &&Vec<Value>| row[kinds] == kind.name() && row[policies] == place;
    let Some(row) = table.rows.iter().find(is_meant) else {
        return Ok(Some(("unknown".to_owned(), Value::Null)));
    };
    let is_new = wanted.is_none_or(|wanted| row[generation].as_i64() >= Some(wanted));
    let state = row[state].as_str().unwrap_or_default();
    let state = match state {
        "in-force" | "staged" if is_new => return Ok(None),
        "in-force" | "staged" => "outdated",
        other => other,
    };
    Ok(Some((state.to_owned(), row[generation].clone())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_named_as_for_kubectl() {
        for (text, kind, name) in [
            ("networkpolicy/db", Kind::NetworkPolicy, "db"),
            ("netpol/db", Kind::NetworkPolicy, "db"),
            ("NetworkPolicies/db", Kind::NetworkPolicy, "db"),
            ("clusternetworkpolicy/all", Kind::ClusterNetworkPolicy, "all"),
            ("clusterhostfirewalls/x", Kind::ClusterHostFirewall, "x"),
        ] {
            assert_eq!(policy(text), Ok((kind, name)), "{text}");
        }
        for text in ["db", "pod/db", "networkpolicy/", "/db"] {
            let refused = policy(text).unwrap_err();
            assert!(refused.contains("networkpolicy, "), "{refused}");
        }
    }

    #[test]
    fn a_switch_with_an_older_generation_is_late() {
        let answer = |state: &str, generation: Value| {
            let answer = json!({"columns": ["kind", "policy", "generation", "state"],
                "rows": [["ClusterNetworkPolicy", "db", 9, "in-force"],
                    ["NetworkPolicy", "shop/db", generation, state]]});
            serde_json::from_value::<Table>(answer).unwrap()
        };
        let of = |answer: Table, wanted: Option<i64>| {
            late_by(&answer, Kind::NetworkPolicy, "shop/db", wanted).unwrap()
        };
        let late = |state: &str, generation: Value| Some((state.to_owned(), generation));
        assert_eq!(of(answer("in-force", json!(3)), Some(3)), None);
        assert_eq!(of(answer("staged", json!(4)), Some(3)), None);
        assert_eq!(of(answer("in-force", json!(2)), Some(3)), late("outdated", json!(2)));
        assert_eq!(of(answer("pending", json!(3)), Some(3)), late("pending", json!(3)));
        assert_eq!(of(answer("in-force", Value::Null), Some(1)), late("outdated", Value::Null));
        assert_eq!(of(answer("in-force", Value::Null), None), None);
        let other = late_by(&answer("in-force", json!(3)), Kind::NetworkPolicy, "x/y", Some(1));
        assert_eq!(other.unwrap(), late("unknown", Value::Null));
    }
}
