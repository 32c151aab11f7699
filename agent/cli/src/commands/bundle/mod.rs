//! `podgate bundle`: what a report about a fault needs, in one file, without secrets.
//!
//! - `harmless`: what is taken of files,
//! - `redact`: secrets by their looks, which are removed from all texts.

mod harmless;
mod redact;

use std::error::Error;
use std::fmt::Display;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use cli_runtime::{NO, Socket, counted, fail};
use flate2::Compression;
use flate2::write::GzEncoder;
use local_api::{Request, Show};
use serde_json::Value;

use super::Ended;
use agent::run::{Status, TABLES, Table};
use redact::redact;

/// Arguments of `podgate bundle`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Contains status, tables and metrics of the running switch, its configuration, what \
podgate check finds, facts about the kernel and its network, and of the files named with --file the lines of \
Podgate's log, or names and servers of a kubeconfig. Nothing else of files is taken. What looks like a token, key, \
password or certificate is removed from all of it; the names and addresses of pods are not. errors.txt \
lists what could not be collected. Without a running switch the rest is written.

Example:
  podgate bundle
  podgate bundle -w /tmp/node-a.tar.gz --file /var/log/podgate.log"
)]
pub struct Args {
    /// Output file, .tar.gz [default: podgate-NODE.tar.gz]
    #[arg(short, long, alias = "output", short_alias = 'o', value_name = "FILE")]
    write: Option<PathBuf>,

    /// Log or kubeconfig to include (its last 10 MB); may be repeated
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,

    /// Configuration file of podgate run
    #[arg(
        long,
        env = "PODGATE_CONFIG",
        value_name = "FILE",
        default_value = "/etc/podgate/config.yaml"
    )]
    config: PathBuf,

    #[command(flatten)]
    socket: Socket,
}

/// Bytes that are taken of each file at most.
const MOST: u64 = 10 << 20;
/// A metrics page that takes longer is left out.
const PATIENCE: Duration = Duration::from_secs(5);
/// Programs whose output is gathered, by the name of the file that receives it.
const PROGRAMS: [(&str, &[&str]); 7] = [
    ("kernel/links.txt", &["ip", "-details", "-statistics", "link"]),
    ("kernel/addresses.txt", &["ip", "address"]),
    ("kernel/routes.txt", &["ip", "route", "show", "table", "all"]),
    ("kernel/routes6.txt", &["ip", "-6", "route", "show", "table", "all"]),
    ("kernel/nftables.txt", &["nft", "--terse", "list", "ruleset"]),
    ("kernel/queues.txt", &["tc", "-statistics", "qdisc"]),
    ("kernel/programs.txt", &["bpftool", "net"]),
];
const FILES: [(&str, &str); 6] = [
    ("kernel/version", "/proc/version"),
    ("kernel/meminfo", "/proc/meminfo"),
    ("kernel/cpuinfo", "/proc/cpuinfo"),
    ("kernel/softnet", "/proc/net/softnet_stat"),
    ("kernel/os-release", "/etc/os-release"),
    ("kernel/limits", "/proc/self/limits"),
];

/// Gathers, and writes the file.
pub(super) fn run(args: &Args) -> Ended {
    let mut parts = Parts::default();
    let node = of_the_switch(args, &mut parts);
    parts.add("config.yaml", file(&args.config).and_then(|text| harmless::options(&text)));
    parts.add("check.json", check(&args.config));
    for (name, path) in FILES {
        parts.add(name, file(Path::new(path)));
    }
    for (name, command) in PROGRAMS {
        parts.add(name, output_of(command));
    }
    for (n, path) in args.file.iter().enumerate() {
        let last = path.file_name().unwrap_or_default().to_string_lossy();
        parts.add(&format!("files/{n}-{last}"), file(path).map(|text| harmless::file(&text)));
    }
    let path = args.write.clone().unwrap_or_else(|| {
        let node = node.unwrap_or_else(agent::config::host_name);
        format!("podgate-{node}.tar.gz").into()
    });
    let count = parts
        .write(&path)
        .map_err(|error| fail(NO, format_args!("{}: {error}", path.display())))?;
    Ok(cli_runtime::print(&format!("{}: {}\n", path.display(), counted(count, "file"))))
}

/// Gathers the running switch's answers; returns the node's name.
fn of_the_switch(args: &Args, parts: &mut Parts) -> Option<String> {
    let mut switch = match args.socket.connect() {
        Ok(switch) => switch,
        Err(error) => {
            parts.miss("status.json", &error);
            return None;
        }
    };
    let status = switch.call(&Request::Status).map(|value| {
        parts.add("status.json", serde_json::to_string_pretty(&value));
        serde_json::from_value::<Status>(value).ok()
    });
    let status = status.inspect_err(|error| parts.miss("status.json", error)).ok().flatten();
    if let Some(status) = &status {
        parts.files.push(("status.txt".to_owned(), status.to_string()));
    }
    let mut listen = None;
    for (what, _) in TABLES {
        let request = Request::Show(Show { what: what.to_owned(), ..Show::default() });
        let mut show = || -> Result<String, Box<dyn Error>> {
            let answer = switch.call(&request)?;
            if let Value::String(text) = answer {
                return Ok(text);
            }
            let table: Table = serde_json::from_value(answer)?;
            if what == "config" {
                let row = table.rows.iter().find(|row| row.first() == Some(&"listen".into()));
                listen = row.and_then(|row| row.get(1)?.as_str()?.parse().ok());
            }
            Ok(table.to_string())
        };
        parts.add(&format!("show/{what}.txt"), show());
    }
    if let Some(listen) = listen {
        parts.add("metrics.txt", page(listen, "/metrics"));
        parts.add("readyz.txt", page(listen, "/readyz"));
    }
    status.map(|status| status.node)
}

fn page(address: SocketAddr, path: &str) -> Result<String, String> {
    let get = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut text = Vec::new();
        stream.take(MOST).read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    };
    get().map_err(|error| format!("http://{address}{path}: {error}"))
}

/// Returns the findings of `podgate check`, run by this program.
fn check(config: &Path) -> Result<String, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut arguments = vec![own.display().to_string(), "check".into(), "-o".into(), "json".into()];
    if config.exists() {
        arguments.extend(["--config".into(), config.display().to_string()]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // Its own words about a configuration that it refuses repeat what that holds.
    output_of(&arguments).map_err(|_| "podgate check has no findings: run it".to_owned())
}

fn output_of(command: &[&str]) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", command.join(" "));
    let mut line = Command::new(command[0]);
    let output = line.args(&command[1..]).stdin(Stdio::null()).output().map_err(failed)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Some say no by their exit code, in so many words.
    match text.is_empty() && !output.status.success() {
        true => Err(format!("{}: {}", command.join(" "), String::from_utf8_lossy(&output.stderr))),
        false => Ok(text),
    }
}

/// The end of a file.
fn file(path: &Path) -> Result<String, String> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        if length > MOST {
            std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(length - MOST))?;
        }
        let mut bytes = Vec::new();
        file.take(MOST).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Files of the bundle, and what is missing.
#[derive(Default)]
struct Parts {
    files: Vec<(String, String)>,
    errors: Vec<String>,
}

impl Parts {
    fn add(&mut self, name: &str, text: Result<String, impl Display>) {
        match text {
            Ok(text) => self.files.push((name.to_owned(), text)),
            Err(error) => self.miss(name, &error),
        }
    }

    fn miss(&mut self, name: &str, error: &impl Display) {
        self.errors.push(format!("{name}: {error}"));
    }

    /// Removes secrets and writes the archive, for its owner alone; how many files it has. A file
    /// that is there is replaced: others may have it open.
    fn write(self, path: &Path) -> std::io::Result<usize> {
        if path.exists() && !path.metadata()?.is_file() {
            return self.write_to(std::fs::File::options().write(true).open(path)?);
        }
        let mut new = path.as_os_str().to_owned();
        new.push(format!(".{}", std::process::id()));
        let mut options = std::fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let written = options.write(true).create_new(true).open(&new).and_then(|file| {
            let count = self.write_to(file)?;
            std::fs::rename(&new, path)?;
            Ok(count)
        });
        if written.as_ref().is_err_and(|error| error.kind() != ErrorKind::AlreadyExists) {
            let _ = std::fs::remove_file(&new);
        }
        written
    }

    fn write_to(mut self, file: std::fs::File) -> std::io::Result<usize> {
        self.files.push(("errors.txt".to_owned(), self.errors.join("\n") + "\n"));
        let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        for (name, text) in &self.files {
            let text = redact(text);
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o600);
            archive.append_data(&mut header, format!("podgate/{name}"), text.as_bytes())?;
        }
        let file = archive.into_inner()?.finish()?;
        if file.metadata()?.is_file() {
            file.sync_all()?;
        }
        Ok(self.files.len())
    }
}
