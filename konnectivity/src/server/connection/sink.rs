//! Destination of bytes for the API server.

use std::sync::{Arc, Mutex, PoisonError};

use http2::Link;
use tokio::sync::oneshot;

use super::Failure;
use crate::raw::Raw;

/// Destination of bytes for the API server.
#[derive(Debug)]
pub(crate) enum Sink {
    /// A gRPC stream.
    Stream(Arc<Link>, u32),
    /// A CONNECT request.
    Raw(Arc<Client>),
}

/// A client that sent CONNECT.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) raw: Arc<Raw>,
    answer: Mutex<Option<oneshot::Sender<Result<(), Failure>>>>,
}

impl Client {
    /// Returns a client, and the receiver of its dial's result.
    pub(crate) fn new() -> (Arc<Self>, oneshot::Receiver<Result<(), Failure>>) {
        let (sender, answer) = oneshot::channel();
        (Arc::new(Self { raw: Arc::default(), answer: Mutex::new(Some(sender)) }), answer)
    }

    /// Receives the result of the dial.
    pub(crate) fn dialed(&self, result: Result<(), Failure>) {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(answer) = answer {
            // The receiver may be gone.
            let _gone = answer.send(result);
        }
    }
}
