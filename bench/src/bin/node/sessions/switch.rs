//! The load through a worker, by the clock of its packets.

use std::sync::Arc;
use std::time::Duration;

use bench::SessionFile;
use dataplane::mailbox::Command;
use dataplane::port::memory::Wire;
use dataplane::switch::Config;
use dataplane::{Memory, Now, Outcome, Parts, PortId, Snapshot, Worker};

use super::load::Load;
use super::{Report, Result, progress};

/// Sessions that fit by default.
const SESSIONS: u32 = 1 << 20;
const FRAMES: u32 = 4096;
/// Ticks after the last question, for what is on its way.
const REST: u64 = 100;

pub(super) fn run(load: &mut Load, pods: u16, seconds: u64, what: &str) -> Result<Report> {
    let Config { ports, timeouts, .. } = Config::default();
    let (_file, sessions) = SessionFile::sessions(SESSIONS, ports, timeouts)?;
    let (memory, frames) = Memory::heap(2048, FRAMES);
    let mut worker = Worker::alone(memory, frames, sessions, None);
    let wires: Vec<Wire> = (0..=pods).map(|_| Wire::default()).collect();
    for (n, wire) in wires.iter().enumerate() {
        worker.mailbox().send(Command::AddPort(PortId(n as u16), wire.port(), Arc::default()));
    }
    let parts = Parts { generation: 1, ports: Load::ports(pods), ..Parts::default() };
    worker.mailbox().send(Command::Snapshot(Arc::new(Snapshot::new(parts))));
    worker.sessions().set_ports(wires.len() + 2, true);
    let (mut held, ticks) = (0, seconds * Load::TICKS);
    for tick in 0..ticks + REST {
        if tick < ticks {
            load.begin(tick);
        }
        for due in std::mem::take(&mut load.due) {
            wires[usize::from(due.from.unwrap_or(pods))].send(load.frame(&due));
        }
        worker.drain(Now(Duration::from_millis(tick)));
        for wire in &wires {
            while let Some(frame) = wire.receive() {
                load.arrived(&frame);
            }
        }
        if tick % Load::TICKS == 0 {
            held = held.max(worker.sessions().used());
            progress(what, tick, seconds);
        }
    }
    let evicted = worker.sessions().evicted();
    let refused = [Outcome::SessionQuota, Outcome::SessionTableFull];
    Ok(Report {
        held: held.into(),
        evicted: format!(
            "closed {}, unanswered {}, idle {}, established {}",
            evicted.closed, evicted.unanswered, evicted.idle, evicted.established
        ),
        refused: refused.map(|outcome| worker.counters().of(outcome)).iter().sum(),
        seconds,
    })
}
