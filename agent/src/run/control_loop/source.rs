//! Applies the source's events.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use control::api_server::{Event, InitialSync};
use control::manifests::Changes;
use control::model::Pod;
use control::{Kind, Object, ObjectRef, PodKey};
use domain_names::NameTable;

use super::ControlLoop;
use super::ports::Change;
use super::unenforced::unenforced;
use crate::run::source::{ClusterRecord, Reading, Restored, WatchInfo, WatchState, load};
use observe::verdicts::{Names, PodLabels};

/// Initial-sync buffer: events before every kind is listed.
#[derive(Default)]
pub(super) struct Initial {
    buffer: InitialSync,
    /// When the first kind was listed.
    began: Option<Instant>,
    /// The API server has said which cluster it is of.
    is_identified: bool,
}

/// Time that listed kinds wait for the others if a saved state covers these.
const LATE: Duration = Duration::from_secs(1);

fn labels_of(pod: &Pod) -> PodLabels {
    pod.labels.iter().map(|(key, value)| (Arc::clone(key), Arc::clone(value))).collect()
}

impl ControlLoop {
    /// Applies what is due at the source: objects of kinds that are late, saves, statuses,
    /// Events.
    pub(super) fn follow_source(&mut self) {
        if self.end_initial_sync_if_late() {
            self.ports.changed(Change::Objects);
        }
        self.look_after_saving();
        self.write_reports();
        self.write_warnings();
    }

    /// Loads the objects of the last process before manifests replace them, where it left no list
    /// of owners: sessions end whose addresses have changed their pods meanwhile.
    pub(in crate::run) fn take_former(&mut self) {
        let (objects, restored) = load(&self.shared.config.state_dir);
        if let Restored::Refused(why) = &restored {
            tracing::error!("state-dir: {why}; sessions of pods replaced meanwhile do not end");
        }
        self.control.resync(objects);
    }

    /// Applies a reading of the manifests.
    pub(in crate::run) fn take_manifests(&mut self, reading: Reading) {
        if reading.number <= self.reading {
            return;
        }
        self.reading = reading.number;
        let Changes { objects, removed, skipped, faults } = reading.changes;
        let known = &self.faults.manifests;
        for fault in faults.iter().filter(|fault| !known.contains(fault)) {
            tracing::warn!("manifests: {fault}");
        }
        self.skipped = skipped;
        self.faults.manifests = faults;
        let enforcer = self.shared.config.enforcer;
        for object in &objects {
            self.policy_log.note(object);
            self.faults.set(object.reference(), unenforced(enforcer, object));
        }
        for reference in &removed {
            self.faults.set(reference.clone(), Vec::new());
        }
        let has_pods = objects.iter().any(|it| matches!(it, Object::Pod(_)))
            || removed.iter().any(|it| it.kind == Kind::Pod);
        match reading.is_all {
            true => self.control.resync(objects),
            false => {
                objects.into_iter().for_each(|object| self.control.apply(object));
                removed.iter().for_each(|reference| self.control.delete(reference));
            }
        }
        self.source_info.synced = true;
        self.source_info.last_event = Some(SystemTime::now());
        if has_pods {
            self.rename_all();
        }
        self.save_after(true);
    }

    /// Loads the saved state, if there is a usable one that was not `refused`.
    pub(in crate::run) fn take_saved(&mut self, cluster: ClusterRecord, refused: Option<String>) {
        self.cluster = Some(cluster);
        let (objects, restored) = match refused {
            Some(why) => (Vec::new(), Restored::Refused(why)),
            None => load(&self.shared.config.state_dir),
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
        self.source_info.restored = restored;
        self.control.resync(objects);
        self.rename_all();
    }

    /// Compares the API server's cluster with that of the saved state. If they differ, objects,
    /// connections and addresses of domain names are dropped, and pods are closed until everything is
    /// listed.
    fn verify_cluster(&mut self, uid: Option<&str>) {
        if let Some(initial) = &mut self.initial_sync {
            initial.is_identified = true;
        }
        let refused = match (&mut self.cluster, uid) {
            (Some(cluster), Some(uid)) => cluster.verify(uid),
            _ => None,
        };
        let Some(why) = refused else { return };
        tracing::error!("state-dir: {why}; it is not used any longer");
        self.source_info.restored = Restored::Refused(why);
        // Once every kind is listed no object of it is left.
        if self.initial_sync.is_some() {
            self.control.resync(Vec::new());
            self.rename_all();
        }
        let events = &self.events;
        self.shared.names.change(NameTable::clear, |changes| {
            // The loop itself receives them, and closes the addresses.
            let _ = events.send(crate::run::Event::Names(changes, None));
        });
        self.shared.switch.depart_all();
        self.ports.changed(Change::Snapshot);
    }

    /// Applies an event of the API server's watches.
    pub(super) fn source_event(&mut self, event: Event) {
        self.note(&event);
        if let Event::Cluster(uid) = &event {
            self.verify_cluster(uid.as_deref());
        }
        let is_synced = event == Event::Synced;
        match &mut self.initial_sync {
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
            self.source_info.synced = true;
            let count: usize = self.control.counts().values().sum();
            tracing::info!("every kind is listed: {count} objects");
        }
    }

    /// Applies the kinds listed so far if the others are late and a saved state covers them;
    /// returns whether it did.
    fn end_initial_sync_if_late(&mut self) -> bool {
        // Objects of another cluster must not be mixed with the saved ones.
        let initial = self.initial_sync.as_ref().filter(|initial| initial.is_identified);
        let began = initial.and_then(|initial| initial.began);
        let is_late = began.is_some_and(|began| began.elapsed() > LATE);
        let is_restored = matches!(self.source_info.restored, Restored::From(_));
        if is_late && is_restored {
            tracing::warn!("some kinds are not listed yet: the saved state counts for them");
            self.end_initial_sync();
        }
        is_late && is_restored
    }

    fn end_initial_sync(&mut self) {
        if let Some(initial) = self.initial_sync.take() {
            initial.buffer.work_in(&mut self.control);
            self.rename_all();
            self.save_after(true);
        }
    }

    fn handle(&mut self, event: Event) {
        let pod = match &event {
            Event::Apply(Object::Pod(pod), _) => Some(pod.key.clone()),
            Event::Delete(ObjectRef { kind: Kind::Pod, namespace: Some(namespace), name }) => {
                Some(PodKey { namespace: namespace.clone(), name: name.clone() })
            }
            _ => None,
        };
        let kind = match &event {
            Event::Apply(object, _) => Some(object.reference().kind),
            Event::Delete(reference) => Some(reference.kind),
            Event::Resync(kind, ..) => Some(*kind),
            _ => None,
        };
        let all_pods = matches!(event, Event::Resync(Kind::Pod, ..));
        let before = self.control.revision();
        let mut addresses = pod.iter().flat_map(|pod| self.addresses(pod)).collect::<Vec<_>>();
        self.control.handle(event);
        addresses.extend(pod.iter().flat_map(|pod| self.addresses(pod)));
        addresses.into_iter().for_each(|address| self.rename(address));
        pod.iter().for_each(|pod| self.relabel(pod));
        if all_pods {
            self.rename_all();
        }
        // Heartbeats and the like change nothing that is saved.
        if let Some(kind) = kind.filter(|_| self.control.revision() != before) {
            self.save_after(!matches!(kind, Kind::Pod | Kind::EndpointSlice | Kind::Node));
        }
    }

    fn addresses(&self, pod: &PodKey) -> Vec<IpAddr> {
        self.control.pod(pod).map(|pod| pod.addresses.clone()).unwrap_or_default()
    }

    fn rename(&self, address: IpAddr) {
        let name = self.control.pod_at(address).map(|pod| pod.to_string().into());
        self.shared.broker.directory().set_cluster_name(address, name);
    }

    fn rename_all(&self) {
        let names: Names = self
            .control
            .pods_by_address()
            .map(|(address, pod)| (address, pod.to_string().into()))
            .collect();
        self.shared.broker.directory().set_cluster_names(names);
        if self.shared.config.hubble.listen.is_some() {
            let pods = self.control.known_pods();
            let labels = pods.map(|pod| (pod.key.to_string().into(), labels_of(pod)));
            self.shared.broker.directory().set_labels(labels.collect());
        }
    }

    /// Only the Hubble Observer API has a use for labels.
    fn relabel(&self, pod: &PodKey) {
        if self.shared.config.hubble.listen.is_some() {
            let labels = self.control.pod(pod).map(|pod| labels_of(pod));
            self.shared.broker.directory().set_labels_of(&pod.to_string(), labels);
        }
    }

    /// Records an event for `status` and the log.
    fn note(&mut self, event: &Event) {
        let now = SystemTime::now();
        let info = &mut self.source_info;
        let mut become_ = |kind: Kind, state: WatchState| {
            let unknown = WatchInfo { state: WatchState::Asking, since: now, retries: 0 };
            let watch = info.watches.entry(kind).or_insert(unknown);
            if matches!(state, WatchState::Failing(_)) {
                watch.retries += 1;
                info.retries += 1;
            }
            if std::mem::discriminant(&watch.state) != std::mem::discriminant(&state) {
                watch.since = now;
                let name = kind.name();
                match (&watch.state, &state) {
                    (_, WatchState::Failing(why)) => tracing::warn!("watch of {name}: {why}"),
                    (WatchState::Failing(_), _) => {
                        tracing::info!("watch of {name}: answered again")
                    }
                    (_, WatchState::Absent) => tracing::info!("{name} is not installed"),
                    (_, WatchState::Watching) => tracing::debug!("watch of {name}: in sync"),
                    (_, WatchState::Asking | WatchState::Resuming) => {}
                }
            }
            watch.state = state;
        };
        match event {
            Event::Cluster(_) => {}
            Event::PassedOver(_, count) => {
                info.last_event = Some(now);
                info.unchanged += count;
            }
            Event::Responded(kind, duration) => {
                let api = self.shared.durations.api.with_label_values(&[kind.name()]);
                api.observe(duration.as_secs_f64());
            }
            Event::Answered(kind) => become_(*kind, WatchState::Resuming),
            Event::Current(kind) => become_(*kind, WatchState::Watching),
            Event::Absent(kind) => become_(*kind, WatchState::Absent),
            Event::Trouble(kind, why) => become_(*kind, WatchState::Failing(why.clone())),
            Event::Fault(fault) => {
                tracing::warn!("API server: {fault}");
                info.strange += 1;
            }
            Event::Published(all) => self.published(all),
            Event::Reported(_) => info.report_error = None,
            Event::NotReported(object, why) => {
                let why = format!("{object}: {why}");
                if info.report_error.as_ref() != Some(&why) {
                    tracing::warn!("write about {why}");
                }
                info.report_error = Some(why);
            }
            Event::Synced => self.report_soon(),
            Event::Apply(object, faults) => {
                info.last_event = Some(now);
                self.reports.note(object);
                self.policy_log.note(object);
                if object.reference().kind.is_cluster_policy() {
                    self.report_soon();
                }
                let others = unenforced(self.shared.config.enforcer, object);
                if !faults.is_empty() || !others.is_empty() || !self.faults.objects.is_empty() {
                    let object = object.reference();
                    let faults = faults.iter().map(|it| it.clone().of(object.clone()));
                    let faults = faults.chain(others).collect();
                    self.faults.set(object, faults);
                }
            }
            Event::Delete(reference) => {
                info.last_event = Some(now);
                self.faults.objects.remove(reference);
                self.reports.forget(reference);
            }
            Event::Resync(kind, objects, faults) => {
                info.last_event = Some(now);
                self.reports.forget_if(|object| object.kind == *kind);
                for object in objects {
                    self.reports.note(object);
                    self.policy_log.note(object);
                }
                if kind.is_cluster_policy() {
                    self.report_soon();
                }
                let enforcer = self.shared.config.enforcer;
                let others = objects.iter().flat_map(|it| unenforced(enforcer, it));
                let faults = faults.iter().cloned().chain(others).collect();
                self.faults.set_kind(*kind, faults);
            }
        }
    }

    fn save_after(&mut self, soon: bool) {
        for writer in self.state_writer.iter_mut().chain(&mut self.history) {
            writer.changed(soon);
        }
    }

    /// Starts a due save of the state, and records the result of the last one.
    fn look_after_saving(&mut self) {
        if let Some(history) = &mut self.history {
            history.begin_if_due(&self.control);
            if let Some(Err(error)) = history.take_result() {
                tracing::error!("journal: {error}");
            }
        }
        let Some(state_writer) = &mut self.state_writer else { return };
        state_writer.begin_if_due(&self.control);
        let Some(result) = state_writer.take_result() else { return };
        match result {
            Ok(at) => {
                self.source_info.saved_at = Some(at);
                self.source_info.save_error = None;
            }
            Err(error) => {
                tracing::error!("state-dir: {error}");
                self.source_info.save_error = Some(error);
            }
        }
        self.ports.changed(Change::Objects);
    }
}
