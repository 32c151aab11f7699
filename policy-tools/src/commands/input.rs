//! Input that several commands take, and the messages where it cannot be used.

use std::error::Error;
use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use control::read_bounded;
use local_api::{ClientError, ObserveFilters, Request};
use observe::verdicts::Event;

use crate::input::{Families, Manifests, Reading, name};
use crate::policy::flows;
use crate::probe::names::{DomainAddresses, Resolved, resolved};
use cli_runtime::{Networks, Socket, Span, UNUSABLE, counted, note};

/// The objects that a command is about.
#[derive(Debug, clap::Args)]
pub(super) struct Input {
    /// File or folder of Kubernetes objects, REV:PATH of a git revision, - for stdin; may be repeated
    #[arg(long, value_name = "PATH")]
    manifests: Vec<PathBuf>,
    /// Read the cluster of this kubeconfig; manifests replace its objects [default without manifests: $KUBECONFIG,
    /// or ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Read the cluster of this context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Networks from which services take external IPs, as --external-ips of the switches
    #[arg(long, value_name = "off|CIDR,...", default_value = "off")]
    external_ips: Networks,
    #[command(flatten)]
    render: Render,
    /// List skipped objects too, of kinds that no policy depends on
    #[arg(short, long)]
    verbose: bool,
}

impl Input {
    /// Refuses standard input for manifests and for one of `files` too.
    pub(super) fn take_stdin_once<'a>(
        &'a self,
        files: impl IntoIterator<Item = &'a PathBuf>,
    ) -> Result<(), Vec<String>> {
        stdin_once(self.manifests.iter().chain(files))
    }

    /// Reads the objects, with a warning about skipped ones.
    pub(super) fn load(&self) -> Result<Manifests, Vec<String>> {
        let (render, context) = (self.render.render, self.context.clone());
        let reading = Reading { sources: true, render, context, ..Reading::default() };
        let is_live = self.manifests.is_empty() || self.context.is_some();
        let usual = || usual_kubeconfig().filter(|file| is_live && file.exists());
        let cluster = self.kubeconfig.clone().or_else(usual);
        if cluster.is_none() && is_live {
            return Err(vec![
                "--manifests: which objects? Or --kubeconfig FILE: which cluster?".into(),
            ]);
        }
        load_by(&self.manifests, cluster.as_deref(), &self.external_ips, self.verbose, &reading)
    }
}

/// The kubeconfig that kubectl would use: the first of `KUBECONFIG`, or the one in the home folder.
pub(super) fn usual_kubeconfig() -> Option<PathBuf> {
    let named = std::env::var_os("KUBECONFIG")
        .and_then(|list| std::env::split_paths(&list).find(|path| !path.as_os_str().is_empty()));
    named.or_else(|| std::env::home_dir().map(|home| home.join(".kube/config")))
}

/// Charts and kustomizations among the objects.
#[derive(Debug, clap::Args)]
pub(super) struct Render {
    /// Render Helm charts and kustomizations, by helm and by kubectl or kustomize
    #[arg(long)]
    pub(super) render: bool,
}

/// Templates among the objects of a command whose answer is about all of them.
#[derive(Debug, clap::Args)]
pub(super) struct Templates {
    /// Answer without the objects of templates and charts that are skipped
    #[arg(long)]
    pub(super) allow_templates: bool,
}

impl Templates {
    /// Refuses manifests of which templates were skipped.
    pub(super) fn check(&self, skipped: &[String]) -> Result<(), Vec<String>> {
        if self.allow_templates || skipped.is_empty() {
            return Ok(());
        }
        let hint = "--allow-templates answers without its objects";
        Err(skipped.iter().map(|note| format!("{note}; {hint}")).collect())
    }
}

/// The address families that answers are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Family {
    /// IPv4 alone
    Ipv4,
    /// IPv6 alone
    Ipv6,
}

/// Which address families count.
#[derive(Debug, clap::Args)]
pub(super) struct Narrowed {
    /// Answer about one address family alone; without it about both, whichever the files have
    #[arg(long, value_enum)]
    family: Option<Family>,
}

impl Narrowed {
    /// Narrows manifests to the family.
    pub(super) fn apply(&self, manifests: &mut Manifests) {
        if let Some(family) = self.family {
            manifests.families = Families::Only(family == Family::Ipv4);
        }
    }

    /// What an answer says about it.
    pub(super) const fn words(&self) -> &'static str {
        match self.family {
            Some(Family::Ipv4) => "; IPv4 alone",
            Some(Family::Ipv6) => "; IPv6 alone",
            None => "",
        }
    }
}

/// Domain names with addresses.
#[derive(Debug, clap::Args)]
pub(super) struct Resolve {
    /// Addresses that DNS gives to pods for a domain name; may be repeated
    #[arg(long, value_name = "NAME=ADDRESS[,ADDRESS…]", value_parser = resolved)]
    resolve: Vec<Resolved>,
}

impl Resolve {
    /// The names.
    pub(super) fn names(&self) -> DomainAddresses {
        self.resolve.iter().cloned().collect()
    }
}

/// Warns about addresses of names that open nothing.
pub(super) fn warn_ignored(lines: impl Iterator<Item = String>) {
    lines.for_each(note);
}

/// Refuses paths of which more than one is standard input.
pub(super) fn stdin_once<'a>(
    paths: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), Vec<String>> {
    let count = paths.into_iter().filter(|path| path.as_os_str() == "-").count();
    if count > 1 { Err(vec!["stdin: can be read once".into()]) } else { Ok(()) }
}

/// Reads manifests, on top of a live cluster if one is given.
pub(super) fn load_by(
    paths: &[PathBuf],
    cluster: Option<&Path>,
    external_ips: &Networks,
    verbose: bool,
    reading: &Reading,
) -> Result<Manifests, Vec<String>> {
    let mut manifests = Manifests::load_over(paths, cluster, reading)?;
    manifests.permit_external_ips(&external_ips.0);
    let others = manifests.other_kinds.iter().filter(|_| verbose);
    manifests.skipped.iter().chain(others).for_each(note);
    Ok(manifests)
}

/// Longest file of cases, statements or checks, in bytes.
const LONGEST: u64 = 16 << 20;

/// Longest file of verdicts, in bytes.
const LONGEST_OBSERVED: u64 = 1 << 30;

/// Reads a file of cases, statements or checks; `-` is standard input.
///
/// # Errors
/// Fails if it cannot be read or is longer than [`LONGEST`].
pub(super) fn read(file: &Path) -> io::Result<Vec<u8>> {
    read_at_most(file, LONGEST)
}

/// As [`read`], of a file that is text.
pub(super) fn read_text(file: &Path) -> io::Result<String> {
    text(read(file)?)
}

/// A file may be a pipe, as the shell's `<(…)` is.
fn read_at_most(file: &Path, most: u64) -> io::Result<Vec<u8>> {
    match file.as_os_str() == "-" {
        true => read_bounded(io::stdin().lock(), most),
        false => read_bounded(File::open(file)?, most),
    }
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Verdicts that were observed: files, or the running switch's own.
#[derive(Debug, clap::Args)]
pub(super) struct Observed {
    /// Verdicts of `podgate observe -o json` or `hubble observe -o jsonpb`: a file, - for stdin, live for those that the running
    /// switch remembers; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(super) observed: Vec<PathBuf>,
    /// With `--observed live`: keep observing for this time
    #[arg(long = "for", value_name = "TIME", requires = "observed")]
    time: Option<Span>,
    #[command(flatten)]
    socket: Socket,
}

/// Stands for the running switch.
const LIVE: &str = "live";

impl Observed {
    /// Reads all verdicts.
    pub(super) fn load(&self) -> Result<Vec<Event>, Vec<String>> {
        let is_live = |file: &&PathBuf| file.as_os_str() == LIVE && !file.exists();
        if self.time.is_some() && !self.observed.iter().any(|file| is_live(&file)) {
            return Err(vec!["--for: goes with --observed live".into()]);
        }
        let mut events = Vec::new();
        for file in &self.observed {
            events.extend(match is_live(&file) {
                true => self.live().map_err(|problem| vec![problem.to_string()])?,
                false => of_file(file)?,
            });
        }
        Ok(events)
    }

    /// Reads the verdicts that the running switch remembers, and those of the time to come.
    fn live(&self) -> Result<Vec<Event>, Box<dyn Error>> {
        let client = self.socket.connect()?;
        let handle = client.handle()?;
        if let Some(time) = self.time {
            std::thread::spawn(move || {
                std::thread::sleep(time.0);
                // The end of the connection ends the stream below.
                let _ = handle.shutdown(Shutdown::Both);
            });
        }
        let filters = ObserveFilters {
            last: u32::MAX,
            follow: self.time.is_some(),
            ..ObserveFilters::default()
        };
        let mut events = Vec::new();
        for answer in client.stream(&Request::Observe(Box::new(filters)))? {
            let value = match answer {
                Ok(value) => value,
                Err(error @ ClientError::Refused(_)) => return Err(error.into()),
                // The switch has ended.
                Err(_) => break,
            };
            match serde_json::from_value(value.clone()) {
                Ok(event) => events.push(event),
                Err(_) => match value["lost"].as_u64() {
                    Some(lost) => {
                        let lost = counted(lost, "verdict");
                        note(format_args!("{lost} left out: too fast"))
                    }
                    None => {
                        return Err(format!("podgate's answer is not a verdict: {value}").into());
                    }
                },
            }
        }
        Ok(events)
    }
}

fn of_file(file: &Path) -> Result<Vec<Event>, Vec<String>> {
    let text = read_at_most(file, LONGEST_OBSERVED).and_then(text);
    let text = text.map_err(|error| vec![format!("{}: cannot be read: {error}", name(file))])?;
    let named = |faults: Vec<String>| -> Vec<String> {
        faults.into_iter().map(|fault| format!("{}: {fault}", name(file))).collect()
    };
    flows::read(&text).map_err(named)
}

/// Prints faults on stderr, one a line; returns the exit code.
pub(super) fn refuse(faults: impl IntoIterator<Item = String>) -> ExitCode {
    faults.into_iter().for_each(note);
    ExitCode::from(UNUSABLE)
}
