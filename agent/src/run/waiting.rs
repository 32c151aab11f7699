//! An attachment that is not in force yet.

use std::sync::mpsc::Sender;
use std::time::Instant;

use control::{Control, PodKey};
use local_api::Answer;

use super::port::ManagedPort;

/// Pending `attach-pod` requests about one attachment.
pub(super) struct Waiting {
    /// When the first request came.
    pub(super) since: Instant,
    pub(super) replies: Vec<Sender<Answer>>,
    pub(super) deadline: Instant,
    /// The snapshot with the pod's tables; `None` while there are none.
    pub(super) published: Option<u64>,
    /// Whether switching the interface on is requested.
    pub(super) switching_on: bool,
}

impl Waiting {
    /// Describes what the attachment waits for; `is_listed` if every kind of object is.
    pub(super) fn reason(
        &self,
        key: &PodKey,
        port: &ManagedPort,
        control: &Control,
        is_listed: bool,
    ) -> String {
        let text = match (self.published, control.pod(key)) {
            _ if self.switching_on => "its interface to be switched on",
            (Some(generation), _) => return format!("snapshot {generation} to be in force"),
            (None, None) if !is_listed => "the API server, whose objects are not all listed yet",
            (None, None) => "its Pod object, which is not known yet",
            (None, Some(_)) if control.is_namesake(key) => {
                "its Pod object; the one known is of another pod of that name"
            }
            (None, Some(pod)) if pod.host_network => {
                "its Pod object, which says hostNetwork, to change"
            }
            (None, Some(pod)) if pod.finished => {
                "its Pod object, which says that it has finished, to change"
            }
            (None, Some(_)) if port.id().is_none() => "its port to open",
            (None, Some(_)) => "its tables",
        };
        text.to_owned()
    }
}
