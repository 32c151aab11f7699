//! DPDK's `rte_acl`, in a process of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail, ensure};
use ipnet::Ipv4Net;

use super::rulesets::{Filter, Header};

/// The peer's program, compiled for this machine.
pub(crate) struct RteAcl {
    program: PathBuf,
    folder: PathBuf,
    /// Processor time that it may take for a rule set, if there is a limit.
    seconds: Option<u32>,
    /// Whether there are huge pages for it.
    huge: bool,
}

/// KiB of memory that it may take then.
const MEMORY: u32 = 20 << 20;

/// Its report about a compiled rule set, ready for rounds of lookups.
pub(crate) struct Built {
    /// Seconds to build.
    pub(crate) build: f64,
    /// Memory of the built form.
    pub(crate) bytes: f64,
    /// Whether its memory is in huge pages.
    pub(crate) huge: bool,
    /// The fastest method.
    pub(crate) method: String,
    /// For each header the winning rule from 1, or 0.
    pub(crate) winners: Vec<u32>,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Built {
    /// Looks all headers up once; nanoseconds for a lookup.
    pub(crate) fn round(&mut self) -> anyhow::Result<f64> {
        self.input.write_all(b"\n")?;
        self.input.flush()?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        line.trim().parse().with_context(|| format!("rte_acl said {line:?}"))
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        // An error means that it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RteAcl {
    /// Compiles the program into `folder`.
    pub(crate) fn new(folder: &Path, seconds: Option<u32>, huge: bool) -> anyhow::Result<Self> {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/rte_acl.c");
        let program = folder.join("rte_acl");
        let flags = |what: &str| -> anyhow::Result<Vec<String>> {
            let output = Command::new("pkg-config").args([what, "libdpdk"]).output()?;
            ensure!(output.status.success(), "DPDK's headers are missing (Debian: libdpdk-dev)");
            Ok(String::from_utf8(output.stdout)?.split_whitespace().map(Into::into).collect())
        };
        let done = Command::new("cc")
            .args(["-O3", "-march=native", "-Wall", "-o"])
            .args([program.as_os_str(), source.as_ref()])
            .args(flags("--cflags")?)
            .args(flags("--libs")?)
            .output()
            .context("cannot run cc")?;
        ensure!(done.status.success(), "{source}: {}", String::from_utf8_lossy(&done.stderr));
        Ok(Self { program, folder: folder.to_owned(), seconds, huge })
    }

    /// Starts the program, within its limits.
    fn command(&self) -> Command {
        let Some(seconds) = self.seconds else { return Command::new(&self.program) };
        let mut command = Command::new("sh");
        let limits = format!("ulimit -S -t {seconds}; ulimit -v {MEMORY}; exec \"$0\" \"$@\"");
        command.args(["-c", &limits]).arg(&self.program);
        command
    }

    /// Builds `filters` and looks `headers` up, `rounds` times with each method.
    pub(crate) fn build(
        &self,
        filters: &[Filter],
        headers: &[Header],
        rounds: usize,
    ) -> anyhow::Result<Built> {
        let path = |name: &str| self.folder.join(name);
        let rules: Vec<[u8; 20]> = filters.iter().map(rule).collect();
        std::fs::write(path("rules"), rules.concat())?;
        let headers: Vec<[u8; 16]> = headers.iter().map(header).collect();
        std::fs::write(path("headers"), headers.concat())?;
        let mut child = self
            .command()
            .args([path("rules"), path("headers"), path("winners")])
            .args([rounds.to_string(), u8::from(self.huge).to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("rte_acl has no pipes");
        };
        let mut output = BufReader::new(output);
        let mut said = String::new();
        if output.read_line(&mut said)? == 0 || !said.contains("method=") {
            let mut why = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                stderr.read_to_string(&mut why)?;
            }
            let status = child.wait()?;
            if let (Some(seconds), Some(SIGXCPU)) = (self.seconds, status.signal()) {
                bail!("it takes more than {seconds} s of processor time");
            }
            bail!("rte_acl ended with {status}: {}", why.trim());
        }
        let value = |name: &str| {
            let words = said.split_whitespace().filter_map(|word| word.split_once('='));
            let found = words.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value);
            found.with_context(|| format!("rte_acl did not say {name}: {said}"))
        };
        let winners = std::fs::read(path("winners"))?;
        Ok(Built {
            build: value("build")?.parse()?,
            bytes: value("bytes")?.parse()?,
            huge: value("huge")?.parse::<u64>()? > 0,
            method: value("method")?.to_owned(),
            winners: winners
                .chunks_exact(4)
                .map(|bytes| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
                .collect(),
            child,
            input,
            output,
        })
    }
}

/// The signal that ends a process whose processor time is over.
const SIGXCPU: i32 = 24;

/// A rule as the program's structure.
fn rule(Filter { source, destination, rule }: &Filter) -> [u8; 20] {
    let end = |net: &Option<Ipv4Net>| {
        net.map_or((0, 0), |net| (u32::from(net.network()), net.prefix_len()))
    };
    let (source, source_length) = end(source);
    let (destination, destination_length) = end(destination);
    let (protocol, mask) = rule.protocol.map_or((0, 0), |protocol| (protocol, 0xff));
    let mut bytes = [0; 20];
    bytes[0..4].copy_from_slice(&source.to_ne_bytes());
    bytes[4..8].copy_from_slice(&destination.to_ne_bytes());
    let ports = [rule.source_ports, rule.destination_ports];
    for (at, port) in ports.iter().flat_map(|ports| [ports.first, ports.last]).enumerate() {
        bytes[8 + 2 * at..10 + 2 * at].copy_from_slice(&port.to_ne_bytes());
    }
    bytes[16..].copy_from_slice(&[source_length, destination_length, protocol, mask]);
    bytes
}

/// A header as in a packet.
fn header(header: &Header) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0] = header.protocol;
    bytes[4..8].copy_from_slice(&header.source.to_be_bytes());
    bytes[8..12].copy_from_slice(&header.destination.to_be_bytes());
    bytes[12..14].copy_from_slice(&header.source_port.to_be_bytes());
    bytes[14..16].copy_from_slice(&header.destination_port.to_be_bytes());
    bytes
}
