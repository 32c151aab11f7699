//! Answers that go on: verdicts, and session rules with their changes.

use std::io::{self, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use local_api::{Answer, write_line};
use observe::verdicts::Filter;
use serde_json::json;

use super::IDLE;
use super::connections::Shared;
use crate::run::session_rules::Follower;

/// Sends events until the switch or the observer ends, or no event is left.
pub(super) fn observe(
    reader: BufReader<UnixStream>,
    writer: &mut UnixStream,
    shared: &Shared,
    filter: Filter,
) -> io::Result<()> {
    let mut peer = reader.into_inner();
    peer.set_nonblocking(false)?;
    peer.set_read_timeout(Some(Duration::from_millis(1)))?;
    let observer = shared.status.broker.observe(filter);
    loop {
        match observer.events.recv_timeout(IDLE) {
            Ok(event) => write_line(writer, &Answer::result(&*event))?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) if has_left(&mut peer) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        match observer.take_lost() {
            0 => {}
            lost => write_line(writer, &Answer::Result(json!({ "lost": lost })))?,
        }
    }
}

/// Sends session rules and their changes until the switch or the follower ends.
pub(super) fn follow_session_rules(
    reader: BufReader<UnixStream>,
    writer: &mut UnixStream,
    shared: &Shared,
) -> io::Result<()> {
    let mut peer = reader.into_inner();
    peer.set_nonblocking(false)?;
    // Also the poll interval for changes.
    peer.set_read_timeout(Some(IDLE))?;
    let mut follower = Follower::new();
    let mut known = None;
    while !shared.stop.load(Ordering::Acquire) {
        let generation = shared.status.state().snapshot.generation;
        if known != Some(generation) {
            let events = shared.events.lock().clone();
            match follower.steps(&events) {
                Ok(steps) => {
                    for step in steps {
                        write_line(writer, &Answer::result(&step))?;
                    }
                }
                Err(error) => return write_line(writer, &Answer::from(error)),
            }
            known = Some(generation);
        }
        if has_left(&mut peer) {
            return Ok(());
        }
    }
    Ok(())
}

/// Returns whether the peer has closed the connection; discards what it sends.
pub(super) fn has_left(peer: &mut UnixStream) -> bool {
    match peer.read(&mut [0; 64]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
    }
}
