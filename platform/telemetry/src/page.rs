//! Answers: pages, and feeds of lines.

use bytes::Bytes;
use tokio::sync::mpsc;

/// Answers paths.
pub trait Pages: Send + Sync + 'static {
    /// The page at `path`; `None` answers 404.
    fn page(&self, path: &str, query: &str) -> Option<Page>;

    /// Answers a POST to `path`; `None` if there is no such method.
    fn post(&self, _path: &str) -> Option<Post> {
        None
    }

    /// Returns whether clients may ask for `path` by this name of the server, which is neither an address nor
    /// `localhost`. A page in a browser reaches a server by a name of its own (DNS rebinding), and must
    /// not read it.
    fn is_called(&self, _name: &str, _path: &str) -> bool {
        true
    }

    /// The lines at `path`, one after the other as they come up; `None` if it is a page.
    ///
    /// # Errors
    /// The page to answer instead.
    fn feed(&self, _path: &str, _query: &str) -> Option<Result<Feed, Page>> {
        None
    }
}

/// Status code, text and media type of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// HTTP status code.
    pub code: u16,
    /// The body.
    pub text: String,
    /// The body's media type.
    pub kind: &'static str,
}

const PLAIN: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

impl Page {
    /// A page of plain text with this code.
    pub fn new(code: u16, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), kind: PLAIN }
    }

    /// A page for browsers, which may load nothing from elsewhere.
    pub fn html(code: u16, text: impl Into<String>) -> Self {
        Self { kind: HTML, ..Self::new(code, text) }
    }

    pub(crate) fn is_html(&self) -> bool {
        self.kind == HTML
    }

    /// An answer for scripts.
    pub fn json(text: impl Into<String>) -> Self {
        Self { kind: "application/json", ..Self::new(200, text) }
    }
}

/// Answers a body. Runs on a thread of its own.
pub type Post = Box<dyn FnOnce(&[u8]) -> Page + Send>;

/// Sends lines until the feed ends or the client is gone. Runs on a thread of its own.
pub type Feed = Box<dyn FnOnce(&Lines) + Send>;

/// The client of a [`Feed`].
#[derive(Debug)]
pub struct Lines(pub(crate) mpsc::Sender<Bytes>);

impl Lines {
    /// Sends text, and waits while the client is slow; `false` if it is gone.
    pub fn send(&self, text: String) -> bool {
        self.0.blocking_send(Bytes::from(text)).is_ok()
    }

    /// Returns whether the client is gone.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}
