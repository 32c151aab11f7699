//! The double without sockets: answers come at once, so that a test's clock may stand still while anything is computed.

use std::collections::HashMap;
use std::future::{Future, pending, ready};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use http::{Request, Response};
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower_service::Service;

use super::{Step, event};

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// Answers the requests for a resource, by its name and the number of those before, as a script says; without a step,
/// as a cluster without objects.
#[derive(Clone)]
pub(crate) struct Still<F> {
    script: F,
    asked: Arc<Mutex<HashMap<String, usize>>>,
}

impl<F: Fn(&str, usize) -> Option<Step> + Clone + Send + 'static> Still<F> {
    pub(crate) fn new(script: F) -> Self {
        Self { script, asked: Arc::default() }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.clone(), "default")
    }

    /// Number of requests for a resource.
    pub(crate) fn asked(&self, resource: &str) -> usize {
        self.asked.lock().unwrap().get(resource).copied().unwrap_or_default()
    }
}

impl<F: Fn(&str, usize) -> Option<Step>> Service<Request<Body>> for Still<F> {
    type Response = Answer;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Answer>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let resource = request.uri().path().rsplit('/').next().unwrap_or_default();
        if resource.starts_with('v') {
            // Discovery: every kind is installed.
            let resources = control::Kind::ALL.map(|kind| json!({"name": kind.plural()}));
            return ready(Ok(whole(200, &json!({"resources": resources})))).boxed();
        }
        let number = {
            let mut asked = self.asked.lock().unwrap();
            let number = asked.entry(resource.to_owned()).or_default();
            *number += 1;
            *number - 1
        };
        let answer = match (self.script)(resource, number) {
            Some(Step::Drop) => Err(io::ErrorKind::ConnectionAborted.into()),
            Some(Step::Silence) => return pending().boxed(),
            Some(step) => Ok(play(step)),
            None => Ok(idle(request.uri().query().unwrap_or_default())),
        };
        ready(answer).boxed()
    }
}

fn play(step: Step) -> Answer {
    let status = |code: u16, message: &str| json!({"kind": "Status", "apiVersion": "v1", "code": code, "message": message});
    match step {
        Step::Stream(lines) => parts(lines, None),
        Step::Cut(lines) => parts(lines, Some(io::ErrorKind::ConnectionReset.into())),
        Step::Expired => {
            let error = status(410, "too old resource version");
            parts(vec![json!({"type": "ERROR", "object": error}).to_string()], None)
        }
        Step::Status(code) => whole(code, &status(code, "refused")),
        Step::NoStreaming => {
            let message = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch";
            whole(422, &status(422, message))
        }
        Step::Page(items, rest) => whole(
            200,
            &json!({"metadata": {"resourceVersion": "8", "continue": rest}, "items": items}),
        ),
        Step::Slow(_) | Step::Odd(..) | Step::Drop | Step::Silence => {
            unreachable!("no test needs it here")
        }
    }
}

/// An empty list, or a watch on which nothing happens.
fn idle(query: &str) -> Answer {
    let version = json!({"metadata": {"resourceVersion": "1"}});
    if query.contains("sendInitialEvents") {
        return parts(vec![event("END", version)], None);
    }
    match query.contains("watch=1") {
        true => Response::new(UnsyncBoxBody::new(StreamBody::new(stream::pending()))),
        false => whole(200, &json!({"metadata": version["metadata"], "items": []})),
    }
}

/// Lines, and how they break off.
fn parts(lines: Vec<String>, end: Option<io::Error>) -> Answer {
    let lines = stream::iter(lines.into_iter().map(|line| Ok(Bytes::from(line + "\n"))));
    let all = lines.chain(stream::iter(end.map(Err)));
    Response::new(UnsyncBoxBody::new(StreamBody::new(all.map(|it| it.map(Frame::data)))))
}

fn whole(code: u16, body: &Value) -> Answer {
    let body = stream::iter([Ok(Frame::data(Bytes::from(body.to_string())))]);
    let mut answer = Response::new(UnsyncBoxBody::new(StreamBody::new(body)));
    *answer.status_mut() = code.try_into().expect("a status");
    answer
}
