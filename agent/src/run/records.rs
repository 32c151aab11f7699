//! Records of attached pods on disk, from which a restarted agent restores them.
//!
//! Each attachment has a file `CONTAINER:INTERFACE.json` (an interface's name holds no colon),
//! written aside and renamed, so that it is complete or absent. Records need to outlive the process
//! and not the machine, so they are not synced to disk.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use control::{Durability, replace_file};
use local_api::{AttachPod, Attachment};

/// The folder of records.
#[derive(Debug)]
pub(super) struct Records {
    folder: PathBuf,
}

impl Records {
    /// Opens the folder in `state_dir`; creates it if needed.
    ///
    /// # Errors
    /// Names the folder.
    pub(super) fn open(state_dir: &Path) -> io::Result<Self> {
        let folder = state_dir.join("attachments");
        fs::create_dir_all(&folder).map_err(|error| named(&folder, &error))?;
        Ok(Self { folder })
    }

    /// Writes the record of an attachment.
    ///
    /// # Errors
    /// Names the file.
    pub(super) fn put(&self, pod: &AttachPod) -> io::Result<()> {
        let path = self.path(&pod.attachment());
        let write = |out: &mut BufWriter<File>| Ok(serde_json::to_writer_pretty(out, pod)?);
        replace_file(&path, Durability::Lazy, write).map_err(|error| named(&path, &error))
    }

    /// Removes the record of an attachment; a missing record is no error.
    ///
    /// # Errors
    /// Names the file.
    pub(super) fn remove(&self, attachment: &Attachment) -> io::Result<()> {
        let path = self.path(attachment);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(named(&path, &error)),
            _ => Ok(()),
        }
    }

    /// Reads all records in the order they were written; returns the faults of unreadable ones.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub(super) fn load(&self) -> io::Result<(Vec<AttachPod>, Vec<String>)> {
        let (mut pods, mut faults) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.folder).map_err(|error| named(&self.folder, &error))? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let made = fs::metadata(&path).and_then(|meta| meta.modified());
            match read(&path).and_then(|pod| Ok((made.map_err(|e| e.to_string())?, pod))) {
                Ok((made, pod)) if self.path(&pod.attachment()) == path => pods.push((made, pod)),
                Ok((_, pod)) => {
                    let Attachment { container_id, interface } = pod.attachment();
                    let whose = format!("it is the record of {container_id}:{interface}");
                    faults.push(format!("{}: {whose}", path.display()));
                }
                Err(error) => faults.push(format!("{}: {error}", path.display())),
            }
        }
        pods.sort_by_key(|(made, _)| *made);
        Ok((pods.into_iter().map(|(_, pod)| pod).collect(), faults))
    }

    fn path(&self, attachment: &Attachment) -> PathBuf {
        let Attachment { container_id, interface } = attachment;
        self.folder.join(format!("{container_id}:{interface}.json"))
    }
}

/// A record is a few hundred bytes.
const LONGEST: u64 = 64 << 10;

fn read(path: &Path) -> Result<AttachPod, String> {
    let text = control::read_regular(path, LONGEST).map_err(|error| error.to_string())?;
    let pod: AttachPod = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    pod.check().map(|()| pod)
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;

    fn pod(container: &str) -> AttachPod {
        AttachPod {
            namespace: "default".into(),
            name: "db".into(),
            uid: None,
            container_id: container.into(),
            interface: "eth0".into(),
            netns: "/run/netns/db".into(),
            host_interface: "pg0123456789abc".into(),
            mac: "02:00:00:00:00:01".parse().unwrap(),
            addresses: vec!["10.1.0.2".parse().unwrap()],
        }
    }

    #[test]
    fn records_come_back_until_they_are_removed() {
        let folder = TempDir::new("records");
        let records = Records::open(folder.path()).unwrap();
        records.put(&pod("..")).unwrap();
        records.put(&pod("c1")).unwrap();
        records.put(&pod("c1")).unwrap();
        let again = Records::open(folder.path()).unwrap();
        let (mut pods, faults) = again.load().unwrap();
        pods.sort_by(|a, b| a.container_id.cmp(&b.container_id));
        assert_eq!((pods, faults), (vec![pod(".."), pod("c1")], vec![]));
        again.remove(&pod("c1").attachment()).unwrap();
        again.remove(&pod("c1").attachment()).unwrap();
        assert_eq!(records.load().unwrap().0, [pod("..")]);
    }

    #[test]
    fn what_is_no_record_is_told_and_passed_over() {
        let folder = TempDir::new("records");
        let records = Records::open(folder.path()).unwrap();
        records.put(&pod("c1")).unwrap();
        let folder = folder.path().join("attachments");
        fs::write(folder.join("cut:eth0.json"), "{").unwrap();
        fs::copy(folder.join("c1:eth0.json"), folder.join("c2:eth0.json")).unwrap();
        let spoilt = AttachPod { addresses: vec![], ..pod("c3") };
        records.put(&spoilt).unwrap();
        fs::write(folder.join("c4:eth0.json.new"), "{").unwrap();
        let (pods, mut faults) = records.load().unwrap();
        assert_eq!(pods, [pod("c1")]);
        faults.sort();
        let expected = ["c1:eth0", "addresses", "EOF"];
        assert_eq!(faults.len(), 3, "{faults:?}");
        for (fault, expected) in faults.iter().zip(expected) {
            assert!(fault.contains(expected), "{fault}");
        }
    }

    #[test]
    fn a_record_that_cannot_be_written_is_an_error() {
        let folder = TempDir::new("records");
        let records = Records::open(folder.path()).unwrap();
        let error = records.put(&pod(&"c".repeat(300))).unwrap_err();
        assert!(error.to_string().contains("cccc"), "{error}");
    }
}
