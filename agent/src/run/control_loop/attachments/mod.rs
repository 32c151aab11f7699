//! Attaches and detaches pods.
//!
//! An attachment has four stages. First opening its port is requested. Then the port is open, and the
//! pod's object is known; a snapshot with its tables is published. Then that snapshot is in force on
//! every worker, and switching the interface on is requested. Last, the request is answered. Until
//! then the pod's packets are dropped. Ports that open at once share a snapshot.

mod stages;

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use control::PodKey;
use local_api::{Answer, ApiError, AttachPod, AttachedPod, Attachment, ErrorKind};

use super::ports::Change;
use super::reconciler::{Effects, Reconciler, Signal};
use crate::run::error::StartError;
use crate::run::kernel::{KernelError, OpenError, Operation, Purpose};
use crate::run::pods::{Attached, Pods, key_of};
use crate::run::port::{ManagedPort, OpenPort, Owner, PortStage};
use crate::run::records::Records;
use crate::run::waiting::Waiting;

/// Keeps the ports of attached pods open, and their records on disk.
pub(super) struct Attachments {
    records: Records,
    /// Timeout of an attachment.
    timeout: Duration,
}

impl Attachments {
    pub(super) fn new(records: Records, timeout: Duration) -> Self {
        Self { records, timeout }
    }

    /// Takes up the pods that an earlier process had attached.
    pub(super) fn take_up(&mut self, on: &mut Effects) -> Result<(), StartError> {
        let failed = |error| StartError::Failed(format!("state-dir: {error}"));
        let (records, faults) = self.records.load().map_err(failed)?;
        for fault in faults {
            tracing::error!("a pod that was attached is not taken up: {fault}");
        }
        let own = on.own_addresses();
        for pod in records {
            match on.pods.admit(&pod, &own) {
                Ok(()) => self.insert(pod, None, on),
                Err(error) => tracing::error!("pod {} is not taken up: {error}", key_of(&pod)),
            }
        }
        Ok(())
    }

    /// Adds a pod and requests its port.
    fn insert(&mut self, pod: AttachPod, waiting: Option<Waiting>, on: &mut Effects) {
        let key = key_of(&pod);
        let mut port = ManagedPort::new(pod.host_interface.clone());
        on.ports.open(Owner::Pod(pod.attachment()), &mut port, Some(pod.mac.0));
        on.pods.insert(pod, port, waiting);
        self.bind(&key, on);
    }

    /// Handles a request to attach a pod. The interface of one that is known is looked up first: it
    /// may have been made anew.
    pub(super) fn attach(&mut self, pod: AttachPod, reply: Sender<Answer>, on: &mut Effects) {
        if let Some(known) = on.pods.find(&pod.attachment()) {
            let interface = known.port.interface.clone();
            let purpose = Purpose::Attach(pod, reply);
            return on.ports.request(Operation::Find { interface, purpose });
        }
        if let Err(error) = on.pods.admit(&pod, &on.own_addresses()) {
            tracing::warn!("{error}");
            return on.replies.send(reply, error);
        }
        let since = Instant::now();
        let deadline = since + self.timeout;
        let waiting =
            Waiting { since, replies: vec![reply], deadline, published: None, switching_on: false };
        self.insert(pod, Some(waiting), on);
    }

    /// Continues a request to attach a known pod: its interface has this number now.
    pub(super) fn attach_known(
        &mut self,
        (pod, reply): (AttachPod, Sender<Answer>),
        index: &Result<Option<u32>, KernelError>,
        on: &mut Effects,
    ) {
        let attachment = pod.attachment();
        let Some(known) = on.pods.find_mut(&attachment) else {
            let text = format!("attach pod {}: it was detached", key_of(&pod));
            return on.replies.send(reply, ApiError::new(ErrorKind::Conflict, text));
        };
        let opened_on = known.port.open().map(|open| open.index);
        if opened_on.is_some_and(|known| index.as_ref().is_ok_and(|now| *now != Some(known))) {
            self.drop_pod(&attachment, "its interface was made anew", on);
            return self.attach(pod, reply, on);
        }
        if known.pod != pod {
            let text = format!(
                "container {} is attached as {} with other content",
                attachment.container_id, attachment.interface
            );
            return on.replies.send(reply, ApiError::new(ErrorKind::Conflict, text));
        }
        match &mut known.waiting {
            Some(waiting) => waiting.replies.push(reply),
            None => {
                let flow_offload = known.port.is_behind_program();
                let generation = on.ports.switch().generation();
                on.replies.send(reply, Answer::result(&AttachedPod { generation, flow_offload }));
            }
        }
    }

    /// Handles the result of opening a pod's port.
    pub(super) fn opened(
        &mut self,
        attachment: &Attachment,
        result: Result<OpenPort, OpenError>,
        on: &mut Effects,
    ) {
        let Some(attached) = on.pods.find_mut(attachment) else { return };
        let is_attached = attached.waiting.is_none();
        match result {
            Ok(open) => {
                attached.port.opened(open);
                attached.port.log(&attached.name);
                // An attachment that waits is switched on when its tables are in force.
                if is_attached {
                    on.ports.bring_up_with_next_snapshot(attached.port.interface.clone());
                }
            }
            Err(error) if !is_attached => {
                self.refuse(attachment, ErrorKind::Internal, &error.why.to_string(), on)
            }
            Err(error) if error.is_gone => {
                on.ports.switch().depart(attached.pod.addresses.iter().map(|it| (*it).into()));
                let why = format!("interface {} is gone", attached.port.interface);
                self.drop_pod(attachment, &why, on);
            }
            Err(error) => {
                attached.port.fail(&error.why.to_string(), Instant::now());
                attached.port.log(&attached.name);
                on.ports.changed(Change::Status);
            }
        }
    }

    /// Continues after the loss of a pod's port: its interface has this number now.
    pub(super) fn lost_found(
        &mut self,
        attachment: &Attachment,
        index: &Result<Option<u32>, KernelError>,
        on: &mut Effects,
    ) {
        let Some(attached) = on.pods.find(attachment) else { return };
        let is_failed = matches!(attached.port.state, PortStage::Failed(_));
        if is_failed && index.as_ref().is_ok_and(|now| *now != attached.port.index) {
            let why = format!("interface {} is gone", attached.port.interface);
            self.drop_pod(attachment, &why, on);
        }
    }

    /// Detaches a pod.
    pub(super) fn detach(&mut self, attachment: &Attachment, on: &mut Effects) -> Answer {
        if on.pods.find(attachment).is_some() {
            self.drop_pod(attachment, "it was detached", on);
        }
        // Also where nothing is attached: a record may be left of a pod that was not restored.
        self.forget_record(attachment);
        Answer::result(&serde_json::json!({}))
    }

    /// Answers all pending requests: the switch ends.
    fn end(&mut self, on: &mut Effects) {
        let ending: Answer = ApiError::new(ErrorKind::NotReady, "podgate is ending").into();
        for waiting in on.pods.iter_mut().filter_map(|attached| attached.waiting.take()) {
            waiting.replies.into_iter().for_each(|it| on.replies.send(it, ending.clone()));
        }
    }

    /// Undoes everything that belongs to an attachment.
    fn drop_pod(&mut self, attachment: &Attachment, why: &str, on: &mut Effects) {
        let Some(attached) = on.pods.remove(attachment) else { return };
        tracing::info!(
            pod = %attached.name,
            interface = %attached.port.interface,
            "pod detached: {why}"
        );
        match &attached.port.state {
            PortStage::Open(open) => on.ports.remove(open.id),
            PortStage::Opening(ticket) => on.ports.cancel(*ticket),
            PortStage::Failed(_) => {}
        }
        self.bind(&attached.key, on);
        self.forget_record(attachment);
        if let Some(waiting) = attached.waiting {
            let text = format!("attach pod {}: {why}", attached.name);
            let error = ApiError::new(ErrorKind::Conflict, text);
            answer(waiting, &error.into(), on);
        }
    }

    /// Binds the pod's name to its addresses, or unbinds it if the pod is not attached.
    fn bind(&self, key: &PodKey, on: &mut Effects) {
        let addresses = on.pods.addresses(key);
        match addresses.is_empty() {
            true => on.control.unbind(key),
            false => on.control.bind_address(key.clone(), on.pods.uid(key), addresses),
        }
        on.ports.changed(Change::Snapshot);
    }

    fn forget_record(&self, attachment: &Attachment) {
        if let Err(error) = self.records.remove(attachment) {
            tracing::error!("state-dir: {error}");
        }
    }
}

impl Reconciler for Attachments {
    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects) {
        match signal {
            Signal::Due(now) => self.advance(*now, effects),
            Signal::End => self.end(effects),
            _ => {}
        }
    }
}

/// Handles the loss of a pod's port. If its interface was deleted, the pod is detached: no DEL may
/// follow, and its address may be reused. Otherwise the port is opened again.
pub(super) fn lost(attachment: &Attachment, why: &str, on: &mut Effects) {
    let Some(attached) = on.pods.find_mut(attachment) else { return };
    attached.port.fail(why, Instant::now());
    let interface = attached.port.interface.clone();
    let purpose = Purpose::Lost(attachment.clone());
    on.ports.request(Operation::Find { interface, purpose });
    on.ports.changed(Change::Snapshot);
}

/// Returns the pod, or the reason why it is not attached.
pub(super) fn check(attachment: &Attachment, on: &Effects) -> Answer {
    let Attachment { container_id, interface } = attachment;
    let error = |kind, text: String| ApiError::new(kind, text).into();
    match on.pods.find(attachment) {
        None => {
            let text = format!("no pod is attached as {container_id}/{interface}");
            error(ErrorKind::NotFound, text)
        }
        Some(Attached { key, waiting: Some(waiting), port, .. }) => {
            let reason = waiting.reason(key, port, &on.control, on.input.is_listed());
            error(ErrorKind::NotReady, format!("pod {key} waits for {reason}"))
        }
        Some(attached) => match &attached.port.state {
            PortStage::Open(_) => Answer::result(&attached.pod),
            PortStage::Opening(_) => {
                error(ErrorKind::NotReady, format!("the port of pod {} opens", attached.key))
            }
            PortStage::Failed(why) => {
                error(ErrorKind::NotReady, format!("pod {} has no port: {why}", attached.key))
            }
        },
    }
}

/// The pods that are attached.
pub(super) fn list(pods: &Pods) -> Answer {
    let attached = pods.iter().filter(|attached| attached.waiting.is_none());
    Answer::result(&attached.map(|attached| &attached.pod).collect::<Vec<_>>())
}

fn answer(waiting: Waiting, with: &Answer, on: &mut Effects) {
    waiting.replies.into_iter().for_each(|reply| on.replies.send(reply, with.clone()));
}
