//! One kind's list and watch as a state machine: told what came, says what to ask.
//!
//! <https://kubernetes.io/docs/reference/using-api/api-concepts/>: "Efficient detection of
//! changes" and "Streaming lists".

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::Value;

use super::Event;
use crate::objects::{Read, read};
use crate::{Fault, FieldFault, Kind, Object, ObjectRef};

/// The API server is asked to end a watch after this time.
const WATCH_SECONDS: u64 = 290;
/// Bookmarks come about once a minute: longer silence is a dead connection.
pub(super) const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS + 30);
/// Objects on a page, where lists come in pages.
const PAGE: usize = 500;
/// So many refusals in a row until a kind that was there counts as uninstalled.
const GONE: u32 = 3;

/// The state of one kind.
#[derive(Debug)]
pub(super) struct Watch {
    kind: Kind,
    state: State,
    /// Streaming lists were refused as unknown: lists come in pages.
    by_pages: bool,
    /// A page had expired: ask for everything at once.
    whole: bool,
    /// Refusals of the kind as such, in a row.
    absent: u32,
    synced: bool,
    /// Grows with everything understood.
    progress: u64,
}

#[derive(Debug)]
enum State {
    /// Listing; what came so far. Pages are held as text until they are whole.
    List { found: BTreeMap<ObjectRef, Object>, page: Vec<u8>, next: String },
    /// Watching from this resource version on.
    From(String),
}

impl State {
    fn list() -> Self {
        Self::List { found: BTreeMap::new(), page: Vec::new(), next: String::new() }
    }
}

/// Why a request did not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// What we have is older than what the API server remembers.
    Expired,
    /// Try again after so many seconds.
    Later(String, u64),
    /// The kind is not installed.
    Absent,
    /// Streaming lists are not known.
    NotStreaming(String),
    /// Nothing came for [`SILENCE`].
    Silent,
    /// Anything else.
    Other(String),
}

/// When to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    AtOnce,
    BackOff,
    After(Duration),
    WhenInstalled,
}

impl Trouble {
    /// What an HTTP status or an ERROR event means.
    pub(super) fn status(code: u16, message: &str, retry_after: u32) -> Self {
        let seconds = u64::from(retry_after.min(60));
        match code {
            410 => Self::Expired,
            404 => Self::Absent,
            400 | 422 if message.contains("sendInitialEvents") => {
                Self::NotStreaming(message.to_owned())
            }
            429 | 500..=599 if seconds > 0 => Self::Later(format!("{code} {message}"), seconds),
            _ => Self::Other(format!("{code} {message}")),
        }
    }

    /// Whether anybody needs to hear of it.
    pub(super) fn is_news(&self) -> bool {
        !matches!(self, Self::Expired | Self::Absent | Self::NotStreaming(_))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("the version held has expired"),
            Self::Absent => f.write_str("the kind is not installed"),
            Self::Silent => f.write_str("the connection fell silent"),
            Self::Later(text, _) | Self::NotStreaming(text) | Self::Other(text) => {
                f.write_str(text)
            }
        }
    }
}

impl Watch {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            state: State::list(),
            by_pages: false,
            whole: false,
            absent: 0,
            synced: false,
            progress: 0,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn progress(&self) -> u64 {
        self.progress
    }

    /// Whether the kind is to be taken as not installed: at first at once, later only after
    /// some refusals, since an API server that starts may not know its kinds yet.
    pub(super) fn is_gone(&self) -> bool {
        !self.synced && self.absent > 0 || self.absent >= GONE
    }

    /// Path and query of the request to make now.
    pub(super) fn path(&self) -> String {
        let version = self.kind.api_version();
        let root = if version.contains('/') { "apis" } else { "api" };
        let plural = self.kind.plural();
        let watch = "watch=1&allowWatchBookmarks=true";
        let query = match &self.state {
            State::From(version) => {
                format!("{watch}&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}")
            }
            State::List { .. } if !self.by_pages => format!(
                "{watch}&timeoutSeconds={WATCH_SECONDS}&sendInitialEvents=true\
                 &resourceVersionMatch=NotOlderThan"
            ),
            State::List { .. } if self.whole => String::new(),
            State::List { next, .. } if next.is_empty() => format!("limit={PAGE}"),
            State::List { next, .. } => format!("limit={PAGE}&continue={}", escaped(next)),
        };
        format!("/{root}/{version}/{plural}?{query}")
    }

    /// A line of the answer.
    pub(super) fn line(&mut self, line: &[u8]) -> Result<Vec<Event>, Trouble> {
        if self.by_pages
            && let State::List { page, .. } = &mut self.state
        {
            page.extend_from_slice(line);
            return Ok(Vec::new());
        }
        let Ok(mut event) = serde_json::from_slice::<Value>(line) else {
            // The next one may be fine, and coming back would only bring this one again.
            return Ok(vec![self.fault(None, FieldFault::new("", "a watch event is no JSON"))]);
        };
        let object = event.get_mut("object").map(Value::take).unwrap_or(Value::Null);
        self.absent = 0;
        match event.get("type").and_then(Value::as_str) {
            Some("BOOKMARK") => Ok(self.bookmark(&object)),
            Some("ERROR") => {
                let number = |value: &Value| value.as_u64().unwrap_or(0);
                let code = u16::try_from(number(&object["code"])).unwrap_or(0);
                let wait = number(&object["details"]["retryAfterSeconds"]).min(60) as u32;
                Err(Trouble::status(code, object["message"].as_str().unwrap_or(""), wait))
            }
            Some("ADDED" | "MODIFIED") => Ok(self.told(object, true)),
            Some("DELETED") => Ok(self.told(object, false)),
            other => {
                let problem = format!("a watch event has the unknown type {other:?}");
                Ok(vec![self.fault(None, FieldFault::new("", problem))])
            }
        }
    }

    /// The answer is over.
    pub(super) fn end(&mut self) -> Result<Vec<Event>, Trouble> {
        match &mut self.state {
            State::List { page, .. } if self.by_pages => {
                let page = std::mem::take(page);
                self.page(&page)
            }
            // A list by watch that ends before its bookmark is none.
            State::List { .. } => Err(Trouble::Other("the list ended half-way".into())),
            State::From(_) => Ok(Vec::new()),
        }
    }

    /// When to ask again, now that the last request ended.
    pub(super) fn next_after(&mut self, trouble: Option<&Trouble>) -> Next {
        let listing = matches!(self.state, State::List { .. });
        match trouble {
            None => return Next::AtOnce,
            Some(Trouble::Absent) if self.kind.may_be_absent() => self.absent += 1,
            Some(_) => self.absent = 0,
        }
        match trouble {
            Some(Trouble::Expired) => {
                self.whole = self.by_pages && listing;
                self.state = State::list();
                Next::AtOnce
            }
            Some(Trouble::NotStreaming(_)) => {
                self.by_pages = true;
                self.state = State::list();
                Next::AtOnce
            }
            Some(Trouble::Later(_, seconds)) => {
                self.restart_list();
                Next::After(Duration::from_secs(*seconds))
            }
            Some(Trouble::Absent) if self.kind.may_be_absent() => {
                self.state = State::list();
                Next::WhenInstalled
            }
            _ => {
                self.restart_list();
                Next::BackOff
            }
        }
    }

    /// A list that broke off begins anew; a watch goes on where it was.
    fn restart_list(&mut self) {
        if matches!(self.state, State::List { .. }) {
            self.state = State::list();
        }
    }

    /// Bookmarks carry a version and nothing else: what looks like an object is none.
    fn bookmark(&mut self, object: &Value) -> Vec<Event> {
        let metadata = &object["metadata"];
        let Some(version) = version(metadata) else { return Vec::new() };
        self.progress += 1;
        match &mut self.state {
            State::From(held) => {
                *held = version;
                Vec::new()
            }
            State::List { found, .. } => {
                if metadata["annotations"]["k8s.io/initial-events-end"] != "true" {
                    return Vec::new();
                }
                let objects = std::mem::take(found).into_values().collect();
                self.state = State::From(version);
                self.synced = true;
                vec![Event::Resync(self.kind, objects)]
            }
        }
    }

    fn told(&mut self, object: Value, exists: bool) -> Vec<Event> {
        self.progress += 1;
        let version = version(&object["metadata"]);
        let (object, mut events) = self.read(object);
        if let (State::From(held), Some(version)) = (&mut self.state, version) {
            *held = version;
        }
        let Some(object) = object else { return events };
        match (&mut self.state, exists) {
            (State::List { found, .. }, true) => drop(found.insert(object.reference(), object)),
            (State::List { found, .. }, false) => drop(found.remove(&object.reference())),
            (State::From(_), true) => events.push(Event::Apply(object)),
            (State::From(_), false) => {
                // What is wrong with it does not matter any more.
                events = vec![Event::Delete(object.reference())];
            }
        }
        events
    }

    /// A page of a list.
    fn page(&mut self, page: &[u8]) -> Result<Vec<Event>, Trouble> {
        let Ok(mut list) = serde_json::from_slice::<Value>(page) else {
            return Err(Trouble::Other("a list is no JSON, or was cut off".into()));
        };
        let Some(Value::Array(items)) = list.get_mut("items").map(Value::take) else {
            return Err(Trouble::Other("a list has no items".into()));
        };
        let version = version(&list["metadata"])
            .ok_or_else(|| Trouble::Other("a list has no resourceVersion".into()))?;
        let rest = list["metadata"]["continue"].as_str().unwrap_or("").to_owned();
        self.progress += 1;
        self.absent = 0;
        let mut events = Vec::new();
        let mut objects = Vec::new();
        for item in items {
            let (object, faults) = self.read(item);
            events.extend(faults);
            objects.extend(object);
        }
        if let State::List { found, next, .. } = &mut self.state {
            found.extend(objects.into_iter().map(|object| (object.reference(), object)));
            if rest.is_empty() {
                let objects = std::mem::take(found).into_values().collect();
                events.push(Event::Resync(self.kind, objects));
                self.state = State::From(version);
                (self.synced, self.whole) = (true, false);
            } else {
                *next = rest;
            }
        }
        Ok(events)
    }

    /// An object of this kind, and what was wrong with it.
    fn read(&self, mut value: Value) -> (Option<Object>, Vec<Event>) {
        if let Value::Object(fields) = &mut value {
            // Items of lists leave these out.
            fields.entry("kind").or_insert_with(|| self.kind.name().into());
            fields.entry("apiVersion").or_insert_with(|| self.kind.api_version().into());
        }
        match read(value) {
            Read::Object(object, faults) if object.reference().kind == self.kind => {
                let reference = object.reference();
                let faults = faults.into_iter();
                let events = faults.map(|it| self.fault(Some(reference.clone()), it)).collect();
                (Some(object), events)
            }
            Read::Object(object, _) => {
                let problem = format!("is no {}", self.kind.name());
                (None, vec![self.fault(Some(object.reference()), FieldFault::new("kind", problem))])
            }
            Read::OtherKind(kind) => {
                let problem = format!("{kind:?} where {} is expected", self.kind.name());
                (None, vec![self.fault(None, FieldFault::new("kind", problem))])
            }
            Read::Nothing(fault) | Read::Refused(fault) => (None, vec![self.fault(None, fault)]),
        }
    }

    fn fault(&self, object: Option<ObjectRef>, fault: FieldFault) -> Event {
        Event::Fault(Fault { file: None, document: None, object, fault })
    }
}

/// A resource version, which must not be interpreted; letters and digits so far.
fn version(metadata: &Value) -> Option<String> {
    let version = metadata["resourceVersion"].as_str()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (!version.is_empty() && version.bytes().all(plain)).then(|| version.to_owned())
}

/// A continue token in a query.
fn escaped(token: &str) -> String {
    let mut text = String::new();
    for byte in token.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                text.push(byte as char);
            }
            other => text += &format!("%{other:02X}"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn line(watch: &mut Watch, kind: &str, object: Value) -> Result<Vec<Event>, Trouble> {
        watch.line(json!({"type": kind, "object": object}).to_string().as_bytes())
    }

    fn namespace(name: &str, version: u32) -> Value {
        json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "resourceVersion": version.to_string()}})
    }

    fn bookmark(version: u32, end: bool) -> Value {
        let mut object = json!({"kind": "Namespace", "apiVersion": "v1",
            "metadata": {"resourceVersion": version.to_string()}});
        if end {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        object
    }

    /// A watch that has listed one namespace `a` at version 5.
    fn listed() -> Watch {
        let mut watch = Watch::new(Kind::Namespace);
        assert!(watch.path().contains("sendInitialEvents=true"));
        assert_eq!(line(&mut watch, "ADDED", namespace("a", 3)), Ok(vec![]));
        let events = line(&mut watch, "BOOKMARK", bookmark(5, true)).unwrap();
        assert!(matches!(&events[..], [Event::Resync(Kind::Namespace, all)] if all.len() == 1));
        assert!(watch.path().ends_with("resourceVersion=5"));
        watch
    }

    #[test]
    fn a_streaming_list_ends_with_its_bookmark_and_the_watch_goes_on_from_there() {
        let mut watch = listed();
        let events = line(&mut watch, "MODIFIED", namespace("b", 7)).unwrap();
        assert!(matches!(events[..], [Event::Apply(_)]));
        assert!(watch.path().ends_with("resourceVersion=7"));
        assert_eq!(line(&mut watch, "BOOKMARK", bookmark(9, false)), Ok(vec![]));
        assert!(watch.path().ends_with("resourceVersion=9"));
        assert!(matches!(
            line(&mut watch, "DELETED", namespace("b", 10)).unwrap()[..],
            [Event::Delete(_)]
        ));
        assert_eq!((watch.end(), watch.next_after(None)), (Ok(vec![]), Next::AtOnce));
    }

    #[test]
    fn a_bookmark_is_never_taken_for_a_policy_that_selects_everything() {
        let mut watch = Watch::new(Kind::NetworkPolicy);
        let empty = json!({"kind": "NetworkPolicy", "apiVersion": "networking.k8s.io/v1",
            "metadata": {"resourceVersion": "4"}, "spec": {"podSelector": {}}});
        assert_eq!(line(&mut watch, "BOOKMARK", empty.clone()), Ok(vec![]));
        let mut end = empty;
        end["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        let events = line(&mut watch, "BOOKMARK", end).unwrap();
        assert_eq!(events, [Event::Resync(Kind::NetworkPolicy, vec![])]);
    }

    #[test]
    fn an_expired_version_lists_anew_whether_by_status_or_by_event() {
        let mut watch = listed();
        let expired = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "old"});
        let trouble = line(&mut watch, "ERROR", expired).unwrap_err();
        assert_eq!(trouble, Trouble::Expired);
        assert_eq!(watch.next_after(Some(&trouble)), Next::AtOnce);
        assert!(watch.path().contains("sendInitialEvents=true"));
        assert_eq!(Trouble::status(410, "", 0), Trouble::Expired);
    }

    #[test]
    fn a_version_that_is_too_large_is_waited_for() {
        let mut watch = listed();
        let trouble = Trouble::status(504, "Too large resource version", 1);
        assert_eq!(watch.next_after(Some(&trouble)), Next::After(Duration::from_secs(1)));
        assert!(watch.path().ends_with("resourceVersion=5"), "the watch goes on where it was");
    }

    #[test]
    fn a_list_that_breaks_off_tells_nothing_and_begins_anew() {
        let mut watch = Watch::new(Kind::Namespace);
        line(&mut watch, "ADDED", namespace("a", 3)).unwrap();
        let trouble = watch.end().unwrap_err();
        assert_eq!(watch.next_after(Some(&trouble)), Next::BackOff);
        let events = line(&mut watch, "BOOKMARK", bookmark(5, true)).unwrap();
        assert_eq!(events, [Event::Resync(Kind::Namespace, vec![])]);
    }

    #[test]
    fn an_older_server_is_listed_by_pages_and_an_expired_page_asks_for_all() {
        let mut watch = Watch::new(Kind::Namespace);
        let refused = Trouble::status(422, "sendInitialEvents: Forbidden: not enabled", 0);
        assert_eq!(watch.next_after(Some(&refused)), Next::AtOnce);
        assert!(watch.path().ends_with("/namespaces?limit=500"));
        let page = |rest: &str, name: &str| {
            json!({"kind": "NamespaceList", "metadata": {"resourceVersion": "8", "continue": rest},
                "items": [{"metadata": {"name": name}}]})
            .to_string()
        };
        watch.line(page("a/b", "a").as_bytes()).unwrap();
        assert_eq!(watch.end(), Ok(vec![]));
        assert!(watch.path().ends_with("limit=500&continue=a%2Fb"));
        assert_eq!(watch.next_after(Some(&Trouble::Expired)), Next::AtOnce);
        assert!(watch.path().ends_with("/namespaces?"));
        watch.line(page("", "b").as_bytes()).unwrap();
        let events = watch.end().unwrap();
        assert!(matches!(&events[..], [Event::Resync(_, all)] if all.len() == 1));
        assert!(watch.path().ends_with("resourceVersion=8"));
    }

    #[test]
    fn a_kind_that_is_not_installed_is_empty_at_first_but_not_at_once_later() {
        let mut watch = Watch::new(Kind::ClusterNetworkPolicy);
        assert_eq!(watch.next_after(Some(&Trouble::Absent)), Next::WhenInstalled);
        assert!(watch.is_gone());
        line(&mut watch, "BOOKMARK", bookmark(5, true)).unwrap();
        assert!(!watch.is_gone());
        for gone in [false, false, true] {
            assert_eq!(watch.next_after(Some(&Trouble::Absent)), Next::WhenInstalled);
            assert_eq!(watch.is_gone(), gone);
        }
        let mut core = Watch::new(Kind::Pod);
        assert_eq!(core.next_after(Some(&Trouble::Absent)), Next::BackOff);
        assert!(!core.is_gone());
    }

    #[test]
    fn nonsense_is_told_and_passed_over() {
        let mut watch = listed();
        for bad in ["{", "[]", "{\"type\":\"WHAT\"}", "{\"type\":\"ADDED\"}"] {
            assert!(matches!(watch.line(bad.as_bytes()).unwrap()[..], [Event::Fault(_)]), "{bad}");
        }
        let bad = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "c", "resourceVersion": "11", "labels": {"a": 1}}});
        let events = line(&mut watch, "ADDED", bad).unwrap();
        assert!(matches!(&events[..], [Event::Fault(_), Event::Apply(Object::Namespace(it))]
            if it.labels.is_partial()));
        let evil = json!({"metadata": {"resourceVersion": "1&watch=0"}});
        assert_eq!(line(&mut watch, "BOOKMARK", evil), Ok(vec![]));
        assert!(watch.path().ends_with("resourceVersion=11"));
    }
}
