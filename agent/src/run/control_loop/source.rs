//! Applies the source's events.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use control::api_server::Event;
use control::manifests::Changes;
use control::model::Pod;
use control::{Kind, Object, PodChange};
use domain_names::NameTable;

use super::ControlLoop;
use super::faults;
use super::ports::Change;
use super::reconciler::Signal;
use super::unenforced::unenforced;
use crate::run::source::{ClusterRecord, Reading, Restored, load};
use observe::verdicts::{AddressNames, PodLabels};

/// Time that listed kinds wait for the others if a saved state covers these.
const LATE: Duration = Duration::from_secs(1);

/// Whether a pod is there without an address of its own.
fn is_on_host(pod: &Pod) -> bool {
    pod.host_network && !pod.finished
}

/// Whether something about a pod is another one after a change.
fn differs<'p, T: PartialEq>(pods: [Option<&'p Pod>; 2], it: impl Fn(&'p Pod) -> T) -> bool {
    let [before, after] = pods.map(|pod| pod.map(&it));
    before != after
}

fn labels_of(pod: &Pod) -> PodLabels {
    pod.labels.iter().map(|(key, value)| (Arc::clone(key), Arc::clone(value))).collect()
}

impl ControlLoop {
    /// Loads the objects of the last process before manifests replace them, where it left no list
    /// of owners: sessions end whose addresses have changed their pods meanwhile.
    pub(in crate::run) fn take_former(&mut self) {
        let (objects, restored) = load(&self.effects.shared.config.state_dir);
        if let Restored::Refused(why) = &restored {
            tracing::error!("state-dir: {why}; sessions of pods replaced meanwhile do not end");
        }
        self.effects.control.resync(objects);
    }

    /// Applies a reading of the manifests.
    pub(in crate::run) fn take_manifests(&mut self, reading: Reading) {
        if reading.number <= self.effects.input.reading {
            return;
        }
        self.effects.input.reading = reading.number;
        let Changes { objects, removed, skipped, faults } = reading.changes;
        let known = &self.effects.input.faults.manifests;
        faults.iter().filter(|fault| !known.contains(fault)).for_each(faults::log);
        self.effects.input.skipped = skipped;
        self.effects.input.faults.manifests = faults;
        let enforcer = self.effects.shared.config.enforcer;
        self.signal(&Signal::Manifests(&objects));
        for object in &objects {
            self.effects.input.faults.set(object.reference(), unenforced(enforcer, object));
        }
        for reference in &removed {
            self.effects.input.faults.set(reference.clone(), Vec::new());
        }
        let has_pods = objects.iter().any(|it| matches!(it, Object::Pod(_)))
            || removed.iter().any(|it| it.kind == Kind::Pod);
        match reading.is_all {
            true => self.effects.control.resync(objects),
            false => {
                objects.into_iter().for_each(|object| self.effects.control.apply(object));
                removed.iter().for_each(|reference| self.effects.control.delete(reference));
            }
        }
        self.effects.input.info.synced = true;
        self.effects.input.info.last_event = Some(SystemTime::now());
        if has_pods {
            self.rename_all();
        }
        self.signal(&Signal::Changed { has_policies: true });
    }

    /// Loads the saved state, if there is a usable one that was not `refused`.
    pub(in crate::run) fn take_saved(&mut self, cluster: ClusterRecord, refused: Option<String>) {
        self.effects.input.cluster = Some(cluster);
        let (objects, restored) = match refused {
            Some(why) => (Vec::new(), Restored::Refused(why)),
            None => load(&self.effects.shared.config.state_dir),
        };
        match &restored {
            Restored::From(at) => {
                let at = observe::time::utc(*at);
                let count = objects.len();
                tracing::info!(
                    "state of {at} ({count} objects) is in force until the API server's objects are listed"
                );
            }
            Restored::Nothing => tracing::info!("no saved state: pods wait for the API server"),
            Restored::Refused(why) => tracing::error!(
                "state-dir: {why}; it is not used, and pods stay closed until the API \
                 server's objects are listed"
            ),
        }
        self.effects.input.info.restored = restored;
        self.effects.control.resync(objects);
        self.rename_all();
    }

    /// Compares the API server's cluster with that of the saved state. If they differ, objects,
    /// connections and addresses of domain names are dropped, and pods are closed until everything is
    /// listed.
    fn verify_cluster(&mut self, uid: Option<&str>) {
        if let Some(initial) = &mut self.effects.input.initial_sync {
            initial.is_identified = true;
        }
        let refused = match (&mut self.effects.input.cluster, uid) {
            (Some(cluster), Some(uid)) => cluster.verify(uid),
            _ => None,
        };
        let Some(why) = refused else { return };
        tracing::error!("state-dir: {why}; it is not used any longer");
        self.effects.input.info.restored = Restored::Refused(why);
        // Once every kind is listed no object of it is left.
        if self.effects.input.initial_sync.is_some() {
            self.effects.control.resync(Vec::new());
            self.rename_all();
        }
        let events = &self.effects.events;
        self.effects.shared.names.change(NameTable::clear, |changes| {
            // The loop itself receives them, and closes the addresses.
            let _ = events.send(crate::run::Event::Names(changes, None));
        });
        self.effects.shared.switch.depart_all();
        self.effects.ports.changed(Change::Snapshot);
    }

    /// Applies an event of the API server's watches.
    pub(super) fn source_event(&mut self, event: Event) {
        self.effects.input.note(&event, self.effects.shared.config.enforcer);
        self.signal(&Signal::Source(&event));
        if let Event::Cluster(uid) = &event {
            self.verify_cluster(uid.as_deref());
        }
        let is_synced = event == Event::Synced;
        match &mut self.effects.input.initial_sync {
            None => self.handle(event),
            Some(initial) => {
                initial.buffer.take(event);
                if initial.began.is_none() && initial.buffer.has_begun() {
                    initial.began = Some(Instant::now());
                }
            }
        }
        if is_synced {
            self.end_initial_sync();
            self.effects.input.info.synced = true;
            let count: usize = self.effects.control.counts().values().sum();
            tracing::info!("every kind is listed: {count} objects");
        }
    }

    /// Applies the kinds listed so far if the others are late and a saved state covers them.
    pub(super) fn end_initial_sync_if_late(&mut self) {
        // Objects of another cluster must not be mixed with the saved ones.
        let initial =
            self.effects.input.initial_sync.as_ref().filter(|initial| initial.is_identified);
        let began = initial.and_then(|initial| initial.began);
        let is_late = began.is_some_and(|began| began.elapsed() > LATE);
        let is_restored = matches!(self.effects.input.info.restored, Restored::From(_));
        if is_late && is_restored {
            tracing::warn!("some kinds are not listed yet: the saved state counts for them");
            self.end_initial_sync();
            self.effects.ports.changed(Change::Objects);
        }
    }

    fn end_initial_sync(&mut self) {
        if let Some(initial) = self.effects.input.initial_sync.take() {
            initial.buffer.work_in(&mut self.effects.control);
            self.rename_all();
            self.signal(&Signal::Changed { has_policies: true });
        }
    }

    fn handle(&mut self, event: Event) {
        let kind = match &event {
            Event::Apply(object, _) => Some(object.kind()),
            Event::Delete(reference) => Some(reference.kind),
            Event::Resync(kind, ..) => Some(*kind),
            _ => None,
        };
        let all_pods = matches!(event, Event::Resync(Kind::Pod, ..));
        let before = self.effects.control.revision();
        if let Some(change) = self.effects.control.handle(event) {
            self.describe(&change);
        }
        if all_pods {
            self.rename_all();
        }
        // Heartbeats and the like change nothing that is saved.
        if let Some(kind) = kind.filter(|_| self.effects.control.revision() != before) {
            let has_policies = !matches!(kind, Kind::Pod | Kind::EndpointSlice | Kind::Node);
            self.signal(&Signal::Changed { has_policies });
        }
    }

    /// Publishes what events say of a pod: the name of its addresses, whether it is on the host network, and its labels
    /// if an observer reads them.
    fn describe(&self, PodChange { key, before, after }: &PodChange) {
        let directory = self.effects.shared.broker.directory();
        let both = [before, after].map(Option::as_deref);
        if differs(both, |pod| (&pod.addresses, &pod.uid, pod.is_on_pod_network())) {
            let addresses = both.into_iter().flatten().flat_map(|pod| pod.addresses.iter());
            addresses.for_each(|address| self.rename(*address));
        }
        if differs(both, is_on_host) {
            directory.note_on_host(&key.to_string(), after.as_deref().is_some_and(is_on_host));
        }
        if directory.keeps_labels() && differs(both, |pod| &pod.labels) {
            directory.set_labels_of(&key.to_string(), after.as_deref().map(labels_of));
        }
    }

    fn rename(&self, address: IpAddr) {
        let name = self.effects.control.pod_at(address).map(|pod| pod.to_string().into());
        self.effects.shared.broker.directory().set_cluster_name(address, name);
    }

    fn rename_all(&self) {
        let names: AddressNames = self
            .effects
            .control
            .pods_by_address()
            .map(|(address, pod)| (address, pod.to_string().into()))
            .collect();
        let directory = self.effects.shared.broker.directory();
        directory.set_cluster_names(names);
        let on_host = self.effects.control.known_pods().filter(|pod| is_on_host(pod));
        directory.set_on_host(on_host.map(|pod| pod.key.to_string().into()).collect());
        if directory.keeps_labels() {
            self.label_all();
        }
    }

    /// Hands out the labels of all pods.
    pub(super) fn label_all(&self) {
        let pods = self.effects.control.known_pods();
        let labels = pods.map(|pod| (pod.key.to_string().into(), labels_of(pod)));
        self.effects.shared.broker.directory().set_labels(labels.collect());
    }
}
