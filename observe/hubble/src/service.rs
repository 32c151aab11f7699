//! The methods of `observer.Observer`, `peer.Peer`, and the health check that clients begin with.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant, SystemTime};

use bytes::{Bytes, BytesMut};
use jiff::Timestamp as Moment;
use observe::verdicts::{Event, EventBroker, Observer as Events, Past, Wanted};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::filter::Filters;
use crate::flow::{CLUSTER, flow, timestamp};
use crate::grpc::{Answer, Code, Status, append, one, read};
use crate::messages::flow::{LostEvent, LostEventSource};
use crate::messages::health::HealthCheckResponse;
use crate::messages::health::health_check_response::ServingStatus;
use crate::messages::observer::get_flows_response::ResponseTypes;
use crate::messages::observer::{
    GetFlowsRequest, GetFlowsResponse, GetNamespacesResponse, GetNodesResponse, Namespace, Node,
    NodeState, ServerStatusResponse, Tls,
};
use crate::messages::{Empty, FieldMask, Timestamp};
use crate::peers::{is_tls, notify};

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

    /// Answers the method at a path; `address` is where the server listens.
    pub(crate) fn call(&self, path: &str, body: &[u8], address: &str) -> Result<Answer, Status> {
        if path == "/observer.Observer/GetFlows" {
            return self.get_flows(&read(body)?);
        }
        // No other request has a field that counts.
        read::<Empty>(body)?;
        Ok(match path {
            "/observer.Observer/ServerStatus" => one(&self.server_status()),
            "/observer.Observer/GetNodes" => one(&self.nodes(address)),
            "/observer.Observer/GetNamespaces" => one(&self.namespaces()),
            "/peer.Peer/Notify" => {
                let (broker, permit) = (Arc::clone(&self.broker), self.permit("Notify")?);
                notify(broker, self.node.clone(), address.to_owned(), permit)
            }
            "/grpc.health.v1.Health/Check" => {
                one(&HealthCheckResponse { status: ServingStatus::Serving as i32 })
            }
            _ => return Err((Code::Unimplemented, format!("there is no method {path}"))),
        })
    }

    /// A place among the calls that go on.
    fn permit(&self, method: &str) -> Result<OwnedSemaphorePermit, Status> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            let text = format!("{method}: {STREAMS} calls that go on are under way already");
            (Code::ResourceExhausted, text)
        })
    }

    fn server_status(&self) -> ServerStatusResponse {
        let counts = self.broker.counts();
        ServerStatusResponse {
            num_flows: counts.kept as u64,
            max_flows: counts.capacity as u64,
            seen_flows: counts.seen,
            uptime_ns: self.started.elapsed().as_nanos().try_into().unwrap_or(u64::MAX),
            num_connected_nodes: Some(1),
            num_unavailable_nodes: Some(0),
            version: concat!("podgate ", env!("CARGO_PKG_VERSION")).to_owned(),
            flows_rate: counts.rate,
        }
    }

    fn nodes(&self, address: &str) -> GetNodesResponse {
        let status = self.server_status();
        let node = Node {
            name: self.node.clone(),
            version: status.version,
            address: address.to_owned(),
            state: NodeState::NodeConnected as i32,
            tls: Some(Tls { enabled: is_tls(address) }),
            uptime_ns: status.uptime_ns,
            num_flows: status.num_flows,
            max_flows: status.max_flows,
            seen_flows: status.seen_flows,
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
        let refused = |text: String| (Code::InvalidArgument, text);
        if request.first && request.follow {
            return Err(refused("first and follow exclude each other".to_owned()));
        }
        let filters = Filters::new(&request.whitelist, &request.blacklist).map_err(refused)?;
        let since = read_moment("since", request.since).map_err(refused)?;
        let until = read_moment("until", request.until).map_err(refused)?;
        let permit = self.permit("GetFlows")?;
        let matches = Box::new(move |event: &Event| {
            since.is_none_or(|since| event.time >= since)
                && until.is_none_or(|until| event.time <= until)
                && filters.matches(event)
        });
        let wanted = Wanted { matches, past: past(request), follow: request.follow };
        let events = self.broker.observe(wanted);
        let (sender, receiver) = mpsc::channel(WAITING);
        let fields = fields(request.field_mask.as_ref());
        let stream = Stream { node: self.node.clone(), fields, until, sender };
        let run = move || {
            let _permit = permit;
            stream.send_all(&events);
        };
        let started = std::thread::Builder::new().name("hubble-flows".into()).spawn(run);
        let failed = |error| (Code::Unavailable, format!("start a thread: {error}"));
        started.map(|_| receiver).map_err(failed)
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

/// The fields of a flow that are wanted, all if there is none; a path into a field stands for the whole field.
fn fields(mask: Option<&FieldMask>) -> BTreeSet<String> {
    let first = |path: &String| path.split('.').next().unwrap_or_default().to_owned();
    mask.iter().flat_map(|mask| &mask.paths).map(first).collect()
}

fn read_moment(field: &str, time: Option<Timestamp>) -> Result<Option<SystemTime>, String> {
    let moment = time.map(|time| Moment::new(time.seconds, time.nanos)).transpose();
    let moment = moment.map_err(|error| format!("{field}: {error}"))?;
    Ok(moment.map(SystemTime::from))
}

/// One call of `GetFlows`.
struct Stream {
    node: String,
    fields: BTreeSet<String>,
    until: Option<SystemTime>,
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
            let is_over = self.until.is_some_and(|until| SystemTime::now() > until);
            if (is_over && portion.is_empty()) || self.sender.is_closed() {
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
        let wanted = |name: &str| self.fields.is_empty() || self.fields.contains(name);
        let flow = ResponseTypes::Flow(Box::new(flow.masked(wanted)));
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
    use crate::flow::tests::denied;
    use crate::messages::flow::Flow;

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
        let moment = read_moment("since", Some(time)).unwrap().unwrap();
        assert_eq!(timestamp(moment.try_into().unwrap()), time);
        let error = read_moment("until", Some(Timestamp { seconds: i64::MAX, nanos: 0 }));
        assert!(error.unwrap_err().starts_with("until: "));
    }
    #[test]
    fn unwanted_fields_are_left_out() {
        let whole = flow(&denied());
        let masked = |mask: Option<&FieldMask>| {
            let (node, (sender, _)) = ("node-a".to_owned(), mpsc::channel(1));
            let stream = Stream { node, fields: fields(mask), until: None, sender };
            match stream.response(&denied()).response_types {
                Some(ResponseTypes::Flow(flow)) => *flow,
                _ => panic!("no flow"),
            }
        };
        assert_eq!(masked(None), whole);
        assert_eq!(masked(Some(&FieldMask::default())), whole);
        let paths = ["verdict", "source.pod_name", "l7"].map(str::to_owned).into();
        let wanted = Flow { verdict: whole.verdict, source: whole.source, ..Flow::default() };
        assert_eq!(masked(Some(&FieldMask { paths })), wanted);
    }
}
