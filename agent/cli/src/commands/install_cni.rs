//! `podgate install-cni`: the CNI plugin and its configuration, put in place on this node.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use cli_runtime::{NO, Socket, UNUSABLE, fail, note, print};
use ipnet::IpNet;
use local_api::Request;
use setup::install::{Change, DEFAULT_TEMPLATE, PLUGIN, complete, place_file, place_text};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::Ended;
use agent::config::Span;
use agent::run::Status;

/// Arguments of `podgate install-cni`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Both files are written atomically. The configuration is written once \
the switch is ready: a runtime that finds it starts pods. host-local without ranges gets one for each \
pod network of the Node; a missing mtu becomes the uplink's, less the tunnel.

A chain with the plugin bandwidth is refused: its shaping would have no effect: switch traffic bypasses the kernel's qdiscs.

Example:
  podgate install-cni
  podgate install-cni --only configuration --template /etc/podgate/cni.conflist --follow")]
pub struct Args {
    /// Install only one of them
    #[arg(long, value_name = "WHAT")]
    only: Option<What>,

    /// The plugin
    #[arg(long, value_name = "FILE", default_value = "/usr/lib/podgate/podgate-cni")]
    plugin: PathBuf,

    /// Configuration template, JSON [default: podgate-cni with host-local, then portmap]
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,

    #[command(flatten)]
    folders: Folders,

    /// File name of the configuration; a runtime uses the first by name
    #[arg(long, value_name = "NAME", default_value = "10-podgate.conflist")]
    configuration_name: String,

    #[command(flatten)]
    socket: Socket,

    /// Time to wait for the switch to be ready
    #[arg(long, value_name = "TIME", default_value = "5m")]
    timeout: Span,

    /// Keep running, and restore files that are missing or changed
    #[arg(long)]
    follow: bool,
}

/// The container runtime's folders.
#[derive(Debug, clap::Args)]
pub(super) struct Folders {
    /// The runtime's folder of configurations
    #[arg(long, value_name = "PATH", default_value = "/etc/cni/net.d")]
    pub(super) configuration_folder: PathBuf,

    /// The runtime's folder of plugins
    #[arg(long, value_name = "PATH", default_value = "/opt/cni/bin")]
    pub(super) plugin_folder: PathBuf,
}

/// The files to install.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// The plugin
    Plugin,
    /// The configuration
    Configuration,
}

/// Between two questions to a switch that is not ready.
const AGAIN: Duration = Duration::from_millis(500);
/// Between two looks at what was put in place.
const LOOK: Duration = Duration::from_secs(10);

/// Puts the files in place.
pub(super) fn run(args: &Args) -> Ended {
    let name = &args.configuration_name;
    if name.contains('/') || !name.ends_with(".conflist") {
        let text = "it is no file name that ends in .conflist";
        return Err(fail(UNUSABLE, format_args!("--configuration-name {name}: {text}")));
    }
    let template = args.template.as_deref().map(read).transpose();
    let template = template.map_err(|error| fail(UNUSABLE, error))?;
    let template = template.unwrap_or_else(|| DEFAULT_TEMPLATE.to_owned());
    // A template that is wrong shows at once, not when the switch is ready.
    let any = "192.0.2.0/24".parse::<IpNet>().into_iter().collect::<Vec<_>>();
    complete(&template, &any, None).map_err(|error| {
        let file = args.template.as_deref().unwrap_or(Path::new("the template"));
        fail(UNUSABLE, format_args!("{}: {error}", file.display()))
    })?;
    let failed = |error: String| fail(NO, error);
    let mut configuration = None;
    if args.only != Some(What::Plugin) {
        let status = wait(args).map_err(failed)?;
        configuration = Some(completed(&template, &status).map_err(failed)?);
    }
    place(args, configuration.as_deref()).map_err(failed)?;
    match args.follow {
        true => follow(args, configuration.as_deref()),
        false => Ok(ExitCode::SUCCESS),
    }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Waits until pods can be attached.
fn wait(args: &Args) -> Result<Status, String> {
    let end = Instant::now() + args.timeout.0;
    loop {
        let answer = args.socket.connect().and_then(|mut switch| switch.call(&Request::Status));
        let status = answer.map_err(|error| error.to_string()).and_then(|value| {
            let status = serde_json::from_value::<Status>(value);
            status.map_err(|error| format!("podgate's answer: {error}"))
        });
        let why = match status {
            Ok(status) if status.ready => return Ok(status),
            Ok(_) => "the switch is not ready".to_owned(),
            Err(why) => why,
        };
        if Instant::now() >= end {
            return Err(format!("{why}; waited {}", args.timeout));
        }
        std::thread::sleep(AGAIN);
    }
}

fn completed(template: &str, status: &Status) -> Result<String, String> {
    let networks: Vec<IpNet> =
        status.pod_networks.iter().filter_map(|it| it.parse().ok()).collect();
    complete(template, &networks, status.pod_mtu)
        .map_err(|error| format!("Node {}: {error}", status.node))
}

fn place(args: &Args, configuration: Option<&str>) -> Result<(), String> {
    let say = |change, folder: &Path, name: &str| {
        if change == Change::Written {
            print(&format!("{} is in place\n", folder.join(name).display()));
        }
    };
    if args.only != Some(What::Configuration) {
        let change = place_file(&args.plugin, &args.folders.plugin_folder, PLUGIN)?;
        say(change, &args.folders.plugin_folder, PLUGIN);
    }
    if let Some(text) = configuration {
        let (folder, name) = (&args.folders.configuration_folder, &args.configuration_name);
        say(place_text(text, folder, name)?, folder, name);
    }
    Ok(())
}

fn follow(args: &Args, configuration: Option<&str>) -> Ended {
    let ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, std::sync::Arc::clone(&ended))
            .map_err(|error| fail(NO, format_args!("handle signals: {error}")))?;
    }
    let mut looked = Instant::now();
    while !ended.load(std::sync::atomic::Ordering::Relaxed) {
        std::thread::sleep(AGAIN);
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            if let Err(error) = place(args, configuration) {
                note(error);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
