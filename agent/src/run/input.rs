//! What a switch is given, found usable before anything of the machine is touched: whoever gives
//! it something faulty hears of that first, whatever else would stand in the way.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::source::{ApiServer, Manifests, Reading, Source};
use super::{Event, StartError};
use crate::config::Config;

/// Input that a switch can start with.
pub struct Input {
    /// What was decided.
    pub config: Config,
    pub(super) source: Source,
    /// The manifests, if there are some.
    pub(super) reading: Option<Reading>,
    /// Where the source tells what it knows, and all others what happens.
    pub(super) events: Sender<Event>,
    pub(super) received: Receiver<Event>,
}

impl Input {
    /// Reads the manifests, or what says how the API server is asked, as the configuration has it.
    ///
    /// # Errors
    /// [`StartError::Input`] for what cannot be used, with its place.
    pub fn read(config: Config) -> Result<Self, StartError> {
        let (events, received) = channel();
        let tell = events.clone();
        let mut reading = None;
        let source = match (&config.api_server, config.manifests.is_empty()) {
            (Some(access), _) => {
                let send = move |event, slot| tell.send(Event::Source(event, slot)).is_ok();
                Source::ApiServer(ApiServer::watch(access.clone(), send)?)
            }
            (None, true) => Source::Nothing,
            (None, false) => {
                let manifests = Manifests::watch(&config.manifests, move |reading| {
                    // After the loop has ended nobody needs to know.
                    let _ = tell.send(Event::Manifests(reading));
                })?;
                reading = Some(manifests.first()?);
                Source::Manifests(manifests)
            }
        };
        Ok(Self { config, source, reading, events, received })
    }
}
