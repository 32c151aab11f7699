//! `podgate capture`: captures the packets of a port of the running switch.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dataplane::capture::{self, Writer};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::Ended;
use cli_runtime::{NO, Output, Socket, UNUSABLE, counted, fail, note, plain, refused, write};
use local_api::{Capture, CaptureSummary, CapturedPacket, Direction, Request};
use observe::time::nanoseconds;
use observe::trace::headers_in_words;

/// Interval of flushes to a file.
const FLUSH: Duration = Duration::from_secs(1);

/// Arguments of `podgate capture`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "PORT is a pod (NS/POD, or POD in namespace default), host or uplink. Packets \
of both directions are captured as they pass the port: into the switch before any node of the graph, \
out of it as they are sent.

A packet is captured if it matches all terms of the filter:
  from=, to=, address=   source, destination, either: an address, network or pod
  protocol=              TCP, UDP, SCTP, ICMP or a number
  port=N                 source or destination port

The capture ends at --count, --seconds, ^C, or when the port is closed. It prints \
the numbers of captured and dropped packets to stderr.

Example:
  podgate capture default/db -w db.pcapng --filter 'protocol=tcp port=6379' --seconds 10
  podgate capture uplink -w - | wireshark -k -i -"
)]
pub struct Args {
    /// The port
    #[arg(value_name = "PORT|POD")]
    port: String,

    /// Write pcapng to this file, or to stdout (-), instead of printing packets
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,

    /// Only packets that match these terms, NAME=VALUE each; may be repeated
    #[arg(long, value_name = "TERMS")]
    filter: Vec<String>,

    /// Stop after N packets
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Stop after N seconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,

    /// Bytes to keep of each packet [default: all]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(64..=262_144))]
    snaplen: Option<u32>,

    #[command(flatten)]
    socket: Socket,

    /// Output format without --write; json: one line a packet, and one for the summary
    #[arg(short, long, value_enum, default_value_t = Output::Text, conflicts_with = "write")]
    output: Output,
}

/// Captures until a limit, the port, the switch or the user ends it.
pub(super) fn run(args: &Args) -> Ended {
    let request = Request::Capture(Capture {
        port: args.port.clone(),
        filter: args.filter.join(" "),
        count: args.count,
        seconds: args.seconds,
        snaplen: args.snaplen,
    });
    if args.write.as_ref().is_some_and(|path| path.as_os_str() == "-") && io::stdout().is_terminal()
    {
        return Err(fail(UNUSABLE, "-w -: stdout is a terminal; redirect it, or name a file"));
    }
    let podgate = args.socket.connect().map_err(refused)?;
    let handle = podgate.handle();
    let packets = podgate.stream(&request).map_err(refused)?;
    let unhandled = |error| fail(NO, format_args!("handle signals: {error}"));
    handle.and_then(end_at_signal).map_err(unhandled)?;
    let failed = |error: String| fail(NO, plain(&error));
    let mut sink = None;
    for packet in packets {
        let value = packet.map_err(refused)?;
        // After the first answer: a request that is refused leaves an older file alone.
        let Some(sink) = &mut sink else {
            sink = Some(Sink::open(args).map_err(failed)?);
            let port = value.get("capturing").and_then(Value::as_str).unwrap_or(&args.port);
            note(format_args!("capturing {port}; ^C ends it"));
            continue;
        };
        match step(sink, value).map_err(failed)? {
            Step::Next => {}
            Step::End(summary) => return finish(sink, &summary),
            Step::Unread => return Ok(ExitCode::SUCCESS),
        }
    }
    Err(fail(NO, "podgate's answer ended early"))
}

/// Ends the stream at SIGINT or SIGTERM: the switch then sends what is queued, and the summary.
fn end_at_signal(handle: UnixStream) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if signals.forever().next().is_some() {
            let _ = handle.shutdown(Shutdown::Write);
        }
    })?;
    Ok(())
}

/// The next step after an answer of the switch.
enum Step {
    Next,
    End(CaptureSummary),
    /// The reader of stdout has left.
    Unread,
}

fn step(sink: &mut Sink, answer: Value) -> Result<Step, String> {
    if answer.get("captured").is_some() {
        let summary = serde_json::from_value(answer).map_err(of_answer)?;
        return Ok(Step::End(summary));
    }
    let packet: CapturedPacket = serde_json::from_value(answer).map_err(of_answer)?;
    let bytes = STANDARD.decode(&packet.data).map_err(of_answer)?;
    match sink.packet(&packet, &bytes) {
        Ok(true) => Ok(Step::Next),
        Ok(false) => Ok(Step::Unread),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Step::Unread),
        Err(error) => Err(format!("write the capture: {error}")),
    }
}

fn of_answer(error: impl std::fmt::Display) -> String {
    format!("podgate's answer: {error}")
}

fn finish(sink: &mut Sink, summary: &CaptureSummary) -> Ended {
    let CaptureSummary { captured, dropped, reason } = summary;
    let unwritten = |error| fail(NO, format_args!("write the capture: {error}"));
    sink.finish(summary).map_err(unwritten)?;
    let packets = counted(*captured, "packet");
    note(format_args!("{packets} captured, {dropped} dropped: {reason}"));
    Ok(ExitCode::SUCCESS)
}

/// The destination of packets.
enum Sink {
    Lines(Output),
    File { writer: Writer<BufWriter<Box<dyn Write>>>, is_stdout: bool, flushed: Instant },
}

impl Sink {
    fn open(args: &Args) -> Result<Self, String> {
        let Some(path) = &args.write else { return Ok(Self::Lines(args.output)) };
        let is_stdout = path.as_os_str() == "-";
        let output: io::Result<Box<dyn Write>> = match is_stdout {
            true => Ok(Box::new(io::stdout().lock())),
            false => File::create(path).map(|file| Box::new(file) as Box<dyn Write>),
        };
        let writer = output.and_then(|output| Writer::new(BufWriter::new(output)));
        let writer = writer.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self::File { writer, is_stdout, flushed: Instant::now() })
    }

    /// Writes one packet; returns `false` if the reader of stdout has left.
    fn packet(&mut self, packet: &CapturedPacket, bytes: &[u8]) -> io::Result<bool> {
        match self {
            Self::Lines(Output::Text) => write(&line(packet, bytes)),
            Self::Lines(_) => write(&(serde_json::to_string(packet)? + "\n")),
            Self::File { writer, is_stdout, flushed } => {
                let direction = match packet.direction {
                    Direction::In => capture::Direction::In,
                    Direction::Out => capture::Direction::Out,
                };
                let time = Duration::from_nanos(packet.time_ns);
                let (port, length) = (Some(&*packet.port), packet.length);
                writer.write_directed(port, time, bytes, length, direction)?;
                if *is_stdout || flushed.elapsed() >= FLUSH {
                    writer.flush()?;
                    *flushed = Instant::now();
                }
                Ok(true)
            }
        }
    }

    fn finish(&mut self, summary: &CaptureSummary) -> io::Result<()> {
        match self {
            Self::Lines(Output::Text) => Ok(()),
            Self::Lines(_) => write(&format!("{}\n", json!({ "summary": summary }))).map(drop),
            Self::File { writer, .. } => writer.flush(),
        }
    }
}

/// One packet in words.
fn line(packet: &CapturedPacket, bytes: &[u8]) -> String {
    let time = nanoseconds(SystemTime::UNIX_EPOCH + Duration::from_nanos(packet.time_ns));
    let arrow = match packet.direction {
        Direction::In => "in ",
        Direction::Out => "out",
    };
    let words = headers_in_words(bytes, packet.length as usize);
    format!("{time} {} {arrow} {words}, {} bytes\n", packet.port, packet.length)
}
