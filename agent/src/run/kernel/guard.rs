//! Watches interfaces whose XDP program must stay attached: without it, frames of a pod reach the
//! kernel without a policy decision.
//!
//! The kernel reports most changes at once; a check of all interfaces runs every second besides.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linux_net::{Error, Link, LinkEvent, LinkEvents, Netlink};
use parking_lot::{Mutex, MutexGuard};

use super::error::KernelError;
use super::event::{EventSink, InterfaceEvent};
use crate::run::thread::Thread;

/// Interval of checks of all interfaces.
const INTERVAL: Duration = Duration::from_secs(1);

/// XDP programs by the numbers of the interfaces they are attached to.
#[derive(Clone, Default)]
pub(super) struct Guarded(Arc<Mutex<HashMap<u32, Program>>>);

/// An XDP program.
#[derive(Clone, Copy)]
pub(super) struct Program {
    /// Its number.
    pub(super) number: u32,
    /// The interface that its loss is reported for.
    pub(super) reported: u32,
}

impl Guarded {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<u32, Program>> {
        self.0.lock()
    }

    fn is_lost(&self, link: &Link) -> bool {
        let guarded = self.lock();
        guarded.get(&link.index).is_some_and(|it| link.xdp_program != Some(it.number))
    }
}

/// Watches interfaces on a thread of its own.
pub(super) fn watch(
    events: LinkEvents,
    guarded: Guarded,
    sink: EventSink,
) -> Result<(), KernelError> {
    let netlink = Netlink::open()?;
    let watch = move || {
        if let Err(error) = run(events, netlink, &guarded, &sink) {
            // Workers still notice deleted interfaces, only later.
            tracing::error!("interfaces are no longer watched: {error}");
        }
    };
    Ok(Thread::start("interfaces", watch).map(Thread::detach)?)
}

fn run(
    mut events: LinkEvents,
    mut netlink: Netlink,
    guarded: &Guarded,
    sink: &EventSink,
) -> Result<(), Error> {
    let report = |event| sink.lock()(event);
    let check = |netlink: &mut Netlink, link: &Link| {
        // An event may be older than the program; the kernel says what is so now.
        let is_lost = guarded.is_lost(link)
            && netlink
                .link(&link.name)
                .is_ok_and(|now| now.index == link.index && guarded.is_lost(&now));
        if is_lost && let Some(lost) = guarded.lock().remove(&link.index) {
            report(InterfaceEvent::ProgramLost(lost.reported));
        }
    };
    let mut due = Instant::now() + INTERVAL;
    loop {
        match events.next_within(due.saturating_duration_since(Instant::now()))? {
            Some(LinkEvent::Gone(link)) => {
                let known = guarded.lock().remove(&link.index);
                // Such an interface stands in front of another one, which is still there.
                if let Some(lost) = known.filter(|it| it.reported != link.index) {
                    report(InterfaceEvent::ProgramLost(lost.reported));
                }
                report(InterfaceEvent::Gone(link.index));
            }
            Some(LinkEvent::Missed) => report(InterfaceEvent::Missed),
            Some(LinkEvent::Changed(link)) => check(&mut netlink, &link),
            None => {}
        }
        if Instant::now() >= due {
            due = Instant::now() + INTERVAL;
            match netlink.links() {
                Ok(links) => links.iter().for_each(|link| check(&mut netlink, link)),
                Err(error) => tracing::debug!("interfaces: {error}"),
            }
        }
    }
}
