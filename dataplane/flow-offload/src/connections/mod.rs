//! The connections that have entries: which sessions get them, what was counted, and when they end.

mod adopt;
mod install;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use ahash::AHashMap;
use dataplane::PortId;
use dataplane::session::{Found, Owner, SessionId, TupleOrigin, Tuples};
use dataplane::wire::{Flow, Mac, protocol};

use crate::connection::{Connection, ConnectionFilter};
use crate::context::Context;
use crate::entries::{Entries, NodeContext, entries};
use crate::installed::{Installed, PortUsage, Reading};
use crate::layout::{FlowKey, role};
use crate::places::Places;
use crate::published::Published;
use crate::shares::Shares;
use crate::templates::Templates;

/// Places of the session table that are looked at under one lock.
pub(crate) const PART: u32 = 1 << 9;
/// Seconds that entries of a connection wait for the packet that shows that it goes on: its initiator's first one
/// behind the handshake, or any behind a reset.
const UNCERTAIN_S: u32 = 2;

/// Seconds without a packet after which a connection gives up its entries for another one of its owner in a full
/// map, and without which a connection gets none there.
const IDLE_S: u32 = 10;
const RECENT_S: u32 = 2;

/// A connection that gets entries.
struct Candidate {
    id: SessionId,
    tuples: Tuples,
    owner: Owner,
    made: Entries,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Connections {
    installed: AHashMap<SessionId, Installed>,
    /// The places of their sessions.
    places: Places,
    /// Session and direction of each entry.
    keys: AHashMap<FlowKey, (SessionId, usize)>,
    /// Datagrams without an answer: when they were first seen.
    unanswered: AHashMap<SessionId, (u32, u64)>,
    of_ports: AHashMap<PortId, PortUsage>,
    shares: Shares,
    templates: Templates,
    /// Initiators' entries of templates that had no session when they were read, and in which reading.
    without_session: AHashMap<FlowKey, u64>,
    /// Connections of templates that were over before the program's report of their end: by their
    /// initiators' keys what was counted of them, and in which reading. The report counts the rest
    /// alone.
    unreported: AHashMap<FlowKey, ([Reading; 2], u64)>,
    followed: Vec<(u64, ConnectionFilter)>,
    follow_next: u64,
    place: u32,
    pass: u64,
    /// Sessions that the last pass has not seen, and whose entries are still to be removed.
    ended: Vec<SessionId>,
    read_at: Option<Instant>,
    /// Readings begun so far.
    readings: u64,
}

impl Connections {
    pub(crate) fn len(&self) -> usize {
        self.installed.len()
    }

    pub(crate) fn of_ports(&self) -> &AHashMap<PortId, PortUsage> {
        &self.of_ports
    }

    pub(crate) fn of_sessions(&self) -> impl Iterator<Item = (SessionId, (u64, u64))> {
        self.installed.iter().map(|(id, it)| {
            let [forward, reverse] = it.read;
            (*id, (forward.packets + reverse.packets, forward.bytes + reverse.bytes))
        })
    }

    /// A port's number is another one's from now on.
    pub(crate) fn forget_port(&mut self, id: PortId) {
        self.of_ports.remove(&id);
    }

    /// Takes the connections that `wanted` chooses out of the kernel's hands, and lets no more of
    /// them in; its number, and whether there were any.
    pub(crate) fn follow(
        &mut self,
        context: &Context,
        published: &Published,
        wanted: ConnectionFilter,
    ) -> (u64, bool) {
        let chosen = self
            .installed
            .iter()
            .filter(|(_, it)| wanted(&Connection::of(published, it.ports, &it.tuples)));
        let chosen: Vec<SessionId> = chosen.map(|(id, _)| *id).collect();
        chosen.iter().for_each(|id| self.remove(context, id));
        self.follow_next += 1;
        self.followed.push((self.follow_next, wanted));
        (self.follow_next, !chosen.is_empty())
    }

    pub(crate) fn unfollow(&mut self, number: u64) {
        self.followed.retain(|(other, _)| *other != number);
    }

    /// Begins to read all entries, unless that was done a moment ago; whether it has begun.
    pub(crate) fn begin_reading(&mut self, age: Duration) -> bool {
        if self.read_at.is_some_and(|at| at.elapsed() < age) {
            return false;
        }
        self.read_at = Some(Instant::now());
        self.readings += 1;
        let last = self.readings - 1;
        self.without_session.retain(|_, reading| *reading >= last);
        self.unreported.retain(|_, (_, reading)| *reading >= last);
        true
    }

    /// Takes note of entries as they were in the reading that began last.
    pub(crate) fn note(
        &mut self,
        context: &Context,
        published: &Published,
        entries: &[(FlowKey, Reading)],
    ) {
        for (key, reading) in entries {
            if let Some((id, direction)) = self.keys.get(key)
                && let Some(installed) = self.installed.get_mut(id)
                // An earlier connection between the same ends may have been read.
                && installed.readings < self.readings
            {
                installed.note(&context.switch, id, *direction, *reading, &mut self.of_ports);
            } else if reading.by_template
                && reading.role == role::INITIATOR
                && !self.keys.contains_key(key)
            {
                self.adopt(context, published, key);
            }
        }
    }

    /// Looks at the next part of the session table, or removes the entries of some sessions that are gone;
    /// whether the pass goes on.
    pub(crate) fn scan(
        &mut self,
        context: &Context,
        published: &Published,
        interfaces: &AHashMap<PortId, u32>,
    ) -> bool {
        if !self.ended.is_empty() {
            let rest = self.ended.len().saturating_sub(PART as usize);
            for id in self.ended.split_off(rest) {
                self.remove(context, &id);
            }
            return rest > 0;
        }
        let sessions = context.switch.sessions();
        let now_s = context.switch.now().seconds();
        let places = self.place..self.place.saturating_add(PART);
        let most = context.options.entries as usize;
        let is_full = self.keys.len() + 2 > most;
        let mut wanted = Vec::new();
        for found in sessions.founds(places.clone()) {
            if self.is_alive(&found, now_s) {
                let is_recent = now_s.saturating_sub(found.last_seen()) <= RECENT_S;
                if is_full && !is_recent && !self.places.has(found.id) {
                    continue;
                }
                wanted.extend(self.candidate(context, published, interfaces, &found));
            } else if self.places.has(found.id) {
                self.remove(context, &found.id);
            }
        }
        self.install(context, published, wanted, most);
        self.place = places.end;
        if self.place >= sessions.places_used() {
            self.end_pass();
            return !self.ended.is_empty();
        }
        true
    }

    /// Enters the connections of these initiators, which their responders have just accepted or answered.
    pub(crate) fn accept(
        &mut self,
        context: &Context,
        published: &Published,
        interfaces: &AHashMap<PortId, u32>,
        initiators: &[Flow],
    ) {
        let sessions = context.switch.sessions();
        let now_s = context.switch.now().seconds();
        let mut wanted: Vec<Candidate> = Vec::new();
        for flow in initiators {
            let found = sessions.find(sessions.hash(flow), flow, TupleOrigin::Entering, now_s);
            if let Some(found) = found.as_ref().filter(|it| it.state().is_question(it.protocol())) {
                self.note_answer(context, published, interfaces, found);
                continue;
            }
            // A packet that is sent again is in the vector twice.
            let is_new = |found: &Found| wanted.iter().all(|it| it.id != found.id);
            // One that comes late may have gone on.
            let is_open = |it: &Found| it.state().is_accepted() || it.state().is_established();
            let found = found.filter(|it| it.forward && is_open(it) && is_new(it));
            let candidate =
                found.and_then(|it| self.candidate(context, published, interfaces, &it));
            wanted.extend(candidate);
        }
        // The other half is for connections that have shown that they last.
        self.install(context, published, wanted, context.options.entries as usize / 2);
    }

    /// Takes note of a resolver's answer. It ends the connection, which leaves a template alone.
    fn note_answer(
        &mut self,
        context: &Context,
        published: &Published,
        interfaces: &AHashMap<PortId, u32>,
        found: &Found,
    ) {
        if found.forward
            && found.state().is_answered()
            && let Some(candidate) = self.candidate(context, published, interfaces, found)
        {
            self.templates.want(published, &candidate.tuples, &candidate.made);
        }
    }

    /// Takes note of what the entries of a connection counted, which enters by this key, and takes them back
    /// if both ends have closed it.
    pub(crate) fn end_if_over(&mut self, context: &Context, key: &FlowKey) {
        let Some((id, _)) = self.keys.get(key).copied() else { return };
        let Some(installed) = self.installed.get_mut(&id) else { return };
        for (direction, key) in installed.keys.into_iter().enumerate() {
            if let Some(entry) = key.and_then(|key| context.kernel.flow(&key)) {
                let read = Reading::of(&entry);
                installed.note(&context.switch, &id, direction, read, &mut self.of_ports);
            }
        }
        let found = context.switch.sessions().found(id);
        if found.is_none_or(|found| found.state().is_over()) {
            self.remove(context, &id);
        }
    }

    /// Whether packets of this key have an entry.
    pub(crate) fn has(&self, key: &FlowKey) -> bool {
        self.keys.contains_key(key)
    }

    /// The entries of a connection that has none that count, if it may have any.
    fn candidate(
        &mut self,
        context: &Context,
        published: &Published,
        interfaces: &AHashMap<PortId, u32>,
        found: &Found,
    ) -> Option<Candidate> {
        let sessions = context.switch.sessions();
        let returns_elsewhere = |known: Mac| {
            let now = || sessions.tuples(found).map(|tuples| tuples.return_mac);
            known != Mac::default() && now() != Some(known)
        };
        let is_current = |it: &Installed| {
            it.generations == it.guards.map(|guard| published.generation(guard))
                && !returns_elsewhere(it.tuples.return_mac)
        };
        if self.installed.get(&found.id).is_some_and(is_current)
            || !found.is_of(published.snapshot.generation)
        {
            return None;
        }
        let tuples = sessions.tuples(found)?;
        let node = NodeContext {
            interface: &|port| interfaces.get(&port).copied(),
            generation: &|guard| published.generation(guard),
            hash: &|flow| sessions.hash(flow),
        };
        let made = entries(&published.snapshot, &tuples, &node)?;
        let connection = Connection::of(published, made.ports, &tuples);
        if self.followed.iter().any(|(_, wanted)| wanted(&connection)) {
            return None;
        }
        if self.installed.get(&found.id).is_some_and(|it| !it.is_replaced_by(&made)) {
            self.remove(context, &found.id);
        }
        let keys = made.keys();
        // A connection before it, between the same ends, whose end was not seen yet.
        for key in keys.into_iter().flatten() {
            if let Some((earlier, _)) = self.keys.get(&key).copied()
                && earlier != found.id
            {
                self.remove(context, &earlier);
            }
        }
        Some(Candidate { id: found.id, tuples, owner: sessions.owner(found), made })
    }

    /// Takes note of a session; whether it is worth entries.
    fn is_alive(&mut self, found: &Found, now_s: u32) -> bool {
        let is_installed = self.places.has(found.id);
        if is_installed && let Some(installed) = self.installed.get_mut(&found.id) {
            installed.pass = self.pass;
        }
        let state = found.state();
        match found.protocol() {
            // Whether it goes on is read of its entries, as the kernel has its packets; see `Installed::note`.
            protocol::TCP if state.is_accepted() || state.is_reset() => {
                is_installed && now_s.saturating_sub(found.last_seen()) <= UNCERTAIN_S
            }
            protocol::TCP => state.is_established(),
            // It ends with its answer, before an entry would be of use.
            protocol::UDP if state.is_question(protocol::UDP) => false,
            protocol::UDP if state.is_answered() || is_installed => true,
            // Without an answer: a stream, if it still goes on after a while.
            protocol::UDP => {
                let seen = found.last_seen();
                let noted = self.unanswered.entry(found.id).or_insert((seen, self.pass));
                noted.1 = self.pass;
                seen > noted.0
            }
            _ => false,
        }
    }

    /// Notes the sessions with entries that the whole table has no more.
    fn end_pass(&mut self) {
        let pass = self.pass;
        let ended = self.installed.iter().filter(|(_, it)| it.pass != pass).map(|(id, _)| *id);
        self.ended = ended.collect();
        self.unanswered.retain(|_, (_, seen)| *seen == pass);
        (self.place, self.pass) = (0, pass + 1);
    }
}
