//! Dials: rules, the choice of an agent, the request, and what a frontend holds of it.

use std::ops::Deref;
use std::sync::{Arc, PoisonError};

use super::backend::Backend;
use super::connection::{Connection, Failure, Kind, Sink};
use super::proxy::Proxy;
use crate::audit::Record;
use crate::packet::Packet;
use crate::rules::Denied;

/// A connection that a frontend dialed.
pub(crate) struct Dialed {
    connection: Arc<Connection>,
    backend: Arc<Backend>,
}

impl Dialed {
    /// Ends the connection, or the dial.
    pub(crate) fn part(&self, why: &str) {
        if self.connection.part(why, false) {
            self.backend.cancel_dial(self.connection.dial);
        }
    }
}

impl Deref for Dialed {
    type Target = Arc<Connection>;

    fn deref(&self) -> &Arc<Connection> {
        &self.connection
    }
}

/// Dials `target` through an agent. A failure is counted and audited, and returned.
pub(crate) fn dial(
    proxy: &Proxy,
    sink: Sink,
    who: &Arc<str>,
    target: &str,
    wanted: i64,
) -> Result<Dialed, Failure> {
    // A server that ends sees this dial, or this dial sees that it ended.
    let ended = proxy.ended.read().unwrap_or_else(PoisonError::into_inner);
    let begun = match *ended {
        true => Err(Failure { text: "the server ends".to_owned(), ..Failure::no_agent() }),
        false => begin(proxy, sink, who, target, wanted),
    };
    match &begun {
        Ok(Dialed { connection, backend }) => {
            proxy.metrics.pending.add(1);
            // If the agent goes away just now, its end fails the dial.
            backend.stream.send(&Packet::DialRequest {
                protocol: "tcp".to_owned(),
                address: target.to_owned(),
                random: connection.dial,
            });
        }
        Err(failure) => {
            proxy.metrics.dial_failures.with_label_values(&[failure.kind.label()]).inc();
            let outcome = format!("dial failed: {}", failure.text);
            let record =
                Record { role: "server", who, target, outcome: &outcome, ..Record::default() };
            proxy.options.audit.write(&record);
        }
    }
    begun
}

fn begin(
    proxy: &Proxy,
    sink: Sink,
    who: &Arc<str>,
    target: &str,
    wanted: i64,
) -> Result<Dialed, Failure> {
    let options = &proxy.options;
    if let Some(rules) = &options.rules {
        let denied = |why: Denied| Failure { kind: Kind::Denied, text: why.to_string() };
        rules.evaluate_literal(target).map_err(denied)?;
    }
    let backend = proxy.backends.choose(target).ok_or_else(Failure::no_agent)?;
    let connection = backend.begin(options.limits.pending_dials, wanted, |dial| {
        Connection::new(options, &backend.stream, sink, who, target, wanted, dial)
    })?;
    Ok(Dialed { connection, backend })
}
