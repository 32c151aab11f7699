//! The body of an answer: a page, or a feed's lines as they come up.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::page::{Feed, Lines, Page};

/// Feeds at a time.
pub(crate) const FEEDS: usize = 16;
/// Texts of a feed that wait for its client.
const WAITING: usize = 64;

/// The body of an answer.
pub(crate) enum Content {
    Page(Full<Bytes>),
    Feed(mpsc::Receiver<Bytes>),
}

impl Content {
    /// Starts a feed's thread; the page to answer instead if there are too many.
    pub(crate) fn of_feed(feed: Feed, feeds: &Arc<Semaphore>) -> Result<Self, Page> {
        let Ok(permit) = Arc::clone(feeds).try_acquire_owned() else {
            return Err(Page::new(503, format!("{FEEDS} clients are fed already\n")));
        };
        let (sender, receiver) = mpsc::channel(WAITING);
        let run = move || {
            let _permit: OwnedSemaphorePermit = permit;
            feed(&Lines(sender));
        };
        match std::thread::Builder::new().name("http-feed".into()).spawn(run) {
            Ok(_) => Ok(Self::Feed(receiver)),
            Err(error) => Err(Page::new(503, format!("start a thread: {error}\n"))),
        }
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Page(page) => Pin::new(page).poll_frame(context),
            Self::Feed(lines) => {
                lines.poll_recv(context).map(|it| it.map(|it| Ok(Frame::data(it))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Page(page) => page.is_end_stream(),
            Self::Feed(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Page(page) => page.size_hint(),
            Self::Feed(_) => SizeHint::default(),
        }
    }
}
