//! Reads and checks the switch's input before anything on the machine is touched, so that a fault
//! in it is reported before any other. Then locks the state folder.

use std::fs;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use socket_policy::SocketPolicy;

use super::error::StartError;
use super::events::Event;
use super::source::{ApiServer, Manifests, ReadManifests, Reading, Source};
use super::state_dir::lock_folder;
use crate::config::Config;

/// Input that a switch can start with.
pub struct Input {
    /// The configuration.
    pub config: Config,
    pub(super) source: Source,
    /// The manifests, if any are configured, and what has changed since they were read.
    pub(super) readings: Vec<Reading>,
    /// Sender for the events of the source and of all other parts.
    pub(super) events: Sender<Event>,
    pub(super) received: Receiver<Event>,
    /// Programs for pods' cgroups, or why there are none; see [`load_socket_policies`](super::load_socket_policies).
    pub socket_policies: Result<Option<SocketPolicy>, String>,
    /// Programs of encryption, if they were loaded already, or why they could not be.
    pub encryption: Option<Result<encryption::Programs, encryption::Error>>,
    /// Keeps a second switch from using the state folder.
    pub(super) lock: Arc<fs::File>,
}

impl Input {
    /// Reads the manifests, unless that is done, or the credentials for the API server, as configured.
    ///
    /// # Errors
    /// [`StartError::Input`] with the place of the fault; [`StartError::Failed`] if another switch uses
    /// the state folder.
    pub fn read(config: Config, manifests: Option<ReadManifests>) -> Result<Self, StartError> {
        let (events, received) = channel();
        let report = events.clone();
        let mut readings = Vec::new();
        let source = match (&config.api_server, config.manifests.is_empty()) {
            (Some(access), _) => {
                let send = move |events, slots| report.send(Event::Source(events, slots)).is_ok();
                let (node, aggregate) = (&config.node_name, config.aggregate);
                Source::ApiServer(ApiServer::watch(access.clone(), node, aggregate, send)?)
            }
            (None, true) => Source::Nothing,
            (None, false) => {
                let paths = &config.manifests;
                let read = manifests.map_or_else(|| ReadManifests::read(paths), Ok)?;
                let report = move |reading| {
                    // The loop may have ended.
                    let _ = report.send(Event::Manifests(reading));
                };
                let (manifests, read) = Manifests::watch(read, paths, report)?;
                readings.extend(read);
                Source::Manifests(manifests)
            }
        };
        let lock = Arc::new(lock_folder(&config.state_dir)?);
        let (socket_policies, encryption) = (Ok(None), None);
        Ok(Self { config, source, readings, events, received, socket_policies, encryption, lock })
    }
}
