//! The private key of this node, and its change.
//!
//! WireGuard gives each address to one key, so a peer cannot take packets by two of them at one device. While a node
//! changes its key, packets take a second device, where its next key is in force already:
//!
//! ```text
//!   offered: the next key is published ─▶ every node sends by the second device once a session is there
//!   changed: the first device has the key ─▶ every node sends by the first device once a session is there
//! ```
//!
//! Both devices receive all the time, so no packet is lost with nodes that follow. The step ends without those that
//! do not: they lose what is sent until they do.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use control::model::WireGuard;
use control::{Durability, read_regular, replace_file};
use encryption::PrivateKey;
use linux_net::WireGuardPeerState;

/// Names of the files with the private key and the next one, in the folder of the state.
const KEY: &str = "wireguard.key";
const NEXT: &str = "wireguard.key.next";
/// The longest such file, in bytes.
const LONGEST_KEY: u64 = 4096;
/// Time for which everyone has to send by the device of a step, and nothing of pods to arrive by the other one, before
/// the next step.
const SETTLED: Duration = Duration::from_secs(5);
/// Bytes of a node in that time that are no packets of pods: keepalives and handshakes.
const QUIET: u64 = 512;
/// Time after which a step ends without nodes that do not follow, and after which a key that is not published is
/// given up.
const LIMIT: Duration = Duration::from_secs(60);
/// Lifetime of a session (section 6.1 of the WireGuard paper).
const SESSION: Duration = Duration::from_secs(180);

/// The private key, and the one that it changes to.
pub(super) struct Keys {
    folder: PathBuf,
    own: PrivateKey,
    rotation: Option<Rotation>,
}

struct Rotation {
    next: PrivateKey,
    step: Step,
    /// The beginning of the step.
    since: Instant,
    /// Since when every node follows, and what had arrived by the device that is left.
    settled: Option<(Instant, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Offered,
    Changed,
}

/// The state by which a change goes on.
pub(super) struct Progress<'p> {
    /// Keys of this node as the other nodes see them.
    pub(super) published: Option<&'p WireGuard>,
    /// Nodes with a session, and those of them whose packets take the second device.
    pub(super) live: usize,
    pub(super) on_second: usize,
    /// Encrypted bytes received by the first device, and by the second one, in all.
    pub(super) received: [u64; 2],
}

impl Keys {
    /// Reads the keys; the first one is made if there is none.
    ///
    /// # Errors
    /// If a file cannot be read or written, or has no key. Names the file.
    pub(super) fn open(folder: &Path) -> Result<Self, String> {
        let named =
            |name: &str, error: io::Error| format!("{}: {error}", folder.join(name).display());
        let own = match read(&folder.join(KEY)).map_err(|error| named(KEY, error))? {
            Some(key) => key,
            None => make(&folder.join(KEY)).map_err(|error| named(KEY, error))?,
        };
        let next = read(&folder.join(NEXT)).map_err(|error| named(NEXT, error))?;
        let mut keys = Self { folder: folder.to_owned(), own, rotation: None };
        match next {
            // Of a process that ended between both files.
            Some(next) if next == keys.own => keys.forget_next(),
            Some(next) => keys.rotation = Some(Rotation::to(next)),
            None => {}
        }
        Ok(keys)
    }

    /// The key of the first device.
    pub(super) fn own(&self) -> &PrivateKey {
        &self.own
    }

    /// The key of the second device.
    pub(super) fn second(&self) -> &PrivateKey {
        self.next().unwrap_or(&self.own)
    }

    /// The key that is changed to; it is published, and stays so until every node uses it.
    pub(super) fn next(&self) -> Option<&PrivateKey> {
        self.rotation.as_ref().map(|change| &change.next)
    }

    /// The step of a change, for people.
    pub(super) fn step(&self) -> Option<&'static str> {
        Some(match self.rotation.as_ref()?.step {
            Step::Offered => "the next key is published",
            Step::Changed => "the key has changed, and other nodes follow",
        })
    }

    /// Begins to change the key. One that changes already goes on.
    ///
    /// # Errors
    /// If the next key cannot be kept.
    pub(super) fn begin(&mut self) -> Result<(), String> {
        if self.rotation.is_none() {
            let path = self.folder.join(NEXT);
            let next = make(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            self.rotation = Some(Rotation::to(next));
        }
        Ok(())
    }

    /// Time since the first device has its key, while that changes.
    pub(super) fn age(&self, now: Instant) -> Option<Duration> {
        let change = self.rotation.as_ref().filter(|it| it.step == Step::Changed)?;
        Some(now.saturating_duration_since(change.since))
    }

    /// Goes on to the next step if it is time, and returns whether the first device gets another key; then
    /// [`Self::has_changed`] follows.
    ///
    /// # Errors
    /// If the key cannot be kept; it is tried again.
    pub(super) fn advance(&mut self, seen: &Progress<'_>, now: Instant) -> io::Result<bool> {
        let Some(change) = &mut self.rotation else { return Ok(false) };
        let next = Some(change.next.public());
        let is_late = now.saturating_duration_since(change.since) >= LIMIT;
        let (is_published, follows) = match change.step {
            Step::Offered => {
                (seen.published.is_some_and(|it| it.next == next), seen.on_second == seen.live)
            }
            Step::Changed => {
                (seen.published.is_some_and(|it| Some(it.public_key) == next), seen.on_second == 0)
            }
        };
        let received = match change.step {
            Step::Offered => seen.received[0],
            Step::Changed => seen.received[1],
        };
        let quiet = QUIET * seen.live.max(1) as u64;
        let is_quiet = |(_, before): &(Instant, u64)| received.saturating_sub(*before) <= quiet;
        change.settled = match change.settled.filter(is_quiet) {
            _ if !(is_published && follows) => None,
            Some(settled) => Some(settled),
            // Just now, or others still send by the device that is left.
            None => Some((now, received)),
        };
        let is_over = |(since, _): (Instant, u64)| now.saturating_duration_since(since) >= SETTLED;
        let has_settled = change.settled.is_some_and(is_over);
        match change.step {
            _ if !has_settled && !is_late => Ok(false),
            Step::Offered if !is_published => {
                tracing::error!(
                    "encryption: the key stays as it is: the next one is not published"
                );
                self.forget_next();
                self.rotation = None;
                Ok(false)
            }
            Step::Offered => {
                replace_file(&self.folder.join(KEY), Durability::Synced, |out| {
                    change.next.write(out)
                })?;
                self.own = change.next.clone();
                (change.step, change.since, change.settled) = (Step::Changed, now, None);
                self.forget_next();
                Ok(true)
            }
            Step::Changed => {
                tracing::info!("encryption: the key has changed");
                self.rotation = None;
                Ok(false)
            }
        }
    }

    /// The first device has the key from now on.
    pub(super) fn has_changed(&mut self, now: Instant) {
        if let Some(change) = &mut self.rotation {
            change.since = now;
        }
    }

    fn forget_next(&self) {
        let path = self.folder.join(NEXT);
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!("{}: {error}", path.display());
        }
    }
}

impl Rotation {
    fn to(next: PrivateKey) -> Self {
        Self { next, step: Step::Offered, since: Instant::now(), settled: None }
    }
}

/// Whether packets for a node take the second device: they do once there is a session, until the first device has one
/// by the keys that both nodes have changed to. `age`: time since the first device has its key, if that is new.
pub(super) fn takes_second(
    first: Option<&WireGuardPeerState>,
    second: Option<&WireGuardPeerState>,
    is_changed: bool,
    age: Option<Duration>,
) -> bool {
    // Ages come in whole seconds, rounded down.
    let is_new = |handshake: Duration| age.is_none_or(|it| handshake + Duration::from_secs(1) < it);
    is_live(second)
        && !(is_changed
            && is_live(first)
            && first.and_then(|it| it.handshake_age).is_some_and(is_new))
}

/// Whether a peer has a session.
pub(super) fn is_live(peer: Option<&WireGuardPeerState>) -> bool {
    peer.and_then(|it| it.handshake_age).is_some_and(|age| age < SESSION)
}

/// The key of a file; `None` if there is none.
fn read(path: &Path) -> io::Result<Option<PrivateKey>> {
    match read_regular(path, LONGEST_KEY) {
        Ok(text) => {
            let key = std::str::from_utf8(&text).ok().and_then(PrivateKey::parse);
            let no_key = || io::Error::new(ErrorKind::InvalidData, "it has no WireGuard key");
            key.ok_or_else(no_key).map(Some)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a key, in a file that only this user reads.
fn make(path: &Path) -> io::Result<PrivateKey> {
    let key = PrivateKey::generate()?;
    replace_file(path, Durability::Synced, |out| key.write(out))?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_only_its_owner_reads_it() {
        let folder = testkit::TempDir::new("key");
        let mut keys = Keys::open(folder.path()).unwrap();
        keys.begin().unwrap();
        for name in [KEY, NEXT] {
            let mode = folder.path().join(name).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        let again = Keys::open(folder.path()).unwrap();
        assert_eq!((again.own(), again.next()), (keys.own(), keys.next()));
        for name in [NEXT, KEY] {
            std::fs::write(folder.path().join(name), "AAAA\n").unwrap();
            let error = Keys::open(folder.path()).err().unwrap();
            assert!(error.contains(name), "a damaged key is not replaced: {error}");
        }
    }

    fn published(keys: &Keys) -> WireGuard {
        let next = keys.next().map(PrivateKey::public);
        WireGuard { public_key: keys.own().public(), port: 7, next, host_network: false }
    }

    fn on(published: &WireGuard, on_second: usize) -> Progress<'_> {
        Progress { published: Some(published), live: 2, on_second, received: [0; 2] }
    }

    #[test]
    fn a_step_waits_for_everyone_and_the_key_is_kept_before_it_is_in_force() {
        let folder = testkit::TempDir::new("key");
        let mut keys = Keys::open(folder.path()).unwrap();
        let old = published(&keys);
        keys.begin().unwrap();
        let offered = published(&keys);
        let next = keys.second().clone();
        assert_ne!(keys.own(), &next);
        let mut now = Instant::now();
        let mut after = |keys: &mut Keys, seconds: u64, seen: &Progress<'_>| {
            now += Duration::from_secs(seconds);
            keys.advance(seen, now).unwrap()
        };
        assert!(!after(&mut keys, 1, &on(&old, 2)), "others have not seen it");
        assert!(!after(&mut keys, 1, &on(&offered, 1)), "one has no session");
        assert!(!after(&mut keys, 1, &on(&offered, 2)));
        assert!(!after(&mut keys, 3, &on(&offered, 2)), "others may look later");
        let sends = Progress { received: [9000, 0], ..on(&offered, 2) };
        assert!(!after(&mut keys, 2, &sends), "one still sends by the first device");
        assert!(!after(&mut keys, 4, &sends));
        assert!(after(&mut keys, 1, &sends));
        assert_eq!((keys.own(), keys.second()), (&next, &next));
        assert_eq!(Keys::open(folder.path()).unwrap().own(), &next);
        let changed = published(&keys);
        assert_eq!((changed.public_key, changed.next), (next.public(), Some(next.public())));
        for (seconds, seen) in [(1, on(&offered, 0)), (6, on(&changed, 1)), (1, on(&changed, 0))] {
            assert!(!after(&mut keys, seconds, &seen));
            assert!(keys.step().is_some());
        }
        assert!(!after(&mut keys, 5, &on(&changed, 0)));
        assert_eq!((keys.step(), keys.next()), (None, None));
        assert_eq!(keys.own(), &next);
    }

    #[test]
    fn nodes_that_do_not_follow_end_no_change_and_an_unpublished_key_is_given_up() {
        let folder = testkit::TempDir::new("key");
        let mut keys = Keys::open(folder.path()).unwrap();
        let old = published(&keys);
        keys.begin().unwrap();
        let later = Instant::now() + LIMIT;
        assert!(!keys.advance(&on(&old, 2), later).unwrap());
        assert_eq!((keys.step(), keys.own().public()), (None, old.public_key));
        assert!(Keys::open(folder.path()).unwrap().next().is_none());
        keys.begin().unwrap();
        let offered = published(&keys);
        assert!(keys.advance(&on(&offered, 0), Instant::now() + LIMIT).unwrap());
    }

    #[test]
    fn packets_take_the_device_that_has_a_session() {
        let peer = |age: Option<u64>| {
            let handshake_age = age.map(Duration::from_secs);
            Some(WireGuardPeerState { handshake_age, ..Default::default() })
        };
        let takes = |first, second, is_changed, age: Option<u64>| {
            let (first, second) = (peer(first), peer(second));
            let age = age.map(Duration::from_secs);
            takes_second(first.as_ref(), second.as_ref(), is_changed, age)
        };
        assert!(!takes(Some(1), None, false, None), "no session yet");
        assert!(takes(Some(1), Some(1), false, None));
        assert!(takes(None, Some(1), true, None), "the new key has no session yet");
        assert!(!takes(Some(1), Some(1), true, None));
        assert!(takes(Some(7), Some(1), true, Some(5)), "the session of the key before");
        assert!(!takes(Some(2), Some(1), true, Some(5)));
        assert!(!takes(Some(1), Some(180), false, None), "it has ended");
    }
}
