//! `podgate policy explain` and `podgate policy walkthrough`: why, in words.

use std::fmt::{self, Write as _};

use acl::Origin;
use control::PodKey;
use control::explain::{Reach, Walkthrough};
use serde::Serialize;

use super::input::{Input, Resolve, warn_ignored};
use super::{Ended, print};
use crate::input::Manifests;
use crate::policy::explain::{AtEnd, Explanation, Opened, UnknownPort, explain, unknown_ports};
use crate::policy::representatives;
use crate::policy::suite::Side;
use crate::probe::{Endpoint, Port, Prober, Protocol, Question, case};
use cli_runtime::{NO, Output};

/// Arguments of `podgate policy explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  podgate policy explain default/web default/db --port 5432 --manifests cluster/
  podgate policy explain any-pod shop/db --port 5432 --manifests cluster/
  podgate policy explain deploy/web svc/db -n shop --port 5432 --context staging
  podgate policy explain 203.0.113.7 service/shop/web --port http --manifests cluster/
  podgate policy explain shop/web api.example.com --port 443 --resolve api.example.com=192.0.2.7 \
      --manifests cluster/

Exit code: 0 if the connection may be opened, 1 if not, 2 if the input cannot be used.")]
pub struct Explain {
    /// Source: NS/POD, an IP address, node/NAME or internet; NS/LABEL=VALUE[,...] stands for a pod with these labels,
    /// any-pod for one without labels in another namespace
    #[arg(value_name = "FROM")]
    from: String,
    /// Destination, in the same forms; also service/NS/NAME or a domain name
    #[arg(value_name = "TO")]
    to: String,
    /// Namespace of ends as kubectl names them: POD, deploy/NAME and other workloads, svc/NAME
    #[arg(short, long, value_name = "NS", default_value = "default")]
    namespace: String,
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    resolve: Resolve,
    /// The protocol
    #[arg(long, value_enum, ignore_case = true, default_value = "TCP")]
    protocol: Protocol,
    /// The port, by number or by its name at the target; ignored for ICMP
    #[arg(long, default_value = "80", value_parser = case::port_argument)]
    port: Port,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

/// Arguments of `podgate policy walkthrough`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  podgate policy walkthrough default/db --manifests cluster/

Exit code: 0, or 2 if the input cannot be used.")]
pub struct Walk {
    /// The pod, as NS/POD
    #[arg(value_name = "POD", value_parser = pod)]
    pod: PodKey,
    #[command(flatten)]
    input: Input,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

/// The rules of a pod, and those of them that name no port.
#[derive(Serialize)]
struct Walked {
    #[serde(flatten)]
    rules: Walkthrough,
    unknown_ports: Vec<UnknownPort>,
}

impl Explain {
    /// Runs the command.
    pub(super) fn run(&self) -> Ended {
        let (mut prober, [from, to]) = self.prober()?;
        let port = (self.protocol != Protocol::Icmp).then_some(&self.port);
        let question = Question { from: &from, to: &to, protocol: self.protocol, port };
        let explanation = explain(&mut prober, question).map_err(|it| vec![it.to_string()])?;
        let text = text(self.output, &explanation, |out| write_explanation(out, &explanation));
        Ok(print(&text, if explanation.permits { 0 } else { NO }))
    }

    fn prober(&self) -> Result<(Prober, [Endpoint; 2]), Vec<String>> {
        let mut manifests = self.input.load()?;
        let mut end = |field: &str, text: &str| {
            let named = kubectl_end(&manifests, text, &self.namespace);
            let side = Side::read(named.as_deref().unwrap_or(text), field == "TO");
            let end = side.and_then(|side| representatives::end(&mut manifests, &side));
            end.map_err(|it| vec![format!("{field}: {it}")])
        };
        let ends = [end("FROM", &self.from)?, end("TO", &self.to)?];
        let addresses = ends.iter().filter_map(Endpoint::address);
        let prober = Prober::with_names(manifests, addresses, self.resolve.names());
        let prober = prober.map_err(|problem| vec![problem])?;
        warn_ignored(prober.ignored());
        let unknown = ends.iter().filter_map(|end| prober.unknown(end));
        let unknown: Vec<String> = unknown.collect();
        if unknown.is_empty() { Ok((prober, ends)) } else { Err(unknown) }
    }
}

impl Walk {
    /// Runs the command.
    pub(super) fn run(&self) -> Ended {
        Ok(print(&walkthrough(self.input.load()?, &self.pod, self.output)?, 0))
    }
}

/// An end that is named as kubectl names objects, in the words of a case: `POD`, `deploy/NAME`, `svc/NAME`. `None` for
/// other texts, and for a pod of the manifests with such a name.
fn kubectl_end(manifests: &Manifests, text: &str, namespace: &str) -> Option<String> {
    const WORKLOADS: [&str; 12] = [
        "deploy",
        "deployment",
        "statefulset",
        "sts",
        "daemonset",
        "ds",
        "replicaset",
        "rs",
        "job",
        "cronjob",
        "pod",
        "po",
    ];
    let (kind, name) = text.split_once('/').unwrap_or(("pod", text));
    let is_pod = |it: &str| manifests.pods().any(|pod| pod.key.to_string() == it);
    let is_word = |it: &str| it.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if is_pod(text) || !is_word(name) || ["internet", "any-pod"].contains(&text) {
        return None;
    }
    if ["svc", "service"].contains(&kind) {
        return Some(format!("service/{namespace}/{name}"));
    }
    let wanted = format!("{namespace}/{name}");
    let of_workload =
        || manifests.pods().find(|pod| manifests.workload(&pod.key) == wanted).map(|pod| &pod.key);
    let is_kind = WORKLOADS.contains(&kind);
    let named = of_workload().filter(|_| is_kind && !is_pod(&wanted)).map(ToString::to_string);
    named.or_else(|| is_kind.then_some(wanted))
}

/// Describes the connections to and from a pod that are allowed, in words or as a line of JSON.
///
/// # Errors
/// Fails if the manifests cannot be used, or have no such pod.
pub(super) fn walkthrough(
    manifests: Manifests,
    pod: &PodKey,
    output: Output,
) -> Result<String, Vec<String>> {
    let prober = Prober::new(manifests, []).map_err(|problem| vec![problem])?;
    let unknown = || vec![format!("there is no pod {pod} with policies of its own")];
    let rules = prober.control().walkthrough(pod).ok_or_else(unknown)?;
    let walk = Walked { rules, unknown_ports: unknown_ports(&prober, pod) };
    Ok(text(output, &walk, |out| write_walkthrough(out, pod, &walk)))
}

fn text(
    output: Output,
    value: &impl Serialize,
    words: impl FnOnce(&mut String) -> fmt::Result,
) -> String {
    let mut text = String::new();
    match output {
        Output::Text => words(&mut text).unwrap_or_default(),
        Output::Json => text = serde_json::to_string(value).unwrap_or_default() + "\n",
    }
    text
}

fn write_explanation(out: &mut String, explanation: &Explanation) -> fmt::Result {
    let Explanation { permits, reason, by, connections, .. } = explanation;
    let says = if *permits { "may be opened" } else { "may not be opened" };
    let by = by.iter().map(|origin| format!(", by {origin}")).collect::<String>();
    writeln!(out, "The connection {says}: {reason}{by}")?;
    if connections.len() > 1 {
        writeln!(out)?;
        for Opened { to, reply } in connections {
            writeln!(out, "  {to}: {}, {}", reply.answer.verdict, reply.answer.reason)?;
        }
    }
    for (decision, direction) in
        [(&explanation.egress, "egress"), (&explanation.ingress, "ingress")]
    {
        let Some(AtEnd { pod, selecting, permits, by, closest }) = decision else { continue };
        let verdict = if *permits { "allow" } else { "deny" };
        let words = by.iter().map(|by| format!(", by {by}")).collect::<String>();
        writeln!(out, "\n{direction} of {pod}: {verdict}{words}")?;
        if selecting.is_empty() {
            writeln!(out, "  no policy selects it for {direction}")?;
        }
        for policy in selecting {
            writeln!(out, "  selected by {policy}")?;
        }
        match closest {
            Some(closest) => writeln!(out, "  closest: {closest}")?,
            None if !*permits
                && !selecting.is_empty()
                && by.as_ref().is_some_and(Origin::is_default_deny) =>
            {
                writeln!(out, "  no rule: the policies close it for {direction}")?;
            }
            None => {}
        }
    }
    for note in &explanation.notes {
        writeln!(out, "\nnote: {note}")?;
    }
    Ok(())
}

fn write_walkthrough(out: &mut String, pod: &PodKey, walk: &Walked) -> fmt::Result {
    let Walked { rules: walk, unknown_ports } = walk;
    let halves = [("Ingress", &walk.ingress, "from"), ("Egress", &walk.egress, "to")];
    for (n, (title, reaches, preposition)) in halves.into_iter().enumerate() {
        let gap = if n == 0 { "" } else { "\n" };
        writeln!(out, "{gap}{title} of {pod}, first match first:")?;
        if reaches.is_empty() {
            writeln!(out, "  allow everything {preposition} any peer: no policy selects it")?;
        }
        for Reach { permits, peer, pods, selects_nothing, ports, by } in reaches {
            let action = if *permits { "allow" } else { "deny " };
            writeln!(out, "  {action} {ports} {preposition} {peer}   ({by})")?;
            if *selects_nothing {
                writeln!(out, "        now: selects no pod")?;
            } else if !pods.is_empty() {
                writeln!(out, "        now: {}", pods.join(", "))?;
            }
        }
        let direction = title.to_lowercase();
        for it in unknown_ports.iter().filter(|it| it.direction == direction) {
            let UnknownPort { by, protocol, port, similar, .. } = it;
            let similar = similar.iter().map(|it| format!("; did you mean {it}?"));
            let similar: String = similar.collect();
            writeln!(
                out,
                "  never {protocol} {port}: no container has such a port{similar}   ({by})"
            )?;
        }
    }
    Ok(())
}

/// A pod as an argument.
pub(super) fn pod(text: &str) -> Result<PodKey, String> {
    match case::endpoint(text) {
        Ok(Endpoint::Pod(key)) => Ok(key),
        _ => Err(format!("'{}' is not NAMESPACE/POD", text.escape_debug())),
    }
}
