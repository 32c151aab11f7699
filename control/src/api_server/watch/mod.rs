//! One kind's list and watch as a state machine: takes responses, gives the next request.
//!
//! <https://kubernetes.io/docs/reference/using-api/api-concepts/>: "Efficient detection of
//! changes" and "Streaming lists".

mod said;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::answer::Framing;
use super::found::Found;
use super::trouble::Trouble;
use super::{Event, json, protobuf};
use crate::objects::{Read, read};
use crate::{Fault, FieldFault, Kind, Object, ObjectRef};
use said::Said;

/// Requested duration of a watch; the API server ends it then.
const WATCH_SECONDS: u64 = 290;
/// Events that are passed over are reported with the next bookmark, or when they are so many.
const REPORTED: u64 = 1_000;
/// Objects on a page, where lists come in pages.
const PAGE: usize = 500;

/// The state of one kind.
#[derive(Debug)]
pub(super) struct Watch {
    kind: Kind,
    /// The node whose pods alone are watched.
    node: Option<String>,
    /// `GROUP/VERSION` that it is read in: the kind's own, or another one of its group that the API
    /// server serves instead.
    version: String,
    state: State,
    /// Lists come in pages: the API server does not support streaming lists, or the last one failed.
    by_pages: bool,
    /// Streaming lists are never tried again.
    never_streams: bool,
    /// A page had expired: request the list as a whole.
    whole: bool,
    /// JSON is requested: the kind has no protobuf, or the API server refused it, or an answer could not be read.
    json_only: bool,
    /// The encoding of the answer that is read.
    encoding: Encoding,
    /// The last content of each object, by which events without news are passed over.
    said: Said,
    /// Events that were passed over and are not reported yet.
    passed_over: u64,
    /// Grows with every complete list, and every event and bookmark of a watch.
    progress: u64,
    /// It grew since the last call.
    has_fruit: bool,
    /// The last progress was that of a watch.
    is_watching_on: bool,
}

#[derive(Debug)]
enum State {
    /// Listing; the objects so far. Pages are buffered as text until they are complete.
    List { found: Found, page: Vec<u8>, next: String },
    /// Watching from this resource version on.
    From(String),
}

impl State {
    fn list() -> Self {
        Self::List { found: Found::default(), page: Vec::new(), next: String::new() }
    }
}

/// The encoding of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Protobuf,
}

/// When to send the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    AtOnce,
    BackOff,
    After(Duration),
    WhenInstalled,
}

impl Watch {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            node: None,
            version: kind.api_version().to_owned(),
            state: State::list(),
            by_pages: false,
            never_streams: false,
            whole: false,
            json_only: !protobuf::is_served(kind),
            encoding: Encoding::Json,
            said: Said::default(),
            passed_over: 0,
            progress: 0,
            has_fruit: false,
            is_watching_on: false,
        }
    }

    /// Watches the pods of one node alone, if one is given.
    pub(super) fn limit_to(&mut self, node: Option<&str>) {
        self.node = node.map(str::to_owned);
    }

    /// The resource version to watch from; `None` before everything is listed.
    pub(super) fn held(&self) -> Option<&str> {
        match &self.state {
            State::From(version) => Some(version),
            State::List { .. } => None,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Reads the kind in this version from now on.
    pub(super) fn read_in(&mut self, version: String) {
        self.version = version;
        self.begin_list();
    }

    /// Whether it is read in a version that this program was not written for. What cannot be read in
    /// full then stands for a meaning that is unknown: nothing is taken over.
    pub(super) fn is_foreign(&self) -> bool {
        self.version != self.kind.api_version()
    }

    pub(super) fn progress(&self) -> u64 {
        self.progress
    }

    /// Returns whether there was progress since the last call.
    pub(super) fn take_fruit(&mut self) -> bool {
        std::mem::take(&mut self.has_fruit)
    }

    /// Whether every object of the kind is known; of a list, parts may still be missing.
    pub(super) fn is_listed(&self) -> bool {
        matches!(self.state, State::From(_))
    }

    /// Whether the last progress was an event or a bookmark of a watch, rather than a list.
    pub(super) fn is_watching_on(&self) -> bool {
        self.is_watching_on
    }

    /// The next list begins from nothing.
    fn begin_list(&mut self) {
        self.state = State::list();
        self.said.clear();
    }

    fn progresses(&mut self, is_watching_on: bool) {
        self.progress += 1;
        (self.has_fruit, self.is_watching_on) = (true, is_watching_on);
    }

    /// The media types to ask for.
    pub(super) fn accept(&self) -> &'static str {
        match self.json_only {
            true => "application/json",
            false => "application/vnd.kubernetes.protobuf, application/json",
        }
    }

    /// The head of the answer; returns how its body is divided.
    pub(super) fn answered(&mut self, encoding: Encoding) -> Framing {
        self.encoding = encoding;
        match (&self.state, encoding) {
            (State::List { .. }, _) if self.by_pages => Framing::Whole,
            (_, Encoding::Json) => Framing::Lines,
            (_, Encoding::Protobuf) => Framing::Lengths,
        }
    }

    /// Path and query of the request to make now.
    pub(super) fn path(&self) -> String {
        let version = &self.version;
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
        let mut selector = selector(self.kind).to_owned();
        if let Some(node) = &self.node {
            selector += &format!("%2Cspec.nodeName%3D{}", escaped(node));
        }
        if !selector.is_empty() {
            selector.push('&');
        }
        format!("/{root}/{version}/{plural}?{selector}{query}")
    }

    /// A part of the answer: of a list by pages some bytes, else a line or message with an event.
    pub(super) fn part(&mut self, part: &[u8]) -> Result<Vec<Event>, Trouble> {
        if self.by_pages
            && let State::List { page, .. } = &mut self.state
        {
            page.extend_from_slice(part);
            return Ok(Vec::new());
        }
        if (self.kind, self.encoding) == (Kind::Pod, Encoding::Protobuf)
            && let Some(event) = protobuf::pod_event(part)
            && let Some(version) = plain(&event.version)
        {
            let says_the_same = self.said.note_pod(&event.pod, event.exists);
            let (object, faults) = (Object::Pod(Arc::new(event.pod)), Vec::new());
            return Ok(match self.passes_over(says_the_same, Some(&version)) {
                true => self.passed_over(REPORTED),
                false => self.known(object, faults, event.exists, Some(version)),
            });
        }
        let undecodable = |problem: String| Err(Trouble::Undecodable(problem));
        let event = match self.encoding {
            Encoding::Json => {
                json::parse(part, self.kind).map_err(|_| "a watch event is no JSON".to_owned())
            }
            Encoding::Protobuf => protobuf::watch_event(part, self.kind)
                .map_err(|damage| format!("a watch event is no protobuf: {damage}")),
        };
        let mut event = match event {
            Ok(event) => event,
            Err(problem) => return undecodable(problem),
        };
        let object = event.get_mut("object").map(Value::take).unwrap_or(Value::Null);
        match event.get("type").and_then(Value::as_str) {
            Some("BOOKMARK") => Ok(self.bookmark(&object)),
            Some("ERROR") => Err(Trouble::of_status(&object, 0)),
            Some("ADDED" | "MODIFIED") => self.object(object, true),
            Some("DELETED") => self.object(object, false),
            other => undecodable(format!("a watch event has the unknown type {other:?}")),
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

    /// Returns when to send the next request, after the last one ended.
    ///
    /// A streaming list that fails is repeated as a list by pages at once, as client-go's reflector does; the list
    /// after that one streams again.
    pub(super) fn next_after(&mut self, trouble: Option<&Trouble>) -> Next {
        let listing = matches!(self.state, State::List { .. });
        // JSON is what every version of the API server has.
        let refuses_protobuf = !self.json_only
            && match trouble {
                Some(Trouble::NotAcceptable(_)) => true,
                Some(Trouble::Undecodable(_)) => self.encoding == Encoding::Protobuf,
                _ => false,
            };
        self.json_only |= refuses_protobuf;
        match trouble {
            None => Next::AtOnce,
            Some(Trouble::NotAcceptable(_)) if refuses_protobuf => {
                self.restart_list();
                Next::AtOnce
            }
            Some(Trouble::Expired) => {
                self.whole = self.by_pages && listing;
                self.begin_list();
                Next::AtOnce
            }
            Some(trouble) if listing && !self.by_pages && trouble.is_about_streaming() => {
                self.by_pages = true;
                self.never_streams |= matches!(trouble, Trouble::NotStreaming(_));
                self.begin_list();
                Next::AtOnce
            }
            // What the event said is unknown; a list says it.
            Some(Trouble::Undecodable(_)) => {
                self.begin_list();
                Next::AtOnce
            }
            Some(Trouble::Later(_, seconds)) => {
                self.restart_list();
                Next::After(Duration::from_secs(*seconds))
            }
            Some(Trouble::Absent) if self.kind.may_be_absent() => {
                self.begin_list();
                Next::WhenInstalled
            }
            _ => {
                self.restart_list();
                Next::BackOff
            }
        }
    }

    /// An interrupted list begins again; a watch continues where it was.
    fn restart_list(&mut self) {
        if matches!(self.state, State::List { .. }) {
            self.begin_list();
        }
    }

    /// Bookmarks carry a version and nothing else.
    fn bookmark(&mut self, object: &Value) -> Vec<Event> {
        let metadata = &object["metadata"];
        let Some(version) = version(metadata) else { return Vec::new() };
        match &mut self.state {
            State::From(held) => {
                *held = version;
                self.progresses(true);
                self.passed_over(1)
            }
            State::List { found, .. } => {
                if metadata["annotations"]["k8s.io/initial-events-end"] != "true" {
                    return Vec::new();
                }
                let found = std::mem::take(found);
                self.state = State::From(version);
                self.progresses(false);
                vec![found.resync(self.kind)]
            }
        }
    }

    /// Reports the events that were passed over, if there are so many at least.
    fn passed_over(&mut self, least: u64) -> Vec<Event> {
        match self.passed_over >= least {
            true => vec![Event::PassedOver(self.kind, std::mem::take(&mut self.passed_over))],
            false => Vec::new(),
        }
    }

    /// An object of a list or watch.
    fn object(&mut self, mut object: Value, exists: bool) -> Result<Vec<Event>, Trouble> {
        let version = version(&object["metadata"]);
        let says_the_same = !self.kind.may_be_absent() && self.said.note(&mut object, exists);
        if self.passes_over(says_the_same, version.as_ref()) {
            return Ok(self.passed_over(REPORTED));
        }
        let (object, faults) = match self.read(object) {
            Ok(read) => read,
            Err(fault) if self.is_foreign() => return Err(self.unreadable(&fault)),
            // A list by pages reports it and goes on without it, so it is not listed again and again.
            Err(fault) => return Err(Trouble::Undecodable(fault.to_string())),
        };
        Ok(self.known(object, faults, exists, version))
    }

    /// Passes an event of a watch over if its object says the same as before; returns whether it did.
    fn passes_over(&mut self, says_the_same: bool, version: Option<&String>) -> bool {
        match (&mut self.state, version) {
            (State::From(held), Some(version)) if says_the_same => {
                held.clone_from(version);
                self.progresses(true);
                self.passed_over += 1;
                true
            }
            _ => false,
        }
    }

    /// An object that was read.
    fn known(
        &mut self,
        object: Object,
        faults: Vec<FieldFault>,
        exists: bool,
        version: Option<String>,
    ) -> Vec<Event> {
        if let (State::From(held), Some(version)) = (&mut self.state, version) {
            *held = version;
            self.progresses(true);
        }
        match (&mut self.state, exists) {
            (State::List { found, .. }, true) => {
                found.insert(object, faults);
                Vec::new()
            }
            (State::List { found, .. }, false) => {
                found.remove(&object.reference());
                Vec::new()
            }
            (State::From(_), true) => vec![Event::Apply(object, faults)],
            // The faults of a deleted object are irrelevant.
            (State::From(_), false) => vec![Event::Delete(object.reference())],
        }
    }

    /// A page of a list.
    fn page(&mut self, page: &[u8]) -> Result<Vec<Event>, Trouble> {
        let mut list = match self.encoding {
            Encoding::Json => json::parse(page, self.kind)
                .map_err(|_| Trouble::Other("a list is no JSON, or was cut off".into()))?,
            Encoding::Protobuf => protobuf::list(page, self.kind).map_err(|damage| {
                Trouble::Undecodable(format!("a list is no protobuf: {damage}"))
            })?,
        };
        let Some(Value::Array(items)) = list.get_mut("items").map(Value::take) else {
            return Err(Trouble::Other("a list has no items".into()));
        };
        let version = version(&list["metadata"])
            .ok_or_else(|| Trouble::Other("a list has no resourceVersion".into()))?;
        let rest = list["metadata"]["continue"].as_str().unwrap_or("").to_owned();
        let mut events = Vec::new();
        let mut read = Vec::new();
        for mut item in items {
            if !self.kind.may_be_absent() {
                self.said.note(&mut item, true);
            }
            match self.read(item) {
                Ok(it) => read.push(it),
                Err(fault) if self.is_foreign() => return Err(self.unreadable(&fault)),
                Err(fault) => events.push(Event::Fault(*fault)),
            }
        }
        self.progresses(false);
        if let State::List { found, next, .. } = &mut self.state {
            read.into_iter().for_each(|(object, faults)| found.insert(object, faults));
            if rest.is_empty() {
                events.push(std::mem::take(found).resync(self.kind));
                self.state = State::From(version);
                self.whole = false;
                self.by_pages = self.never_streams;
            } else {
                *next = rest;
            }
        }
        Ok(events)
    }

    /// Reads an object of this kind and its faults; an error if it is none.
    fn read(&self, mut value: Value) -> Result<(Object, Vec<FieldFault>), Box<Fault>> {
        if let Value::Object(fields) = &mut value {
            // Items of lists leave these out.
            fields.entry("kind").or_insert_with(|| self.kind.name().into());
            let version =
                fields.entry("apiVersion").or_insert_with(|| self.version.as_str().into());
            if *version == self.version.as_str() {
                *version = self.kind.api_version().into();
            }
        }
        match read(value) {
            Read::Object(object, faults) if self.is_foreign() && !faults.is_empty() => {
                let fault = faults.into_iter().next().expect("there is one");
                Err(Box::new(self.fault(Some(object.reference()), fault)))
            }
            Read::Object(object, faults) if object.kind() == self.kind => Ok((object, faults)),
            Read::Object(object, _) => {
                let problem = format!("is no {}", self.kind.name());
                Err(Box::new(
                    self.fault(Some(object.reference()), FieldFault::new("kind", problem)),
                ))
            }
            Read::OtherKind(kind) => {
                let problem = format!("{kind:?} where {} is expected", self.kind.name());
                Err(Box::new(self.fault(None, FieldFault::new("kind", problem))))
            }
            Read::Nothing(fault) | Read::Refused(fault) => Err(Box::new(self.fault(None, fault))),
        }
    }

    fn unreadable(&self, fault: &Fault) -> Trouble {
        let version = &self.version;
        Trouble::Other(format!("is served in {version} only, which cannot be read: {fault}"))
    }

    fn fault(&self, object: Option<ObjectRef>, fault: FieldFault) -> Fault {
        Fault { file: None, document: None, position: None, object, fault }
    }
}

/// The part of a query that leaves out objects which decide nothing: finished pods, and services
/// without a cluster address or of another implementation, as kube-proxy does. A watch reports an
/// object that the selector no longer matches as deleted.
fn selector(kind: Kind) -> &'static str {
    match kind {
        Kind::Pod => "fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed",
        Kind::Service | Kind::EndpointSlice => {
            "labelSelector=%21service.kubernetes.io%2Fheadless%2C\
             %21service.kubernetes.io%2Fservice-proxy-name"
        }
        _ => "",
    }
}

/// A resource version, which must not be interpreted; letters and digits so far.
fn version(metadata: &Value) -> Option<String> {
    plain(metadata["resourceVersion"].as_str()?)
}

/// The version of such a text.
fn plain(version: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (!version.is_empty() && version.bytes().all(plain)).then(|| version.to_owned())
}

/// A continue token in a query.
pub(super) fn escaped(token: &str) -> String {
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
mod tests;
