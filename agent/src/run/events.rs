//! Events of the control loop.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use control::{Object, PodKey, SessionRules};
use dataplane::services::Services;
use dataplane::wire::Mac;
use local_api::{Answer, Request};

use super::kernel::{Completion, Destination, Hop, InterfaceEvent};
use super::names::PendingAnswer;
use super::source::{Reading, Slots};

/// An event that changes the switch, or a request.
pub(crate) enum Event {
    /// The manifests, after a change.
    Manifests(Reading),
    /// Events of the API server's watches.
    Source(Vec<control::api_server::Event>, Slots),
    /// A request of the local API, and where its answer goes.
    Request(Request, Sender<Answer>),
    /// A request for the session rules of a pod, or of all, and the node's services; the requesting thread
    /// computes the rules.
    SessionRules(Option<PodKey>, Sender<Option<(SessionRules, Arc<Services>)>>),
    /// A request for all objects that policies are made of.
    Objects(Sender<Vec<Object>>),
    /// Labels of pods are wanted from now on; the answer follows when they are known.
    KeepLabels(Sender<()>),
    /// An event of the kernel's interfaces.
    Interface(InterfaceEvent),
    /// Operations on interfaces that are completed.
    Completed(Vec<Completion>),
    /// The host port was made or verified; the MAC address of the kernel's end.
    HostPort(Mac),
    /// Addresses of domain names that changed, and an answer that waits for them.
    Names(Vec<domain_names::Change<PodKey>>, Option<PendingAnswer>),
    /// New or changed next hops.
    NextHops(Vec<(Destination, Hop)>),
    /// Ends the loop.
    Stop,
}

/// Asks for labels of pods from now on, and waits until they are known.
pub(crate) fn keep_labels(events: &Sender<Event>) {
    let (sender, known) = channel();
    if events.send(Event::KeepLabels(sender)).is_ok() {
        // A loop that ends answers nothing.
        let _ = known.recv();
    }
}
