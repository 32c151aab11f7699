//! Answers that are held back until the status that they refer to is published.

use std::sync::mpsc::Sender;

use local_api::Answer;

/// Answers to requests of this round.
#[derive(Default)]
pub(super) struct Replies(Vec<(Sender<Answer>, Answer)>);

impl Replies {
    /// Answers a request at the end of the round.
    pub(super) fn send(&mut self, reply: Sender<Answer>, answer: impl Into<Answer>) {
        self.0.push((reply, answer.into()));
    }

    /// Sends the answers.
    pub(super) fn flush(&mut self) {
        for (reply, answer) in self.0.drain(..) {
            // The client may have disconnected.
            let _ = reply.send(answer);
        }
    }
}
