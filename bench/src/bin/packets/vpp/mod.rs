//! Runs FD.io VPP as a peer, and configures it through its command line (CLI) socket.

mod acl;
mod graph;

use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, thread};

use testkit::{Process, TempDir};

pub(crate) use acl::acl;
pub(crate) use graph::{Case, Graph, NODES};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// VPP on core 0, without workers; ended when this is dropped.
struct Vpp {
    process: Process,
    cli: UnixStream,
    folder: TempDir,
    in_huge_pages: bool,
}

/// A huge page, in MB.
const HUGE_MB: u64 = 2;
/// Memory of the first 16,384 buffers beside the heap, in MB.
const BUFFERS_MB: u64 = 64;
const BUFFERS: u32 = 16_384;
const PATIENCE: Duration = Duration::from_secs(60);

impl Vpp {
    /// Starts the program with the ACL plugin and a heap of this size, in huge pages if enough of them are
    /// free; `more` goes into its startup configuration.
    fn start(program: &Path, heap_mb: u64, more: &str) -> Result<Self> {
        let folder = TempDir::new("vpp");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let in_huge_pages = free_huge_pages() * HUGE_MB >= heap_mb + BUFFERS_MB;
        let pages = if in_huge_pages { "2M" } else { "4K" };
        let config = format!(
            "unix {{ nodaemon nosyslog cli-listen {cli} cli-line-mode cli-no-pager runtime-dir {run} }}\n\
             cpu {{ main-core 0 }}\n\
             memory {{ main-heap-size {heap_mb}M main-heap-page-size {pages} }}\n\
             buffers {{ buffers-per-numa {BUFFERS} page-size {pages} }}\n\
             statseg {{ socket-name {stats} }}\n\
             plugins {{ plugin default {{ disable }} plugin acl_plugin.so {{ enable }} }}\n{more}\n",
            cli = path("cli"),
            run = folder.path().display(),
            stats = path("stats"),
        );
        fs::write(path("startup.conf"), config)?;
        let process = Process::spawn(Command::new(program).args(["-c", &path("startup.conf")]));
        let end = Instant::now() + PATIENCE;
        let cli = loop {
            match UnixStream::connect(path("cli")) {
                Ok(stream) => break stream,
                Err(error) if !is_alive(&process) || Instant::now() > end => {
                    let said = process.output().join("\n");
                    return Err(format!("VPP has no command line: {error}\n{said}").into());
                }
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        };
        cli.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { process, cli, folder, in_huge_pages })
    }

    /// The answer to a command. It stands between the command itself and a byte of zero.
    fn ask(&mut self, command: &str) -> Result<String> {
        self.cli.write_all(format!("{command}\n").as_bytes())?;
        let mut answer = Vec::new();
        let read = BufReader::new(&self.cli).read_until(0, &mut answer);
        if let Err(error) = read.and_then(|_| answer.pop_if(|last| *last == 0).ok_or_else(ended)) {
            return Err(format!("VPP, {command}: {error}{}", self.said()).into());
        }
        let answer = String::from_utf8_lossy(&answer);
        Ok(answer.split_once('\n').map_or("", |(_, answer)| answer).to_owned())
    }

    /// Gives commands that answer nothing if all is well, one a line.
    fn tell(&mut self, commands: &str) -> Result<()> {
        for command in commands.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let answer = self.ask(command)?;
            if !answer.trim().is_empty() {
                return Err(format!("VPP, {command}: {}", answer.trim()).into());
            }
        }
        Ok(())
    }

    /// Adds the first ACL, number 0.
    fn add_acl(&mut self, rules: &str) -> Result<()> {
        // Too long for the command line, which does not show what commands of a file answer.
        let path = self.folder.path().join("acl");
        fs::write(&path, format!("set acl-plugin acl {rules}\n"))?;
        self.tell(&format!("exec {}", path.display()))
    }

    /// Its standard error.
    fn said(&self) -> String {
        let lines = self.process.output();
        lines.iter().rev().take(5).rev().map(|line| format!("\n{line}")).collect()
    }
}

fn ended() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

/// The number of free huge pages of 2 MB.
fn free_huge_pages() -> u64 {
    let file = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/free_hugepages", HUGE_MB << 10);
    let text = fs::read_to_string(file).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

fn is_alive(process: &Process) -> bool {
    let state = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap_or_default();
    !state.contains(") Z")
}
