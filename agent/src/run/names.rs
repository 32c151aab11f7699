//! Domain names of policies: the addresses that DNS gave to pods.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::BufReader;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, SystemTime};

use acl::{Action, End, Origin};
use control::{Control, PodKey, PodView};
use dataplane::dns::{DnsPacket, DnsTap, Ticket};
use dataplane::{AclBinding, PortId, Snapshot};
use domain_names::{Change, DomainPattern, Limits, NameTable, SavedAddress};
use parking_lot::Mutex;
use serde_json::Value;

use super::source;
use super::table::Table;
use crate::config::Config;

/// An answer whose addresses are on their way to the workers.
#[derive(Debug)]
pub(crate) struct PendingAnswer {
    pub(super) pod: PodKey,
    /// The change that must be in force.
    pub(super) sequence: u64,
    pub(super) ticket: Option<Ticket>,
    pub(super) seen: Instant,
}

/// A pod that follows names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FollowedPod {
    pub(super) key: PodKey,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) names: Arc<[DomainPattern]>,
}

pub(super) type FollowedPods = HashMap<PortId, FollowedPod>;

/// Counts since the start.
#[derive(Debug, Default)]
pub(crate) struct NameCounters {
    /// Answers that gave addresses to names of policies.
    pub(crate) answers: AtomicU64,
    /// Addresses of the cluster itself, which no name opens.
    pub(crate) ignored: AtomicU64,
}

/// State that the threads, the control loop and `show` share.
pub(crate) struct Names {
    pub(super) tap: Arc<DnsTap>,
    pub(super) table: Mutex<NameTable<PodKey>>,
    pub(super) pods: Mutex<Arc<FollowedPods>>,
    pub(crate) counters: NameCounters,
    pub(super) file: PathBuf,
    /// The file is out of date.
    pub(super) is_dirty: AtomicBool,
    pub(super) stop: AtomicBool,
}

impl Names {
    /// The names of a switch, with what an earlier process saved.
    pub(super) fn open(config: &Config) -> (Arc<Self>, Receiver<DnsPacket>) {
        let limits = Limits { least: config.dns_min_ttl, ..Limits::default() };
        let file = source::names(&config.state_dir);
        let mut table = NameTable::new(limits);
        let saved = control::open_regular(&file)
            .and_then(|it| SavedAddress::read(BufReader::new(it), SystemTime::now()));
        match saved {
            Ok((saved, elapsed)) => table.restore(saved, elapsed, boot_time()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!("state-dir: {}: {error}; not used", file.display()),
        }
        let (tap, copies) = DnsTap::new(config.max_ports, config.dns_max_hold);
        let names = Self {
            tap,
            table: Mutex::new(table),
            pods: Mutex::default(),
            counters: NameCounters::default(),
            file,
            is_dirty: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        };
        (Arc::new(names), copies)
    }

    /// Gives the control side what is known.
    pub(super) fn restore(&self, control: &mut Control) {
        control.set_names(&self.table.lock().changes());
    }

    /// Changes the table and hands the changes to `send`, under the table's lock: they arrive in the
    /// order in which they are made.
    pub(super) fn change(
        &self,
        change: impl FnOnce(&mut NameTable<PodKey>) -> Vec<Change<PodKey>>,
        send: impl FnOnce(Vec<Change<PodKey>>),
    ) {
        let mut table = self.table.lock();
        let changes = change(&mut table);
        if !changes.is_empty() {
            self.is_dirty.store(true, Ordering::Release);
            send(changes);
        }
    }

    /// Takes note of the cluster's own addresses among answers.
    pub(super) fn note_ignored(&self, addresses: &[IpAddr]) {
        self.counters.ignored.fetch_add(addresses.len() as u64, Ordering::Relaxed);
    }

    /// Follows the names of these pods from now on, and no others.
    pub(super) fn follow<'a>(
        &self,
        pods: impl Iterator<Item = (PortId, &'a PodKey, &'a Arc<PodView>)>,
    ) {
        let followed = pods.filter(|(.., pod)| !pod.names.is_empty()).map(|(id, key, pod)| {
            let (addresses, names) = (pod.addresses.clone(), Arc::clone(&pod.names));
            (id, FollowedPod { key: key.clone(), addresses, names })
        });
        let followed: FollowedPods = followed.collect();
        let mut known = self.pods.lock();
        if **known != followed {
            *known = Arc::new(followed);
        }
    }

    /// Answers that left before their addresses were in force, that were not looked at, or that
    /// opened nothing since their pod had too many.
    pub(crate) fn missed(&self) -> [(&'static str, u64); 4] {
        let tap = &self.tap;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let paced = self.table.lock().counters().paced;
        [
            ("late", of(&tap.late)),
            ("unheld", of(&tap.unheld)),
            ("uncopied", of(&tap.uncopied)),
            ("paced", paced),
        ]
    }

    /// Names, open and lingering addresses, and addresses that made room for others.
    pub(crate) fn figures(&self) -> [u64; 4] {
        let table = self.table.lock();
        let mut names = BTreeSet::new();
        let mut counts = [0, 0];
        for row in table.rows(boot_time()) {
            counts[usize::from(row.left.is_none())] += 1;
            names.insert((row.pod, row.name));
        }
        [names.len() as u64, counts[0], counts[1], table.counters().evicted]
    }

    /// The name that was last seen with each open address.
    pub(super) fn by_address(&self) -> HashMap<IpAddr, Arc<str>> {
        let table = self.table.lock();
        table.rows(boot_time()).map(|row| (row.address, row.name)).collect()
    }

    /// The addresses as a table.
    pub(super) fn show(&self, snapshot: &Snapshot) -> Table {
        let mut shown = Table::new(&["pod", "name", "address", "state", "ttl_left", "by"]);
        let mut policies: BTreeMap<(PodKey, IpAddr), String> = BTreeMap::new();
        let rows: Vec<_> = self.table.lock().rows(boot_time()).collect();
        for row in rows {
            let by = policies
                .entry((row.pod.clone(), row.address))
                .or_insert_with(|| by(snapshot, &row.pod, row.address));
            let state = match row.left {
                // An address of the cluster itself, or one that no rule permits any more.
                _ if by.is_empty() => "ignored",
                Some(_) => "open",
                None => "lingering",
            };
            shown.add(vec![
                row.pod.to_string().into(),
                (*row.name).into(),
                row.address.to_string().into(),
                state.into(),
                row.left.map_or(Value::Null, |left| left.as_secs().into()),
                by.clone().into(),
            ]);
        }
        shown
    }
}

/// The rules that permit a pod to reach an address, of those about sets of addresses.
fn by(snapshot: &Snapshot, pod: &PodKey, address: IpAddr) -> String {
    let port = snapshot.port_named(&pod.to_string()).and_then(|id| snapshot.port(id));
    let Some(AclBinding::Table(table)) = port.map(|port| &port.from_pod) else {
        return String::new();
    };
    let map = snapshot.live_address_map();
    let identity = map.lookup(address.into());
    let holds = |end: End| matches!(end, End::Set(set) if map.is_member(identity, set));
    let rules = table.rules().iter();
    let rules = rules.filter(|rule| rule.action == Action::Permit && holds(rule.destination));
    let mut origins: Vec<Origin> = rules.map(|rule| rule.origin.clone()).collect();
    origins.dedup();
    Origin::list(&origins)
}

/// Time since the system was started.
pub(super) fn boot_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32)
}
