//! DPDK's `rte_acl`, in a process of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail, ensure};
use bench::process;
use ipnet::Ipv4Net;

use super::rulesets::{Filter, Header};

/// The peer's program, compiled for this machine.
pub(crate) struct RteAcl {
    program: PathBuf,
    folder: PathBuf,
    /// Whether there are huge pages for it.
    huge: bool,
}

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
    pub(crate) fn new(folder: &Path, huge: bool) -> anyhow::Result<Self> {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/rte_acl.c");
        let program = folder.join("rte_acl");
        let flags = Command::new("pkg-config").args(["--cflags", "--libs", "libdpdk"]).output()?;
        ensure!(flags.status.success(), "DPDK's headers are missing (Debian: libdpdk-dev)");
        let done = Command::new("cc")
            .args(["-O3", "-march=native", "-Wall", "-o"])
            .args([program.as_os_str(), source.as_ref()])
            .args(String::from_utf8(flags.stdout)?.split_whitespace())
            .output()
            .context("cannot run cc")?;
        ensure!(done.status.success(), "{source}: {}", String::from_utf8_lossy(&done.stderr));
        Ok(Self { program, folder: folder.to_owned(), huge })
    }

    /// Builds `filters` and looks `headers` up with each method.
    pub(crate) fn build(&self, filters: &[Filter], headers: &[Header]) -> anyhow::Result<Built> {
        let path = |name: &str| self.folder.join(name);
        let rules: Vec<[u8; 20]> = filters.iter().map(rule).collect();
        std::fs::write(path("rules"), rules.concat())?;
        let headers: Vec<[u8; 16]> = headers.iter().map(header).collect();
        std::fs::write(path("headers"), headers.concat())?;
        let mut child = Command::new(&self.program)
            .args(["rules", "headers", "winners"].map(path))
            .arg(u8::from(self.huge).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("rte_acl has no pipes");
        };
        let (mut output, mut said) = (BufReader::new(output), String::new());
        output.read_line(&mut said)?;
        let &[build, bytes, method] = &said.split_whitespace().collect::<Vec<_>>()[..] else {
            let mut why = String::new();
            child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut why)).transpose()?;
            bail!("rte_acl ended with {}: {}", child.wait()?, why.trim());
        };
        let winners = std::fs::read(path("winners"))?;
        let (winners, _) = winners.as_chunks();
        Ok(Built {
            build: build.parse()?,
            bytes: bytes.parse()?,
            huge: process::huge_memory(child.id())? > 0,
            method: method.to_owned(),
            winners: winners.iter().map(|bytes| u32::from_ne_bytes(*bytes)).collect(),
            child,
            input,
            output,
        })
    }
}

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
