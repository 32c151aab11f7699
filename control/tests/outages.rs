//! A denial is known soon that is made while the API server is away or does not answer, by a clock that
//! stands still while anything is computed.

use std::future::{Future, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use control::api_server::{Event, Pace, watch};
use control::{Kind, Object};
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use http::{Request, Response};
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::sync::{mpsc, watch as state};
use tokio::time::{Instant, sleep};
use tower_service::Service;

use crate::double::{event, policy};

/// Longest time from the moment when the API server serves again until a denial is known.
const AIM: Duration = Duration::from_secs(2);
/// The waits have a random part.
const ROUNDS: u64 = 20;

/// The behaviour of the API server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Serves,
    /// Requests fail, and answers that are under way break off.
    Away,
    /// Answers break off, and requests get none, ever.
    Hangs,
}

#[derive(Clone, Copy, Debug)]
struct State {
    mode: Mode,
    is_denied: bool,
}

/// An API server without sockets: lists are empty or have the denial, watches say nothing else.
#[derive(Clone)]
struct Server(state::Receiver<State>);

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

impl Service<Request<Body>> for Server {
    type Response = Answer;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Answer>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let state = *self.0.borrow();
        match state.mode {
            Mode::Away => ready(Err(io::ErrorKind::ConnectionRefused.into())).boxed(),
            Mode::Hangs => std::future::pending().boxed(),
            Mode::Serves => ready(Ok(self.follow(&request, state))).boxed(),
        }
    }
}

impl Server {
    /// The list, if one is requested, and the watch after it.
    fn follow(&self, request: &Request<Body>, state: State) -> Answer {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        let has_denials = path.ends_with("/networkpolicies");
        let mut first = Vec::new();
        let lists = query.contains("sendInitialEvents");
        if lists {
            let denial =
                (has_denials && state.is_denied).then(|| event("ADDED", policy("deny", 7)));
            let end = event("END", json!({"metadata": {"resourceVersion": "5"}}));
            first.extend(denial.into_iter().chain([end]));
        }
        let is_told = !has_denials || lists && state.is_denied;
        let lines = stream::iter(first.into_iter().map(Ok)).chain(self.further(is_told));
        let frame = |line: io::Result<String>| Ok(Frame::data((line? + "\n").into()));
        Response::new(UnsyncBoxBody::new(StreamBody::new(lines.map(frame))))
    }

    /// The denial, unless it is told, once there is one; an error once the API server does not serve.
    fn further(&self, is_told: bool) -> BoxStream<'static, io::Result<String>> {
        let next = |(mut states, is_told): (state::Receiver<State>, bool)| async move {
            let wanted = |it: &State| it.mode != Mode::Serves || it.is_denied && !is_told;
            let state = *states.wait_for(wanted).await.ok()?;
            let line = match state.mode {
                Mode::Serves => Ok(event("ADDED", policy("deny", 7))),
                _ => Err(io::ErrorKind::ConnectionReset.into()),
            };
            Some((line, (states, true)))
        };
        stream::unfold((self.0.clone(), is_told), next).boxed()
    }
}

/// Time from the moment when the API server serves again, after so long in a mode, until the denial is known that
/// is made meanwhile.
async fn late(mode: Mode, outage: Duration) -> Duration {
    let (world, states) = state::channel(State { mode: Mode::Serves, is_denied: false });
    let client = Client::new(Server(states), "default");
    let (sender, mut events) = mpsc::channel(64);
    let _watches = watch(&client, Pace::default(), &sender);
    while events.recv().await.unwrap() != Event::Synced {}
    let script = async {
        sleep(Duration::from_secs(1)).await;
        world.send_replace(State { mode, is_denied: false });
        sleep(outage / 2).await;
        world.send_modify(|state| state.is_denied = true);
        sleep(outage / 2).await;
        world.send_modify(|state| state.mode = Mode::Serves);
        Instant::now()
    };
    let is_denial = |object: &Object| matches!(object, Object::NetworkPolicy(_));
    let known = async {
        loop {
            match events.recv().await.unwrap() {
                Event::Apply(object, _) if is_denial(&object) => return Instant::now(),
                Event::Resync(Kind::NetworkPolicy, objects, _) if !objects.is_empty() => {
                    return Instant::now();
                }
                _ => {}
            }
        }
    };
    let (served, known) = tokio::join!(script, known);
    known - served
}

/// The longest of [`late`] over outages of about `seconds`.
fn latest(mode: Mode, seconds: u64) -> Duration {
    let round = |round: u64| {
        let outage = Duration::from_secs(seconds) + Duration::from_millis(37 * round);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(late(mode, outage))
    };
    (0..ROUNDS).map(round).max().unwrap()
}

/// The watches that go on bring no event: nothing else has changed.
#[test]
fn a_watch_that_goes_on_without_an_event_wakes_the_other_kinds() {
    for seconds in [5, 20, 60] {
        let latest = latest(Mode::Away, seconds);
        assert!(latest <= AIM, "after {seconds} s: {latest:?}");
    }
}

#[test]
fn a_request_that_hangs_does_not_keep_others_waiting() {
    for seconds in [5, 20, 60] {
        let latest = latest(Mode::Hangs, seconds);
        assert!(latest <= AIM, "after {seconds} s: {latest:?}");
    }
}
