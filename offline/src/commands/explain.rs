//! `podgate policy explain` and `podgate policy walkthrough`: why, in words.

use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use control::explain::{Reach, Walkthrough};
use control::model::Direction;
use control::{Control, PodKey};
use serde::Serialize;

use super::input::{manifests, refuse};
use crate::probe::answer::{Decision, Reply};
use crate::probe::{Answer, Endpoint, Port, Prober, Protocol, Question, Verdict, case};
use cli::{NO, Output, UNUSABLE, fail};

/// Arguments of `podgate policy explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  podgate policy explain default/web default/db --port 5432 --manifests cluster/
  podgate policy explain 203.0.113.7 service/shop/web --port http --manifests cluster/

Ends with 0 if the connection may be opened, 1 if not, 2 if the input cannot be used.")]
pub(super) struct Explain {
    /// The end that opens the connection: NS/POD, an IP address or node/NAME
    #[arg(value_name = "FROM", value_parser = case::endpoint)]
    from: Endpoint,
    /// The end that it is opened to: NS/POD, an IP address, node/NAME or service/NS/NAME
    #[arg(value_name = "TO", value_parser = case::endpoint)]
    to: Endpoint,
    /// File or folder of Kubernetes objects, - for stdin; may be repeated
    #[arg(long, value_name = "PATH", required = true)]
    manifests: Vec<PathBuf>,
    /// The protocol
    #[arg(long, value_enum, ignore_case = true, default_value = "TCP")]
    protocol: Protocol,
    /// The port, by number or by its name at the target; of no meaning for ICMP
    #[arg(long, default_value = "80", value_parser = case::port_argument)]
    port: Port,
    /// Words, or one JSON object
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

/// Arguments of `podgate policy walkthrough`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  podgate policy walkthrough default/db --manifests cluster/

Ends with 0, or 2 if the input cannot be used.")]
pub(super) struct Walk {
    /// The pod, as NS/POD
    #[arg(value_name = "POD", value_parser = pod)]
    pod: PodKey,
    /// File or folder of Kubernetes objects, - for stdin; may be repeated
    #[arg(long, value_name = "PATH", required = true)]
    manifests: Vec<PathBuf>,
    /// Words, or one JSON object
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

/// Why a connection may be opened or not.
#[derive(Debug, Serialize)]
struct Explanation {
    verdict: &'static str,
    permits: bool,
    reason: String,
    by: Vec<Arc<str>>,
    /// The decision at the pod that opens the connection, if it is one.
    egress: Option<AtPod>,
    /// The decision at the pod that it is opened to, if it is one.
    ingress: Option<AtPod>,
    /// Every connection that the question is about; of those that decide, the first has the
    /// decisions above.
    connections: Vec<Opened>,
}

/// The decision at one pod.
#[derive(Debug, Serialize)]
struct AtPod {
    pod: Arc<str>,
    /// Every policy that selects the pod and has rules for this direction, in their order.
    selecting: Vec<String>,
    permits: bool,
    by: Option<Arc<str>>,
}

/// One connection: to an endpoint of a service, or of one family.
#[derive(Debug, Serialize)]
struct Opened {
    to: String,
    verdict: &'static str,
    reason: String,
    by: Vec<Arc<str>>,
    path: Vec<Hop>,
}

/// One switch on the way.
#[derive(Debug, Serialize)]
struct Hop {
    node: Arc<str>,
    #[serde(rename = "in")]
    input: Arc<str>,
    out: Option<Arc<str>>,
    source: IpAddr,
    destination: IpAddr,
    outcome: &'static str,
}

impl Explain {
    /// Runs the command.
    pub(super) fn run(&self) -> ExitCode {
        let mut prober = match self.prober() {
            Ok(prober) => prober,
            Err(faults) => return refuse(faults),
        };
        let port = (self.protocol != Protocol::Icmp).then_some(&self.port);
        let question = Question { from: &self.from, to: &self.to, protocol: self.protocol, port };
        let explanation = explain(&mut prober, question);
        let code = if explanation.permits { ExitCode::SUCCESS } else { ExitCode::from(NO) };
        print(self.output, &explanation, code, |out| write_explanation(out, &explanation))
    }

    fn prober(&self) -> Result<Prober, Vec<String>> {
        let manifests = manifests(&self.manifests)?;
        let addresses = [&self.from, &self.to].into_iter().filter_map(|end| match end {
            Endpoint::Address(address) => Some(*address),
            _ => None,
        });
        let prober = Prober::new(manifests, addresses).map_err(|problem| vec![problem])?;
        let unknown = [&self.from, &self.to].into_iter().filter_map(|end| prober.unknown(end));
        let mut unknown: Vec<String> = unknown.collect();
        if matches!(self.from, Endpoint::Service(_)) {
            unknown.push("a service opens no connection".into());
        }
        if unknown.is_empty() { Ok(prober) } else { Err(unknown) }
    }
}

impl Walk {
    /// Runs the command.
    pub(super) fn run(&self) -> ExitCode {
        let walked = manifests(&self.manifests).and_then(|manifests| {
            let prober = Prober::new(manifests, []).map_err(|problem| vec![problem])?;
            let unknown = || vec![format!("there is no pod {} with policies of its own", self.pod)];
            prober.control().walkthrough(&self.pod).ok_or_else(unknown)
        });
        match walked {
            Err(faults) => refuse(faults),
            Ok(walk) => print(self.output, &walk, ExitCode::SUCCESS, |out| {
                write_walkthrough(out, &self.pod, &walk)
            }),
        }
    }
}

/// Opens the connections of a question, and names the policies behind the decisions.
fn explain(prober: &mut Prober, question: Question<'_>) -> Explanation {
    let (difference, replies) = prober.replies([question]).remove(0);
    let answers = replies.iter().map(|(to, reply)| (to.clone(), reply.answer.clone())).collect();
    let nothing = || Answer::deny(crate::probe::answer::reason::NO_ENDPOINTS);
    let answer = Answer::all(difference, answers).unwrap_or_else(nothing);
    let deciding = replies.iter().map(|(_, reply)| reply);
    let deciding = deciding.clone().find(|reply| reply.answer.verdict == answer.verdict);
    let control = prober.control();
    let decision = |direction| {
        let at = |reply: &Reply| {
            let mut path = reply.path.iter();
            path.find_map(|it| match direction {
                Direction::Egress => it.egress.clone(),
                Direction::Ingress => it.ingress.clone(),
            })
        };
        deciding.and_then(at).map(|decision| at_pod(control, decision, direction))
    };
    Explanation {
        verdict: answer.verdict.name(),
        permits: answer.verdict == Verdict::Allow,
        reason: answer.reason.to_string(),
        by: answer.by.clone(),
        egress: decision(Direction::Egress),
        ingress: decision(Direction::Ingress),
        connections: replies.into_iter().map(opened).collect(),
    }
}

fn at_pod(control: &Control, decision: Decision, direction: Direction) -> AtPod {
    let Decision { pod, permits, by } = decision;
    let (namespace, name) = pod.split_once('/').unwrap_or(("", &pod));
    let key = PodKey { namespace: namespace.into(), name: name.into() };
    let selecting = control.selecting(&key, direction);
    AtPod { pod, selecting, permits, by }
}

fn opened((to, reply): (String, Reply)) -> Opened {
    let path = reply.path.into_iter().map(|it| Hop {
        node: it.node,
        input: it.input,
        out: it.output,
        source: it.source,
        destination: it.destination,
        outcome: it.outcome.name(),
    });
    Opened {
        to,
        verdict: reply.answer.verdict.name(),
        reason: reply.answer.reason.to_string(),
        by: reply.answer.by,
        path: path.collect(),
    }
}

fn print(
    output: Output,
    value: &impl Serialize,
    code: ExitCode,
    words: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> ExitCode {
    let mut out = BufWriter::new(io::stdout().lock());
    let written = match output {
        Output::Text => words(&mut out),
        Output::Json => serde_json::to_writer(&mut out, value)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out)),
    };
    match written.and_then(|()| out.flush()) {
        Ok(()) => code,
        // A reader that closes the pipe changes no verdict.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => code,
        Err(error) => fail(UNUSABLE, format_args!("stdout: {error}")),
    }
}

fn write_explanation(out: &mut dyn Write, explanation: &Explanation) -> io::Result<()> {
    let Explanation { permits, reason, by, connections, .. } = explanation;
    let says = if *permits { "may be opened" } else { "may not be opened" };
    let by = by.iter().map(|origin| format!(", by {origin}")).collect::<String>();
    writeln!(out, "The connection {says}: {reason}{by}")?;
    if connections.len() > 1 {
        writeln!(out)?;
        for Opened { to, verdict, reason, .. } in connections {
            writeln!(out, "  {to}: {verdict}, {reason}")?;
        }
    }
    for (decision, direction) in
        [(&explanation.egress, "egress"), (&explanation.ingress, "ingress")]
    {
        let Some(AtPod { pod, selecting, permits, by }) = decision else { continue };
        let verdict = if *permits { "allow" } else { "deny" };
        let by = by.iter().map(|by| format!(", by {by}")).collect::<String>();
        writeln!(out, "\n{direction} of {pod}: {verdict}{by}")?;
        if selecting.is_empty() {
            writeln!(out, "  no policy selects it for {direction}")?;
        }
        for policy in selecting {
            writeln!(out, "  selected by {policy}")?;
        }
    }
    Ok(())
}

fn write_walkthrough(out: &mut dyn Write, pod: &PodKey, walk: &Walkthrough) -> io::Result<()> {
    let halves = [("Ingress", &walk.ingress, "from"), ("Egress", &walk.egress, "to")];
    for (n, (title, reaches, preposition)) in halves.into_iter().enumerate() {
        let gap = if n == 0 { "" } else { "\n" };
        writeln!(out, "{gap}{title} of {pod}, first match first:")?;
        if reaches.is_empty() {
            writeln!(out, "  allow everything {preposition} anybody: no policy selects it")?;
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
    }
    Ok(())
}

fn pod(text: &str) -> Result<PodKey, String> {
    match case::endpoint(text) {
        Ok(Endpoint::Pod(key)) => Ok(key),
        _ => Err(format!("'{}' is not NAMESPACE/POD", text.escape_debug())),
    }
}
