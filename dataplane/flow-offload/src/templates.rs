//! Templates: what the programs open connections by themselves with.
//!
//! ```text
//!   pod ── SYN ──▶ from_pod ─┬─ template ─▶ both entries, a report, and on into the other pod
//!                            └─ none ─────▶ punt link ─▶ the switch
//! ```
//!
//! A connection that a pod of this node has accepted of another one leaves a template for those that
//! differ in the initiator's port alone, which no policy of a cluster asks for. It has the generations of the
//! snapshot that allowed the connection and that of services, and counts for no longer than an entry with them.

use std::collections::VecDeque;

use ahash::AHashMap;
use dataplane::PortId;
use dataplane::session::Tuples;
use dataplane::{AclBinding, Snapshot};

use crate::context::Context;
use crate::entries::Entries;
use crate::layout::{GUARD_SERVICES, GUARDS, Template, TemplateKey, role};
use crate::published::Published;

/// Templates of one initiator; its oldest one gives way to a further one.
const MOST_OF_PORT: usize = 128;
/// Templates that wait to be entered.
const MOST_WANTED: usize = 1024;

/// The templates that the programs have.
#[derive(Default)]
pub(crate) struct Templates {
    entered: AHashMap<TemplateKey, Entered>,
    /// Of each initiator's port, in the order in which they were entered.
    of_ports: AHashMap<PortId, VecDeque<TemplateKey>>,
    wanted: Vec<(TemplateKey, Template, PortId)>,
    /// Guards of templates that gave way, and of how many readings the last was then. Their connections may have
    /// entries that are not known yet.
    left: Vec<([u32; GUARDS], u64)>,
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
        let [Some((_, forward)), Some((key, reverse))] = &made.both else { return };
        let (from, responder) = (made.ports[0], key.ingress());
        if forward.role != role::INITIATOR || tuples.is_translated() {
            return;
        }
        let key = TemplateKey::new(reverse.egress, &tuples.initiator);
        let services = published.generation(GUARD_SERVICES);
        let template = Template::new([*forward, *reverse], responder, services);
        let is_known = self.entered.get(&key);
        if is_known.is_some_and(|it| it.generations == template.forward.generations)
            || self.wanted.len() >= MOST_WANTED
            || asks_for_sources(&published.snapshot, made.ports)
        {
            return;
        }
        self.wanted.push((key, template, from));
    }

    /// Enters what is wanted, and removes what counts no more.
    pub(crate) fn write(&mut self, context: &Context, published: &Published, readings: u64) {
        for (key, template, port) in std::mem::take(&mut self.wanted) {
            self.remove(context, &key, None);
            while self.of_ports.get(&port).is_some_and(|keys| keys.len() >= MOST_OF_PORT) {
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

/// Whether an ACL of these pods asks for source ports. None that is made of objects of a cluster does.
fn asks_for_sources(snapshot: &Snapshot, ports: [PortId; 2]) -> bool {
    let pods = ports.map(|id| snapshot.port(id));
    let bindings = [pods[0].map(|it| &it.from_pod), pods[1].map(|it| &it.to_pod)];
    let tables = bindings.into_iter().flatten().filter_map(AclBinding::table);
    tables.flat_map(|table| table.rules()).any(|rule| rule.source_ports != acl::PortRange::ANY)
}
