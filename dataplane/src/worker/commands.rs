//! Commands from the mailbox, and ports that are closed.

use super::Worker;
use super::slots::Slot;
use crate::housekeeper::Task;
use crate::mailbox::Command;
use crate::port::{Buffers, Port};
use crate::{Frame, PortId};

impl Worker {
    pub(super) fn run_commands(&mut self) {
        for command in self.mailbox.take() {
            match command {
                Command::Snapshot(snapshot) => {
                    let old = std::mem::replace(&mut self.snapshot, snapshot);
                    self.mailbox.in_force(self.snapshot.generation, old);
                }
                Command::AddPort(id, port, counters) => {
                    self.remove_port(id);
                    self.slots.add(id, port, counters, &self.exchange);
                }
                Command::AddMember(tag, trunk, counters) => {
                    self.slots.add_member(tag, trunk, counters, &self.exchange);
                }
                Command::RemovePort(id) => self.remove_port(id),
                Command::FollowDns(tap) => self.graph.waiting.follow_dns(self.number as u16, tap),
                Command::ReleaseAnswers(numbers) => self.graph.waiting.release_answers(&numbers),
                Command::Trace(tracing) => self.graph.follow(self.number as u16, tracing),
                Command::Capture(id, capture) => {
                    if let Some(captures) = self.slots.captures(id) {
                        captures.push(capture);
                    }
                }
                Command::Call(call) => call(),
            }
        }
    }

    pub(super) fn remove_port(&mut self, id: PortId) {
        if self.slots.remove_member(id) {
            self.graph.waiting.forget_port(id);
        } else if let Some(Slot { port, queued, .. }) = self.slots.remove(id) {
            self.close_port(port, queued);
            self.graph.waiting.forget_port(id);
        }
    }

    /// Passes a port to the housekeeper: closing its sockets takes the kernel milliseconds, which
    /// would stall this worker.
    fn close_port(&mut self, port: Box<dyn Port>, queued: Vec<Frame>) {
        let task = Task::Close(port, queued);
        let back = match &self.housekeeper {
            Some(housekeeper) => housekeeper.send(task).err().map(|error| error.0),
            None => Some(task),
        };
        if let Some(Task::Close(port, queued)) = back {
            queued.into_iter().for_each(|frame| self.free.put(frame));
            port.close(&mut Buffers { memory: &self.memory, free: &mut self.free });
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut ports = self.slots.take_all();
        let share = ports.len().div_ceil(CLOSING).max(1);
        let (memory, free) = (&*self.memory, &self.free);
        std::thread::scope(|scope| {
            while !ports.is_empty() {
                let some = ports.split_off(ports.len().saturating_sub(share));
                let mut free = free.share();
                let close = move || close(some, &mut Buffers { memory, free: &mut free });
                // Without a thread they are closed as they are dropped.
                let _ = std::thread::Builder::new().spawn_scoped(scope, close);
            }
        });
        self.packets.drain(..).for_each(|packet| self.free.put(packet.frame));
        self.outgoing.drain(..).flatten().for_each(|handoff| self.free.put(handoff.frame));
        self.graph.take_all().for_each(|packet| self.free.put(packet.frame));
    }
}

/// Threads of a worker that ends. The kernel waits for all processors at each socket that is closed; sockets that
/// are closed at the same time share the wait.
const CLOSING: usize = 16;

fn close(ports: Vec<Slot>, buffers: &mut Buffers<'_>) {
    for Slot { port, queued, .. } in ports {
        queued.into_iter().for_each(|frame| buffers.free.put(frame));
        port.close(buffers);
    }
    buffers.free.share_all();
}
