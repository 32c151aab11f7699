//! Any bytes as a file of manifests.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use control::manifests::load;
use control::{Control, Scope};

/// Reads them, and has a cluster made of what they say.
pub(crate) fn check(bytes: &[u8]) {
    let path = file();
    fs::write(path, bytes).expect("room for a file");
    let loaded = load(std::slice::from_ref(path));
    assert_eq!(load(std::slice::from_ref(path)), loaded, "a file says one thing");
    for fault in &loaded.faults {
        assert!(fault.to_string().contains("podgate-fuzz"), "a fault names its file: {fault}");
    }
    let mut control = Control::new(Scope::All);
    control.resync(loaded.objects.clone());
    control.commit();
    let view = control.view();
    // The same told again changes nothing.
    control.resync(loaded.objects);
    control.commit();
    assert_eq!(control.view().pods.len(), view.pods.len());
}

/// In memory where there is such a folder.
fn file() -> &'static PathBuf {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let memory = PathBuf::from("/dev/shm");
        let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
        folder.join(format!("podgate-fuzz-{}.yaml", std::process::id()))
    })
}

/// Takes the file away again.
#[allow(dead_code, reason = "a fuzzer ends by being ended")]
pub(crate) fn clean_up() {
    let _ = fs::remove_file(file());
}
