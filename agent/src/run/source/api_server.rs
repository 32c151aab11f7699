//! The thread that watches the API server.
//!
//! It has a tokio runtime and a thread of its own, so it uses no worker's core and does not delay
//! the control loop. Its events go into the control loop's channel, as many at once as there are, with a slot
//! for each; while all slots are taken, the watches are not read.
//!
//! Waking a thread costs more than an event. After changes of objects the thread rests before it asks the
//! kernel for more: a change that comes alone is not late, and those that come one after the other gather.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use control::ObjectRef;
use control::api_server::{
    Access, Aggregation, Client, Election, Event, NodePolicies, Pace, RequestError, Warning,
    Warnings, cluster_uid, connect, list_policies, publish_addresses, publish_policies, report,
    report_ready, watch, watch_aggregated,
};
use control::model::{Condition, WireGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch as value};

use crate::run::error::StartError;
use crate::run::thread::Thread;

/// Watches the API server until it is dropped.
pub(in crate::run) struct ApiServer {
    /// Its address, as configured.
    pub(in crate::run) server: String,
    /// The UID of its cluster, if it answered at once.
    pub(in crate::run) cluster: Option<String>,
    writes: mpsc::Sender<Write>,
    /// Addresses and key that the node publishes.
    published: value::Sender<Option<Published>>,
    /// The node's policies to publish.
    policies: value::Sender<Option<NodePolicies>>,
    /// Whether the node is to be reported as ready.
    ready: value::Sender<bool>,
    /// Set at intervals while the thread makes progress.
    pulse: Arc<AtomicBool>,
    _stop: oneshot::Sender<()>,
    _thread: Thread,
}

/// Facts that a node publishes about itself: its addresses, and the key that encrypts what is sent to it.
pub(in crate::run) type Published = (Vec<IpAddr>, Option<WireGuard>);

/// A task of the one writer at the API server.
enum Write {
    /// A condition in an object's status.
    Condition(ObjectRef, Condition),
    /// An Event.
    Warning(Warning),
    /// Nothing: list what nodes publish about policies.
    List,
}

/// Pending events of the control loop before the watches pause.
const WAITING: usize = 256;
/// Maximum of events that are handed over at once.
const TOGETHER: usize = 64;
/// The thread's rest after changes, by which the next ones may be late.
const REST: Duration = Duration::from_millis(10);

/// Slots of pending events; dropped once the events are applied.
pub(in crate::run) type Slots = OwnedSemaphorePermit;

/// Interval of the thread's heartbeat.
const PULSE: Duration = Duration::from_millis(200);
/// Pause between two writes.
const BETWEEN_REPORTS: Duration = Duration::from_millis(100);

/// Longest wait of a start for the identity of the cluster.
const IDENTITY: Duration = Duration::from_secs(1);
/// Timeout of further requests for it, and the wait between them.
const IDENTITY_AGAIN: Duration = Duration::from_secs(1);

/// Interval of publishing the node's addresses, and the wait after a failure.
const PUBLISH_AGAIN: Duration = Duration::from_secs(600);
const PUBLISH_RETRY: Duration = Duration::from_secs(30);
/// Interval of reporting that the node is ready, and the wait after a failure.
const READY_AGAIN: Duration = Duration::from_secs(300);
const READY_RETRY: Duration = Duration::from_secs(2);

/// Duration of the lease of the status writer.
const LEASE: Duration = Duration::from_secs(15);

impl ApiServer {
    /// Starts the watches; `node` is this node's name. With `aggregate`, pods of other nodes come from what one of the
    /// switches writes. `send` receives all events, in their order, with their slots and returns whether the
    /// receiver still exists.
    ///
    /// # Errors
    /// [`StartError::Input`] when the configuration cannot be used.
    pub(in crate::run) fn watch(
        access: Access,
        node: &str,
        aggregate: bool,
        send: impl Fn(Vec<Event>, Slots) -> bool + Send + 'static,
    ) -> Result<Self, StartError> {
        let (stop, stopped) = oneshot::channel();
        let (answer, answered) = sync_channel(1);
        let (writes, to_write) = mpsc::channel(WAITING);
        let (published, to_publish) = value::channel(None);
        let (policies, policies_to_publish) = value::channel(None);
        let (ready, is_ready) = value::channel(false);
        let pulse = Arc::new(AtomicBool::new(true));
        let pulsing = Arc::clone(&pulse);
        let node = node.to_owned();
        let has_changes = Arc::new(AtomicBool::new(false));
        let resting = Arc::clone(&has_changes);
        let rest = move || {
            if resting.swap(false, Ordering::AcqRel) {
                std::thread::sleep(REST);
            }
        };
        let run = move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = match runtime.enable_all().on_thread_park(rest).build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    let _ = answer.send(Err(StartError::Failed(format!("start tokio: {error}"))));
                    return;
                }
            };
            runtime.block_on(async move {
                let connection = match connect(&access).await {
                    Ok(connection) => connection,
                    Err(error) => {
                        let error = StartError::Input(format!("API server: {error}"));
                        let _ = answer.send(Err(error));
                        return;
                    }
                };
                let asked = cluster_uid(&connection.client);
                let cluster = tokio::time::timeout(IDENTITY, asked).await;
                let known = matches!(cluster, Ok(Ok(_)));
                let cluster = cluster.ok().and_then(Result::ok).flatten();
                let _ = answer.send(Ok((connection.server, cluster.clone())));
                let (sender, events) = mpsc::channel(TOGETHER);
                let (watched, pace) = (&connection.client, Pace::default());
                let mut tasks = match aggregate {
                    true => {
                        let aggregation =
                            Aggregation { node: node.clone(), timing: Default::default() };
                        watch_aggregated(watched, pace, aggregation, &sender)
                    }
                    false => watch(watched, pace, &sender),
                };
                let client = connection.client.clone();
                tasks.spawn(identify(client, known.then_some(cluster), sender.clone()));
                let of = (connection.client.clone(), node.clone());
                let addresses = async move |(addresses, wireguard): Published| {
                    publish_addresses(&of.0, &of.1, &addresses, wireguard.as_ref()).await
                };
                tasks.spawn(publish(format!("NodeAddresses {node}"), to_publish, addresses));
                let of = (connection.client.clone(), node.clone());
                let policies =
                    async move |policies| publish_policies(&of.0, &of.1, &policies).await;
                tasks.spawn(publish(format!("NodePolicies {node}"), policies_to_publish, policies));
                tasks.spawn(keep_ready(connection.client.clone(), node.clone(), is_ready));
                let election = Election::new(connection.client.clone(), &node, LEASE);
                let warnings = Warnings::new(connection.client.clone(), &node);
                tasks.spawn(write(connection.client, election, warnings, to_write, sender));
                tasks.spawn(async move {
                    loop {
                        pulsing.store(true, Ordering::Release);
                        tokio::time::sleep(PULSE).await;
                    }
                });
                tasks.spawn(hand_over(events, has_changes, send));
                // Also when the sender is dropped.
                let _ = stopped.await;
            });
            // A name lookup may block and cannot be interrupted.
            runtime.shutdown_background();
        };
        let thread = Thread::start("api-server", run)?;
        let ended = || StartError::Failed("the thread that asks the API server ended".to_owned());
        let (server, cluster) = answered.recv().map_err(|_| ended())??;
        Ok(Self {
            server,
            cluster,
            writes,
            published,
            policies,
            ready,
            pulse,
            _stop: stop,
            _thread: thread,
        })
    }

    /// Returns whether the thread made progress since the last call.
    pub(in crate::run) fn responds(&self) -> bool {
        self.pulse.swap(false, Ordering::AcqRel)
    }

    /// Queues the write of a condition into an object's status; `false` if the queue is full.
    pub(in crate::run) fn report(&self, object: ObjectRef, condition: Condition) -> bool {
        self.writes.try_send(Write::Condition(object, condition)).is_ok()
    }

    /// Publishes this about the node from now on, instead of what was before.
    pub(in crate::run) fn publish(&self, published: Published) {
        self.published.send_if_modified(|known| {
            let is_other = known.as_ref() != Some(&published);
            *known = Some(published);
            is_other
        });
    }

    /// Publishes this about the node's policies from now on, instead of what was before.
    pub(in crate::run) fn publish_policies(&self, policies: NodePolicies) {
        self.policies.send_replace(Some(policies));
    }

    /// Queues the list of what nodes publish about policies, which follows as [`Event::Published`] if this node is the
    /// writer of statuses.
    pub(in crate::run) fn list_policies(&self) {
        // With a full queue it is requested again later.
        let _ = self.writes.try_send(Write::List);
    }

    /// Reports that the node is ready from now on, or no longer does.
    pub(in crate::run) fn report_ready(&self, is_ready: bool) {
        self.ready.send_if_modified(|known| std::mem::replace(known, is_ready) != is_ready);
    }

    /// Queues the write of an Event; `false` if the queue is full.
    pub(in crate::run) fn warn(&self, warning: Warning) -> bool {
        self.writes.try_send(Write::Warning(warning)).is_ok()
    }
}

/// Hands the events over, and notes whether there were changes of objects among them.
async fn hand_over(
    mut events: mpsc::Receiver<Event>,
    has_changes: Arc<AtomicBool>,
    send: impl Fn(Vec<Event>, Slots) -> bool,
) {
    let slots = Arc::new(Semaphore::new(WAITING));
    let mut together = Vec::new();
    while events.recv_many(&mut together, TOGETHER).await > 0 {
        let count = together.len() as u32;
        let Ok(slots) = Arc::clone(&slots).acquire_many_owned(count).await else { return };
        if together.iter().any(|it| matches!(it, Event::Apply(..) | Event::Delete(_))) {
            has_changes.store(true, Ordering::Release);
        }
        if !send(std::mem::take(&mut together), slots) {
            return;
        }
    }
}

/// Reports the identity of the cluster; requests it until the API server answers.
async fn identify(client: Client, mut known: Option<Option<String>>, events: mpsc::Sender<Event>) {
    loop {
        if let Some(cluster) = known {
            // The loop that receives may have ended.
            let _ = events.send(Event::Cluster(cluster)).await;
            return;
        }
        tokio::time::sleep(IDENTITY_AGAIN).await;
        let answer = tokio::time::timeout(IDENTITY_AGAIN, cluster_uid(&client)).await;
        known = answer.ok().and_then(Result::ok);
    }
}

/// Publishes the newest value by `write`, and again at intervals, since the object may be deleted.
async fn publish<T: Clone>(
    object: String,
    mut wanted: value::Receiver<Option<T>>,
    write: impl AsyncFn(T) -> Result<(), RequestError>,
) {
    let mut failure = None;
    loop {
        let newest = wanted.borrow_and_update().clone();
        let mut wait = PUBLISH_AGAIN;
        if let Some(newest) = newest {
            let failed = write(newest).await.err();
            if let Some(error) = failed.as_ref().filter(|it| failure.as_ref() != Some(*it)) {
                tracing::warn!("{object}: {error}");
            }
            wait = if failed.is_some() { PUBLISH_RETRY } else { PUBLISH_AGAIN };
            failure = failed;
        }
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// While the switch is ready, reports that its node is, and again at intervals: a Node that is made anew has its
/// taint again.
async fn keep_ready(client: Client, node: String, mut is_ready: value::Receiver<bool>) {
    let mut failure = None;
    while is_ready.wait_for(|ready| *ready).await.is_ok() {
        let failed = report_ready(&client, &node).await.err();
        if let Some(error) = failed.as_ref().filter(|it| failure.as_ref() != Some(*it)) {
            tracing::warn!("Node {node}: {error}");
        }
        let wait = if failed.is_some() { READY_RETRY } else { READY_AGAIN };
        failure = failed;
        tokio::select! {
            changed = is_ready.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Writes queued conditions and Events one after the other while this node is elected.
/// Discards them otherwise: they are queued again if they are still due later.
async fn write(
    client: Client,
    mut election: Election,
    mut warnings: Warnings,
    mut queue: mpsc::Receiver<Write>,
    events: mpsc::Sender<Event>,
) {
    let mut renewal = tokio::time::interval(LEASE / 3);
    loop {
        let wanted = tokio::select! {
            next = queue.recv() => match next {
                Some(next) => next,
                None => return,
            },
            _ = renewal.tick() => {
                if let Err(error) = election.renew().await {
                    tracing::debug!("{error}");
                }
                continue;
            }
        };
        let elected = election.is_elected().await;
        if elected == Ok(false) {
            continue;
        }
        let done = async {
            elected?;
            match &wanted {
                Write::Condition(object, condition) => report(&client, object, condition).await,
                Write::Warning(warning) => warnings.write(warning).await,
                Write::List => return list_policies(&client).await.map(Some),
            }?;
            Ok(None)
        };
        let event = match (done.await, wanted) {
            (Ok(Some(all)), _) => Event::Published(all),
            (Ok(None), Write::Condition(object, _) | Write::Warning(Warning { object, .. })) => {
                Event::Reported(object)
            }
            (Err(error), Write::Condition(object, _) | Write::Warning(Warning { object, .. })) => {
                Event::NotReported(object, error.to_string())
            }
            (result, Write::List) => {
                // Publishing fails for the same reasons, and says so.
                tracing::debug!("NodePolicies: {result:?}");
                continue;
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
        tokio::time::sleep(BETWEEN_REPORTS).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::Instant;

    /// Events that were handed over together, and something about them.
    type Held<T> = Arc<Mutex<Vec<(Vec<Event>, T)>>>;

    #[test]
    fn a_thread_that_is_held_up_shows() {
        let server = testkit::api_server::ApiServer::new();
        let (holding, held) = std::sync::mpsc::channel::<()>();
        let held = Mutex::new(held);
        let access = Access::Kubeconfig(server.kubeconfig());
        let watching = ApiServer::watch(access, "node-a", false, move |_, _| {
            // Simulates a read that does not return.
            let _ = held.lock().unwrap().recv();
            true
        });
        let watching = watching.map_err(|_| "no watch").unwrap();
        let responds = || {
            watching.responds();
            std::thread::sleep(4 * PULSE);
            watching.responds()
        };
        let began = Instant::now();
        while responds() {
            assert!(began.elapsed() < Duration::from_secs(60));
        }
        drop(holding);
        while !responds() {
            assert!(began.elapsed() < Duration::from_secs(60));
        }
    }

    #[test]
    fn events_that_are_not_worked_in_hold_up_the_watches() {
        let server = testkit::api_server::ApiServer::new();
        let held: Held<Slots> = Arc::default();
        let into = Arc::clone(&held);
        let access = Access::Kubeconfig(server.kubeconfig());
        let watching = ApiServer::watch(access, "node-a", false, move |events, slots| {
            into.lock().unwrap().push((events, slots));
            true
        });
        let _watching = watching.map_err(|_| "no watch").unwrap();
        let count = || held.lock().unwrap().iter().map(|(events, _)| events.len()).sum::<usize>();
        let until = |done: &dyn Fn() -> bool| {
            let began = Instant::now();
            while !done() {
                assert!(began.elapsed() < Duration::from_secs(60), "{} events", count());
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        until(&|| {
            let held = held.lock().unwrap();
            held.iter().flat_map(|(events, _)| events).any(|event| *event == Event::Synced)
        });
        for number in 0..3 * WAITING {
            server.apply(serde_json::json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": format!("p{number}"), "namespace": "x"}}));
        }
        let is_full = || (WAITING - TOGETHER..=WAITING).contains(&count());
        until(&is_full);
        std::thread::sleep(Duration::from_millis(300));
        assert!(is_full(), "{} events: no more than there are slots", count());
        held.lock().unwrap().clear();
        until(&is_full);
    }

    #[tokio::test]
    async fn events_that_wait_are_handed_over_at_once_and_in_order() {
        let (sender, events) = mpsc::channel(TOGETHER);
        let delete = |n: usize| {
            let name = n.to_string().into();
            Event::Delete(ObjectRef { kind: control::Kind::Node, namespace: None, name })
        };
        let has_changes = Arc::new(AtomicBool::new(false));
        let handed: Held<bool> = Arc::default();
        let (into, noted) = (Arc::clone(&handed), Arc::clone(&has_changes));
        let send = move |events, _| {
            into.lock().unwrap().push((events, noted.load(Ordering::Acquire)));
            true
        };
        let first = vec![Event::Synced];
        let second: Vec<Event> = (0..TOGETHER).map(delete).collect();
        let handing = tokio::spawn(hand_over(events, has_changes, send));
        for events in [&first, &second] {
            for event in events {
                sender.send(event.clone()).await.unwrap();
            }
            tokio::task::yield_now().await;
        }
        drop(sender);
        handing.await.unwrap();
        assert_eq!(*handed.lock().unwrap(), [(first, false), (second, true)]);
    }
}
