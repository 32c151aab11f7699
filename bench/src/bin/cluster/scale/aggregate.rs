//! The aggregate of pods in the serving process: its objects and Leases are kept by the API server double, and a writer
//! and a standby are processes of their own, so that the measured one reads. A third one watches all pods directly.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Command;

use anyhow::Result;
use control::api_server::{
    Access, AggregateRole, Aggregation, Client, Event, InitialSync, Pace, Timing, connect,
    watch_aggregated, watch_kinds,
};
use control::{Control, Kind, Scope};
use testkit::api_server::Stream;
use testkit::{Process, TempDir};

use super::{NODE, PATIENCE, kubeconfig, take_changes};

/// Bytes of the aggregate that were sent.
#[derive(Default, Clone, Copy)]
pub(super) struct Sent {
    /// Bytes of lists by a selector.
    pub(super) listed: u64,
    /// Bytes of all watches, and their number.
    pub(super) watched: u64,
    pub(super) watches: u64,
}

/// Whether the double answers requests to a path by itself.
pub(super) fn is_about(path: &str) -> bool {
    path.contains("/podgateaddresses") || path.contains("/leases")
}

/// A connection whose answers are counted.
pub(super) struct Counted<'a, C> {
    pub(super) stream: &'a mut dyn Stream,
    pub(super) count: C,
}

impl<C> Read for Counted<'_, C> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.stream.read(bytes)
    }
}

impl<C: Fn(u64)> Write for Counted<'_, C> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.stream.write(bytes)?;
        (self.count)(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

/// The line of the direct watch once it has all pods.
const LISTED: &str = "all pods are listed";

/// The switch's settings of the aggregate.
pub(super) fn aggregation(node: &str) -> Aggregation {
    Aggregation { node: node.to_owned(), timing: Timing::default() }
}

/// A switch that watches all pods until it is ended, and prints a line once others read what it writes, or it stands by.
pub(super) async fn write(node: &str, server: SocketAddr) -> Result<()> {
    let client = client(server).await?;
    let (sender, mut events) = tokio::sync::mpsc::channel(256);
    let _watches = watch_aggregated(&client, Pace::default(), aggregation(node), &sender);
    let mut is_printed = false;
    while let Some(event) = events.recv().await {
        let Event::Aggregate(now) = event else { continue };
        let is_ready = match now.role {
            AggregateRole::Writing => now.writer == node,
            AggregateRole::Standby => now.standby == node,
            _ => false,
        };
        if is_ready && !std::mem::replace(&mut is_printed, true) {
            println!("{:?}", now.role);
        }
    }
    Ok(())
}

/// A client of the serving process.
pub(super) async fn client(server: SocketAddr) -> Result<Client> {
    let folder = TempDir::new("scale-client");
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, kubeconfig(server))?;
    Ok(connect(&Access::Kubeconfig(path)).await?.client)
}

/// Watches all pods directly until the process is ended. Prints a line once they are listed, and then the delay of each
/// change that says when it was sent, in milliseconds.
pub(super) async fn watch_directly(server: SocketAddr) -> Result<()> {
    let client = client(server).await?;
    let (sender, mut events) = tokio::sync::mpsc::channel(256);
    let _watches = watch_kinds(&[Kind::Pod], &client, Pace::default(), &sender);
    let mut control = Control::new(Scope::Node(NODE.into()));
    let mut buffer = InitialSync::default();
    while let Some(event) = events.recv().await {
        if buffer.take(event) {
            break;
        }
    }
    buffer.work_in(&mut control);
    control.commit();
    println!("{LISTED}");
    loop {
        for delay in take_changes(&mut control, &mut events).await.1 {
            println!("{delay}");
        }
    }
}

/// The processes of the writer, of the standby, and of the direct watch; they end with this.
pub(super) struct Others {
    _writers: [Process; 2],
    direct: Process,
    /// Lines of the direct watch that are in a figure.
    taken: Cell<usize>,
}

impl Others {
    pub(super) fn start(server: SocketAddr) -> Result<Self> {
        let writer = |node, role| own_process(server, &["--write", node], role);
        // The second one stands by, as the first one writes.
        let writers = [writer("node-00001", "Writing")?, writer("node-00002", "Standby")?];
        let direct = own_process(server, &["--direct"], LISTED)?;
        Ok(Self { _writers: writers, direct, taken: Cell::new(0) })
    }

    /// The delays of the direct watch since the last call, in milliseconds.
    pub(super) fn take_direct(&self) -> Vec<u64> {
        let lines = self.direct.output();
        let earlier = self.taken.replace(lines.len());
        lines[earlier..].iter().filter_map(|line| line.parse().ok()).collect()
    }
}

/// Starts this program beside the serving process, and waits for its line.
fn own_process(server: SocketAddr, what: &[&str], line: &str) -> Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    let process =
        Process::spawn(command.args(["scale", "--server", &server.to_string()]).args(what));
    process.wait_for_line(line, PATIENCE);
    eprintln!("{}: {line}", what.join(" "));
    Ok(process)
}
