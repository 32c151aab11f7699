//! Attaches and detaches pods.
//!
//! Pods that start at once are attached in batches, with one snapshot a batch, so that a policy
//! change waits for one batch at most.
//!
//! An attachment has three stages. First its port is opened; the snapshots so far drop its packets.
//! Then the pod's object is known and a snapshot with its tables is published. Last, that snapshot
//! is in force on every worker; the interface is switched on and the request answered.

use std::sync::mpsc::Sender;
use std::time::Instant;

use control::{Control, PodKey};

use super::ports::log_port;
use super::{ControlLoop, LONGEST_ATTACHING};
use crate::run::pods::{Attached, PodPort, Waiting, key_of};
use local_api::{Answer, ApiError, AttachPod, AttachedPod, Attachment, ErrorKind};

impl PodPort {
    pub(super) fn id(&self) -> Option<dataplane::PortId> {
        match self {
            Self::Open { id, .. } => Some(*id),
            Self::Failed { .. } => None,
        }
    }
}

impl Waiting {
    /// Sends the answer to all pending requests.
    pub(super) fn answer(self, answer: &Answer) {
        for reply in self.replies {
            // The client may have disconnected.
            let _ = reply.send(answer.clone());
        }
    }

    /// Describes what the attachment waits for.
    pub(super) fn reason(&self, key: &PodKey, control: &Control, is_synced: bool) -> String {
        match (self.published, control.pod(key)) {
            (None, None) if !is_synced => {
                "the API server, whose objects are not all listed yet".to_owned()
            }
            (Some(generation), _) => format!("snapshot {generation} to be in force"),
            (None, None) => "its Pod object, which is not known yet".to_owned(),
            (None, Some(_)) if control.is_namesake(key) => {
                "its Pod object; the one known is of another pod of that name".to_owned()
            }
            (None, Some(pod)) if pod.host_network => {
                "its Pod object, which says hostNetwork, to change".to_owned()
            }
            (None, Some(pod)) if pod.finished => {
                "its Pod object, which says that it has finished, to change".to_owned()
            }
            (None, Some(_)) => "its tables".to_owned(),
        }
    }
}

impl ControlLoop {
    /// Starts requested attachments, for [`LONGEST_ATTACHING`] at most.
    pub(super) fn attach_some(&mut self) {
        let began = Instant::now();
        let mut any = false;
        while let Some((pod, reply)) = self.asked_for.pop_front() {
            any |= self.attach(pod, reply);
            if began.elapsed() >= LONGEST_ATTACHING {
                break;
            }
        }
        if any {
            self.commit_ports();
        }
    }

    /// Starts this attachment now if its request is queued: another request is about it.
    pub(super) fn attach_now(&mut self, attachment: &Attachment) {
        let is_it = |(pod, _): &(AttachPod, _)| pod.attachment() == *attachment;
        let (now, later): (Vec<_>, Vec<_>) = self.asked_for.drain(..).partition(is_it);
        self.asked_for.extend(later);
        let begun: Vec<bool> =
            now.into_iter().map(|(pod, reply)| self.attach(pod, reply)).collect();
        if begun.contains(&true) {
            self.commit_ports();
        }
    }

    /// Returns whether a port was opened, which needs a new snapshot.
    fn attach(&mut self, pod: AttachPod, reply: Sender<Answer>) -> bool {
        let attachment = pod.attachment();
        if self.is_stale(&attachment) {
            self.drop_pod(&attachment, "its interface was made anew");
        }
        if let Some(known) = self.pods.find_mut(&attachment) {
            if known.pod != pod {
                let text = format!(
                    "container {} is attached as {} with other content",
                    attachment.container_id, attachment.interface
                );
                let _ = reply.send(ApiError::new(ErrorKind::Conflict, text).into());
                return false;
            }
            match &mut known.waiting {
                Some(waiting) => waiting.replies.push(reply),
                None => {
                    let flow_offload = known.port.is_behind_program();
                    let attached = AttachedPod { generation: self.generation, flow_offload };
                    let _ = reply.send(Answer::result(&attached));
                }
            }
            return false;
        }
        let begun = self.begin(pod, &reply);
        let is_open = begun.is_ok();
        if let Err(error) = begun {
            tracing::warn!("{error}");
            let _ = reply.send(error.into());
        }
        is_open
    }

    fn begin(&mut self, pod: AttachPod, reply: &Sender<Answer>) -> Result<(), ApiError> {
        self.pods.admit(&pod, &self.own_addresses())?;
        let (key, interface) = (key_of(&pod), pod.host_interface.clone());
        if self.host.as_ref().is_some_and(|host| host.config.switch_interface == interface) {
            let text = format!("attach pod {key}: interface {interface} is the host port");
            return Err(ApiError::new(ErrorKind::Conflict, text));
        }
        let failed =
            |error| ApiError::new(ErrorKind::Internal, format!("attach pod {key}: {error}"));
        let port = self.open_pod_port(&interface, pod.mac.0).map_err(failed)?;
        log_port(&key.to_string(), &interface, &port);
        let since = Instant::now();
        let deadline = since + self.shared.config.attach_timeout;
        let waiting = Waiting { since, replies: vec![reply.clone()], deadline, published: None };
        self.pods.insert(pod, port, Some(waiting));
        self.bind(&key);
        Ok(())
    }

    /// Returns whether the interface of an attachment was deleted.
    fn is_stale(&mut self, attachment: &Attachment) -> bool {
        let Some(known) = self.pods.find(attachment) else { return false };
        let interface = known.pod.host_interface.clone();
        let PodPort::Open { index, .. } = known.port else { return false };
        self.interfaces.index(&interface).is_ok_and(|now| now != Some(index))
    }

    /// Returns whether a snapshot is published that is not in force, or something waits for one.
    pub(super) fn is_publishing(&self) -> bool {
        let waiting = self.pods.iter().filter_map(|attached| attached.waiting.as_ref());
        self.published.is_waiting()
            || !self.to_bring_up.is_empty()
            || waiting.into_iter().any(|waiting| waiting.published.is_some())
    }

    /// Advances pending attachments to their next stage; ends those past their deadline.
    pub(super) fn reconcile_attachments(&mut self) {
        let view = self.control.view();
        let (in_force, generation) = (self.switch.generation(), self.generation);
        let mut done = Vec::new();
        let mut failed = Vec::new();
        let mut changed = false;
        let now = Instant::now();
        for attached in self.pods.iter_mut() {
            let Attached { key, pod, waiting: Some(waiting), port, .. } = attached else {
                continue;
            };
            // The pod may be deleted again while its attachment waits.
            let known = view.pods.contains_key(key) && port.id().is_some();
            let stage = known.then(|| waiting.published.unwrap_or(generation));
            changed |= stage != waiting.published;
            waiting.published = stage;
            match stage {
                Some(generation) if in_force >= generation => done.push(pod.attachment()),
                _ if now >= waiting.deadline => failed.push(pod.attachment()),
                _ => {}
            }
        }
        let finished: Vec<Waiting> = done.iter().filter_map(|it| self.finish(it)).collect();
        if !finished.is_empty() {
            self.publish_status();
            let attached = AttachedPod {
                generation: self.switch.generation(),
                flow_offload: self.punt.is_some(),
            };
            let answer = Answer::result(&attached);
            for waiting in finished {
                self.measure(&waiting, "ok");
                waiting.answer(&answer);
            }
        }
        for attachment in &failed {
            self.give_up(attachment);
        }
        if changed && done.is_empty() && failed.is_empty() {
            self.publish_status();
        }
    }

    /// Switches the interface on, since the pod's tables are in force; returns the pending
    /// requests.
    fn finish(&mut self, attachment: &Attachment) -> Option<Waiting> {
        let attached = self.pods.find_mut(attachment)?;
        let waiting = attached.waiting.take()?;
        let pod = attached.pod.clone();
        let key = attached.key.to_string();
        let ended = self
            .records
            .put(&pod)
            .map_err(|error| error.to_string())
            .and_then(|()| self.interfaces.bring_up(&pod.host_interface));
        match ended {
            Ok(()) => {
                tracing::info!("pod {key} is attached ({})", pod.host_interface);
                Some(waiting)
            }
            Err(error) => {
                let text = format!("attach pod {key}: {error}");
                self.drop_pod(attachment, &error);
                self.measure(&waiting, "error");
                waiting.answer(&ApiError::new(ErrorKind::Internal, text).into());
                None
            }
        }
    }

    /// Undoes an attachment whose tables did not come in time.
    fn give_up(&mut self, attachment: &Attachment) {
        let Some(attached) = self.pods.find_mut(attachment) else { return };
        let Some(waiting) = attached.waiting.take() else { return };
        let key = attached.key.clone();
        let limit = self.shared.config.attach_timeout;
        let text = format!(
            "attach pod {key}: waited {limit:?} for {}",
            waiting.reason(&key, &self.control, self.initial_sync.is_none())
        );
        self.drop_pod(attachment, &text);
        self.measure(&waiting, "error");
        waiting.answer(&ApiError::new(ErrorKind::NotReady, text).into());
    }

    fn measure(&self, waiting: &Waiting, result: &str) {
        let duration = waiting.since.elapsed().as_secs_f64();
        self.shared.durations.attach.with_label_values(&[result]).observe(duration);
    }

    pub(super) fn detach(&mut self, attachment: &Attachment) -> Answer {
        if self.pods.find(attachment).is_some() {
            self.drop_pod(attachment, "it was detached");
        }
        // Also where nothing is attached: a record may be left of a pod that was not restored.
        self.forget_record(attachment);
        Answer::result(&serde_json::json!({}))
    }

    pub(super) fn check(&self, attachment: &Attachment) -> Answer {
        let Attachment { container_id, interface } = attachment;
        let error = |kind, text: String| ApiError::new(kind, text).into();
        match self.pods.find(attachment) {
            None => {
                let text = format!("no pod is attached as {container_id}/{interface}");
                error(ErrorKind::NotFound, text)
            }
            Some(Attached { key, waiting: Some(waiting), .. }) => {
                let reason = waiting.reason(key, &self.control, self.initial_sync.is_none());
                error(ErrorKind::NotReady, format!("pod {key} waits for {reason}"))
            }
            Some(Attached { key, port: PodPort::Failed { why, .. }, .. }) => {
                error(ErrorKind::NotReady, format!("pod {key} has no port: {why}"))
            }
            Some(attached) => Answer::result(&attached.pod),
        }
    }

    /// Undoes everything that belongs to an attachment.
    pub(super) fn drop_pod(&mut self, attachment: &Attachment, why: &str) {
        let Some(attached) = self.pods.remove(attachment) else { return };
        let key = attached.key.clone();
        tracing::info!("pod {key} ({}) is detached: {why}", attached.pod.host_interface);
        if let Some(id) = attached.port_id() {
            self.remove_port(id);
        }
        self.bind(&key);
        self.commit_ports();
        self.forget_record(attachment);
        if let Some(waiting) = attached.waiting {
            let text = format!("attach pod {key}: {why}");
            waiting.answer(&ApiError::new(ErrorKind::Conflict, text).into());
        }
    }

    /// Binds the pod's name to its addresses, or unbinds it if the pod is not attached.
    pub(super) fn bind(&mut self, key: &PodKey) {
        let addresses = self.pods.addresses(key);
        match addresses.is_empty() {
            true => self.control.unbind(key),
            false => self.control.bind_address(key.clone(), self.pods.uid(key), addresses),
        }
    }

    pub(super) fn forget_record(&self, attachment: &Attachment) {
        if let Err(error) = self.records.remove(attachment) {
            tracing::error!("state-dir: {error}");
        }
    }
}
