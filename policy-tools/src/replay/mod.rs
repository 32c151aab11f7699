//! `podgate replay`: a capture through one node's switch.
//!
//! ```text
//! manifests ─ control ─▶ view ─▶ snapshot ─┐
//! capture ─ entry ─▶ port of the packet ─▶ the graph ─▶ verdict ─▶ output
//!                                              └─▶ what left ─▶ --write
//! ```
//!
//! The graph is the one that live packets pass; its ports end in memory and its clock is the
//! capture's. Packets go one at a time, so that a packet's verdict never depends on how many
//! came with it. A later fragment that comes before its first waits in the switch; its line, and
//! those behind it, are written once its verdict is known.

mod cut;
mod entry;
mod offline;
mod options;
mod output;
mod pace;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::input;
use control::{Object, Scope};
use dataplane::Underlay;
use dataplane::capture::{self, Direction, Reader, Record, Writer};

use offline::Offline;
pub(crate) use options::Options;
use output::Report;
use pace::{Clock, Pace};

/// Cause of an early end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// No such node.
    #[error("node '{node}' is not in the manifests; {known}")]
    Node {
        /// The name given.
        node: String,
        /// The known ones.
        known: String,
    },
    /// More pods than a switch has ports.
    #[error("node '{node}' has more than {most} pods")]
    Pods {
        /// The node.
        node: String,
        /// Largest number permitted.
        most: usize,
    },
    /// The capture cannot be read, or not to its end.
    #[error(transparent)]
    Capture(#[from] capture::Error),
    /// Output and input are the same file.
    #[error("--write {}: is the capture that is being replayed", .0.display())]
    Overwrites(PathBuf),
    /// The output could not be written.
    #[error("{}: {error}", what.display())]
    Output {
        /// The file, or what stands for it.
        what: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The reader has closed the output.
    #[error("the reader of the output is gone")]
    Unread,
    /// The switch gave no verdict.
    #[error("{0}")]
    Switch(#[from] offline::Lost),
}

impl Failure {
    /// Returns whether the input is at fault.
    pub(crate) fn is_of_input(&self) -> bool {
        !matches!(self, Self::Output { .. } | Self::Unread | Self::Switch(_))
    }
}

/// Replays `options.pcap` through the switch that `objects` make, printing to `stdout`.
pub(crate) fn replay(
    options: &Options,
    objects: Vec<Object>,
    stdout: &mut impl Write,
) -> Result<(), Failure> {
    let mut offline = switch(&options.node, options.underlay(), objects)?;
    if options.trace {
        offline.follow();
    }
    let capture = open(&options.pcap)?;
    let mut kept = options.write.as_deref().map(|path| keep(path, &options.pcap)).transpose()?;
    let mut clock = Clock::default();
    let mut pace = Pace::new(options.speed);
    let mut report = Report::new(options.output, stdout);
    let mut broken = None;
    let (mut capture, mut packets) = (capture, 0);
    for record in capture.by_ref() {
        let mut record = match record {
            Ok(record) => record,
            Err(error) => {
                broken = Some(error);
                break;
            }
        };
        // A live capture has both directions; what left the switch does not enter it again.
        if record.direction == Some(Direction::Out) {
            continue;
        }
        packets += 1;
        if cut::completed(&mut record) {
            report.is_cut(packets);
        }
        let now = clock.at(record.time);
        if pace.waits() {
            report.flush().map_err(printed)?;
            pace.wait_for(now);
        }
        let entry = entry::port(offline.snapshot(), &record);
        let ended = offline.pass(entry, now, &record)?;
        report.packets(ended).map_err(printed)?;
        if let Some((path, writer)) = &mut kept {
            let failed = |error| Failure::Output { what: path.clone(), error };
            write_what_left(&mut offline, &record, writer).map_err(failed)?;
        }
    }
    report.packets(offline.finish()).map_err(printed)?;
    report.passed_over(capture.passed_over());
    report.summary().map_err(printed)?;
    if let Some((path, writer)) = kept {
        writer.finish().map_err(|error| Failure::Output { what: path, error })?;
    }
    match broken {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

/// The switch of a node.
fn switch(node: &str, underlay: Underlay, objects: Vec<Object>) -> Result<Offline, Failure> {
    // A node is in the manifests by its object, or because a pod is placed on it.
    let mut known: BTreeSet<Arc<str>> = objects.iter().filter_map(placed_on).collect();
    let view = input::control(Scope::Node(node.into()), objects).view();
    known.extend(view.nodes.keys().cloned());
    if !known.contains(node) {
        let known: Vec<&str> = known.iter().map(|name| &**name).collect();
        let known = match &known[..] {
            [] => "they name no node at all".to_string(),
            known => format!("known are: {}", known.join(", ")),
        };
        return Err(Failure::Node { node: node.into(), known });
    }
    Offline::new(&view, node, underlay).map_err(|most| Failure::Pods { node: node.into(), most })
}

fn placed_on(object: &Object) -> Option<Arc<str>> {
    match object {
        Object::Pod(pod) => pod.node.clone(),
        _ => None,
    }
}

type Input = Box<dyn BufRead>;

fn open(path: &Path) -> Result<Reader<Input>, Failure> {
    let input: Input = if path == Path::new("-") {
        Box::new(BufReader::new(io::stdin()))
    } else {
        let unreadable = |error| capture::Error {
            file: path.to_path_buf(),
            offset: 0,
            fault: capture::Fault::Io(error),
        };
        Box::new(BufReader::with_capacity(1 << 16, File::open(path).map_err(unreadable)?))
    };
    Ok(Reader::new(path, input)?)
}

type Kept = Writer<BufWriter<File>>;

/// Creates the file for what leaves; it must not be the capture that is being read.
fn keep(path: &Path, capture: &Path) -> Result<(PathBuf, Kept), Failure> {
    if let (Ok(out), Ok(capture)) = (path.canonicalize(), capture.canonicalize())
        && out == capture
    {
        return Err(Failure::Overwrites(path.to_path_buf()));
    }
    let failed = |error| Failure::Output { what: path.to_path_buf(), error };
    let file = File::create(path).map_err(failed)?;
    Ok((path.to_path_buf(), Writer::new(BufWriter::new(file)).map_err(failed)?))
}

fn write_what_left(offline: &mut Offline, record: &Record, writer: &mut Kept) -> io::Result<()> {
    offline.take_what_left(|port, frame| {
        writer.write(Some(port), record.time, frame, frame.len() as u32)
    })
}

fn printed(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::Unread,
        _ => Failure::Output { what: "standard output".into(), error },
    }
}
