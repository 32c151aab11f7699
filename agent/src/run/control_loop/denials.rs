//! Packets that the kernel's rules deny, handed to the event broker, or answered by resets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::nftables::{ABORT, LOG_BYTES, LOG_GROUP, RESET};
use linux_net::LoggedPackets;
use observe::verdicts::EventBroker;

use super::resets::{Resets, abort, reset};
use crate::run::error::StartError;
use crate::run::thread::Thread;

/// Reads the kernel's log until it is dropped.
pub(super) struct Denials {
    stop: Arc<AtomicBool>,
}

/// Longest wait before the thread checks whether to end.
const WAIT: Duration = Duration::from_millis(500);

impl Denials {
    /// Starts the thread. Without the kernel's log policies hold, nothing is observed, and no other end is reset.
    pub(super) fn start(broker: &Arc<EventBroker>) -> Result<Self, StartError> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut log = match LoggedPackets::open(LOG_GROUP, LOG_BYTES) {
            Ok(log) => log,
            Err(error) => {
                tracing::warn!("packets denied by nftables are not observed: {error}");
                return Ok(Self { stop });
            }
        };
        let (broker, ended) = (Arc::clone(broker), Arc::clone(&stop));
        let mut resets = Resets::default();
        let read = move || {
            while !ended.load(Ordering::Acquire) {
                match log.receive(WAIT) {
                    Ok(packets) => packets.iter().for_each(|it| match &*it.prefix {
                        ABORT => resets.send(abort(&it.bytes)),
                        RESET => resets.send(reset(&it.bytes)),
                        by => broker.record_denied(by, &it.bytes),
                    }),
                    Err(error) => {
                        tracing::warn!(
                            "packets denied by nftables are no longer observed: {error}"
                        );
                        return;
                    }
                }
            }
        };
        Thread::start("nflog", read)?.detach();
        Ok(Self { stop })
    }
}

impl Drop for Denials {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}
