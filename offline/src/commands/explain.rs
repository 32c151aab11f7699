//! `podgate policy explain` and `podgate policy walkthrough`: why, in words.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use control::explain::{Endpoint, Explanation, Judged, Reach, Walkthrough};
use control::{Control, PodKey, Scope};
use dataplane::wire::protocol;

use super::input::{objects, refuse};
use crate::probe::{Protocol, complete};
use cli::{NO, UNUSABLE, fail};

/// What `podgate policy explain` takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  podgate policy explain default/web default/db --port 5432 --manifests cluster/

Ends with 0 if the connection may be opened, 1 if not, 2 if the input cannot be used.")]
pub(super) struct Explain {
    /// Who opens the connection: NS/POD or an IP address
    #[arg(value_name = "FROM", value_parser = endpoint)]
    from: Endpoint,
    /// Whom it is for: NS/POD or an IP address
    #[arg(value_name = "TO", value_parser = endpoint)]
    to: Endpoint,
    /// File or folder of Kubernetes objects; may be repeated
    #[arg(long, value_name = "PATH", required = true)]
    manifests: Vec<PathBuf>,
    /// The protocol
    #[arg(long, value_enum, ignore_case = true, default_value = "TCP")]
    protocol: Protocol,
    /// The port; stands for nothing with ICMP
    #[arg(long, default_value_t = 80)]
    port: u16,
    /// Words, or one JSON object
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

/// What `podgate policy walkthrough` takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  podgate policy walkthrough default/db --manifests cluster/

Ends with 0, or 2 if the input cannot be used.")]
pub(super) struct Walk {
    /// The pod, as NS/POD
    #[arg(value_name = "POD", value_parser = pod)]
    pod: PodKey,
    /// File or folder of Kubernetes objects; may be repeated
    #[arg(long, value_name = "PATH", required = true)]
    manifests: Vec<PathBuf>,
    /// Words, or one JSON object
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Text,
    Json,
}

impl Explain {
    /// Does what was asked for.
    pub(super) fn run(&self) -> ExitCode {
        let explained = control_of(&self.manifests).and_then(|control| {
            let protocol = number(self.protocol, self.is_v6(&control));
            control
                .explain(&self.from, &self.to, protocol, self.port)
                .map_err(|problem| vec![problem])
        });
        let explanation = match explained {
            Ok(explanation) => explanation,
            Err(faults) => return refuse(faults),
        };
        let code = if explanation.permits { ExitCode::SUCCESS } else { ExitCode::from(NO) };
        print(self.output, &explanation, code, |out| write_explanation(out, &explanation))
    }

    /// Whether the connection is one over IPv6: then ICMP means ICMPv6.
    fn is_v6(&self, control: &Control) -> bool {
        let view = control.view();
        let has_v4 = |end: &Endpoint| match end {
            Endpoint::Address(address) => address.is_ipv4(),
            Endpoint::Pod(key) => view
                .pods
                .get(key)
                .is_none_or(|pod| pod.addresses.iter().any(std::net::IpAddr::is_ipv4)),
        };
        !(has_v4(&self.from) && has_v4(&self.to))
    }
}

impl Walk {
    /// Does what was asked for.
    pub(super) fn run(&self) -> ExitCode {
        let walked = control_of(&self.manifests).and_then(|control| {
            let unknown = || vec![format!("there is no pod {} with policies of its own", self.pod)];
            control.walkthrough(&self.pod).ok_or_else(unknown)
        });
        match walked {
            Err(faults) => refuse(faults),
            Ok(walk) => print(self.output, &walk, ExitCode::SUCCESS, |out| {
                write_walkthrough(out, &self.pod, &walk)
            }),
        }
    }
}

/// The IP protocol number.
fn number(protocol: Protocol, is_v6: bool) -> u8 {
    match protocol {
        Protocol::Tcp => protocol::TCP,
        Protocol::Udp => protocol::UDP,
        Protocol::Sctp => protocol::SCTP,
        Protocol::Icmp if is_v6 => protocol::ICMPV6,
        Protocol::Icmp => protocol::ICMP,
    }
}

fn control_of(manifests: &[PathBuf]) -> Result<Control, Vec<String>> {
    let mut objects = objects(manifests)?;
    complete::complete(&mut objects, std::iter::empty()).map_err(|problem| vec![problem])?;
    let mut control = Control::new(Scope::All);
    control.resync(objects);
    control.commit();
    Ok(control)
}

fn print(
    output: Output,
    value: &impl serde::Serialize,
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
        // Whoever reads has seen enough; the answer stays the answer.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => code,
        Err(error) => fail(UNUSABLE, format_args!("stdout: {error}")),
    }
}

fn write_explanation(out: &mut dyn Write, explanation: &Explanation) -> io::Result<()> {
    let says = if explanation.permits { "may be opened" } else { "may not be opened" };
    writeln!(out, "The connection {says}.")?;
    for (judged, direction) in [(&explanation.egress, "egress"), (&explanation.ingress, "ingress")]
    {
        let Some(Judged { pod, selecting, permits, by }) = judged else { continue };
        let verdict = if *permits { "allows" } else { "denies" };
        writeln!(out, "\n{direction} of {pod}: {verdict}, by {by}")?;
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
    let halves = [
        ("What may reach", "everything may", &walk.ingress, "from"),
        ("What may be reached by", "everything may", &walk.egress, "to"),
    ];
    for (n, (title, open, reaches, preposition)) in halves.into_iter().enumerate() {
        let gap = if n == 0 { "" } else { "\n" };
        writeln!(out, "{gap}{title} {pod}, first match first:")?;
        if reaches.is_empty() {
            writeln!(out, "  {open}: no policy selects it")?;
        }
        for Reach { permits, peer, pods, ports, by } in reaches {
            let action = if *permits { "allow" } else { "deny " };
            writeln!(out, "  {action} {ports} {preposition} {peer}   ({by})")?;
            if !pods.is_empty() {
                writeln!(out, "        now: {}", pods.join(", "))?;
            }
        }
    }
    Ok(())
}

fn endpoint(text: &str) -> Result<Endpoint, String> {
    match text.parse() {
        Ok(address) => Ok(Endpoint::Address(address)),
        Err(_) => pod(text).map(Endpoint::Pod).map_err(|_| {
            format!("'{}' is neither NAMESPACE/POD nor an IP address", text.escape_debug())
        }),
    }
}

fn pod(text: &str) -> Result<PodKey, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok(PodKey { namespace: namespace.into(), name: name.into() })
        }
        _ => Err(format!("'{}' is not NAMESPACE/POD", text.escape_debug())),
    }
}
