//! Measures the answers of a webhook that knows 10,000 policies.
//!
//! ```text
//! cargo run --release -p policy-tools --example admission_figures [POLICIES] [CHANGES]
//! ```
//!
//! 20 policies a namespace and 20 cluster-wide ones; five statements. Changes are of NetworkPolicies, one in ten opens what a
//! statement forbids, and one in twenty is of a cluster-wide policy. Processor time is that of the thread.

use std::time::{Duration, Instant};

use control::objects::{Read, read};
use policy_tools::admission::{self, Cluster, Invariants, Mode, Question};
use serde_json::{Value, json};

const STATEMENTS: &str = "
- {name: only the web reads, only: [team-0/app=web], to: team-0/app=db, protocol: TCP, port: '*'}
- {name: the ledger is alone, from: any-pod, to: team-1/app=ledger, port: '*', expect: deny}
- {name: nothing from outside, from: internet, to: team-2/app=db, port: '*', expect: deny}
- {name: the vault stays inside, from: team-3/app=vault, to: internet, port: '*', expect: deny}
- {name: metrics are read, from: monitoring/app=prometheus, to: team-4/app=web, port: 9090, expect: allow}
";
/// Policies of a namespace.
const EACH: usize = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|it| it.parse::<usize>());
    let policies = arguments.next().transpose()?.unwrap_or(10_000);
    let changes = arguments.next().transpose()?.unwrap_or(500);
    let namespaces = policies / EACH;
    let mut cluster = Cluster::default();
    for n in 0..namespaces {
        let labels = json!({"team": format!("t{}", n % 50)});
        let name = format!("team-{n}");
        set(
            &mut cluster,
            json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": labels}}),
        );
        (0..EACH).for_each(|m| set(&mut cluster, policy(n, m, false)));
    }
    (0..20).for_each(|n| set(&mut cluster, wide(n)));
    let statements = admission::read(STATEMENTS.as_bytes()).map_err(|faults| faults.join("; "))?;
    let invariants = Invariants::new(statements, Vec::new()).map_err(|it| it.join("; "))?;
    let (mut walls, mut cores, mut refused) = (Vec::new(), Vec::new(), 0);
    for n in 0..changes {
        let object = match n % 20 {
            7 => wide(n % 20),
            // Statements are about the first five.
            _ => policy(
                if n % 2 == 0 { n / 2 % 5 } else { n * 7 % namespaces },
                n % EACH,
                n % 10 == 0,
            ),
        };
        let body = json!({"request": {"uid": "u", "operation": "UPDATE", "object": object}});
        let (began, before) = (Instant::now(), processor_time()?);
        let question = Question::read(body.to_string().as_bytes())?;
        let change = question.change.as_ref().ok_or("no policy")?;
        let mut findings = question.findings.clone();
        invariants.judge(&cluster, change, began + Duration::from_secs(60), &mut findings);
        walls.push(began.elapsed());
        cores.push(processor_time()? - before);
        refused += usize::from(!Question::is_allowed(Mode::Deny, &findings));
    }
    println!("{} policies, {changes} changes, {refused} of them refused", cluster.count());
    for (name, mut times) in [("processor time", cores), ("wall", walls)] {
        times.sort();
        let at = |part: usize| {
            times[(times.len() * part / 100).min(times.len() - 1)].as_secs_f64() * 1e3
        };
        println!("{name}: p50 {:.1} ms, p99 {:.1} ms, most {:.1} ms", at(50), at(99), at(100));
    }
    Ok(())
}

fn set(cluster: &mut Cluster, object: Value) {
    match read(object) {
        Read::Object(object, faults) if faults.is_empty() => cluster.set(object),
        other => panic!("{other:?}"),
    }
}

/// The `m`th policy of a namespace; the first closes its pods.
fn policy(n: usize, m: usize, opens: bool) -> Value {
    let spec = match (m, opens) {
        (_, true) => json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"namespaceSelector": {}}]}], "egress": [{}]}),
        (0, false) => json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
        _ => {
            let app = ["web", "db", "ledger", "vault", "cache"][m % 5];
            json!({"podSelector": {"matchLabels": {"app": app}},
                "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web", "tier": format!("t{m}")}}},
                    {"podSelector": {"matchLabels": {"role": format!("r{}", m % 3)}}}],
                    "ports": [{"port": 1000 + m}]}]})
        }
    };
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": format!("p{m}"), "namespace": format!("team-{n}")}, "spec": spec})
}

fn wide(n: usize) -> Value {
    json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": format!("w{n}")},
        "spec": {"tier": "Admin", "priority": n,
            "subject": {"namespaces": {"matchLabels": {"team": format!("t{n}")}}},
            "ingress": [{"action": "Deny", "from": [{"namespaces": {"matchLabels": {"team": format!("t{}", n + 1)}}}]}]}})
}

/// Processor time of this thread.
fn processor_time() -> std::io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let first = text.split(' ').next().and_then(|it| it.parse().ok());
    Ok(Duration::from_nanos(first.unwrap_or_default()))
}
