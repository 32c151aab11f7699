//! `kubectl podgate`: the switches of all nodes from one command.
//!
//! `kubectl` runs the program `kubectl-podgate` of the path for it; this binary is that program when
//! it is called so. It asks each switch through the API server's proxy, with the caller's rights
//! ([`control::api_server::Switches`]).

mod explain;
mod journal;
mod observe;
mod output;
mod staged;
mod status;
mod top;
mod wait;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use cli_runtime::{NO, UNUSABLE, fail, note, plain};
use control::api_server::{
    Access, Connection, Deployment, SwitchPod, Switches, connect, nodes_with, pods_with,
};

use agent::run::{FOLDER, audience};
use serde::de::DeserializeOwned;

/// The program's name as a plugin of kubectl.
const PLUGIN: &str = "kubectl-podgate";

/// The switches of all nodes.
#[derive(Debug, Parser)]
#[command(name = "kubectl podgate", bin_name = "kubectl podgate", version, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
enum Command {
    /// Show the state of every node's switch
    Status(status::Args),
    /// Show verdicts of all switches, merged by time
    Observe(Box<observe::Args>),
    /// Show the rules in force for pods
    Explain(explain::Args),
    /// List the connections that staged policies would deny or allow
    Staged(staged::Args),
    /// Print the journals of all switches
    Journal(journal::Args),
    /// Wait until a policy is in force on every node
    Wait(wait::Args),
    /// Show packet rates of pods
    Top(top::Args),
}

/// Arguments of all commands.
#[derive(Debug, Clone, clap::Args)]
struct Cluster {
    /// The kubeconfig file [default: KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// The kubeconfig's context [default: the current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// Namespace of the switches
    #[arg(long, value_name = "NS", default_value = "kube-system")]
    podgate_namespace: String,

    /// Label selector of the switches
    #[arg(long, value_name = "SELECTOR", default_value = "app.kubernetes.io/name=podgate")]
    podgate_selector: String,

    /// Service account whose tokens the switches take
    #[arg(long, value_name = "NAME", default_value = "podgate-viewer")]
    podgate_account: String,

    /// Port of the switches, where none of theirs is named metrics
    #[arg(long, value_name = "PORT", default_value_t = 9471)]
    podgate_port: u16,
}

/// The pods of a command.
#[derive(Debug, Clone, clap::Args)]
struct Scope {
    /// Namespace of the pods [default: the context's]
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,

    /// Pods of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,

    /// Only pods with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
}

impl Scope {
    /// The namespace that counts, if one alone does.
    fn namespace(&self, connection: &Connection) -> Option<String> {
        let usual = || self.namespace.clone().unwrap_or_else(|| connection.namespace.clone());
        (!self.all_namespaces).then(usual)
    }

    /// The pods with the labels, `NAMESPACE/NAME`, if labels choose some.
    async fn pods(&self, connection: &Connection) -> Result<Option<BTreeSet<String>>, Failure> {
        let Some(selector) = &self.selector else { return Ok(None) };
        let pods = pods_with(connection, self.namespace(connection).as_deref(), selector).await;
        let pods = pods.at(connection)?;
        Ok(Some(pods.into_iter().map(|(name, _)| name).collect()))
    }
}

/// Why a command ends.
#[derive(Debug)]
enum Failure {
    /// An argument of the caller is wrong.
    Unusable(String),
    /// Anything else.
    Failed(String),
    /// The reader of the output is gone, or what is wrong was printed.
    Code(ExitCode),
}

impl<E: fmt::Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Answers of the API server, whose failures name its address.
trait At<T> {
    /// Names the API server in a failure.
    fn at(self, connection: &Connection) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> At<T> for Result<T, E> {
    fn at(self, connection: &Connection) -> Result<T, Failure> {
        let server = &connection.server;
        self.map_err(|error| Failure::Failed(format!("API server {server}: {error}")))
    }
}

impl Cluster {
    async fn connect(&self) -> Result<Connection, Failure> {
        let (kubeconfig, context) = (self.kubeconfig.clone(), self.context.clone());
        let access = Access::User { kubeconfig, context };
        connect(&access).await.map_err(|error| Failure::Unusable(error.to_string()))
    }

    /// The switches, of all nodes or of those with these labels.
    async fn switches(
        &self,
        connection: &Connection,
        node_labels: Option<&str>,
    ) -> Result<Switches, Failure> {
        let nodes = match node_labels {
            Some(selector) => Some(nodes_with(connection, selector).await.at(connection)?),
            None => None,
        };
        self.switches_of(connection, nodes.as_deref()).await
    }

    async fn switches_of(
        &self,
        connection: &Connection,
        nodes: Option<&[String]>,
    ) -> Result<Switches, Failure> {
        let deployment = Deployment {
            namespace: self.podgate_namespace.clone(),
            selector: self.podgate_selector.clone(),
            account: self.podgate_account.clone(),
            audience,
            header: telemetry::FORWARDED,
            port_name: "metrics".to_owned(),
            port: self.podgate_port,
        };
        let switches = Switches::find(connection, deployment, nodes).await.at(connection)?;
        match switches.all().is_empty() {
            false => Ok(switches),
            true => Err(Failure::Failed(format!(
                "namespace {} has no pod of a switch there (labels {})",
                self.podgate_namespace, self.podgate_selector
            ))),
        }
    }
}

/// The path of a page.
fn page(name: &str) -> String {
    format!("{FOLDER}{name}")
}

/// The answers of the switches to a page, and the exit code: one that does not answer is named on stderr.
async fn answers<T: DeserializeOwned + Send + 'static>(
    switches: &Switches,
    path: &str,
) -> (Vec<(SwitchPod, T)>, ExitCode) {
    let (mut answers, mut code) = (Vec::new(), ExitCode::SUCCESS);
    let pages = switches.pages(switches.all(), path).await;
    for (switch, page) in switches.all().iter().zip(pages) {
        match page {
            Ok(page) => answers.push((switch.clone(), page)),
            Err(why) => {
                warn(format_args!("{}: {why}", switch.node));
                code = ExitCode::from(NO);
            }
        }
    }
    (answers, code)
}

/// Returns whether a program of this name is the plugin.
pub fn is_plugin(program: Option<&OsStr>) -> bool {
    program.and_then(|it| Path::new(it).file_name()).is_some_and(|name| name == PLUGIN)
}

impl Cli {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => return fail(NO, format_args!("start tokio: {error}")),
        };
        let done = runtime.block_on(async {
            match &self.command {
                Command::Status(args) => status::run(args).await,
                Command::Observe(args) => observe::run(args).await,
                Command::Explain(args) => explain::run(args).await,
                Command::Staged(args) => staged::run(args).await,
                Command::Journal(args) => journal::run(args).await,
                Command::Wait(args) => wait::run(args).await,
                Command::Top(args) => top::run(args).await,
            }
        });
        runtime.shutdown_background();
        match done {
            Ok(code) | Err(Failure::Code(code)) => code,
            Err(Failure::Unusable(text)) => fail(UNUSABLE, text),
            Err(Failure::Failed(text)) => fail(NO, plain(&text)),
        }
    }
}

/// Prints a line to stderr, without control characters: the answer of a switch that was taken over must not
/// command the terminal.
fn warn(message: impl fmt::Display) {
    note(message);
}

/// Writes to stdout.
fn write(text: &str) -> Result<(), Failure> {
    match cli_runtime::write(text) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::Code(ExitCode::SUCCESS)),
        Err(error) => Err(Failure::Failed(format!("write to stdout: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_shows_examples() {
        let mut command = Cli::command();
        command.clone().debug_assert();
        for inner in command.get_subcommands_mut() {
            let name = format!("kubectl podgate {}", inner.get_name());
            let help = inner.render_long_help().to_string();
            assert!(help.contains("Example") && help.contains(&name), "{help}");
        }
    }

    #[test]
    fn the_plugin_is_known_by_its_name() {
        for name in ["kubectl-podgate", "/usr/bin/kubectl-podgate"] {
            assert!(is_plugin(Some(OsStr::new(name))), "{name}");
        }
        for name in ["podgate", "/usr/bin/podgate", "kubectl-podgate/podgate"] {
            assert!(!is_plugin(Some(OsStr::new(name))), "{name}");
        }
    }
}
