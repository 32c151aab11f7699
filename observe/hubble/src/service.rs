//! The methods of `observer.Observer`, `peer.Peer`, and the health check that clients begin with.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use hyper::body::Incoming;
use jiff::Timestamp as Moment;
use observe::verdicts::{Event, EventBroker, Observer as Events, Past, Wanted};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::filter::Filters;
use crate::flow::{CLUSTER, flow, moment, timestamp};
use crate::grpc::{Answer, Code, Status, append, read};
use crate::mask::Mask;
use crate::messages::flow::{LostEvent, LostEventSource};
use crate::messages::health::HealthCheckResponse;
use crate::messages::health::health_check_response::ServingStatus;
use crate::messages::observer::get_flows_response::ResponseTypes;
use crate::messages::observer::{
    GetFlowsRequest, GetFlowsResponse, GetNamespacesResponse, GetNodesResponse, Namespace, Node,
    NodeState, ServerStatusResponse, Tls,
};
use crate::messages::{Empty, Timestamp};
use crate::peers::notify;

/// Calls of `GetFlows` and `Notify` at a time.
const STREAMS: usize = 16;
/// Messages of a call that wait for its client, in portions of up to [`PORTION`].
const WAITING: usize = 16;
/// Flows that are sent at once.
const PORTION: usize = 64;
/// Interval at which a silent call checks for the end of its client.
const IDLE: Duration = Duration::from_millis(500);

/// Answers for one switch.
pub struct Observer {
    broker: Arc<EventBroker>,
    node: String,
    started: Instant,
    streams: Arc<Semaphore>,
}

impl Observer {
    /// For the switch of this node.
    pub fn new(broker: Arc<EventBroker>, node: &str) -> Self {
        Self {
            broker,
            node: node.to_owned(),
            started: Instant::now(),
            streams: Arc::new(Semaphore::new(STREAMS)),
        }
    }

    /// Answers the method at a path; `address` is where the server listens, and `is_tls` whether with
    /// TLS.
    pub(crate) async fn call(
        &self,
        path: &str,
        body: Incoming,
        (address, is_tls): (&str, bool),
    ) -> Result<Answer, Status> {
        if path == "/observer.Observer/GetFlows" {
            return self.get_flows(&read(body).await?);
        }
        // No other request has a field that counts.
        read::<Empty>(body).await?;
        Ok(match path {
            "/observer.Observer/ServerStatus" => Answer::one(&self.server_status()),
            "/observer.Observer/GetNodes" => Answer::one(&self.nodes(address, is_tls)),
            "/observer.Observer/GetNamespaces" => Answer::one(&self.namespaces()),
            "/peer.Peer/Notify" => self.notify(address, is_tls)?,
            "/grpc.health.v1.Health/Check" => {
                Answer::one(&HealthCheckResponse { status: ServingStatus::Serving as i32 })
            }
            _ => {
                return Err(Status::new(Code::Unimplemented, format!("there is no method {path}")));
            }
        })
    }

    fn notify(&self, address: &str, is_tls: bool) -> Result<Answer, Status> {
        let permit = self.permit("Notify")?;
        let (sender, receiver) = mpsc::channel(1);
        let (broker, node) = (Arc::clone(&self.broker), self.node.clone());
        let at = (address.to_owned(), is_tls);
        tokio::spawn(async move {
            let _permit: OwnedSemaphorePermit = permit;
            notify(broker, node, at, sender).await;
        });
        Ok(Answer::Many(receiver))
    }

    /// A place among the calls that go on.
    fn permit(&self, method: &str) -> Result<OwnedSemaphorePermit, Status> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            let text = format!("{method}: {STREAMS} calls that go on are under way already");
            Status::new(Code::ResourceExhausted, text)
        })
    }

    fn server_status(&self) -> ServerStatusResponse {
        let counts = self.broker.counts();
        ServerStatusResponse {
            num_flows: counts.kept as u64,
            max_flows: counts.capacity as u64,
            seen_flows: counts.seen,
            uptime_ns: self.uptime_ns(),
            num_connected_nodes: Some(1),
            num_unavailable_nodes: Some(0),
            version: version(),
            flows_rate: counts.rate,
        }
    }

    fn nodes(&self, address: &str, is_tls: bool) -> GetNodesResponse {
        let counts = self.broker.counts();
        let node = Node {
            name: self.node.clone(),
            version: version(),
            address: address.to_owned(),
            state: NodeState::NodeConnected as i32,
            tls: Some(Tls { enabled: is_tls }),
            uptime_ns: self.uptime_ns(),
            num_flows: counts.kept as u64,
            max_flows: counts.capacity as u64,
            seen_flows: counts.seen,
        };
        GetNodesResponse { nodes: vec![node] }
    }

    /// The namespaces of pods in the verdicts that are kept.
    fn namespaces(&self) -> GetNamespacesResponse {
        let all =
            Wanted { matches: Box::new(|_| true), past: Past::Newest(usize::MAX), follow: false };
        let mut names = BTreeSet::new();
        for event in self.broker.observe(all).events {
            let pods = [&event.from.pod, &event.to.pod].into_iter().flatten();
            names.extend(pods.filter_map(|pod| Some(pod.split_once('/')?.0.to_owned())));
        }
        let of = |namespace| Namespace { cluster: CLUSTER.to_owned(), namespace };
        GetNamespacesResponse { namespaces: names.into_iter().map(of).collect() }
    }

    fn get_flows(&self, request: &GetFlowsRequest) -> Result<Answer, Status> {
        let refused = |text: String| Status::new(Code::InvalidArgument, text);
        if request.first && request.follow {
            return Err(refused("first and follow exclude each other".to_owned()));
        }
        let filters = Filters::new(&request.whitelist, &request.blacklist).map_err(refused)?;
        let mask = Mask::new(request.field_mask.as_ref());
        let since = read_moment("since", request.since).map_err(refused)?;
        let until = read_moment("until", request.until).map_err(refused)?;
        let permit = self.permit("GetFlows")?;
        let matches = move |event: &Event| {
            let is_in_time = (since.is_none() && until.is_none())
                || moment(event).is_some_and(|at| {
                    since.is_none_or(|since| at >= since) && until.is_none_or(|until| at <= until)
                });
            is_in_time && filters.matches(event)
        };
        let past = past(request);
        let wanted = Wanted { matches: Box::new(matches), past, follow: request.follow };
        let events = self.broker.observe(wanted);
        let (sender, receiver) = mpsc::channel(WAITING);
        let stream = Stream { node: self.node.clone(), mask, until, sender };
        let run = move || {
            let _permit: OwnedSemaphorePermit = permit;
            stream.send_all(&events);
        };
        match std::thread::Builder::new().name("hubble-flows".into()).spawn(run) {
            Ok(_) => Ok(Answer::Many(receiver)),
            Err(error) => Err(Status::new(Code::Unavailable, format!("start a thread: {error}"))),
        }
    }

    fn uptime_ns(&self) -> u64 {
        self.started.elapsed().as_nanos().try_into().unwrap_or(u64::MAX)
    }
}

/// The past flows that a request asks for.
fn past(request: &GetFlowsRequest) -> Past {
    let number = usize::try_from(request.number).unwrap_or(usize::MAX);
    match (number, request.first) {
        (0, _) if request.follow && request.since.is_none() => Past::Newest(0),
        (0, _) => Past::Newest(usize::MAX),
        (number, false) => Past::Newest(number),
        (number, true) => Past::Oldest(number),
    }
}

fn version() -> String {
    format!("podgate {}", env!("CARGO_PKG_VERSION"))
}

fn read_moment(field: &str, time: Option<Timestamp>) -> Result<Option<Moment>, String> {
    let Some(time) = time else { return Ok(None) };
    let moment = Moment::new(time.seconds, time.nanos);
    moment.map(Some).map_err(|error| format!("{field}: {error}"))
}

/// One call of `GetFlows`.
struct Stream {
    node: String,
    mask: Mask,
    until: Option<Moment>,
    sender: mpsc::Sender<Bytes>,
}

impl Stream {
    /// Sends flows until there are no more, their time is over or the client is gone.
    fn send_all(&self, observer: &Events) {
        let mut portion = BytesMut::new();
        loop {
            let event = match observer.events.recv_timeout(IDLE) {
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let others = observer.events.try_iter().take(PORTION - 1);
            for event in event.into_iter().chain(others) {
                append(&self.response(&event), &mut portion);
            }
            match observer.take_lost() {
                0 => {}
                lost => append(&self.lost(lost), &mut portion),
            }
            let is_over =
                self.until.is_some_and(|until| Moment::now() > until) && portion.is_empty();
            if is_over || self.sender.is_closed() {
                return;
            }
            let sent = portion.split().freeze();
            if !sent.is_empty() && self.sender.blocking_send(sent).is_err() {
                return;
            }
        }
    }

    fn response(&self, event: &Event) -> GetFlowsResponse {
        let flow = flow(event);
        let (node_name, time) = (flow.node_name.clone(), flow.time);
        let flow = ResponseTypes::Flow(Box::new(self.mask.apply(flow)));
        GetFlowsResponse { response_types: Some(flow), node_name, time }
    }

    fn lost(&self, number: u64) -> GetFlowsResponse {
        let source = LostEventSource::HubbleRingBuffer as i32;
        let lost = LostEvent { source, num_events_lost: number };
        GetFlowsResponse {
            response_types: Some(ResponseTypes::LostEvents(lost)),
            node_name: self.node.clone(),
            time: Some(timestamp(Moment::now())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_past_flows() {
        let time = Some(Timestamp { seconds: 1, nanos: 0 });
        let of = |number, first, follow, since| {
            past(&GetFlowsRequest { number, first, follow, since, ..Default::default() })
        };
        assert_eq!(of(0, false, false, None), Past::Newest(usize::MAX));
        assert_eq!(of(0, false, true, None), Past::Newest(0));
        assert_eq!(of(0, false, true, time), Past::Newest(usize::MAX));
        assert_eq!(of(7, false, true, None), Past::Newest(7));
        assert_eq!(of(7, true, false, None), Past::Oldest(7));
        assert_eq!(of(0, true, false, None), Past::Newest(usize::MAX));
    }

    #[test]
    fn moments_that_are_none_are_refused() {
        assert_eq!(read_moment("since", None), Ok(None));
        let time = Timestamp { seconds: 1_795_227_935, nanos: 5 };
        assert_eq!(timestamp(read_moment("since", Some(time)).unwrap().unwrap()), time);
        let error = read_moment("until", Some(Timestamp { seconds: i64::MAX, nanos: 0 }));
        assert!(error.unwrap_err().starts_with("until: "));
    }
}
