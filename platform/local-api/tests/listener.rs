//! In a process of its own: the umask is the process's.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_socket_has_its_mode_from_the_first_moment_on() {
    let folder = testkit::TempDir::new("listener");
    let path = folder.path().join("socket");
    let ended = AtomicBool::new(false);
    // Umasks that take nothing, and everything of other users'.
    for umask in [0, 0o777] {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(umask));
        ended.store(false, Ordering::Relaxed);
        let widest = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut widest = 0;
                while !ended.load(Ordering::Relaxed) {
                    let mode = std::fs::metadata(&path).map_or(0, |it| it.permissions().mode());
                    widest |= mode & 0o777;
                }
                widest
            });
            for _ in 0..2000 {
                let listener = local_api::listen(&path, 0o600).unwrap();
                let mode = std::fs::metadata(&path).unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600);
                UnixStream::connect(&path).unwrap();
                drop(listener);
                let error = local_api::listen(&path, 0o600).unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
                std::fs::remove_file(&path).unwrap();
            }
            ended.store(true, Ordering::Relaxed);
            watcher.join().unwrap()
        });
        assert_eq!(widest & !0o600, 0, "{widest:o} under umask {umask:o}");
    }
}
