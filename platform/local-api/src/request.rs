//! Requests to the running switch.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::answer::{ApiError, ErrorKind};
use super::attachment::{AttachPod, Attachment};
use super::filters::ObserveFilters;

/// One request; on the wire its kebab-case name is `method` and its content `params`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "method", content = "params", rename_all = "kebab-case")]
pub enum Request {
    /// Attaches a pod's interface to the switch. Answered with [`AttachedPod`](super::AttachedPod)
    /// when the pod's tables are in force on every worker and the interface is up. Repeating the
    /// same request is no error.
    AttachPod(AttachPod),
    /// Detaches a pod's interface. One that is not attached is no error.
    DetachPod(Attachment),
    /// Checks that a pod is attached and its port is open: answered with its [`AttachPod`], else an
    /// error of kind `not-found` or `not-ready`.
    CheckPod(Attachment),
    /// All attached pods, as an array of [`AttachPod`].
    ListPods,
    /// The state of the switch, as an object for people and scripts.
    Status,
    /// `{}` once pods can be attached, else an error of kind `not-ready`.
    Ready,
    /// A stream of verdicts, one answer each, until either side closes.
    Observe(Box<ObserveFilters>),
    /// One of the switch's tables, as JSON.
    Show(Show),
    /// The session rules of this node's pods and their changes, as
    /// [`SessionRuleStep`](super::SessionRuleStep)s, until either side closes.
    FollowSessionRules,
    /// Starts a trace, `{}`; packets of an earlier trace are deleted.
    TraceAdd(TraceAdd),
    /// The packets traced so far, one answer each, then `{"followed":N,"wanted":N}` and the end of
    /// the connection.
    TraceShow,
    /// Ends the trace and deletes it, `{}`.
    TraceClear,
    /// Sets the level of the switch's log until its end, `{}`.
    LogLevel(LogLevel),
    /// Begins to rotate the key of encryption between nodes: `{}`. The status says when it has changed.
    RotateKey,
    /// A stream of the packets that pass a port: a [`CaptureStarted`](super::CaptureStarted), one
    /// [`CapturedPacket`](super::CapturedPacket) each, then a
    /// [`CaptureSummary`](super::CaptureSummary). It ends at a limit of the request, with the port,
    /// or when the client closes its sending side.
    Capture(Capture),
}

/// The verdict about a packet or connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// It was forwarded.
    #[serde(rename = "forward", alias = "forwarded")]
    Forwarded,
    /// It was dropped.
    #[serde(rename = "drop", alias = "dropped")]
    Dropped,
}

impl Verdict {
    /// The name in text for people.
    pub const fn shown(self) -> &'static str {
        match self {
            Self::Forwarded => "FORWARDED",
            Self::Dropped => "DROPPED",
        }
    }
}

/// Asks for one table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Show {
    /// Name of the table; the switch lists the names it knows when it meets another one.
    pub what: String,
    /// Limit of a table, where it has one: of `session-rules` a pod, `ns/pod`, or `pod` in namespace
    /// `default`; of `addresses` an IP address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Conditions that rows meet, such as `to=shop/db` or `bytes>1000`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<String>,
    /// The column to sort by: numbers from the largest on, text in its order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort: Option<String>,
    /// Rows at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Also rows without a count, of `errors`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub all: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(value: &bool) -> bool {
    !value
}

/// A level of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLevel {
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
}

/// A trace: filter and number of packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceAdd {
    /// Number of packets, 1 to 10,000.
    pub count: u32,
    /// Terms such as `in=default/web port=53`; none lets every packet through.
    #[serde(default)]
    pub filter: String,
}

/// A live capture of a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    /// The port: `host`, `uplink`, `ns/pod`, or `pod` in namespace `default`.
    pub port: String,
    /// Terms such as `protocol=tcp port=53`; none matches every packet.
    #[serde(default)]
    pub filter: String,
    /// Number of packets after which the capture ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Seconds after which the capture ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
    /// Bytes kept of a packet at most; none keeps whole packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snaplen: Option<u32>,
}

impl Request {
    /// Reads a request from one line.
    ///
    /// # Errors
    /// A `bad-request` that names the field, or `unknown-method`. The
    /// contents of [`AttachPod`] are checked too: names an interface can have,
    /// addresses that one host can have.
    pub fn parse(line: &str) -> Result<Self, ApiError> {
        let bad = |text: String| ApiError::new(ErrorKind::BadRequest, text);
        let raw: Raw =
            serde_json::from_str(line).map_err(|error| bad(format!("request: {error}")))?;
        let params = raw.params.unwrap_or_default();
        let request = match raw.method.as_str() {
            "attach-pod" => Self::AttachPod(typed(&raw.method, params)?),
            "detach-pod" => Self::DetachPod(typed(&raw.method, params)?),
            "check-pod" => Self::CheckPod(typed(&raw.method, params)?),
            "list-pods" => Self::ListPods,
            "status" => Self::Status,
            "ready" => Self::Ready,
            "observe" => Self::Observe(typed(&raw.method, params)?),
            "show" => Self::Show(typed(&raw.method, params)?),
            "follow-session-rules" => Self::FollowSessionRules,
            "trace-add" => Self::TraceAdd(typed(&raw.method, params)?),
            "trace-show" => Self::TraceShow,
            "trace-clear" => Self::TraceClear,
            "rotate-key" => Self::RotateKey,
            "log-level" => Self::LogLevel(typed(&raw.method, params)?),
            "capture" => Self::Capture(typed(&raw.method, params)?),
            other => {
                let other: String = other.chars().take(40).collect();
                let text = format!("there is no method '{}'", other.escape_debug());
                return Err(ApiError::new(ErrorKind::UnknownMethod, text));
            }
        };
        if let Self::AttachPod(pod) = &request {
            pod.check().map_err(|text| bad(format!("attach-pod: {text}")))?;
        }
        Ok(request)
    }
}

#[derive(Deserialize)]
struct Raw {
    method: String,
    #[serde(default)]
    params: Option<Map<String, Value>>,
}

fn typed<T: DeserializeOwned>(method: &str, params: Map<String, Value>) -> Result<T, ApiError> {
    serde_json::from_value(Value::Object(params))
        .map_err(|error| ApiError::new(ErrorKind::BadRequest, format!("{method}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attachment::tests::pod;

    #[test]
    fn every_request_survives_the_wire() {
        let attachment = pod().attachment();
        let filters = ObserveFilters {
            verdict: Verdict::Dropped.into(),
            from_pod: "default/web".into(),
            last: 3,
            follow: true,
            ..Default::default()
        };
        for request in [
            Request::AttachPod(pod()),
            Request::DetachPod(attachment.clone()),
            Request::CheckPod(attachment),
            Request::ListPods,
            Request::Status,
            Request::Ready,
            Request::Observe(Box::new(filters)),
            Request::Show(Show {
                what: "session-rules".into(),
                pod: Some("x/a".into()),
                filters: vec!["action=deny".into()],
                sort: Some("pod".into()),
                limit: Some(7),
                all: true,
            }),
            Request::TraceAdd(TraceAdd { count: 50, filter: "in=default/web".into() }),
            Request::TraceShow,
            Request::TraceClear,
            Request::RotateKey,
            Request::LogLevel(LogLevel { level: "debug".into() }),
            Request::FollowSessionRules,
            Request::Capture(Capture {
                port: "default/web".into(),
                filter: "port=53".into(),
                count: Some(9),
                seconds: None,
                snaplen: Some(96),
            }),
        ] {
            let line = serde_json::to_string(&request).unwrap();
            assert_eq!(Request::parse(&line).unwrap(), request, "{line}");
        }
    }

    #[test]
    fn what_is_on_the_wire() {
        let line = serde_json::to_string(&Request::DetachPod(pod().attachment())).unwrap();
        assert_eq!(
            line,
            r#"{"method":"detach-pod","params":{"container_id":"c1","interface":"eth0"}}"#
        );
        let future = r#"{"method":"ready","params":{"later":1},"id":7}"#;
        assert_eq!(Request::parse(future).unwrap(), Request::Ready);
        let defaults = r#"{"method":"observe"}"#;
        assert_eq!(Request::parse(defaults).unwrap(), Request::Observe(Default::default()));
    }

    #[test]
    fn bad_requests_name_the_field() {
        let cases = [
            ("", "request"),
            ("[]", "request"),
            (r#"{"params":{}}"#, "method"),
            (r#"{"method":"status","params":[]}"#, "request"),
            (r#"{"method":"detach-pod","params":{"interface":"eth0"}}"#, "container_id"),
            (r#"{"method":"observe","params":{"verdict":"maybe"}}"#, "maybe"),
            (r#"{"method":"fly"}"#, "fly"),
        ];
        for (line, expected) in cases {
            let error = Request::parse(line).unwrap_err();
            assert!(error.message.contains(expected), "{line}: {error}");
        }
    }
}
