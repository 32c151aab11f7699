//! Handles the events of the log.

use tokio::time::Instant;

use super::super::Event;
use super::follow::News;
use super::objects::{Log, SLOTS};
use super::{Aggregator, Closed};
use crate::Kind;

impl Aggregator {
    /// News of the log.
    pub(super) async fn news(&mut self, news: News) -> Result<(), Closed> {
        match news {
            News::Trouble(why) => {
                let fails = self.heard.fails(why.clone(), Instant::now());
                if fails && self.is_reading {
                    self.send(Event::Trouble(Kind::Pod, why)).await?;
                }
            }
            News::Answered => self.answered().await?,
            News::Listed(mut log, version) => {
                self.answered().await?;
                self.heard.listed(version);
                log.sort_by_key(|it| it.sequence);
                for log in log {
                    self.written(log, false).await?;
                }
            }
            News::Written(log) => self.written(*log, true).await?,
        }
        Ok(())
    }

    /// The watch of the log is answered.
    async fn answered(&mut self) -> Result<(), Closed> {
        let is_current = self.is_reading && self.own.as_ref().is_some_and(|own| own.is_current);
        if self.heard.answered(Instant::now()) && is_current {
            self.send(Event::Current(Kind::Pod)).await?;
        }
        Ok(())
    }

    /// An object of the log; `is_new` if it was written just now.
    async fn written(&mut self, mut log: Log, is_new: bool) -> Result<(), Closed> {
        let Log { writer, standby, observed_version, observed_time, .. } = &mut log;
        [writer, standby, observed_version, observed_time].into_iter().for_each(make_plain);
        if is_new {
            self.heard.written(Instant::now());
        }
        let mut damage = None;
        if let Some(view) = &mut self.view {
            // What a list has beside the last ones was applied long ago.
            let is_old = !is_new && log.sequence.saturating_add(SLOTS) <= view.sequence();
            match if is_old { Ok(Vec::new()) } else { view.apply(&log) } {
                Ok(changes) => {
                    let own = self.own.as_mut().expect("it is watched beside the aggregate");
                    let changes = changes.into_iter();
                    let events: Vec<_> = changes.filter_map(|it| own.merge.elsewhere(it)).collect();
                    for event in events {
                        self.send(event).await?;
                    }
                }
                Err(why) => damage = Some(why),
            }
        }
        self.heard.keep(log, is_new);
        if let Some(why) = damage {
            self.damaged(&why);
        }
        Ok(())
    }
}

/// Keeps what names, versions and times are made of: the text is repeated in logs and in the status.
fn make_plain(text: &mut String) {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "-._:+".contains(it);
    *text = text.chars().filter(|it| is_plain(*it)).take(253).collect();
}
