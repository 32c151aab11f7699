//! Packets of a server, read by the link's driver.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http2::{Field, Handler, Link};
use tokio::sync::oneshot;

use super::target::Target;
use super::{Greeting, Session};
use crate::agent::sync::leave;
use crate::grpc::{Assembler, failure, header};
use crate::server::WINDOW;

/// The part of a session that the link's driver owns.
pub(crate) struct Reader {
    pub(crate) session: Arc<Session>,
    assembler: Assembler,
    /// Receives the server's greeting.
    greeting: Option<oneshot::Sender<Result<Greeting, String>>>,
    behind: Option<Arc<Target>>,
    /// The reason of the stream's end.
    pub(crate) over: Option<String>,
}

impl Reader {
    pub(crate) fn new(
        session: Arc<Session>,
        greeting: oneshot::Sender<Result<Greeting, String>>,
    ) -> Self {
        Self {
            session,
            assembler: Assembler::default(),
            greeting: Some(greeting),
            behind: None,
            over: None,
        }
    }

    /// Reports the server's answer, or the error; the first report counts.
    pub(crate) fn greet(&mut self, result: Result<Greeting, String>) {
        if let Some(greeting) = self.greeting.take() {
            // The receiver may have given up.
            let _gone = greeting.send(result);
        }
    }

    fn end(&mut self, why: String) {
        self.greet(Err(why.clone()));
        self.over.get_or_insert(why);
        self.session.link.close(0, "");
    }
}

impl Handler for Reader {
    fn headers(&mut self, _link: &Arc<Link>, _stream: u32, fields: Vec<Field>, end: bool) {
        if end {
            let why = failure(&fields).unwrap_or_else(|| "the server ended the stream".to_owned());
            return self.end(why);
        }
        let status = header(&fields, ":status").unwrap_or_default();
        if status != "200" {
            return self.end(format!("the server answered with HTTP status {status}"));
        }
        let greeting = match header(&fields, "serverid") {
            None => Err("the server's response has no serverid".to_owned()),
            Some(server) => Ok(Greeting {
                server: server.to_owned(),
                count: header(&fields, "servercount").and_then(|it| it.parse().ok()).unwrap_or(1),
                window: header(&fields, WINDOW).and_then(|it| it.parse().ok()).filter(|it| *it > 0),
            }),
        };
        if let Ok(greeting) = &greeting {
            self.session.greeting.get_or_init(|| greeting.clone());
        }
        match greeting {
            Ok(greeting) => self.greet(Ok(greeting)),
            Err(why) => self.end(why),
        }
    }

    fn data(&mut self, link: &Arc<Link>, stream: u32, bytes: &[u8], end: bool) {
        link.release(stream, bytes.len());
        let (session, behind) = (&self.session, &mut self.behind);
        let result = self.assembler.push(bytes, |message| {
            if let Some(target) = session.receive(message)
                && !target.cut_if_stalled()
            {
                behind.get_or_insert(target);
            }
            true
        });
        if let Err(error) = result {
            session.shared.metrics.stream_errors.add("to_agent", error.code());
            return self.end(error.to_string());
        }
        if end {
            self.end("the server ended the stream".to_owned());
        }
    }

    fn reset(&mut self, _link: &Arc<Link>, _stream: u32, code: u32) {
        self.end(format!("the server reset the stream (RST_STREAM {code})"));
    }

    fn going_away(&mut self, _link: &Arc<Link>, code: u32, text: &str) {
        tracing::info!("server {} goes away ({code}): {text}", self.session.server());
        leave(&self.session.shared, &self.session);
    }

    fn paused(&mut self) -> bool {
        let Some(target) = &self.behind else { return false };
        let paused = !target.has_caught_up() && !target.cut_if_stalled();
        self.session.blocked.store(paused, Ordering::Relaxed);
        if !paused {
            self.behind = None;
        } else if target.has_caught_up() {
            // The end came before the wakers were set.
            self.session.link.wake();
        }
        paused
    }
}

/// Describes why a session ended.
pub(crate) fn reason(result: io::Result<()>, over: Option<String>) -> String {
    match (over, result) {
        (Some(over), _) => over,
        (None, Ok(())) => "the server closed the connection".to_owned(),
        (None, Err(error)) => crate::tls::refusal("the server", &error)
            .unwrap_or_else(|| crate::accept::reason(&error)),
    }
}
