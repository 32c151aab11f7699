//! Templates: what the programs open connections by themselves with.
//!
//! ```text
//!   pod ── SYN ──▶ from_pod ─┬─ template ─▶ both entries, a report, and on into the other pod
//!                            └─ none ─────▶ punt link ─▶ the switch
//!   wire ─▶ uplink ─ SYN ─▶ from_uplink ─── the same
//! ```
//!
//! A connection between pods of the cluster, one of them of this node, that was accepted leaves a template for those that
//! differ in the initiator's port alone, which no policy of a cluster asks for. It has the generations of the
//! snapshot that allowed the connection and that of services, and counts for no longer than an entry with them.
//!
//! Where a service leads to several backends, each has a template, and the program chooses among all of them by the
//! table that the switch has, so that both choose alike. A backend without a template is the switch's.

use std::collections::VecDeque;

use ahash::AHashMap;
use dataplane::PortId;
use dataplane::services::{Backend, Backends, choice_hash};
use dataplane::session::Tuples;
use dataplane::wire::{Flow, Mac, protocol};
use dataplane::{AclBinding, Snapshot};

use crate::context::Context;
use crate::entries::Entries;
use crate::layout::{ChoiceKey, GUARD_SERVICES, GUARDS, Template, TemplateKey, role};
use crate::published::Published;

/// Templates of one initiator, and of all pods of other nodes; the oldest one gives way to a further one.
const MOST_OF_PORT: usize = 128;
const MOST_OF_UPLINK: usize = 2048;
/// Templates that wait to be entered.
const MOST_WANTED: usize = 1024;

/// The templates that the programs have.
#[derive(Default)]
pub(crate) struct Templates {
    entered: AHashMap<TemplateKey, Entered>,
    /// Templates of each initiator's port, in the order in which they were entered.
    of_ports: AHashMap<PortId, VecDeque<TemplateKey>>,
    wanted: Vec<Wanted>,
    /// The first parts of the choices that programs have, with their generation and all parts.
    choices: AHashMap<ChoiceKey, (u32, Vec<ChoiceKey>)>,
    /// Guards of templates that gave way, and of how many readings the last was then. Their connections may have
    /// entries that are not known yet.
    left: Vec<([u32; GUARDS], u64)>,
}

struct Wanted {
    key: TemplateKey,
    template: Template,
    port: PortId,
    /// The service that the initiator asks for.
    service: Option<(Flow, Backends)>,
}

struct Entered {
    guards: [u32; GUARDS],
    generations: [u32; GUARDS],
    port: PortId,
}

impl Entered {
    fn is_current(&self, published: &Published) -> bool {
        self.generations == self.guards.map(|guard| published.generation(guard))
    }
}

impl Templates {
    /// Takes note of a connection with these entries, which was accepted.
    pub(crate) fn want(&mut self, published: &Published, tuples: &Tuples, made: &Entries) {
        let [Some((enters, forward)), Some((answers, reverse))] = &made.both else { return };
        let (from, responder) = (made.ports[0], answers.ingress());
        let of_pod = published.snapshot.pod_of(tuples.initiator.source).is_some();
        let is_udp = tuples.initiator.protocol == protocol::UDP;
        // Of what is outside of the cluster there are too many. The uplink's program opens connections of TCP alone.
        if !of_pod && (is_udp || !published.snapshot.routes().is_pod(tuples.initiator.source)) {
            return;
        }
        let backend = match tuples.is_translated() {
            true => backend_of(&published.snapshot, tuples),
            false => Some((0, None)),
        };
        let Some((backend, service)) = backend.filter(|_| forward.role == role::INITIATOR) else {
            return;
        };
        let key = TemplateKey::new(enters.ingress(), &tuples.initiator).of_backend(backend);
        let services = published.generation(GUARD_SERVICES);
        let template = Template::new([*forward, *reverse], responder, services).of_port(from);
        let is_known = self.entered.get(&key);
        if is_known.is_some_and(|it| it.generations == template.forward.generations)
            || self.wanted.len() >= MOST_WANTED
            || asks_for_sources(&published.snapshot, made.ports)
        {
            return;
        }
        let service = service.map(|backends| (tuples.initiator, backends.clone()));
        self.wanted.push(Wanted { key, template, port: from, service });
    }

    /// Enters what is wanted, and removes what counts no more.
    pub(crate) fn write(&mut self, context: &Context, published: &Published, readings: u64) {
        self.remove_choices(context, published.generation(GUARD_SERVICES));
        for Wanted { key, template, port, service } in std::mem::take(&mut self.wanted) {
            let services = template.forward.generations[GUARDS - 1];
            if !service.is_none_or(|service| self.has_choice(context, &service, services)) {
                continue;
            }
            self.remove(context, &key, None);
            let is_pod = published.snapshot.pod(port).is_some();
            let most = if is_pod { MOST_OF_PORT } else { MOST_OF_UPLINK };
            while self.of_ports.get(&port).is_some_and(|keys| keys.len() >= most) {
                let oldest = self.of_ports.get(&port).and_then(VecDeque::front).copied();
                oldest.iter().for_each(|key| self.remove(context, key, Some(readings)));
            }
            let (guards, generations) = (template.forward.guards, template.forward.generations);
            // Before it is entered, as with entries.
            context.count(&guards, 1);
            if context.kernel.put_template(&key, &template).is_err() {
                context.count(&guards, -1);
                continue;
            }
            self.entered.insert(key, Entered { guards, generations, port });
            self.of_ports.entry(port).or_default().push_back(key);
        }
        self.left.retain(|(guards, at)| {
            let is_needed = readings < at + 2;
            if !is_needed {
                context.count(guards, -1);
            }
            is_needed
        });
        let void = self.entered.iter().filter(|(_, it)| !it.is_current(published));
        let void: Vec<TemplateKey> = void.map(|(key, _)| *key).collect();
        void.iter().for_each(|key| self.remove(context, key, None));
    }

    /// Enters the choice of a service, unless the programs have it; whether they do then.
    fn has_choice(
        &mut self,
        context: &Context,
        (flow, backends): &(Flow, Backends),
        generation: u32,
    ) -> bool {
        let Some(parts) = ChoiceKey::parts(flow, backends, generation) else { return false };
        let keys: Vec<ChoiceKey> = parts.iter().map(|(key, _)| *key).collect();
        let Some(first) = keys.first().copied() else { return false };
        if self.choices.get(&first).is_some_and(|(known, _)| *known == generation) {
            return true;
        }
        // The first one, by which the others are found, comes last.
        let mut parts = parts.iter().rev();
        let all_entered = parts.all(|(key, choice)| context.kernel.put_choice(key, choice).is_ok());
        let keys = match all_entered {
            true => keys,
            false => {
                keys.iter().for_each(|key| context.kernel.remove_choice(key));
                return false;
            }
        };
        self.choices.insert(first, (generation, keys));
        true
    }

    /// Removes the choices of other generations of services.
    fn remove_choices(&mut self, context: &Context, generation: u32) {
        self.choices.retain(|_, (known, keys)| {
            let is_current = *known == generation;
            if !is_current {
                keys.iter().for_each(|key| context.kernel.remove_choice(key));
            }
            is_current
        });
    }

    /// Removes a template. Of one that still counts it matters how many readings of entries there were.
    fn remove(&mut self, context: &Context, key: &TemplateKey, current: Option<u64>) {
        let Some(Entered { guards, port, .. }) = self.entered.remove(key) else { return };
        context.kernel.remove_template(key);
        if let Some(keys) = self.of_ports.get_mut(&port) {
            keys.retain(|other| other != key);
            if keys.is_empty() {
                self.of_ports.remove(&port);
            }
        }
        match current {
            Some(readings) => self.left.push((guards, readings)),
            None => context.count(&guards, -1),
        }
    }
}

/// The number of the backend that a connection to a service has, counted from 1, and all of them; `None` if the
/// service's choice depends on more than the connection, or if more than the destination is translated.
fn backend_of<'a>(snapshot: &'a Snapshot, tuples: &Tuples) -> Option<(u32, Option<&'a Backends>)> {
    let Tuples { initiator, responder, return_mac } = *tuples;
    let Flow { destination: address, destination_port: port, .. } = responder;
    let translated = Flow { destination: address, destination_port: port, ..initiator };
    let service = snapshot.service(&initiator)?;
    if translated != responder || return_mac != Mac::default() || service.port.affinity_s.is_some()
    {
        return None;
    }
    let backends = service.backends(false);
    let backend = Backend { address, port };
    let number = backends.list().binary_search(&backend).ok()?;
    let is_chosen = backends.choose(choice_hash(&initiator)) == Some(backend);
    is_chosen.then_some((number as u32 + 1, Some(backends)))
}

/// Whether an ACL of these pods asks for source ports. None that is made of objects of a cluster does.
fn asks_for_sources(snapshot: &Snapshot, ports: [PortId; 2]) -> bool {
    let pods = ports.map(|id| snapshot.port(id));
    let bindings = [pods[0].map(|it| &it.from_pod), pods[1].map(|it| &it.to_pod)];
    let tables = bindings.into_iter().flatten().filter_map(AclBinding::table);
    tables.flat_map(|table| table.rules()).any(|rule| rule.source_ports != acl::PortRange::ANY)
}
