//! The server side of live captures: one port's packets on one connection of the local API.

use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use dataplane::PortId;
use dataplane::capture::{self, LiveCapture};
use dataplane::graph::trace::Filter;
use dataplane::wire::Flow;
use flow_offload::Followed;
use local_api::write_line;
use local_api::{
    Answer, ApiError, Capture, CaptureStarted, CaptureSummary, CapturedPacket, Direction, ErrorKind,
};
use observe::trace;

use super::shared_status::SharedStatus;

/// Packets buffered between the workers and a connection.
const SLOTS: usize = 2048;
/// Longest packet kept, in bytes: as much as a capture file may hold.
const LONGEST: u32 = 262_144;
/// Shortest snap length, in bytes: the headers fit.
const SHORTEST: u32 = 64;
/// Interval at which an idle stream polls for packets and for the end of its reader.
const IDLE: Duration = Duration::from_millis(2);
/// Buffered bytes of the connection.
const BUFFER: usize = 256 * 1024;

/// Streams the packets of a port until a limit, the port, the client or the switch ends it.
pub(super) fn stream(
    reader: BufReader<UnixStream>,
    writer: &mut UnixStream,
    status: &SharedStatus,
    wanted: &Capture,
    has_left: impl Fn(&mut UnixStream) -> bool,
    stops: impl Fn() -> bool,
) -> io::Result<()> {
    let (id, port, filter, capture) = match begin(status, wanted) {
        Ok(begun) => begun,
        Err(error) => return write_line(writer, &Answer::from(error)),
    };
    let _end = End(&capture);
    let _followed = follow(status, &port, filter);
    status.switch.capture(id, &capture);
    let mut peer = reader.into_inner();
    peer.set_nonblocking(false)?;
    // Also the poll interval.
    peer.set_read_timeout(Some(IDLE))?;
    let deadline = wanted.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let most = wanted.count.unwrap_or(u64::MAX);
    let mut writer = BufWriter::with_capacity(BUFFER, writer);
    let started = CaptureStarted { capturing: port.to_string() };
    write_line(&mut writer, &Answer::result(&started))?;
    let mut captured = 0;
    let reason = loop {
        // Before the queue is drained: what was queued before the end is sent.
        let end = if LiveCapture::is_detached(&capture) {
            Some("the port is closed")
        } else if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            Some("time is over")
        } else if stops() {
            Some("podgate is ending")
        } else {
            has_left(&mut peer).then_some("ended by the client")
        };
        while captured < most
            && let Some(packet) = capture.take()
        {
            write_line(&mut writer, &Answer::result(&message(&port, &packet)))?;
            capture.recycle(packet);
            captured += 1;
        }
        writer.flush()?;
        if captured >= most {
            break "count reached";
        }
        if let Some(reason) = end {
            break reason;
        }
    };
    let summary = CaptureSummary { captured, dropped: capture.dropped(), reason: reason.into() };
    write_line(&mut writer, &Answer::result(&summary))?;
    writer.flush()
}

/// Keeps the connections that a capture of a port may show in the switch; others stay in the
/// kernel's hands.
fn follow(status: &SharedStatus, port: &Arc<str>, filter: Filter) -> Option<Followed> {
    let flow_offload = status.flow_offload();
    let port = Arc::clone(port);
    let offload = flow_offload.running()?;
    Some(offload.follow(move |connection| {
        let shows = |flow: &Flow| filter.matches_flow(flow);
        connection.ports.contains(&&*port)
            && connection.directions().iter().any(|(_, flows)| flows.iter().any(shows))
    }))
}

/// Ends a capture when dropped.
struct End<'a>(&'a LiveCapture);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Checks the request and makes the capture.
fn begin(
    status: &SharedStatus,
    wanted: &Capture,
) -> Result<(PortId, Arc<str>, Filter, Arc<LiveCapture>), ApiError> {
    let bad = |text: String| ApiError::new(ErrorKind::BadRequest, format!("capture: {text}"));
    let name = trace::port_name(&wanted.port);
    let snapshot = Arc::clone(&status.state().snapshot);
    let Some(id) = snapshot.port_named(&name) else {
        let text = format!("capture: no port is named '{}'", name.escape_debug());
        return Err(ApiError::new(ErrorKind::NotFound, text));
    };
    let snaplen = wanted.snaplen.unwrap_or(LONGEST);
    if !(SHORTEST..=LONGEST).contains(&snaplen) {
        return Err(bad(format!("snaplen: {snaplen} is not between {SHORTEST} and {LONGEST}")));
    }
    let filter = trace::parse(&wanted.filter, |pod| status.broker.directory().addresses_of(pod))
        .map_err(bad)?;
    if !is_of_headers(&filter) {
        let text = "filter: a capture has the terms from, to, address, protocol and port only";
        return Err(bad(text.to_owned()));
    }
    let capture = LiveCapture::new(filter.clone(), SLOTS, snaplen as usize);
    Ok((id, name, filter, capture))
}

/// Whether a filter has terms about headers only: a port knows no outcome.
fn is_of_headers(filter: &Filter) -> bool {
    let Filter { in_port, out_port, verdict, outcome, .. } = filter;
    in_port.is_none() && out_port.is_none() && verdict.is_none() && outcome.is_none()
}

fn message(port: &str, packet: &capture::CapturedPacket) -> CapturedPacket {
    CapturedPacket {
        port: port.to_owned(),
        time_ns: u64::try_from(packet.time.as_nanos()).unwrap_or(u64::MAX),
        direction: match packet.direction {
            capture::Direction::In => Direction::In,
            capture::Direction::Out => Direction::Out,
        },
        length: packet.original_length,
        data: STANDARD.encode(&packet.bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;

    use dataplane::graph::Node;
    use dataplane::port::memory::Wire;
    use dataplane::{Parts, PortKind, PortState, Snapshot};

    use super::*;
    use crate::run::shared_status::PublishedState;
    use crate::run::shared_status::tests::started;

    #[test]
    fn what_is_captured_before_the_client_ends_it_is_sent() {
        let folder = testkit::TempDir::new("capture");
        let status = started(folder.path());
        let wire = Wire::default();
        status.switch.add_port(PortId(0), wire.port());
        let publish = |generation| {
            let ports = vec![Some(PortState::new("host", PortKind::Host))];
            let parts = Parts { generation, ports, ..Parts::default() };
            let snapshot = Arc::new(Snapshot::new(parts));
            status.switch.publish(&snapshot);
            assert!(status.switch.wait_in_force(generation, Duration::from_secs(10)));
            snapshot
        };
        status.set_state(PublishedState { snapshot: publish(1), ..PublishedState::default() });
        let wanted = Capture {
            port: "host".into(),
            filter: String::new(),
            count: None,
            seconds: None,
            snaplen: None,
        };
        let received =
            || status.switch.counters().map(|it| it.node(Node::Parse).packets.value()).sum::<u64>();
        // The packet comes while the stream looks whether its reader has left.
        let leaves = |_: &mut UnixStream| {
            // Workers take the capture before the snapshot.
            publish(2);
            wire.send(testkit::packet::udp("10.0.0.1:1", "10.0.0.2:2").build());
            while received() == 0 {
                std::thread::yield_now();
            }
            true
        };
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let reader = BufReader::new(theirs.try_clone().unwrap());
        stream(reader, &mut theirs, &status, &wanted, leaves, || false).unwrap();
        drop(theirs);
        let lines: Vec<String> = BufReader::new(ours).lines().map(Result::unwrap).collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[2].contains(r#""captured":1"#), "{lines:?}");
    }
}
