//! The state of the aggregate, for display.

use std::time::{Duration, SystemTime};

use super::super::Event;
use super::candidate::Seat;
use super::state::{Aggregate, AggregateRole};
use super::{Aggregator, Closed};

impl Aggregator {
    /// Reports the state if it is another one.
    pub(super) async fn tell(&mut self) -> Result<(), Closed> {
        let seat = self.full.as_ref().filter(|it| it.is_listed).map(|it| *it.seat.borrow());
        let role = match seat {
            _ if self.is_reading => AggregateRole::Reading,
            Some(Seat::Writer) => AggregateRole::Writing,
            Some(Seat::Standby) => AggregateRole::Standby,
            Some(Seat::None) => AggregateRole::Watching,
            None => AggregateRole::Starting,
        };
        let mut now = Aggregate { role, ..self.told.clone() };
        now.reason = match (&self.leaving, role) {
            (Some((_, why)), _) => Some(why.clone()),
            (None, AggregateRole::Watching | AggregateRole::Starting) => {
                self.told.reason.clone().or_else(|| self.lateness())
            }
            (None, _) => None,
        };
        // What does not add up is not in force.
        if let Some(log) = self.heard.last()
            && (self.view.is_some() || !self.is_reading)
            && log.sequence != self.told.sequence
        {
            now.writer.clone_from(&log.writer);
            now.standby.clone_from(&log.standby);
            now.sequence = log.sequence;
            now.version.clone_from(&log.observed_version);
            now.written.clone_from(&log.observed_time);
            now.age = Duration::from_millis(log.age);
            now.received = Some(SystemTime::now());
        }
        if now != self.told {
            self.told = now.clone();
            self.send(Event::Aggregate(now)).await?;
        }
        Ok(())
    }
}
