//! The aggregate of pods in the serving process: its objects and Leases are kept by the API server double, and a writer
//! and a standby are processes of their own, so that the measured one reads. A third one watches all pods directly.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use control::api_server::{
    Access, AggregateRole, Aggregation, Client, Event, InitialSync, Pace, Timing, connect,
    watch_aggregated, watch_kinds,
};
use control::{Control, Kind, Scope};
use testkit::TempDir;

use super::{NODE, kubeconfig, take_changes};

/// Bytes and objects of the aggregate that were sent.
#[derive(Default, Clone, Copy)]
pub(super) struct Sent {
    /// Bytes of lists.
    pub(super) listed: u64,
    /// Bytes of all watches, and their number.
    pub(super) watched: u64,
    pub(super) watches: u64,
}

/// Whether the double has what a path is about.
pub(super) fn is_about(path: &str) -> bool {
    path.contains("/podgateaddresses") || path.contains("/leases")
}

/// Forwards one request to the double and its answer back; `count` gets the bytes sent.
pub(super) fn pass_on(
    head: &str,
    from: &mut impl BufRead,
    out: &mut impl Write,
    double: SocketAddr,
    count: impl Fn(&dyn Fn(&mut Sent)),
) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(double)?;
    let mut body = vec![0; length(head).unwrap_or(0)];
    from.read_exact(&mut body)?;
    stream.write_all(&[head.as_bytes(), &body].concat())?;
    let mut answer = BufReader::new(stream.try_clone()?);
    let mut lines = String::new();
    while answer.read_line(&mut lines)? > 2 {}
    // One answer for each connection, as all others here.
    let end = lines.len() - 2;
    lines.insert_str(end, "Connection: close\r\n");
    out.write_all(lines.as_bytes())?;
    let is_read = head.starts_with("GET") && head.contains("labelSelector");
    if let Some(length) = length(&lines) {
        let mut body = vec![0; length];
        answer.read_exact(&mut body)?;
        if is_read {
            count(&|sent| sent.listed += length as u64);
        }
        out.write_all(&body)?;
        out.flush()?;
        return stream.shutdown(Shutdown::Both);
    }
    count(&|sent| sent.watches += 1);
    out.flush()?;
    let mut part = vec![0; 64 << 10];
    loop {
        let read = answer.read(&mut part)?;
        if read == 0 {
            return Ok(());
        }
        count(&|sent| sent.watched += read as u64);
        out.write_all(&part[..read])?;
        out.flush()?;
    }
}

fn length(head: &str) -> Option<usize> {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    let (_, length) = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?;
    length.trim().parse().ok()
}

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

async fn client(server: SocketAddr) -> Result<Client> {
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
    println!("all pods are listed");
    loop {
        for delay in take_changes(&mut control, &mut events).await.1 {
            println!("{delay}");
        }
    }
}

/// The processes of the writer, of the standby, and of the direct watch; they are ended when this is dropped.
#[derive(Default)]
pub(super) struct Others {
    children: Vec<Child>,
    /// Delays of the direct watch that are not in a figure yet.
    direct: Arc<Mutex<Vec<u64>>>,
}

impl Others {
    pub(super) fn start(server: SocketAddr) -> Result<Self> {
        let mut all = Self::default();
        for node in ["node-00001", "node-00002"] {
            all.spawn(server, &["--write", node])?;
        }
        let output = all.spawn(server, &["--direct"])?;
        let direct = Arc::clone(&all.direct);
        std::thread::spawn(move || {
            for delay in output.lines().map_while(|line| line.ok()?.parse().ok()) {
                direct.lock().unwrap_or_else(PoisonError::into_inner).push(delay);
            }
        });
        Ok(all)
    }

    /// Starts a process and waits for its first line.
    fn spawn(&mut self, server: SocketAddr, what: &[&str]) -> Result<BufReader<ChildStdout>> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["scale", "--server", &server.to_string()])
            .args(what)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut output = BufReader::new(child.stdout.take().context("stdout")?);
        self.children.push(child);
        let mut line = String::new();
        output.read_line(&mut line)?;
        eprintln!("{}: {}", what.join(" "), line.trim());
        Ok(output)
    }

    /// The delays of the direct watch since the last call, in milliseconds.
    pub(super) fn take_direct(&self) -> Vec<u64> {
        std::mem::take(&mut self.direct.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
