//! The cgroup of a pod, as container runtimes name it.
//!
//! | driver | pod of class Guaranteed, and of another |
//! |---|---|
//! | systemd | `kubepods.slice/kubepods-pod<UID>.slice`, `kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<UID>.slice`, with `_` for `-` in the UID |
//! | cgroupfs | `kubepods/pod<UID>`, `kubepods/burstable/pod<UID>` |
//!
//! Both may stand below a cgroup of kubelet's (`--cgroup-root`), whose name is in front of those of slices.

#![allow(unsafe_code, reason = "a system call that fills a structure")]

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Levels between the root and a pod's cgroup at most.
const DEPTH: usize = 5;

/// Whether `root` is a hierarchy of cgroup v2.
///
/// # Errors
/// If there is no such folder.
pub fn is_v2(root: &Path) -> io::Result<bool> {
    let path = CString::new(root.as_os_str().as_bytes())?;
    // SAFETY: zero is a valid value of every field.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a C string, and the structure outlives the call.
    match unsafe { libc::statfs(path.as_ptr(), &raw mut found) } {
        0 => Ok(found.f_type == libc::CGROUP2_SUPER_MAGIC),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The cgroup of the pod with this UID below `root`, if it is there.
pub fn of_pod(root: &Path, uid: &str) -> Option<PathBuf> {
    // A UID comes from an object, and is to name no other cgroup.
    if uid.is_empty() || !uid.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'-') {
        return None;
    }
    let wanted = [format!("pod{uid}"), format!("-pod{}.slice", uid.replace('-', "_"))];
    search(root, &wanted, DEPTH)
}

/// Whether a process is in a cgroup, or in one inside it.
pub fn has_process(cgroup: &Path, process: u32) -> bool {
    let listed = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    let inside = || std::fs::read_dir(cgroup).into_iter().flatten().flatten();
    listed.lines().any(|it| it.parse() == Ok(process))
        || inside().any(|it| {
            it.file_type().is_ok_and(|it| it.is_dir()) && has_process(&it.path(), process)
        })
}

fn search(folder: &Path, wanted: &[String; 2], depth: usize) -> Option<PathBuf> {
    let [plain, slice] = wanted;
    let mut inside = Vec::new();
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if *name == **plain || name.ends_with(slice.as_str()) {
            return Some(entry.path());
        }
        let is_on_the_way = name.contains("kube") || matches!(name, "burstable" | "besteffort");
        let is_pod = name.starts_with("pod") || name.contains("-pod");
        if is_on_the_way && !is_pod && entry.file_type().is_ok_and(|it| it.is_dir()) {
            inside.push(entry.path());
        }
    }
    let depth = depth.checked_sub(1)?;
    inside.iter().find_map(|folder| search(folder, wanted, depth))
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;

    #[test]
    fn both_drivers_and_all_classes_are_found() {
        let folder = TempDir::new("cgroups");
        let uids = ["11111111-2222-3333-4444-555555555555", "0a", "0b", "0c", "0d", "0e"];
        let paths = [
            "kubepods.slice/kubepods-burstable.slice/\
             kubepods-burstable-pod11111111_2222_3333_4444_555555555555.slice",
            "kubepods.slice/kubepods-pod0a.slice",
            "kubepods/besteffort/pod0b",
            "kubepods/pod0c",
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/\
             kubelet-kubepods-besteffort-pod0d.slice",
            "kubelet/kubepods/burstable/pod0e",
        ];
        for path in paths {
            std::fs::create_dir_all(folder.path().join(path).join("container")).unwrap();
        }
        for (uid, path) in uids.iter().zip(paths) {
            assert_eq!(of_pod(folder.path(), uid), Some(folder.path().join(path)), "{uid}");
        }
        for nobody in ["", "0f", "..", "0", "0c/container", "podkubepods"] {
            assert_eq!(of_pod(folder.path(), nobody), None, "{nobody}");
        }
        let pod = folder.path().join(paths[2]);
        std::fs::write(pod.join("container/cgroup.procs"), "17\n4711\n").unwrap();
        assert!(has_process(&pod, 4711) && !has_process(&pod, 71));
        assert!(!is_v2(folder.path()).unwrap());
        assert!(is_v2(&folder.path().join("none")).is_err());
    }
}
