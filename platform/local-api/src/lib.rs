//! The agent's local API, between the running switch and the CNI plugin or the commands.
//!
//! A unix stream socket carries one JSON object per line (RFC 8259, without
//! line breaks inside):
//!
//! ```text
//! → {"method":"attach-pod","params":{"namespace":"default","name":"db",…}}
//! ← {"result":{"generation":7}}
//! → {"method":"check-pod","params":{"container_id":"c1","interface":"eth0"}}
//! ← {"error":{"kind":"not-found","message":"no pod is attached as c1/eth0"}}
//! → {"method":"observe","params":{"verdict":"drop"}}
//! ← {"result":{…}}
//! ← {"result":{…}}                            … until either side closes
//! ```
//!
//! `trace-show` answers with one line a packet as well, and ends. `observe` also sends `{"result":{"lost":N}}` to a reader too slow for `N` verdicts.
//!
//! A connection carries any number of requests, one after the other. Unknown fields are ignored, so that a plugin and
//! an agent of different versions understand each other; an unknown method gets an error and the connection stays
//! usable. A line longer than its bound ends the connection.
//!
//! - `request`: the requests,
//! - `attachment`: attachments of pods, and their validation,
//! - `answer`: results and errors,
//! - `capture`: captured packets as they are streamed,
//! - `session_rules`: session rules as they are streamed,
//! - `frame`: lines on a stream, bounded,
//! - `client`: the client side,
//! - `listener`: the socket's file.

mod answer;
mod attachment;
mod capture;
mod client;
mod filters;
mod frame;
mod listener;
mod request;
mod session_rules;

pub use self::session_rules::{Protocol, RuleEnd, SessionRule, SessionRuleStep, SessionService};
pub use answer::{Answer, ApiError, AttachedPod, ErrorKind};
pub use attachment::{AttachPod, Attachment};
pub use capture::{CaptureStarted, CaptureSummary, CapturedPacket, Direction};
pub use client::{Client, ClientError};
pub use filters::{AnyOf, ObserveFilters, Ports};
pub use frame::{ANSWER_BYTES, FrameError, REQUEST_BYTES, read_line, write_line};
pub use listener::listen;
pub use request::{Capture, LogLevel, Request, Show, TraceAdd, Verdict};

/// Path of the agent's socket if nothing else is configured.
pub const DEFAULT_SOCKET: &str = "/run/podgate/podgate.sock";
