//! The last known objects on disk, for a start without the API server.
//!
//! ```text
//! podgate-state 1
//! {"Namespace":{…}}          one object a line
//! …
//! 4711 9f86d081884c7d65      how many there were, and their checksum
//! ```
//!
//! A file is replaced as a whole, by renaming. A truncated or damaged file, or one of another
//! format, is refused as a whole: part of a cluster would be open where policies are missing.
//! Policies with a field that is not known, as a later version may write them, are refused as well.

use std::hash::Hasher;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use fnv::FnvHasher;

use crate::{Control, Durability, Object, open_regular, replace_file};

const HEAD: &str = "podgate-state 1";

/// All objects of a [`Control`] at one moment, for another thread to write. It shares the objects,
/// so taking it is quick.
#[derive(Debug)]
pub struct ObjectSnapshot(pub(crate) Vec<Object>);

impl ObjectSnapshot {
    /// Takes a snapshot of the objects in `control`.
    pub fn of(control: &Control) -> Self {
        Self(control.objects().collect())
    }
}

/// Writes a snapshot.
///
/// # Errors
/// When the file cannot be written or renamed; an earlier file is then intact.
pub fn save(snapshot: &ObjectSnapshot, path: &Path) -> io::Result<()> {
    replace_file(path, Durability::Synced, |out| {
        writeln!(out, "{HEAD}")?;
        let (mut count, mut sum) = (0_u64, FnvHasher::default());
        for object in &snapshot.0 {
            let line = serde_json::to_vec(object)?;
            add(&mut sum, &line);
            out.write_all(&line)?;
            out.write_all(b"\n")?;
            count += 1;
        }
        writeln!(out, "{count} {:016x}", sum.finish())
    })
}

/// Reads what [`save`] wrote.
///
/// # Errors
/// `NotFound` if there is no file; `InvalidData` if it is damaged.
pub fn load(path: &Path) -> io::Result<Vec<Object>> {
    let damaged = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut lines = BufReader::new(open_regular(path)?).lines();
    match lines.next().transpose()? {
        Some(head) if head == HEAD => {}
        _ => return Err(damaged(format!("{} does not begin with {HEAD:?}", path.display()))),
    }
    let (mut objects, mut sum) = (Vec::new(), FnvHasher::default());
    while let Some(line) = lines.next().transpose()? {
        if line.starts_with('{') {
            let object = serde_json::from_str(&line).map_err(|error| {
                damaged(format!("{}: line {}: {error}", path.display(), objects.len() + 2))
            })?;
            add(&mut sum, line.as_bytes());
            objects.push(object);
            continue;
        }
        let whole =
            line == format!("{} {:016x}", objects.len(), sum.finish()) && lines.next().is_none();
        return match whole {
            true => Ok(objects),
            false => Err(damaged(format!("{} is damaged: its checksum differs", path.display()))),
        };
    }
    Err(damaged(format!("{} is cut off after {} objects", path.display(), objects.len())))
}

/// The checksum of `bytes`: the same in every process and version.
pub fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = FnvHasher::default();
    add(&mut sum, bytes);
    sum.finish()
}

/// Adds a line to a checksum, which detects damage, not tampering.
fn add(sum: &mut FnvHasher, line: &[u8]) {
    sum.write(line);
    sum.write(b"\n");
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::Scope;
    use crate::objects::{Read, read};
    use serde_json::{Value, json};
    use testkit::TempDir;

    fn apply(control: &mut Control, value: Value) {
        match read(value) {
            Read::Object(object, _) => control.apply(object),
            other => panic!("{other:?}"),
        }
    }

    fn cluster() -> Control {
        let mut control = Control::new(Scope::All);
        for value in [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x",
                "labels": {"a": "b"}}}),
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
                "spec": {"podCIDRs": ["10.0.0.0/24"]}}),
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "x"},
                "spec": {"containers": [{"name": "c", "ports": [
                    {"name": "http", "containerPort": 80}]}]},
                "status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}}),
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"name": "q", "namespace": "x"}, "spec": {"podSelector": {
                    "matchExpressions": [{"key": "k", "operator": "NotIn", "values": ["v"]}]},
                    "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8",
                        "except": ["10.1.0.0/16"]}}], "ports": [{"port": 80, "endPort": 90}]},
                        {"ports": [{"port": "http"}]}]}}),
            json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
                "metadata": {"name": "c"}, "spec": {"tier": "Admin", "priority": 1,
                    "subject": {"namespaces": {}}, "egress": [{"action": "Deny",
                        "to": [{"nodes": {}}]}]}}),
            json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterEgressFirewall",
                "metadata": {"name": "f"}, "spec": {"egress": [{"action": "Deny",
                    "to": [{"apiServer": {}}]}]}}),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
                "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80, "targetPort": "http"}]}}),
        ] {
            apply(&mut control, value);
        }
        control
    }

    #[test]
    fn what_was_known_is_known_again_after_a_restart() {
        let folder = TempDir::new("state-again");
        let path = folder.path().join("state");
        let control = cluster();
        save(&ObjectSnapshot::of(&control), &path).unwrap();
        save(&ObjectSnapshot::of(&control), &path).unwrap();
        let mut again = Control::new(Scope::All);
        again.resync(load(&path).unwrap());
        assert!(again.objects().eq(control.objects()));
        assert_eq!(again.objects().count(), 7);
    }

    #[test]
    fn every_damage_is_noticed() {
        let folder = TempDir::new("state-damage");
        let path = folder.path().join("state");
        assert_eq!(load(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        save(&ObjectSnapshot::of(&cluster()), &path).unwrap();
        let good = fs::read(&path).unwrap();
        for at in (0..good.len()).step_by(5) {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            assert!(load(&path).is_err(), "byte {at}");
        }
        // Without the last newline it is still complete.
        for length in (0..good.len() - 1).step_by(5) {
            fs::write(&path, &good[..length]).unwrap();
            assert!(load(&path).is_err(), "cut after {length}");
        }
        fs::write(&path, &good).unwrap();
        assert!(load(&path).is_ok());
    }
}
