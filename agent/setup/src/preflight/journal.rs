//! The journal: how far back it goes, and whether its place outlives a restart of the machine.

use std::path::{Path, PathBuf};

use rustix::fs::statfs;

use crate::preflight::finding::{Finding, Level};

/// The journal as it is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journal {
    /// Its folder.
    pub folder: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// Hours that fit, where 110 pods open connections to 20 others each.
    pub usual_hours: u64,
    /// Hours that fit, where no two of 100 connections a second have the same ends.
    pub least_hours: u64,
}

/// The file systems that are memory (`statfs(2)`).
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

pub(crate) fn look(journal: &Journal) -> Finding {
    // The folder is made at the start.
    let place = journal.folder.ancestors().find_map(|it| statfs(it).ok());
    let (free, is_in_memory) = place.map_or((u64::MAX, false), |place| {
        let block = u64::try_from(place.f_bsize).unwrap_or(1);
        let kind = place.f_type;
        (place.f_bavail.saturating_mul(block), IN_MEMORY.contains(&kind))
    });
    rate(journal, free, is_in_memory)
}

fn rate(journal: &Journal, free: u64, is_in_memory: bool) -> Finding {
    let Journal { folder, bytes, usual_hours, least_hours } = journal;
    let folder: &Path = folder;
    let detail = format!(
        "{} MB in {}: {} of 100 connections a second to 20 ends a pod, {} if each has other ends",
        bytes / 1_000_000,
        folder.display(),
        span(*usual_hours),
        span(*least_hours),
    );
    if is_in_memory {
        return Finding::new("journal", Level::Warning, format!("{detail}; in memory"))
            .hint("set journal-dir to a folder on a disk: the journal ends with the machine");
    }
    if free < *bytes {
        let free = free / 1_000_000;
        return Finding::new("journal", Level::Warning, format!("{detail}; {free} MB are free"))
            .hint("a smaller journal, or another journal-dir");
    }
    Finding::new("journal", Level::Good, detail)
}

fn span(hours: u64) -> String {
    if hours < 48 { format!("{hours} h") } else { format!("{} days", hours / 24) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_says_how_far_it_reaches_and_needs_a_disk() {
        let folder = PathBuf::from("/var/lib/podgate/journal");
        let (usual_hours, least_hours) = (1280, 30);
        let journal = Journal { folder, bytes: 256_000_000, usual_hours, least_hours };
        let good = rate(&journal, 1 << 40, false);
        assert_eq!(good.level, Level::Good);
        let expected = "256 MB in /var/lib/podgate/journal: 53 days of 100 connections a second to 20 ends \
                        a pod, 30 h if each has other ends";
        assert_eq!(good.detail, expected);
        assert_eq!(rate(&journal, 1_000_000, false).level, Level::Warning);
        assert_eq!(rate(&journal, 1 << 40, true).level, Level::Warning);
        let shm = Journal { folder: "/dev/shm/podgate/journal".into(), ..journal };
        assert!(look(&shm).detail.ends_with("; in memory"), "{}", look(&shm).detail);
    }
}
