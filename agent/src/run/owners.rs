//! The pods that addresses belong to, on disk as soon as a session may touch them.
//!
//! Sessions outlive the process, and an address may have another pod after a restart: its sessions must
//! end. The saved objects do not tell, as they are written seconds later and may be missing or damaged.
//! So the file `owners` has a record of 32 bytes for each address that changes its pod: the address, a hash
//! of the pod, and a checksum; the last one counts. It is appended to, and replaced as a whole once it
//! has grown.
//!
//! A record is written when no session of the earlier pod is left: a process that ends before that leaves
//! a record that is not the new pod's, and the next one ends the sessions.

use std::collections::{BTreeSet, HashMap};
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use control::{Control, Durability, open_regular, replace_file, state};

/// The records of an earlier process, and those of this one.
pub(super) struct Owners {
    path: PathBuf,
    /// The records of the last process for addresses that have had no pod yet.
    former: Former,
    /// Addresses with sessions of an earlier pod that are to end.
    departing: BTreeSet<IpAddr>,
    /// Records in the file.
    records: usize,
    /// A failure was logged.
    has_failed: bool,
}

type Former = HashMap<IpAddr, u64>;

const HEAD: &[u8; RECORD] = b"podgate owners 1\n\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const RECORD: usize = 32;
/// Records beyond twice the number of addresses after which the file is replaced.
const SPARE: usize = 4096;

impl Owners {
    /// Reads the records of the last process. Returns whether there were usable ones, too.
    pub(super) fn open(state_dir: &Path) -> (Self, bool) {
        let path = state_dir.join("owners");
        let ((former, records), is_known) = match read(&path) {
            Ok(found) => (found, true),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::error!(
                        "state-dir: {}: {error}; sessions are evaluated again",
                        path.display()
                    );
                }
                ((Former::default(), 0), false)
            }
        };
        let mut owners =
            Self { path, records, former, departing: BTreeSet::new(), has_failed: false };
        match is_known {
            true => {
                // What was cut off must not stand in front of what follows.
                let length = ((1 + owners.records) * RECORD) as u64;
                let file = OpenOptions::new().write(true).open(&owners.path);
                owners.failed(file.and_then(|file| file.set_len(length)));
            }
            false => owners.replace(std::iter::empty()),
        }
        (owners, is_known)
    }

    /// Takes note of the addresses that have moved to another pod or from one, once all pods are known. Ends
    /// the sessions of those that have another pod than the last process knew.
    pub(super) fn follow(&mut self, control: &mut Control) {
        let moved = control.take_moved();
        let (mut departed, mut settled) = (Vec::new(), Vec::new());
        for address in moved {
            let now = owner_of(control, address);
            match self.former.get(&address) {
                // Its pod may be attached later in the start.
                Some(_) if now == 0 => continue,
                Some(before) if *before == now => {}
                Some(before) if *before != 0 => departed.push(address),
                _ => settled.push(address),
            }
            self.former.remove(&address);
        }
        if !departed.is_empty() {
            tracing::info!("{} addresses have other pods than before the start", departed.len());
        }
        control.depart(departed);
        self.departing.extend(control.departed());
        settled.retain(|address| !self.departing.contains(address));
        self.append(control, settled);
    }

    /// Writes the records of departed addresses, if no session of theirs `is_left`.
    pub(super) fn settle(&mut self, control: &Control, is_left: impl FnOnce() -> bool) {
        if !self.departing.is_empty() && !is_left() {
            let departed = std::mem::take(&mut self.departing);
            self.append(control, departed.into_iter().collect());
        }
    }

    fn append(&mut self, control: &Control, addresses: Vec<IpAddr>) {
        if addresses.is_empty() {
            return;
        }
        let mut bytes = Vec::with_capacity(addresses.len() * RECORD);
        for address in &addresses {
            bytes.extend(record(*address, owner_of(control, *address)));
        }
        let appended = OpenOptions::new().append(true).open(&self.path);
        self.failed(appended.and_then(|mut file| file.write_all(&bytes)));
        self.records += addresses.len();
        if self.departing.is_empty() && self.records > SPARE {
            let former = std::mem::take(&mut self.former);
            let pods = control.pods_by_address().map(|(it, _)| (it, owner_of(control, it)));
            let left = former.iter().map(|(address, owner)| (*address, *owner));
            if self.records > 2 * (control.pods_by_address().count() + former.len()) + SPARE {
                self.replace(left.chain(pods).map(|(address, owner)| record(address, owner)));
            }
            self.former = former;
        }
    }

    fn replace(&mut self, records: impl Iterator<Item = [u8; RECORD]>) {
        let mut count = 0;
        let replaced = replace_file(&self.path, Durability::Lazy, |out| {
            out.write_all(HEAD)?;
            for record in records {
                out.write_all(&record)?;
                count += 1;
            }
            Ok(())
        });
        self.records = count;
        self.failed(replaced);
    }

    fn failed(&mut self, written: io::Result<()>) {
        match written {
            Ok(()) => self.has_failed = false,
            Err(_) if self.has_failed => {}
            Err(error) => {
                tracing::error!("state-dir: {}: {error}", self.path.display());
                self.has_failed = true;
            }
        }
    }
}

/// A hash of the pod that an address belongs to; 0 if it is none's.
fn owner_of(control: &Control, address: IpAddr) -> u64 {
    let Some(pod) = control.pod_at(address) else { return 0 };
    let uid = control.pod(pod).and_then(|pod| pod.uid.as_ref());
    let uid = uid.map(ToString::to_string).unwrap_or_default();
    state::checksum(format!("{pod}\n{uid}").as_bytes()).max(1)
}

fn record(address: IpAddr, owner: u64) -> [u8; RECORD] {
    let bits = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let mut record = [0; RECORD];
    record[..16].copy_from_slice(&bits.octets());
    record[16..24].copy_from_slice(&owner.to_le_bytes());
    let sum = state::checksum(&record[..24]);
    record[24..].copy_from_slice(&sum.to_le_bytes());
    record
}

/// The owners of addresses, and the number of their records.
fn read(path: &Path) -> io::Result<(Former, usize)> {
    let damaged = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    let (records, _) = bytes.as_chunks::<RECORD>();
    let Some((HEAD, records)) = records.split_first() else {
        return Err(damaged("is no list of owners"));
    };
    let mut former = Former::default();
    for (index, found) in records.iter().enumerate() {
        let (address, owner) = parts(found);
        if record(address, owner) == *found {
            former.insert(address, owner);
        } else if index + 1 < records.len() {
            return Err(damaged("is damaged"));
        } else {
            return Ok((former, index));
        }
    }
    Ok((former, records.len()))
}

fn parts(record: &[u8; RECORD]) -> (IpAddr, u64) {
    let (mut address, mut owner) = ([0; 16], [0; 8]);
    address.copy_from_slice(&record[..16]);
    owner.copy_from_slice(&record[16..24]);
    (IpAddr::V6(Ipv6Addr::from(address)).to_canonical(), u64::from_le_bytes(owner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::objects::{self, Read};
    use control::{Kind, ObjectRef, PodKey, Scope};
    use serde_json::json;
    use testkit::TempDir;

    fn control() -> Control {
        Control::new(Scope::Node("n".into()))
    }

    fn add(control: &mut Control, name: &str, uid: &str, address: &str) {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "x", "uid": uid},
            "spec": {"nodeName": "m", "containers": []},
            "status": {"podIPs": [{"ip": address}]}});
        let Read::Object(object, _) = objects::read(pod) else { panic!() };
        control.apply(object);
    }

    fn remove(control: &mut Control, name: &str) {
        let (kind, namespace) = (Kind::Pod, Some("x".into()));
        control.delete(&ObjectRef { kind, namespace, name: name.into() });
    }

    /// One round of the control loop: what departed, and whether their sessions end in it.
    fn round(owners: &mut Owners, control: &mut Control, ends: bool) -> Vec<String> {
        owners.follow(control);
        let departed = control.take_departed();
        owners.settle(control, || !ends && !departed.is_empty());
        departed.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_next_process_knows_every_pod_that_sessions_may_touch() {
        let folder = TempDir::new("owners");
        let mut former = control();
        let (mut owners, is_known) = Owners::open(folder.path());
        assert!(!is_known);
        for (name, uid, address) in
            [("a", "1", "10.0.0.1"), ("b", "2", "fd00::2"), ("c", "3", "10.0.0.3")]
        {
            add(&mut former, name, uid, address);
        }
        assert!(round(&mut owners, &mut former, true).is_empty());
        // Another pod of the same name: its record waits for the end of the sessions.
        add(&mut former, "c", "4", "10.0.0.3");
        assert_eq!(round(&mut owners, &mut former, false), ["10.0.0.3"]);

        let (mut owners, is_known) = Owners::open(folder.path());
        assert!(is_known);
        let mut now = control();
        add(&mut now, "a", "1", "10.0.0.1");
        add(&mut now, "other", "2", "fd00::2");
        add(&mut now, "c", "4", "10.0.0.3");
        assert_eq!(round(&mut owners, &mut now, true), ["10.0.0.3", "fd00::2"]);
        // From here on these are the owners.
        let (mut owners, _) = Owners::open(folder.path());
        assert!(round(&mut owners, &mut now, true).is_empty());
        let mut again = control();
        add(&mut again, "other", "2", "fd00::2");
        add(&mut again, "c", "4", "10.0.0.3");
        assert!(round(&mut owners, &mut again, true).is_empty());
    }

    #[test]
    fn a_pod_that_is_attached_later_keeps_its_sessions_and_another_gets_none() {
        let folder = TempDir::new("owners-late");
        let bound = |control: &mut Control, uid: &str| {
            let pod = json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "p", "namespace": "x", "uid": uid},
                "spec": {"nodeName": "n", "containers": []}});
            let Read::Object(object, _) = objects::read(pod) else { panic!() };
            control.apply(object);
        };
        let bind = |control: &mut Control| {
            let key = PodKey { namespace: "x".into(), name: "p".into() };
            control.bind_address(key, None, vec!["10.0.0.9".parse().unwrap()]);
        };
        let mut former = control();
        let (mut owners, _) = Owners::open(folder.path());
        bound(&mut former, "1");
        bind(&mut former);
        round(&mut owners, &mut former, true);
        for (uid, expected) in [("1", &[][..]), ("2", &["10.0.0.9".to_owned()])] {
            let (mut owners, _) = Owners::open(folder.path());
            let mut now = control();
            bound(&mut now, uid);
            assert!(round(&mut owners, &mut now, true).is_empty(), "not attached yet");
            bind(&mut now);
            assert_eq!(round(&mut owners, &mut now, true), expected);
        }
    }

    #[test]
    fn an_address_without_a_pod_has_no_record_that_counts() {
        let folder = TempDir::new("owners-gone");
        let mut former = control();
        let (mut owners, _) = Owners::open(folder.path());
        add(&mut former, "a", "1", "10.0.0.1");
        round(&mut owners, &mut former, true);
        remove(&mut former, "a");
        assert_eq!(round(&mut owners, &mut former, true), ["10.0.0.1"]);
        let (mut owners, _) = Owners::open(folder.path());
        add(&mut former, "b", "2", "10.0.0.1");
        assert!(round(&mut owners, &mut former, true).is_empty(), "its sessions ended before");
    }

    #[test]
    fn a_cut_record_is_none_a_damaged_one_spoils_the_file_and_a_long_file_is_replaced() {
        let folder = TempDir::new("owners-file");
        let path = folder.path().join("owners");
        let mut control = control();
        let (mut owners, _) = Owners::open(folder.path());
        add(&mut control, "a", "1", "10.0.0.1");
        round(&mut owners, &mut control, true);
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(whole.len(), 2 * RECORD);
        for cut in 1..RECORD {
            let torn = [&whole[..], &whole[RECORD..RECORD + cut]].concat();
            std::fs::write(&path, torn).unwrap();
            assert_eq!(read(&path).unwrap().1, 1, "{cut}");
            let (mut owners, _) = Owners::open(folder.path());
            owners.append(&control, vec!["10.0.0.1".parse().unwrap()]);
            assert_eq!(read(&path).unwrap().1, 2, "{cut}");
        }
        let twice = [&whole[..], &whole[RECORD..]].concat();
        for byte in 0..2 * RECORD {
            let mut damaged = twice.clone();
            damaged[byte] ^= 0x40;
            std::fs::write(&path, damaged).unwrap();
            assert!(read(&path).is_err(), "{byte}");
        }
        assert!(!Owners::open(folder.path()).1);
        assert_eq!(std::fs::read(&path).unwrap(), HEAD, "a new list");
        let (mut owners, _) = Owners::open(folder.path());
        for n in 0..3 * SPARE {
            add(&mut control, "a", &n.to_string(), "10.0.0.1");
            round(&mut owners, &mut control, true);
        }
        let length = std::fs::metadata(&path).unwrap().len() as usize;
        assert!(length < (2 * SPARE + 8) * RECORD, "{length}");
        let (mut owners, _) = Owners::open(folder.path());
        assert!(round(&mut owners, &mut control, true).is_empty());
    }
}
