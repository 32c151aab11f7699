//! The log as it was received, and whether it is late; no I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::objects::{Log, SLOTS};

/// The part of the log that was received.
#[derive(Debug)]
pub(super) struct Heard {
    /// The last objects.
    log: BTreeMap<u64, Log>,
    /// Resource version of the list.
    pub(super) version: String,
    /// When the newest object came, or the watch was answered again; and how many came since the log was listed.
    at: Instant,
    count: u64,
    /// Why the watch fails, and since when.
    trouble: Option<(String, Instant)>,
}

impl Heard {
    pub(super) fn new(now: Instant) -> Self {
        Self { log: BTreeMap::new(), version: String::new(), at: now, count: 0, trouble: None }
    }

    /// A list of this version was received; its objects follow.
    pub(super) fn listed(&mut self, version: String) {
        self.version = version;
        self.log.clear();
        self.count = 0;
    }

    /// The watch is answered; returns whether it failed before.
    pub(super) fn answered(&mut self, now: Instant) -> bool {
        self.at = now;
        self.trouble.take().is_some()
    }

    /// The watch fails; returns whether it did not before.
    pub(super) fn fails(&mut self, why: String, now: Instant) -> bool {
        let since = self.trouble.take().map(|(_, since)| since);
        self.trouble = Some((why, since.unwrap_or(now)));
        since.is_none()
    }

    pub(super) fn is_failing(&self) -> bool {
        self.trouble.is_some()
    }

    /// An object was written just now.
    pub(super) fn written(&mut self, now: Instant) {
        self.at = now;
        self.count += 1;
    }

    /// Keeps an object; one that is new is the last one.
    pub(super) fn keep(&mut self, log: Log, is_new: bool) {
        if is_new {
            // What was made anew may begin again below.
            self.log.split_off(&log.sequence.saturating_add(1));
        }
        self.log.insert(log.sequence, log);
        while self.log.len() as u64 > SLOTS {
            self.log.pop_first();
        }
    }

    /// Whether an object was written since the list.
    pub(super) fn is_written(&self) -> bool {
        self.count > 0
    }

    /// The newest object.
    pub(super) fn last(&self) -> Option<&Log> {
        self.log.last_key_value().map(|(_, log)| log)
    }

    /// The last objects.
    pub(super) fn all(&self) -> Vec<Log> {
        self.log.values().cloned().collect()
    }

    /// Why the aggregate is late; `None` if it is not. A watch that fails together with that of the own node's pods
    /// (`is_current` is false) is an outage of the API server.
    pub(super) fn lateness(
        &self,
        late: Duration,
        is_current: bool,
        now: Instant,
    ) -> Option<String> {
        if let Some((why, since)) = &self.trouble {
            return (is_current && now - *since > late).then(|| why.clone());
        }
        let Some(log) = self.last() else {
            return Some("no PodgateAddresses are there".to_owned());
        };
        let (age, silence) = (Duration::from_millis(log.age), now - self.at);
        match () {
            () if age > late => {
                Some(format!("the pods of node {} are {} s old", log.writer, age.as_secs()))
            }
            () if silence > late => {
                Some(format!("node {} wrote nothing for {} s", log.writer, silence.as_secs()))
            }
            () => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: Duration = Duration::from_secs(12);
    const MOMENT: Duration = Duration::from_millis(1);

    fn log(sequence: u64, age: Duration) -> Log {
        Log { sequence, writer: "n1".into(), age: age.as_millis() as u64, ..Log::default() }
    }

    /// One object of the log, written at the moment that is returned.
    fn heard(age: Duration) -> (Heard, Instant) {
        let now = Instant::now();
        let mut heard = Heard::new(now);
        heard.written(now);
        heard.keep(log(7, age), true);
        (heard, now)
    }

    #[test]
    fn a_writer_is_late_after_the_bound_and_not_before() {
        let (mut heard, now) = heard(Duration::ZERO);
        assert_eq!(heard.lateness(LATE, true, now + LATE), None);
        let why = heard.lateness(LATE, true, now + LATE + MOMENT);
        assert_eq!(why.as_deref(), Some("node n1 wrote nothing for 12 s"));
        heard.written(now + LATE);
        assert_eq!(heard.lateness(LATE, true, now + 2 * LATE), None);
        // What the writer itself has is older than the bound.
        let (heard, now) = self::heard(LATE + Duration::from_secs(1));
        let why = heard.lateness(LATE, true, now);
        assert_eq!(why.as_deref(), Some("the pods of node n1 are 13 s old"));
        let why = Heard::new(now).lateness(LATE, true, now);
        assert_eq!(why.as_deref(), Some("no PodgateAddresses are there"));
    }

    #[test]
    fn a_watch_that_fails_is_late_unless_everything_fails() {
        let (mut heard, now) = heard(Duration::ZERO);
        assert!(heard.fails("404".into(), now));
        assert!(!heard.fails("403".into(), now + LATE), "it failed before");
        assert_eq!(heard.lateness(LATE, true, now + LATE), None);
        let later = now + LATE + MOMENT;
        assert_eq!(heard.lateness(LATE, true, later).as_deref(), Some("403"));
        assert_eq!(heard.lateness(LATE, false, later), None, "the API server does not answer");
        assert!(heard.answered(later) && !heard.is_failing());
        assert_eq!(heard.lateness(LATE, true, later + LATE), None);
    }

    #[test]
    fn as_many_objects_are_kept_as_there_are_slots() {
        let mut heard = Heard::new(Instant::now());
        for sequence in 0..2 * SLOTS {
            heard.keep(log(sequence, Duration::ZERO), true);
        }
        assert_eq!((heard.all().len() as u64, heard.all()[0].sequence), (SLOTS, SLOTS));
        heard.keep(log(3, Duration::ZERO), true);
        assert_eq!(heard.last().map(|it| it.sequence), Some(3), "it was made anew");
    }
}
