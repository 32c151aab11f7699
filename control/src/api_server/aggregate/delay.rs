//! Time for which a change waits until it is written, by a clock that stands still while anything is computed.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tower_service::Service;

use super::candidate::{Candidate, Fed, Free, Seat, WRITER};
use super::objects::SLOTS;
use super::state::Timing;
use super::tests::pod;
use super::text::{Entry, Place};

/// Time that the API server takes for an answer.
const ANSWER: Duration = Duration::from_millis(30);
/// Bound on the delay of a denial, compared with a watch of all pods.
const BOUND: Duration = Duration::from_secs(1);

/// An API server without sockets that keeps Leases and PodgateAddresses.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    version: u64,
    objects: HashMap<String, Value>,
    /// The number in each pod's address as the log gave it, and the time of it.
    said: HashMap<String, Vec<(usize, Instant)>>,
    pages: u64,
    /// When the writer's Lease was written last, and the longest time between two of these.
    renewed: Option<Instant>,
    longest_term: Duration,
}

impl Service<Request<Body>> for Server {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let kept = Arc::clone(&self.0);
        Box::pin(async move {
            sleep(ANSWER).await;
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let object = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let (code, answer) = kept.lock().answer(&head.method, head.uri.path(), object);
            let answer = answer.to_string().into_bytes();
            Ok(Response::builder().status(code).body(Body::from(answer)).unwrap())
        })
    }
}

impl Kept {
    fn answer(&mut self, method: &Method, path: &str, mut object: Value) -> (u16, Value) {
        let status =
            |code: u16| (code, json!({"kind": "Status", "status": "Failure", "code": code}));
        match method.as_str() {
            "GET" if path.ends_with("/podgateaddresses") => {
                let is_kind = |(path, _): &(&String, &Value)| path.contains("/podgateaddresses/");
                let items: Vec<&Value> =
                    self.objects.iter().filter(is_kind).map(|(_, object)| object).collect();
                (200, json!({"metadata": {"resourceVersion": "1"}, "items": items}))
            }
            "GET" => match self.objects.get(path) {
                Some(object) => (200, object.clone()),
                None => status(404),
            },
            "DELETE" => {
                self.objects.remove(path);
                (200, json!({}))
            }
            method => {
                let path = match method {
                    "POST" => format!("{path}/{}", object["metadata"]["name"].as_str().unwrap()),
                    _ => path.to_owned(),
                };
                if path.ends_with(WRITER) {
                    let before = self.renewed.replace(Instant::now());
                    let term = before.map_or(Duration::ZERO, |before| before.elapsed());
                    self.longest_term = self.longest_term.max(term);
                }
                self.version += 1;
                object["metadata"]["resourceVersion"] = self.version.to_string().into();
                self.note(&object["spec"]);
                self.objects.insert(path, object.clone());
                (200, object)
            }
        }
    }

    fn note(&mut self, spec: &Value) {
        self.pages += u64::from(spec["page"].is_object());
        for line in spec["log"]["changes"].as_array().into_iter().flatten() {
            let fields: Vec<&str> = line.as_str().unwrap().split(' ').collect();
            let number = fields[3].split('.').skip(1).map(|it| it.parse::<usize>().unwrap());
            let number = number.fold(0, |sum, it| sum << 8 | it);
            self.said.entry(fields[1].to_owned()).or_default().push((number, Instant::now()));
        }
    }
}

/// Longest time from a change to the object of the log that says it, or says what became of it later.
fn longest(kept: &Kept, changes: &[(String, usize, Instant)]) -> Duration {
    let wait = |(name, number, at): &(String, usize, Instant)| {
        let said = kept.said[name].iter().find(|(said, _)| said >= number);
        said.expect("each change is written").1 - *at
    };
    changes.iter().map(wait).max().unwrap()
}

/// A switch that writes these pods.
struct Writing {
    server: Server,
    fed: mpsc::UnboundedSender<Fed>,
    _free: watch::Sender<Free>,
    task: JoinHandle<()>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Writing {
    async fn start(pods: usize) -> Self {
        let server = Server::default();
        let client = Client::new(server.clone(), "default");
        let (fed, receiver) = mpsc::unbounded_channel();
        let (_free, is_free) = watch::channel(Free { writer: true, standby: true });
        let (seat, mut seated) = watch::channel(Seat::None);
        let timing = Timing::default();
        let candidate =
            Candidate::new(client, "n1", timing, receiver, Arc::default(), is_free, seat);
        let task = tokio::spawn(candidate.run());
        let all = (0..pods).map(|n| pod(n, n % 20, n % 50, n, "node-1"));
        let all = all.map(|pod| (Place::of(pod.key.clone()), Entry::of(&pod).unwrap()));
        fed.send(Fed::Reset(all.collect())).unwrap();
        seated.wait_for(|seat| *seat == Seat::Writer).await.unwrap();
        sleep(10 * timing.heartbeat).await;
        Self { server, fed, _free, task }
    }

    /// Gives a pod another address; its name, the number and the time.
    fn change(&self, n: usize, number: usize) -> (String, usize, Instant) {
        let pod = pod(n, n % 20, n % 50, number, "node-1");
        let name = pod.key.name.to_string();
        self.fed.send(Fed::Set(Place::of(pod.key.clone()), Entry::of(&pod))).unwrap();
        (name, number, Instant::now())
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_is_written_within_a_second_in_a_storm_of_changes_and_at_once_when_it_is_alone() {
    const PODS: usize = 1_500;
    let (writing, timing) = (Writing::start(PODS).await, Timing::default());
    // Each alone: nothing else is written but signs of life.
    let mut alone = Vec::new();
    for n in 0..20 {
        sleep(Duration::from_millis(2_345)).await;
        alone.push(writing.change(n, PODS + n));
    }
    sleep(timing.heartbeat).await;
    let before = writing.server.0.lock().pages;
    let mut storm = Vec::new();
    // As long as it takes for each page to be late.
    for n in 0..15_000 {
        sleep_until(Instant::now() + Duration::from_millis(4)).await;
        storm.push(writing.change(n * 7 % PODS, 2 * PODS + n));
    }
    sleep(2 * timing.heartbeat).await;
    let kept = writing.server.0.lock();
    assert!(kept.pages > before, "pages are written beside the log");
    // A request of each kind may be under way: a Lease is read and written, a page and its halves are written.
    let requests = 8 * ANSWER;
    assert!(longest(&kept, &alone) <= requests, "{:?}", longest(&kept, &alone));
    let longest = longest(&kept, &storm);
    assert!(longest <= timing.flush + requests, "{longest:?}");
    assert!(longest <= BOUND, "{longest:?}");
}

#[tokio::test(start_paused = true)]
async fn objects_that_another_client_changed_or_deleted_are_soon_made_anew() {
    let (writing, timing) = (Writing::start(300).await, Timing::default());
    // All slots of the log are taken, and are deleted when objects are made anew.
    sleep(u32::try_from(2 * SLOTS).unwrap() * timing.heartbeat).await;
    let spoil = |spoil: &dyn Fn(&mut Kept, &str)| {
        let mut kept = writing.server.0.lock();
        let page = kept.objects.keys().find(|path| path.contains("/page-")).unwrap().clone();
        spoil(&mut kept, &page);
        kept.pages
    };
    for how in [
        &(|kept: &mut Kept, page: &str| drop(kept.objects.remove(page)))
            as &dyn Fn(&mut Kept, &str),
        &|kept, page| {
            let object = kept.objects.get_mut(page).unwrap();
            object["metadata"]["resourceVersion"] = "forged".into();
            object["spec"]["page"]["pods"] = json!([]);
        },
    ] {
        let before = spoil(how);
        sleep(2 * timing.again).await;
        assert!(writing.server.0.lock().pages > before);
    }
    // The Lease does not expire meanwhile.
    let longest = writing.server.0.lock().longest_term;
    assert!(longest < timing.lease * 4 / 5, "{longest:?}");
}
