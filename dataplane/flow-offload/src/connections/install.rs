//! Entries of connections are entered and removed.

use std::sync::atomic::Ordering;

use dataplane::session::{Owner, SessionId};

use super::{Candidate, Connections, IDLE_S};
use crate::context::Context;
use crate::installed::{Installed, Reading};
use crate::layout::{FlowEntry, role};
use crate::published::Published;
use crate::shares::Ticket;

impl Connections {
    /// Gives a connection a place among its owner's, and room for its entries if it has none: where there are `most`,
    /// with the `pending` ones that are to be entered, others make room. `None` if there is none for it.
    fn admit(
        &mut self,
        context: &Context,
        wanted: &Candidate,
        (pending, most): (&mut usize, usize),
    ) -> Option<(Owner, Ticket)> {
        if let Some(known) = self.installed.get(&wanted.id) {
            return Some((known.owner, known.ticket));
        }
        let now_s = context.switch.now().seconds();
        let count = wanted.made.both.iter().flatten().count();
        let before = self.keys.len();
        while self.keys.len() + *pending + count > most && before - self.keys.len() < count {
            let victim = self.shares.victim(wanted.owner)?;
            // One that is about to be entered gives up nothing.
            let installed = self.installed.get(&victim.id)?;
            let idle_s = now_s.saturating_sub(installed.last_used_s());
            if victim.if_idle && idle_s <= IDLE_S {
                return None;
            }
            self.remove(context, &victim.id);
            context.evicted.fetch_add(1, Ordering::Relaxed);
        }
        *pending += count;
        Some((wanted.owner, self.shares.enter(wanted.owner, wanted.id)))
    }

    /// Enters connections while there are at most so many entries.
    pub(super) fn install(
        &mut self,
        context: &Context,
        published: &Published,
        wanted: Vec<Candidate>,
        most: usize,
    ) {
        let mut pending = 0;
        let mut admitted = Vec::with_capacity(wanted.len());
        for candidate in wanted {
            match self.admit(context, &candidate, (&mut pending, most)) {
                Some(share) => admitted.push((candidate, share)),
                // A handshake without room may still get it from a scan.
                None if most < context.options.entries as usize => {}
                None => _ = context.refused.fetch_add(1, Ordering::Relaxed),
            }
        }
        // One that had entries may have made room for another one.
        admitted.retain(|(_, (owner, ticket))| self.shares.has(*owner, *ticket));
        if admitted.is_empty() {
            return;
        }
        let mut keys = Vec::with_capacity(2 * admitted.len());
        let mut values = Vec::with_capacity(2 * admitted.len());
        for (Candidate { id, made, .. }, _) in &admitted {
            // What was counted goes on. (The old entry counts no more: its generations are old.)
            let known = self.installed.get(id);
            for (key, entry) in made.both.iter().flatten() {
                // A template may have opened it, under an earlier snapshot. Its FINs may be an earlier one's.
                let has_role = entry.role != role::NONE;
                let old = if known.is_some() || has_role { context.kernel.flow(key) } else { None };
                let Reading { packets, bytes, used_ns, had_fin, role, by_template } =
                    Reading::of(&old.unwrap_or_default());
                let had_fin = if known.is_some() { had_fin } else { 0 };
                if known.is_none() && by_template && role == role::INITIATOR {
                    context.kernel.note_opened(made.ports[0]);
                }
                keys.push(*key);
                values.push(FlowEntry { packets, bytes, used_ns, had_fin, ..*entry });
            }
            // Before they are entered: whoever changes a generation after this waits for programs
            // that use them, and whoever has changed it before has made them void.
            if known.is_none() {
                context.count(&made.guarded().guards, 1);
            }
        }
        let mut room = context.kernel.put_flows(&keys, &values);
        for (Candidate { id, tuples, made, .. }, (owner, ticket)) in &admitted {
            let (keys, guarded) = (made.keys(), made.guarded());
            let count = keys.iter().flatten().count();
            if count > room {
                // One may have got in.
                room = 0;
                for key in keys.iter().flatten() {
                    drop(context.kernel.remove_flow(key));
                    self.keys.remove(key);
                }
                context.count(&guarded.guards, -1);
                self.installed.remove(id);
                self.places.remove(*id);
                self.shares.leave(*owner, *ticket);
                context.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            room -= count;
            self.unanswered.remove(id);
            self.templates.want(published, tuples, made);
            for (direction, key) in keys.iter().enumerate() {
                key.iter().for_each(|key| _ = self.keys.insert(*key, (*id, direction)));
            }
            let known = self.installed.get(id);
            let read = known.map_or_else(Default::default, |known| known.read);
            let readings = known.map_or(self.readings, |known| known.readings);
            let installed = Installed {
                keys,
                guards: guarded.guards,
                generations: guarded.generations,
                ports: made.ports,
                tuples: *tuples,
                owner: *owner,
                ticket: *ticket,
                entered_s: context.switch.now().seconds(),
                read,
                readings,
                pass: self.pass,
            };
            self.installed.insert(*id, installed);
            self.places.insert(*id);
        }
    }

    /// Forgets a connection whose entries are removed.
    pub(super) fn forget(&mut self, context: &Context, id: &SessionId) -> Option<Installed> {
        let installed = self.installed.remove(id)?;
        self.places.remove(*id);
        self.shares.leave(installed.owner, installed.ticket);
        installed.keys.iter().flatten().for_each(|key| _ = self.keys.remove(key));
        context.count(&installed.guards, -1);
        Some(installed)
    }

    pub(super) fn remove(&mut self, context: &Context, id: &SessionId) {
        let Some(mut installed) = self.forget(context, id) else { return };
        let mut by_program = None;
        for (direction, key) in installed.keys.into_iter().enumerate() {
            let Some(key) = key else { continue };
            match context.kernel.remove_flow(&key) {
                Ok(Some(last)) => {
                    let read = Reading::of(&last);
                    installed.note(&context.switch, id, direction, read, &mut self.of_ports);
                }
                Ok(None) if direction == 0 && installed.read[0].by_template => {
                    by_program = Some(key);
                }
                Ok(None) => {}
                Err(error) => tracing::warn!("{error}"),
            }
        }
        if let Some(key) = by_program {
            self.unreported.insert(key, (installed.read, self.readings));
        }
    }
}
