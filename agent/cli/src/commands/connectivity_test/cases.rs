//! The connections that each policy must allow or deny.

use std::time::Instant;

use cli_runtime::note;

use super::Row;
use super::cluster::{Cluster, NODE, PORTS};
use super::node::Failure;
use super::probe::{Family, Found, on_open, open, over_tcp, over_udp};

const INGRESS: &str = "
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{protocol: TCP, port: 8080}]
";
const EGRESS: &str = "
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress: []
";

/// Connections under the policies that are in force after some changes.
struct Step {
    /// The policies, in words.
    policies: &'static str,
    /// Policies by name that are written, or removed, with the pod that they select.
    changes: &'static [(&'static str, &'static str, Option<&'static str>)],
    /// From, to, protocol, port, and whether it must connect; each over both families.
    cases: &'static [(&'static str, &'static str, &'static str, u16, bool)],
}

const STEPS: [Step; 4] = [
    Step {
        policies: "none",
        changes: &[],
        cases: &[
            ("client", "server", "TCP", PORTS[0], true),
            ("other", "server", "TCP", PORTS[1], true),
            ("client", "server", "UDP", PORTS[0], true),
            (NODE, "server", "TCP", PORTS[0], true),
        ],
    },
    Step {
        policies: "server takes client on TCP 8080",
        changes: &[("ingress", "server", Some(INGRESS))],
        cases: &[
            ("client", "server", "TCP", PORTS[0], true),
            ("client", "server", "TCP", PORTS[1], false),
            ("other", "server", "TCP", PORTS[0], false),
            ("client", "server", "UDP", PORTS[0], false),
            ("server", "other", "TCP", PORTS[0], true),
            // A node reaches its own pods, whatever their policies say.
            (NODE, "server", "TCP", PORTS[0], true),
        ],
    },
    Step {
        policies: "and client opens nothing",
        changes: &[("egress", "client", Some(EGRESS))],
        cases: &[
            ("client", "server", "TCP", PORTS[0], false),
            ("client", "other", "TCP", PORTS[0], false),
            ("other", "client", "TCP", PORTS[0], true),
        ],
    },
    Step {
        policies: "none again",
        changes: &[("ingress", "server", None), ("egress", "client", None)],
        cases: &[
            ("client", "server", "TCP", PORTS[0], true),
            ("other", "server", "TCP", PORTS[0], true),
        ],
    },
];

/// Tries all of them.
pub(super) fn run(cluster: &mut Cluster) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    let families = cluster.families()?;
    for family in Family::ALL.into_iter().filter(|family| !families.contains(family)) {
        note(format_args!("{} is left out: pods have no such address", family.name()));
    }
    let server = cluster.address("server", families[0])?;
    // A connection that is open before the policy which denies it.
    let live = cluster.inside("other", || open(server, PORTS[0], Found::Connects))?;
    let live = live.map_err(|error| format!("other to server:{}: {error}", PORTS[0]))?;
    if on_open(&live, Found::Connects) != Found::Connects {
        return Err(format!("other to server:{}: no answer, before any policy", PORTS[0]).into());
    }
    let mut live = Some(live);
    for Step { policies, changes, cases } in STEPS {
        for (name, selected, policy) in changes {
            cluster.apply(name, selected, *policy)?;
        }
        let mut add = |from, to, (protocol, family, port), expected, began: Instant, found| {
            let milliseconds = began.elapsed().as_millis();
            let family = Family::name(family);
            rows.push(Row {
                policies,
                from,
                to,
                protocol,
                family,
                port,
                expected,
                found,
                milliseconds,
            });
        };
        if let Some(live) = live.take_if(|_| !changes.is_empty()) {
            let (began, expected) = (Instant::now(), Found::Blocked);
            let what = ("TCP live", families[0], PORTS[0]);
            add("other", "server", what, expected, began, on_open(&live, expected));
        }
        for family in families.iter().copied() {
            for &(from, to, protocol, port, connects) in cases {
                let expected = if connects { Found::Connects } else { Found::Blocked };
                let (address, began) = (cluster.address(to, family)?, Instant::now());
                let found = cluster.inside(from, || match protocol {
                    "UDP" => over_udp(address, port, expected),
                    _ => over_tcp(address, port, expected),
                })?;
                add(from, to, (protocol, family, port), expected, began, found);
            }
        }
    }
    Ok(rows)
}
