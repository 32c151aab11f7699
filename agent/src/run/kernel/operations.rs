//! Operations on interfaces, performed one after the other by a thread of their own.
//!
//! ```text
//!   control loop ─ request(Operation) ─▶ InterfaceThread ─▶ Interfaces ─▶ netlink, AF_XDP
//!   control loop ◀── Event::Completed(Vec<Completion>) ───┘
//! ```
//!
//! A request never waits. The order of the operations is that of the requests. Completions of a few
//! milliseconds arrive together, so that pods which start at once share a snapshot.

use std::collections::BTreeMap;
use std::mem::discriminant;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use dataplane::PortId;
use dataplane::wire::Mac;
use flow_offload::Offload;
use linux_net::punt;
use parking_lot::Mutex;

use super::error::KernelError;
use super::interfaces::{Interfaces, Opened, OpenedUplink};
use super::operation::{BringUpFor, Completion, OpenError, Operation, Program, Way};
use super::programmer::{LONG, Programming};
use crate::run::encryption::{self, Encryption};
use crate::run::error::StartError;
use crate::run::thread::Thread;

/// Completions are reported after this time at the latest.
const TOGETHER: Duration = Duration::from_millis(5);
/// Operations of one kind from which on their interfaces are looked up together: to list all interfaces takes the
/// kernel as long as to look up some alone.
const LARGE: usize = 16;
/// Upper bound on the time that the end of the switch waits for requested operations.
const LONGEST_END: Duration = Duration::from_secs(10);
/// The mode of a port behind a program, as shown.
const BEHIND_PROGRAM: &str = "flow offload";

/// The thread. Dropping it ends the thread after the operations requested so far.
pub(in crate::run) struct InterfaceThread {
    requests: Option<Sender<Operation>>,
    current: Arc<Mutex<Option<Current>>>,
    ended: Receiver<()>,
}

/// The operation that is being performed.
struct Current {
    text: String,
    since: Instant,
}

impl InterfaceThread {
    /// Starts the thread; `report` receives the completions.
    ///
    /// # Errors
    /// If there is no thread.
    pub(in crate::run) fn start(
        mut interfaces: Box<dyn Interfaces>,
        report: impl Fn(Vec<Completion>) + Send + 'static,
    ) -> Result<Self, StartError> {
        let (requests, requested) = channel();
        let (end, ended) = channel();
        let current = Arc::new(Mutex::new(None));
        let theirs = Arc::clone(&current);
        let run = move || {
            run(&mut *interfaces, &requested, &theirs, report);
            // Nothing waits for it any more if it took too long.
            let _ = end.send(());
        };
        Thread::start("interfaces", run)?.detach();
        Ok(Self { requests: Some(requests), current, ended })
    }

    /// Requests an operation.
    pub(in crate::run) fn request(&self, operation: Operation) {
        if let Some(requests) = &self.requests {
            // The thread ends after this is dropped.
            let _ = requests.send(operation);
        }
    }

    /// Names an operation that takes too long.
    pub(in crate::run) fn programming(&self) -> Programming {
        let current = self.current.lock();
        let late = current.as_ref().filter(|current| current.since.elapsed() > LONG);
        let error = late.map(|it| format!("the kernel does not finish: {}", it.text));
        Programming { name: "interfaces", in_sync: error.is_none(), error }
    }
}

impl Drop for InterfaceThread {
    fn drop(&mut self) {
        drop(self.requests.take());
        if self.ended.recv_timeout(LONGEST_END).is_err() {
            tracing::warn!("interfaces: {}", self.programming().error.unwrap_or_default());
        }
    }
}

fn run(
    interfaces: &mut dyn Interfaces,
    requested: &Receiver<Operation>,
    current: &Mutex<Option<Current>>,
    report: impl Fn(Vec<Completion>),
) {
    let mut completions = Vec::new();
    let mut began = Instant::now();
    let mut next = None;
    loop {
        let first = next.take().or_else(|| match completions.is_empty() {
            true => requested.recv().ok(),
            false => requested.try_recv().ok(),
        });
        let Some(first) = first else {
            if completions.is_empty() {
                return;
            }
            report(std::mem::take(&mut completions));
            continue;
        };
        let group = group(first, &mut next, requested);
        let is_large = group.len() >= LARGE;
        if is_large {
            interfaces.look_ahead(true);
        }
        let text = group[0].to_string();
        *current.lock() = Some(Current { text, since: Instant::now() });
        let mut attached = attach_programs(&group);
        for operation in group {
            let since = Instant::now();
            if completions.is_empty() {
                began = since;
            }
            *current.lock() = Some(Current { text: operation.to_string(), since });
            completions.extend(perform(interfaces, operation, &mut attached));
            *current.lock() = None;
            if !completions.is_empty() && began.elapsed() >= TOGETHER {
                report(std::mem::take(&mut completions));
            }
        }
        if is_large {
            interfaces.look_ahead(false);
        }
    }
}

/// An operation with those of its kind that are requested already, up to the `next` one of another kind.
fn group(
    first: Operation,
    next: &mut Option<Operation>,
    requested: &Receiver<Operation>,
) -> Vec<Operation> {
    let mut group = vec![first];
    while next.is_none()
        && let Ok(operation) = requested.try_recv()
    {
        match discriminant(&operation) == discriminant(&group[0]) {
            true => group.push(operation),
            false => *next = Some(operation),
        }
    }
    group
}

/// Attaches the programs at all interfaces of a group that are switched on; the result of each.
fn attach_programs(group: &[Operation]) -> BTreeMap<PortId, Result<(), KernelError>> {
    let programs = group.iter().filter_map(|operation| match operation {
        Operation::BringUp { program, .. } => program.as_ref(),
        _ => None,
    });
    let programs: Vec<&Program> = programs.collect();
    // All belong to one flow offload, unless its punt link was made anew just now.
    let of_one = programs.chunk_by(|a, b| Arc::ptr_eq(&a.offload, &b.offload));
    let attach = |programs: &[&Program]| {
        let ports: Vec<_> = programs.iter().map(|it| (it.id, it.index)).collect();
        let results = programs[0].offload.attach_ports(&ports);
        let named = ports.into_iter().zip(results);
        named.map(|((id, _), it)| (id, it.map_err(KernelError::from))).collect::<Vec<_>>()
    };
    of_one.flat_map(attach).collect()
}

fn perform(
    interfaces: &mut dyn Interfaces,
    operation: Operation,
    attached: &mut BTreeMap<PortId, Result<(), KernelError>>,
) -> Option<Completion> {
    let done = match operation {
        Operation::Open { ticket, interface, expected, way } => {
            let result = open(interfaces, &interface, expected, way);
            return Some(Completion::Opened { ticket, result });
        }
        Operation::OpenPuntLink { queues, entries } => {
            return Some(Completion::PuntLinkOpened(open_punt_link(interfaces, queues, entries)));
        }
        Operation::Find { interface, purpose } => {
            return Some(Completion::Found { index: interfaces.index(&interface), purpose });
        }
        Operation::BringUp { interface, program, purpose } => {
            let attached = program.and_then(|program| attached.remove(&program.id));
            let result = bring_up(interfaces, &interface, attached);
            match (purpose, result) {
                (BringUpFor::Attachment(attachment), result) => {
                    return Some(Completion::BroughtUp { attachment, result });
                }
                (BringUpFor::Served(id), Err(why)) => {
                    return Some(Completion::NotBroughtUp { id, why });
                }
                (_, result) => result,
            }
        }
        Operation::ReadAddresses => return Some(Completion::Addresses(interfaces.addresses())),
        Operation::SetUplinkFilter(filter) => {
            return Some(Completion::UplinkFilterSet(interfaces.set_uplink_filter(&filter)));
        }
        Operation::Close(opened) => {
            drop(opened);
            Ok(())
        }
        Operation::BringDown { interface } => interfaces.bring_down(&interface),
        Operation::ReleaseUplink => interfaces.release_uplink(),
        Operation::OffloadHost { offload, kernel_end } => {
            let set = offload.kernel().set_host(kernel_end);
            set.map_err(|error| {
                KernelError::from(error).during("the node's packets are not offloaded")
            })
        }
        Operation::ReleaseHostPort { interface } => interfaces.release_host_port(&interface),
    };
    if let Err(error) = done {
        tracing::warn!("{error}");
    }
    None
}

fn open(
    interfaces: &mut dyn Interfaces,
    interface: &str,
    expected: Option<u32>,
    way: Way,
) -> Result<(Opened, Option<Mac>), OpenError> {
    if let Some(expected) = expected {
        let is_gone = interfaces.index(interface).is_ok_and(|now| now != Some(expected));
        if is_gone {
            let why = format!("interface {interface} is gone").into();
            return Err(OpenError { why, is_gone });
        }
    }
    let opened = match way {
        Way::Sockets => interfaces.open(interface).map(|opened| (opened, None)),
        Way::Uplink => interfaces.open_uplink(interface).map(|it| {
            encryption::release(it.port.index);
            (it.port, Some(it.mac))
        }),
        Way::SteeredUplink { offload, encryption } => {
            let opened = interfaces.open_steered_uplink(interface, Arc::clone(&offload));
            let opened = opened.and_then(|it| encrypt(it, &offload, encryption.as_deref()));
            opened.map(|it| (it.port, Some(it.mac)))
        }
        Way::Program { offload, id, tag, mac } => {
            let opened = interfaces.describe(interface).and_then(|(index, mtu)| {
                offload.add_port(id, index, tag, mac)?;
                let (queues, mode) = (Vec::new(), BEHIND_PROGRAM.to_owned());
                Ok(Opened { queues, mode, index, mtu, kernel_end: None })
            });
            let named = |why: KernelError| why.during(format!("open {interface}"));
            opened.map(|opened| (opened, None)).map_err(named)
        }
    };
    let is_gone = |interfaces: &mut dyn Interfaces| matches!(interfaces.index(interface), Ok(None));
    opened.map_err(|why| OpenError { why, is_gone: is_gone(interfaces) })
}

/// Encrypts at an uplink from now on, or no longer does.
fn encrypt(
    opened: OpenedUplink,
    offload: &Arc<Offload>,
    encryption: Option<&Encryption>,
) -> Result<OpenedUplink, KernelError> {
    let Opened { index, mtu, .. } = opened.port;
    match encryption {
        Some(encryption) => encryption.attach(index, opened.mac, mtu, offload)?,
        None => encryption::release(index),
    }
    Ok(opened)
}

fn bring_up(
    interfaces: &mut dyn Interfaces,
    interface: &str,
    attached: Option<Result<(), KernelError>>,
) -> Result<(), KernelError> {
    if let Some(attached) = attached {
        // The program is in place before that of an earlier process is detached.
        attached.map_err(|error| error.during(format!("open {interface}")))?;
        interfaces.take_xdp_off(interface)?;
    }
    interfaces.bring_up(interface)
}

fn open_punt_link(
    interfaces: &mut dyn Interfaces,
    queues: u32,
    entries: u32,
) -> Result<(Opened, flow_offload::Kernel), KernelError> {
    let text = |error: flow_offload::Error| {
        let system = rustix::system::uname();
        KernelError::from(error).during(format!("Linux {}", system.release().to_string_lossy()))
    };
    let kernel = interfaces.load_programs(entries).map_err(text)?;
    let (mut opened, kernel_end) = interfaces.open_punt_link(queues)?;
    kernel.set_punt(kernel_end).map_err(text)?;
    let ports = opened.queues.into_iter().enumerate();
    opened.queues = ports.map(|(queue, port)| kernel.punt_queue(queue, port)).collect();
    for end in [punt::KERNEL_END, punt::SWITCH_END] {
        interfaces.bring_up(end)?;
    }
    Ok((opened, kernel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_of_one_kind_are_a_group_and_keep_their_order() {
        let (requests, requested) = channel();
        let name = |n: usize| format!("pg{n}");
        for n in 0..40 {
            let (program, purpose) = (None, BringUpFor::Others);
            requests.send(Operation::BringUp { interface: name(n), program, purpose }).unwrap();
        }
        requests.send(Operation::ReadAddresses).unwrap();
        for n in 40..42 {
            requests.send(Operation::BringDown { interface: name(n) }).unwrap();
        }
        let (mut next, mut groups) = (None, Vec::new());
        while let Some(first) = next.take().or_else(|| requested.try_recv().ok()) {
            let group = group(first, &mut next, &requested);
            groups.push(group.iter().map(Operation::to_string).collect::<Vec<_>>());
        }
        let up: Vec<String> = (0..40).map(|n| format!("switch on pg{n}")).collect();
        let down = (40..42).map(|n| format!("switch off pg{n}")).collect();
        assert_eq!(groups, [up, vec!["read the addresses".to_owned()], down]);
    }
}
