//! Expiry of addresses, connections that keep expired ones, and the file.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::BufWriter;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant, SystemTime};

use control::{Durability, PodKey};
use domain_names::SavedAddress;

use super::send;
use crate::run::Event;
use crate::run::names::boot_time;
use crate::run::shared_status::SharedStatus;

/// Interval of looking for addresses whose time is over, and of saving.
const TICK: Duration = Duration::from_millis(250);
/// Interval of looking for connections of expired addresses: a pass over the session table.
const LOOK: Duration = Duration::from_secs(5);

/// The thread that does it.
pub(super) struct Upkeep {
    shared: Arc<SharedStatus>,
    events: Sender<Event>,
    /// Pods that were followed at the last look, by name.
    followed: HashMap<PodKey, Vec<IpAddr>>,
    look_due: Instant,
    /// Earliest time of the next attempt to save, after one that failed.
    save_due: Instant,
}

impl Upkeep {
    pub(super) fn new(shared: Arc<SharedStatus>, events: Sender<Event>) -> Self {
        let now = Instant::now();
        Self { shared, events, followed: HashMap::new(), look_due: now + LOOK, save_due: now }
    }

    pub(super) fn run(mut self) {
        while !self.shared.names.stop.load(Ordering::Acquire) {
            std::thread::sleep(TICK);
            self.forget_pods();
            self.expire();
            if Instant::now() >= self.look_due {
                self.look_due = Instant::now() + LOOK;
                self.end_lingering();
            }
            self.save();
        }
    }

    /// Forgets the names of pods that have gone, or have another address.
    fn forget_pods(&mut self) {
        let names = &self.shared.names;
        let pods = Arc::clone(&names.pods.lock());
        let now = pods.values().map(|pod| (pod.key.clone(), pod.addresses.clone()));
        let now: HashMap<PodKey, Vec<IpAddr>> = now.collect();
        if now == self.followed {
            return;
        }
        let gone = self.followed.iter().filter(|(pod, at)| now.get(*pod) != Some(*at));
        for (pod, _) in gone {
            names.change(|table| table.forget(pod), |changes| send(&self.events, changes, None));
        }
        self.followed = now;
    }

    fn expire(&self) {
        let send = |changes| send(&self.events, changes, None);
        self.shared.names.change(|table| table.expire(boot_time()), send);
    }

    /// Removes expired addresses without connections.
    fn end_lingering(&self) {
        let names = &self.shared.names;
        let lingering: BTreeSet<IpAddr> = {
            let table = names.table.lock();
            if !table.has_lingering() {
                return;
            }
            let rows = table.rows(boot_time()).filter(|row| row.left.is_none());
            rows.map(|row| row.address).collect()
        };
        let mut connected: HashSet<(IpAddr, IpAddr)> = HashSet::new();
        for (_, tuples) in self.shared.switch.sessions().iter() {
            let flow = tuples.policy_flow();
            let to = flow.destination.to_ip();
            if lingering.contains(&to) {
                connected.insert((flow.source.to_ip(), to));
            }
        }
        let is_connected = |pod: &PodKey, address: IpAddr| match self.followed.get(pod) {
            Some(own) => own.iter().any(|own| connected.contains(&(*own, address))),
            // Its port is not open yet, or not any more.
            None => connected.iter().any(|(_, to)| *to == address),
        };
        let send = |changes| send(&self.events, changes, None);
        names.change(|table| table.end_lingering(boot_time(), is_connected), send);
    }

    fn save(&mut self) {
        let names = &self.shared.names;
        if Instant::now() < self.save_due || !names.is_dirty.swap(false, Ordering::AcqRel) {
            return;
        }
        let saved = names.table.lock().to_save(boot_time());
        let write = |out: &mut BufWriter<File>| SavedAddress::write(&saved, out, SystemTime::now());
        let saved = control::replace_file(&names.file, Durability::Lazy, write)
            .map_err(|error| format!("{}: {error}", names.file.display()));
        if saved.is_err() {
            names.is_dirty.store(true, Ordering::Release);
            self.save_due = Instant::now() + LOOK;
        }
        self.shared.note_saved("names", saved);
        let by_address = names.by_address();
        self.shared.broker.directory().set_domains(by_address);
    }
}
