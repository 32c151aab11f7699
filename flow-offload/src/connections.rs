//! The connections that have entries: which sessions get them, what was counted, and when they end.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ahash::AHashMap;
use dataplane::PortId;
use dataplane::session::{Found, SessionId, Tuples};
use dataplane::wire::protocol;

use crate::engine::Shared;
use crate::entries::{Entries, Surroundings, entries};
use crate::follow::{Connection, Wanted};
use crate::layout::{FlowEntry, FlowKey, GUARDS};
use crate::lock;
use crate::published::Published;

/// Places of the session table that one scan looks at.
const SCAN: u32 = 1 << 16;

/// Packets and bytes that the kernel forwarded for a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortUsage {
    /// Packets that its pod sent; segments that are still to be cut count each.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets that its pod got.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
}

/// A connection with entries.
struct Installed {
    keys: [Option<FlowKey>; 2],
    guards: [u32; GUARDS],
    generations: [u32; GUARDS],
    /// The initiator's and the responder's.
    ports: [PortId; 2],
    tuples: Tuples,
    /// The last reading of each direction.
    read: [Reading; 2],
    /// The pass that saw the session last.
    pass: u64,
}

/// Counters that the programs write into an entry.
#[derive(Clone, Copy, Default)]
struct Reading {
    packets: u64,
    bytes: u64,
    /// Monotonic time of the last packet.
    used_ns: u64,
}

impl Reading {
    fn of(entry: &FlowEntry) -> Self {
        let FlowEntry { packets, bytes, used_ns, .. } = *entry;
        Self { packets, bytes, used_ns }
    }
}

/// All of them.
#[derive(Default)]
pub(crate) struct Connections {
    installed: AHashMap<SessionId, Installed>,
    /// Session and direction of each entry.
    keys: AHashMap<FlowKey, (SessionId, usize)>,
    /// Datagrams without an answer: when they were first seen.
    unanswered: AHashMap<SessionId, (u32, u64)>,
    of_ports: AHashMap<PortId, PortUsage>,
    followed: Vec<(u64, Wanted)>,
    follow_next: u64,
    place: u32,
    pass: u64,
    read_at: Option<Instant>,
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
        shared: &Shared,
        published: &Published,
        wanted: Wanted,
    ) -> (u64, bool) {
        let chosen = self
            .installed
            .iter()
            .filter(|(_, it)| wanted(&Connection::of(published, it.ports, &it.tuples)));
        let chosen: Vec<SessionId> = chosen.map(|(id, _)| *id).collect();
        chosen.iter().for_each(|id| self.remove(shared, id));
        self.follow_next += 1;
        self.followed.push((self.follow_next, wanted));
        (self.follow_next, !chosen.is_empty())
    }

    pub(crate) fn unfollow(&mut self, number: u64) {
        self.followed.retain(|(other, _)| *other != number);
    }

    /// Reads all entries, unless that was done a moment ago.
    pub(crate) fn read_if_older(&mut self, shared: &Shared, age: Duration) {
        if self.read_at.is_some_and(|at| at.elapsed() < age) {
            return;
        }
        self.read_at = Some(Instant::now());
        let each = |key: &FlowKey, entry: &FlowEntry| {
            if let Some((id, direction)) = self.keys.get(key)
                && let Some(installed) = self.installed.get_mut(id)
            {
                installed.note(shared, id, *direction, Reading::of(entry), &mut self.of_ports);
            }
        };
        if let Err(error) = shared.kernel.for_each_flow(each) {
            tracing::warn!("{error}");
        }
    }

    /// Looks at the next part of the session table.
    pub(crate) fn scan(&mut self, shared: &Shared, published: &Published) {
        let interfaces = lock(&shared.interfaces).clone();
        let sessions = shared.switch.sessions();
        let places = self.place..self.place.saturating_add(SCAN);
        let mut wanted = Vec::new();
        for (found, tuples) in sessions.iter_part(places.clone()) {
            let is_alive = self.is_alive(&found, &tuples);
            if !is_alive {
                self.remove(shared, &found.id);
                continue;
            }
            let is_current = |it: &Installed| {
                it.generations == it.guards.map(|guard| published.generation(guard))
            };
            if self.installed.get(&found.id).is_some_and(is_current)
                || !found.is_of(published.snapshot.generation)
            {
                continue;
            }
            let around = Surroundings {
                interface: &|port| interfaces.get(&port).copied(),
                generation: &|guard| published.generation(guard),
                hash: &|flow| sessions.hash(flow),
            };
            let Some(made) = entries(&published.snapshot, &tuples, &around) else { continue };
            let connection = Connection::of(published, made.ports, &tuples);
            if self.followed.iter().any(|(_, wanted)| wanted(&connection)) {
                continue;
            }
            let keys = made.keys();
            if self.installed.get(&found.id).is_some_and(|it| it.keys != keys) {
                self.remove(shared, &found.id);
            }
            // A connection before it, between the same ends, whose end was not seen yet.
            for key in keys.into_iter().flatten() {
                if let Some((earlier, _)) = self.keys.get(&key).copied()
                    && earlier != found.id
                {
                    self.remove(shared, &earlier);
                }
            }
            wanted.push((found.id, tuples, made));
        }
        self.install(shared, &wanted);
        self.place = places.end;
        if self.place >= sessions.places_used() {
            self.end_pass(shared);
        }
    }

    /// Takes note of a session; whether it is worth entries.
    fn is_alive(&mut self, found: &Found, tuples: &Tuples) -> bool {
        if let Some(installed) = self.installed.get_mut(&found.id) {
            installed.pass = self.pass;
        }
        match tuples.initiator.protocol {
            protocol::TCP => found.state().is_established(),
            protocol::UDP if found.state().is_answered() => true,
            protocol::UDP if self.installed.contains_key(&found.id) => true,
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

    fn install(&mut self, shared: &Shared, wanted: &[(SessionId, Tuples, Entries)]) {
        let mut keys = Vec::with_capacity(2 * wanted.len());
        let mut values = Vec::with_capacity(2 * wanted.len());
        for (id, _, made) in wanted {
            // What was counted goes on. (The old entry counts no more: its generations are old.)
            let known = self.installed.get(id);
            for (key, entry) in made.both.iter().flatten() {
                let old = known.and_then(|_| shared.kernel.flow(key)).unwrap_or_default();
                let Reading { packets, bytes, used_ns } = Reading::of(&old);
                keys.push(*key);
                values.push(FlowEntry { packets, bytes, used_ns, ..*entry });
            }
            // Before they are entered: whoever changes a generation after this waits for programs
            // that use them, and whoever has changed it before has made them void.
            if known.is_none() {
                shared.count(&made.guarded().guards, 1);
            }
        }
        let mut room = shared.kernel.put_flows(&keys, &values);
        for (id, tuples, made) in wanted {
            let (keys, guarded) = (made.keys(), made.guarded());
            let count = keys.iter().flatten().count();
            if count > room {
                // One may have got in.
                room = 0;
                for key in keys.iter().flatten() {
                    drop(shared.kernel.remove_flow(key));
                    self.keys.remove(key);
                }
                shared.count(&guarded.guards, -1);
                self.installed.remove(id);
                shared.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            room -= count;
            self.unanswered.remove(id);
            for (direction, key) in keys.iter().enumerate() {
                key.iter().for_each(|key| _ = self.keys.insert(*key, (*id, direction)));
            }
            let read = self.installed.get(id).map_or_else(Default::default, |known| known.read);
            let installed = Installed {
                keys,
                guards: guarded.guards,
                generations: guarded.generations,
                ports: made.ports,
                tuples: *tuples,
                read,
                pass: self.pass,
            };
            self.installed.insert(*id, installed);
        }
    }

    fn remove(&mut self, shared: &Shared, id: &SessionId) {
        let Some(mut installed) = self.installed.remove(id) else { return };
        for (direction, key) in installed.keys.into_iter().enumerate() {
            let Some(key) = key else { continue };
            self.keys.remove(&key);
            match shared.kernel.remove_flow(&key) {
                Ok(Some(last)) => {
                    let read = Reading::of(&last);
                    installed.note(shared, id, direction, read, &mut self.of_ports);
                }
                Ok(None) => {}
                Err(error) => tracing::warn!("{error}"),
            }
        }
        shared.count(&installed.guards, -1);
    }

    /// Removes the entries of sessions that the whole table has no more.
    fn end_pass(&mut self, shared: &Shared) {
        let pass = self.pass;
        let ended = self.installed.iter().filter(|(_, it)| it.pass != pass).map(|(id, _)| *id);
        let ended: Vec<SessionId> = ended.collect();
        ended.iter().for_each(|id| self.remove(shared, id));
        self.unanswered.retain(|_, (_, seen)| *seen == pass);
        (self.place, self.pass) = (0, pass + 1);
    }
}

impl Installed {
    /// Takes note of what an entry counted: for its ports, and for the session that is in use.
    fn note(
        &mut self,
        shared: &Shared,
        id: &SessionId,
        direction: usize,
        now: Reading,
        of_ports: &mut AHashMap<PortId, PortUsage>,
    ) {
        let before = std::mem::replace(&mut self.read[direction], now);
        if now.used_ns <= before.used_ns && now.packets == before.packets {
            return;
        }
        let packets = now.packets.saturating_sub(before.packets);
        let bytes = now.bytes.saturating_sub(before.bytes);
        let [from, to] = [self.ports[direction], self.ports[1 - direction]];
        let ingress = of_ports.entry(from).or_default();
        ingress.received += packets;
        ingress.received_bytes += bytes;
        let egress = of_ports.entry(to).or_default();
        egress.sent += packets;
        egress.sent_bytes += bytes;
        let sessions = shared.switch.sessions();
        sessions.count_beside(*id, packets, bytes);
        if let Some(mut found) = sessions.found(*id) {
            found.forward = direction == 0;
            sessions.touch(&found, 0, shared.switch.now().seconds());
        }
    }
}
