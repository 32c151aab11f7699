//! Advances attachments that wait from stage to stage, to their answer.

use std::time::Instant;

use local_api::{Answer, ApiError, AttachPod, AttachedPod, Attachment, ErrorKind};

use super::{Attachments, answer};
use crate::run::control_loop::ports::Change;
use crate::run::control_loop::reconciler::Effects;
use crate::run::kernel::KernelError;
use crate::run::pods::Attached;
use crate::run::port::Owner;
use crate::run::waiting::Waiting;

impl Attachments {
    /// Requests failed ports that are due; advances attachments that wait; refuses those past their
    /// deadline.
    pub(super) fn advance(&mut self, now: Instant, on: &mut Effects) {
        let view = on.control.view();
        let in_force = on.ports.switch().generation();
        let has_sockets =
            |generation| on.socket_rules.as_ref().is_none_or(|it| it.is_in_force(generation));
        let (mut ready, mut late) = (Vec::new(), Vec::new());
        for attached in on.pods.iter_mut() {
            let Attached { key, pod, waiting, port, .. } = attached;
            if port.retry.is_due(now) {
                on.ports.open(Owner::Pod(pod.attachment()), port, Some(pod.mac.0));
            }
            let Some(waiting) = waiting else { continue };
            // The pod may be deleted again while its attachment waits.
            let known = view.pods.contains_key(key) && port.id().is_some();
            let stage = known.then(|| waiting.published.unwrap_or(on.generation));
            if stage != waiting.published {
                on.ports.changed(Change::Status);
            }
            waiting.published = stage;
            waiting.switching_on &= known;
            match stage {
                Some(published)
                    if in_force >= published && !waiting.switching_on && has_sockets(published) =>
                {
                    waiting.switching_on = true;
                    ready.push(pod.clone());
                }
                _ if now >= waiting.deadline => late.push(pod.attachment()),
                _ => {}
            }
        }
        for pod in ready {
            self.switch_on(&pod, on);
        }
        for attachment in late {
            let Some(Attached { key, waiting: Some(waiting), port, .. }) =
                on.pods.find(&attachment)
            else {
                continue;
            };
            let reason = waiting.reason(key, port, &on.control, on.input.is_listed());
            let text = format!("waited {:?} for {reason}", self.timeout);
            self.refuse(&attachment, ErrorKind::NotReady, &text, on);
        }
    }

    /// Requests that a pod's interface is switched on: its tables are in force.
    fn switch_on(&mut self, pod: &AttachPod, on: &mut Effects) {
        let attachment = pod.attachment();
        match self.records.put(pod) {
            Ok(()) => on.ports.bring_up_for(pod.host_interface.clone(), attachment),
            Err(error) => {
                self.refuse(&attachment, ErrorKind::Internal, &error.to_string(), on);
            }
        }
    }

    /// Handles the result of switching a pod's interface on, the last stage of its attachment.
    pub(in crate::run::control_loop) fn switched_on(
        &mut self,
        attachment: &Attachment,
        result: Result<(), KernelError>,
        on: &mut Effects,
    ) {
        let Some(attached) = on.pods.find_mut(attachment) else { return };
        if !attached.waiting.as_ref().is_some_and(|waiting| waiting.switching_on) {
            return;
        }
        if let Err(error) = result {
            return self.refuse(attachment, ErrorKind::Internal, &error.to_string(), on);
        }
        let Some(waiting) = attached.waiting.take() else { return };
        tracing::info!(
            pod = %attached.name,
            interface = %attached.port.interface,
            milliseconds = waiting.since.elapsed().as_millis() as u64,
            "pod attached"
        );
        let flow_offload = attached.port.is_behind_program();
        let generation = on.ports.switch().generation();
        on.ports.changed(Change::Status);
        let answer = Answer::result(&AttachedPod { generation, flow_offload });
        finish(waiting, "ok", &answer, on);
    }

    /// Undoes an attachment that waits, and answers its requests with the reason.
    pub(super) fn refuse(
        &mut self,
        attachment: &Attachment,
        kind: ErrorKind,
        why: &str,
        on: &mut Effects,
    ) {
        let Some(attached) = on.pods.find_mut(attachment) else { return };
        let Some(waiting) = attached.waiting.take() else { return };
        let text = format!("attach pod {}: {why}", attached.name);
        self.drop_pod(attachment, &text, on);
        finish(waiting, "error", &ApiError::new(kind, text).into(), on);
    }
}

/// Measures an attachment and answers its requests.
fn finish(waiting: Waiting, result: &str, with: &Answer, on: &mut Effects) {
    let duration = waiting.since.elapsed().as_secs_f64();
    on.ports.shared.durations.attach.with_label_values(&[result]).observe(duration);
    answer(waiting, with, on);
}
