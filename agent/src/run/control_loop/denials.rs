//! Packets that the kernel's rules deny, handed to the event broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::nftables::{LOG_BYTES, LOG_GROUP};
use linux_net::LoggedPackets;
use observe::verdicts::EventBroker;

use crate::run::error::StartError;
use crate::run::thread::Thread;

/// Reads the kernel's log until it is dropped.
pub(super) struct Denials {
    stop: Arc<AtomicBool>,
}

/// Longest wait before the thread checks whether to end.
const WAIT: Duration = Duration::from_millis(500);

impl Denials {
    /// Starts the thread. Without the kernel's log policies hold, and nothing is observed.
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
        let read = move || {
            while !ended.load(Ordering::Acquire) {
                match log.receive(WAIT) {
                    Ok(packets) => {
                        packets.iter().for_each(|it| broker.record_denied(&it.prefix, &it.bytes));
                    }
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
