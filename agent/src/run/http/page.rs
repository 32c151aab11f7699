//! The page for browsers: what policies allow, and what the switch decides, read-only.
//!
//! | path | answer |
//! |---|---|
//! | `/page` | the picture of the policies, with empty tables and a script |
//! | `/page/live.json` | what the script asks for every two seconds |
//!
//! A picture takes a while to draw, so a thread draws it, and requests get the last one. It is
//! drawn only while a browser requests it, and takes at most one part in [`SHARE`] of the time.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use acl::Origin;
use control::Object;
use local_api::{ObserveFilters, Verdict};
use observe::time::utc;
use observe::trace::Line;
use observe::verdicts::{End, Event, Filter, Protocol, Reason};
use parking_lot::Mutex;
use policy_tools::policy::live::Drawing;
use serde::Serialize;
use serde_json::json;
use telemetry::Page;

use crate::run::events::Event as LoopEvent;
use crate::run::pairs::{PairOfEnds, pairs_of_ends};
use crate::run::shared_status::SharedStatus;
use crate::run::status::{NotEnforced, Status};
use crate::run::thread::Thread;

/// The page's state.
pub(super) struct LivePage {
    shared: Arc<SharedStatus>,
    events: Mutex<Sender<LoopEvent>>,
    drawn: Arc<Mutex<Drawn>>,
    /// The last answer to the script.
    live: Mutex<Option<(Instant, String)>>,
}

/// The last picture.
#[derive(Default)]
struct Drawn {
    drawing: Arc<Drawing>,
    /// Its number, from 1.
    number: u64,
    /// Why there is none.
    problem: Option<String>,
    /// The snapshot that it was drawn at.
    generation: Option<u64>,
    is_drawing: bool,
    not_before: Option<Instant>,
}

/// Time that an answer is reused.
const FRESH: Duration = Duration::from_secs(1);
/// Between two pictures, at least.
const PAUSE: Duration = Duration::from_secs(5);
/// Drawing takes at most one part in this many of the time.
const SHARE: u32 = 20;
/// Timeout of the control loop for its objects.
const OBJECTS: Duration = Duration::from_secs(10);
/// Time that a verdict is shown.
const LATELY: Duration = Duration::from_secs(300);
/// Connections, pairs of ends and traced packets shown at most.
const MOST_FLOWS: usize = 200;
const MOST_PAIRS: usize = 10;
const MOST_TRACED: usize = 50;

/// Answer to a request of the page's script.
#[derive(Serialize)]
struct Live {
    time: String,
    at_ms: u64,
    node: String,
    generation: u64,
    not_enforced: Vec<NotEnforced>,
    /// The number of the last picture.
    drawing: u64,
    flows: Vec<Flow>,
    ports: Vec<Port>,
    pairs: Vec<PairOfEnds>,
    trace: Trace,
}

/// Equal connections.
#[derive(Clone, Serialize)]
struct Flow {
    from: String,
    to: String,
    from_place: Option<String>,
    to_place: Option<String>,
    protocol: Option<Protocol>,
    port: Option<u16>,
    verdict: Verdict,
    reason: Reason,
    by: Vec<Origin>,
    count: u64,
    #[serde(with = "observe::time::in_json")]
    last: SystemTime,
}

#[derive(Serialize)]
struct Port {
    name: String,
    received: u64,
    received_bytes: u64,
    sent: u64,
    sent_bytes: u64,
    sessions: u32,
}

#[derive(Serialize)]
struct Trace {
    wanted: u32,
    lines: Vec<Traced>,
}

#[derive(Serialize)]
struct Traced {
    from: String,
    to: String,
    from_place: Option<String>,
    to_place: Option<String>,
    #[serde(flatten)]
    line: Line,
}

impl LivePage {
    pub(super) fn new(shared: Arc<SharedStatus>, events: Sender<LoopEvent>) -> Self {
        let (events, drawn) = (Mutex::new(events), Arc::default());
        Self { shared, events, drawn, live: Mutex::default() }
    }

    pub(super) fn page(&self, path: &str) -> Option<Page> {
        match path {
            "/page" => Some(self.picture()),
            "/page/live.json" => Some(Page::json(self.live())),
            _ => None,
        }
    }

    fn picture(&self) -> Page {
        self.draw_if_due();
        let drawn = self.drawn.lock();
        match (&drawn.problem, drawn.number) {
            (Some(problem), _) => Page::new(503, format!("{problem}\n")),
            (None, 0) => Page::html(503, WAIT),
            (None, _) => {
                let found = NotEnforced::all(&self.shared);
                let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
                Page::html(200, drawn.drawing.with_banner(&lines))
            }
        }
    }

    fn live(&self) -> String {
        self.draw_if_due();
        let mut last = self.live.lock();
        if let Some((at, text)) = &*last
            && at.elapsed() < FRESH
        {
            return text.clone();
        }
        let (drawing, number) = {
            let drawn = self.drawn.lock();
            (Arc::clone(&drawn.drawing), drawn.number)
        };
        let text = serde_json::to_string(&self.look(&drawing, number)).unwrap_or_default();
        *last = Some((Instant::now(), text.clone()));
        text
    }

    fn look(&self, drawing: &Drawing, number: u64) -> Live {
        let shared = &self.shared;
        let Status { node, generation, ports, not_enforced, .. } = Status::of(shared);
        let ports = ports.into_iter().map(|it| Port {
            name: it.name,
            received: it.received,
            received_bytes: it.received_bytes,
            sent: it.sent,
            sent_bytes: it.sent_bytes,
            sessions: it.sessions,
        });
        let (lines, wanted) = shared.trace.newest(&shared.switch, MOST_TRACED);
        let traced = lines.into_iter().map(|line| {
            let (from, to) = self.ends(&line);
            Traced {
                from: drawing.name(&from),
                to: drawing.name(&to),
                from_place: drawing.place(&from),
                to_place: drawing.place(&to),
                line,
            }
        });
        let now = SystemTime::now();
        Live {
            time: utc(now),
            at_ms: u64::try_from(shared.uptime().as_millis()).unwrap_or(u64::MAX),
            node,
            generation,
            not_enforced,
            drawing: number,
            flows: flows(&self.lately(now), drawing),
            ports: ports.collect(),
            pairs: pairs_of_ends(shared, MOST_PAIRS),
            trace: Trace { wanted, lines: traced.collect() },
        }
    }

    /// The verdicts of the last minutes.
    fn lately(&self, now: SystemTime) -> Vec<Arc<Event>> {
        let since = now.checked_sub(LATELY).map(utc);
        let filters = ObserveFilters { since, last: u32::MAX, ..ObserveFilters::default() };
        let observer = Filter::new(filters).map(|filter| self.shared.broker.observe(filter));
        observer.map(|it| it.events.try_iter().collect()).unwrap_or_default()
    }

    /// The ends of a traced packet, as its headers name them.
    fn ends(&self, line: &Line) -> (End, End) {
        let parse = line.trace.iter().find(|decision| decision.fields.contains_key("source"));
        let end = |field: &str| {
            let text = parse.and_then(|it| it.fields.get(field)?.as_str());
            let ip = text.and_then(|text| text.parse().ok());
            End {
                pod: ip.and_then(|ip| self.shared.broker.directory().pod_at(ip)),
                ip,
                ..End::default()
            }
        };
        (end("source"), end("destination"))
    }

    /// Begins a picture if the last one is of an earlier snapshot, and none was drawn just now.
    fn draw_if_due(&self) {
        let generation = self.shared.state().snapshot.generation;
        let mut drawn = self.drawn.lock();
        let is_due = drawn.not_before.is_none_or(|time| time <= Instant::now());
        if drawn.is_drawing || drawn.generation == Some(generation) || !is_due {
            return;
        }
        let events = self.events.lock().clone();
        let (number, to) = (drawn.number + 1, Arc::clone(&self.drawn));
        let draw = move || {
            let began = Instant::now();
            let result = objects(&events).and_then(|objects| Drawing::new(objects, number));
            let mut drawn = to.lock();
            match result {
                Ok(drawing) => {
                    (drawn.drawing, drawn.number) = (Arc::new(drawing), number);
                    (drawn.generation, drawn.problem) = (Some(generation), None);
                }
                Err(problem) => drawn.problem = Some(problem),
            }
            drawn.is_drawing = false;
            drawn.not_before = Some(Instant::now() + PAUSE.max(began.elapsed() * SHARE));
        };
        match Thread::start("picture", draw).map(Thread::detach) {
            Ok(()) => drawn.is_drawing = true,
            Err(error) => drawn.problem = Some(error.to_string()),
        }
    }
}

/// Shown until the first picture is drawn; asks for it again.
const WAIT: &str = "<!DOCTYPE html>\n<meta http-equiv=\"refresh\" content=\"1\">\n\
                    <title>What policies allow</title>\n<p>The picture is being drawn.</p>\n";

/// The objects that the control loop knows.
fn objects(events: &Sender<LoopEvent>) -> Result<Vec<Object>, String> {
    let (sender, objects) = channel();
    let ending = "podgate is ending".to_owned();
    events.send(LoopEvent::Objects(sender)).map_err(|_| ending.clone())?;
    objects.recv_timeout(OBJECTS).map_err(|_| ending)
}

/// Equal connections together, the latest first.
fn flows(events: &[Arc<Event>], drawing: &Drawing) -> Vec<Flow> {
    let mut flows: BTreeMap<String, Flow> = BTreeMap::new();
    for event in events {
        let (from, to) = (drawing.name(&event.from), drawing.name(&event.to));
        let key =
            json!([from, to, event.protocol, event.to.port, event.verdict, event.reason, event.by]);
        let flow = flows.entry(key.to_string()).or_insert_with(|| Flow {
            from,
            to,
            from_place: drawing.place(&event.from),
            to_place: drawing.place(&event.to),
            protocol: event.protocol,
            port: event.to.port,
            verdict: event.verdict,
            reason: event.reason.clone(),
            by: event.by.clone(),
            count: 0,
            last: event.time,
        });
        flow.count += 1;
        flow.last = event.time;
    }
    let mut flows: Vec<Flow> = flows.into_values().collect();
    flows.sort_by_key(|flow| Reverse(flow.last));
    flows.truncate(MOST_FLOWS);
    flows
}
