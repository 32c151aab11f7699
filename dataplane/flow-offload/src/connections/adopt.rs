//! Connections that templates have opened: those that last become like others.
//!
//! Most have ended before the entries are read next, and the programs have removed theirs. Of the others, the
//! reading finds entries that no connection is known for yet.

use dataplane::PortId;
use dataplane::session::{SessionId, TupleOrigin, Tuples};

use super::Connections;
use crate::connection::Connection;
use crate::context::Context;
use crate::installed::{Installed, Reading, count};
use crate::layout::{Ended, FlowEntry, FlowKey, GUARD_PORTS};
use crate::published::Published;

impl Connections {
    /// Takes up the connection of an initiator's entry that a template made.
    pub(super) fn adopt(&mut self, context: &Context, published: &Published, key: &FlowKey) {
        let flow = key.flow();
        let Some(forward) = context.kernel.flow(key) else { return };
        let both = [*key, forward.reverse_key(key)];
        let (sessions, now_s) = (context.switch.sessions(), context.switch.now().seconds());
        let found = sessions.find(sessions.hash(&flow), &flow, TupleOrigin::Entering, now_s);
        let found = found.filter(|it| it.forward && !self.installed.contains_key(&it.id));
        let tuples = found.as_ref().and_then(|it| sessions.tuples(it));
        // Both know of the same connection.
        let is_same = |it: &Tuples| both[1].flow().reversed() == it.responder;
        let (Some(found), Some(tuples)) = (found, tuples.filter(is_same)) else {
            // A worker may be about to read of it. Otherwise the graph has refused it, which counts.
            if self.without_session.insert(*key, self.readings).is_some() {
                self.withdraw(context, &both, &forward);
            }
            return;
        };
        let ports = ports_of(&forward);
        let connection = Connection::of(published, ports, &tuples);
        if self.followed.iter().any(|(_, wanted)| wanted(&connection)) {
            return self.withdraw(context, &both, &forward);
        }
        context.kernel.note_opened(ports[0]);
        let owner = sessions.owner(&found);
        let mut installed = Installed {
            keys: both.map(Some),
            guards: forward.guards,
            generations: forward.generations,
            ports,
            tuples,
            owner,
            ticket: self.shares.enter(owner, found.id),
            entered_s: now_s,
            read: Default::default(),
            readings: self.readings,
            pass: self.pass,
        };
        context.count(&installed.guards, 1);
        // The responder's first: the initiator's acknowledges it.
        for (direction, key) in both.iter().enumerate().rev() {
            self.keys.insert(*key, (found.id, direction));
            if let Some(entry) = context.kernel.flow(key) {
                let read = Reading::of(&entry);
                installed.note(&context.switch, &found.id, direction, read, &mut self.of_ports);
            }
        }
        self.installed.insert(found.id, installed);
        self.places.insert(found.id);
    }

    /// Removes entries that no session allows.
    fn withdraw(&mut self, context: &Context, both: &[FlowKey; 2], forward: &FlowEntry) {
        let [from, to] = ports_of(forward);
        for (key, ports) in both.iter().zip([[from, to], [to, from]]) {
            if let Ok(Some(last)) = context.kernel.remove_flow(key) {
                count(&mut self.of_ports, ports, last.packets, last.bytes);
            }
        }
        context.kernel.note_opened(from);
    }

    /// Takes note of a connection whose entries a program has removed since both ends closed it.
    pub(crate) fn end(&mut self, context: &Context, ended: &Ended, id: Option<SessionId>) {
        let readings = Reading::of_ended(ended);
        if let Some(id) = id
            && let Some(mut installed) = self.forget(context, &id)
        {
            for (direction, read) in readings.into_iter().enumerate() {
                installed.note(&context.switch, &id, direction, read, &mut self.of_ports);
            }
            return;
        }
        if !ended.by_template {
            return;
        }
        let [from, to] = ended.ports.map(|port| PortId(port as u16));
        // One that was taken up was noted then.
        let before = match self.unreported.remove(&ended.key) {
            Some((read, _)) => read,
            None => {
                context.kernel.note_opened(from);
                Default::default()
            }
        };
        for (ports, (now, before)) in
            [[from, to], [to, from]].into_iter().zip(readings.iter().zip(before))
        {
            let packets = now.packets.saturating_sub(before.packets);
            let bytes = now.bytes.saturating_sub(before.bytes);
            count(&mut self.of_ports, ports, packets, bytes);
            if let Some(id) = id {
                context.switch.sessions().count_beside(id, packets, bytes);
            }
        }
    }

    /// Enters the templates that are wanted, and removes those that count no more.
    pub(crate) fn write_templates(&mut self, context: &Context, published: &Published) {
        self.templates.write(context, published, self.readings);
    }
}

/// The initiator's port and the responder's.
fn ports_of(forward: &FlowEntry) -> [PortId; 2] {
    [0, 1].map(|n| PortId(forward.guards[n].saturating_sub(GUARD_PORTS) as u16))
}
