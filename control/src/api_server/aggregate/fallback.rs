//! When a switch watches all pods by itself, and when it reads the aggregate again.

use std::time::Duration;

use tokio::time::Instant;

use super::candidate::{Free, Seat};
use super::damage::Damage;
use super::{Aggregator, Closed};

/// The longest time over which switches spread their own watches.
const LONGEST_SPREAD: Duration = Duration::from_secs(600);

impl Aggregator {
    /// Decides by the state and the time.
    pub(super) async fn decide(&mut self) -> Result<(), Closed> {
        let now = Instant::now();
        let late = self.lateness();
        let seat = self.full.as_ref().map_or(Seat::None, |full| *full.seat.borrow());
        let head = self.heard.last();
        let free = Free {
            writer: late.is_some(),
            standby: late.is_some() || head.is_some_and(|log| log.standby.is_empty()),
        };
        if let Some(full) = &self.full {
            full.free.send_if_modified(|known| std::mem::replace(known, free) != free);
        }
        let may_read = late.is_none() && self.heard.is_written() && !self.heard.is_failing();
        if self.is_reading {
            self.keep_reading(late, free.standby).await;
        }
        if self.view.is_some() {
            // It is followed.
        } else if may_read && seat == Seat::None && now >= self.not_before {
            self.load();
        } else if !self.is_reading && self.full.is_none() && now >= self.patience {
            self.begin_full(Seat::None);
        }
        if self.leaving.as_ref().is_some_and(|(at, _)| now >= *at) {
            self.begin_full(Seat::None);
        }
        self.tell().await
    }

    /// While the aggregate is in force: leaves it when it is late, and asks for the seat of a standby that is free.
    async fn keep_reading(&mut self, late: Option<String>, is_free: bool) {
        let now = Instant::now();
        match (late, &self.leaving) {
            (Some(why), None) => {
                tracing::warn!("PodgateAddresses: {why}");
                self.leaving = Some((now + self.spread(), why));
            }
            (None, Some(_))
                if self.view.is_some()
                    && self.full.as_ref().is_none_or(|it| *it.seat.borrow() == Seat::None) =>
            {
                self.leaving = None;
                self.full = None;
            }
            _ => {}
        }
        if !is_free || self.full.is_some() {
            self.vacancy = None;
            return;
        }
        // After an outage the one that was it comes back within this time.
        let at = self.vacancy.unwrap_or_else(|| now + self.timing.lease + self.spread() / 10);
        self.vacancy = Some(at);
        if now >= at {
            self.vacancy = None;
            if self.standby.is_elected().await == Ok(true) {
                self.begin_full(Seat::Standby);
            }
        }
    }

    /// The aggregate does not add up: it is read again at once, and the own watch begins if that is in vain.
    pub(super) fn damaged(&mut self, why: &Damage) {
        let why = why.to_string();
        tracing::warn!("PodgateAddresses: {why}");
        let spread = self.spread();
        if self.view.take().is_some() {
            self.leaving.get_or_insert((Instant::now() + spread, why));
            return;
        }
        self.told.reason = Some(why);
        self.not_before = Instant::now() + half_more_or_less(self.timing.again);
        if !self.is_reading {
            self.begin_full(Seat::None);
        }
    }

    /// Why the aggregate is late; `None` if it is not.
    pub(super) fn lateness(&self) -> Option<String> {
        let is_current = self.own.as_ref().is_none_or(|own| own.is_current);
        self.heard.lateness(self.timing.late, is_current, Instant::now())
    }

    /// A random part of the time over which the switches begin their own watches.
    fn spread(&self) -> Duration {
        let pods = self.heard.last().map_or(0, |log| log.pods);
        let most = self.timing.spread.saturating_mul(u32::try_from(pods).unwrap_or(u32::MAX));
        most.min(LONGEST_SPREAD).mul_f64(fraction())
    }
}

/// A random number from 0 to 1.
fn fraction() -> f64 {
    (ahash::RandomState::new().hash_one(0_u8) % 1024) as f64 / 1024.0
}

pub(super) fn half_more_or_less(wait: Duration) -> Duration {
    wait.mul_f64(0.5 + fraction())
}
