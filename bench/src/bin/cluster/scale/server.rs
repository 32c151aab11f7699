//! Serves generated objects as the API server does: streaming lists, bookmarks, watches, selectors.
//!
//! In protobuf where it is asked to, as the API server; in JSON alone with `--json`.
//!
//! It generates what it sends, so it needs no memory for the cluster. `/counts` answers what was sent,
//! `/change?seconds=N&rate=R` begins changes on the watches of pods and nodes: R of pods a second, or
//! as many as are taken where R is 0. With `each=labels` each is another label of another pod, with `each=pods`
//! a pod comes and one goes, in turns.

use std::collections::BTreeMap;
use std::io::{BufWriter, Result, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use testkit::api_server::{ApiServer, Request, Stream, begin_watch, whole, write_event};
use testkit::protobuf;

use super::aggregate::{self, Counted, Sent};
use super::objects::Cluster;

#[derive(Default)]
struct State {
    /// Objects and bytes of each resource's list: sent, and left out by a selector.
    lists: BTreeMap<String, [u64; 4]>,
    /// Objects and bytes of changes.
    changes: [u64; 2],
    /// Changes of labels, and watches of all pods.
    relabelled: u64,
    full: u64,
    aggregate: Sent,
    /// Changes are sent until then, at this rate.
    until: Option<(Instant, u32)>,
    /// Each change is that of another pod.
    each: Option<Each>,
}

/// Changes of another pod each.
#[derive(Clone, Copy, PartialEq)]
enum Each {
    /// It has another label.
    Labels,
    /// It comes, or another one goes.
    Pods,
}

type Shared = Arc<Mutex<State>>;

/// The next pod that changes is so many further on.
const STEP: usize = 7919;
/// A pod changes back after so many changes of others, so that both are never one.
const BACK: usize = 250;

/// Interval of bookmarks.
const BOOKMARK: Duration = Duration::from_secs(1);
/// Version of everything that is listed.
const LISTED: u64 = 1_000_000;

/// Label with the time at which a change was sent, on one of so many that have another label.
pub(super) const SENT: &str = "sent";
const STAMPED: u64 = 50;

/// Milliseconds since the epoch.
pub(super) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Serves until the process is ended.
pub(super) fn run(cluster: Cluster, json: bool) -> anyhow::Result<()> {
    let (server, shared) = (ApiServer::new(), Shared::default());
    server.handle_by(move |request, stream, double| {
        serve(request, stream, cluster, json, double, &shared)
    });
    println!("{}", server.address());
    loop {
        std::thread::park();
    }
}

fn lock(shared: &Shared) -> std::sync::MutexGuard<'_, State> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers a request. The double has the aggregate's objects and Leases.
fn serve(
    request: &Request,
    stream: &mut dyn Stream,
    cluster: Cluster,
    json: bool,
    double: &dyn Fn(&mut dyn Stream) -> Result<()>,
    shared: &Shared,
) -> Result<()> {
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    if aggregate::is_about(path) {
        let is_watch = query.contains("watch=");
        let is_read = request.method == "GET" && query.contains("labelSelector");
        lock(shared).aggregate.watches += u64::from(is_watch);
        let count = |bytes| match &mut lock(shared).aggregate {
            sent if is_watch => sent.watched += bytes,
            sent => sent.listed += if is_read { bytes } else { 0 },
        };
        return double(&mut Counted { stream, count });
    }
    let plural = path.rsplit('/').next().unwrap_or_default();
    match plural {
        "counts" => whole(stream, 200, &counts(&lock(shared))),
        "change" => {
            let number = |name: &str| {
                let value =
                    query.split('&').find_map(|it| it.strip_prefix(name)?.strip_prefix('='));
                value.and_then(|value| value.parse().ok()).unwrap_or(0)
            };
            let until = Instant::now() + Duration::from_secs(number("seconds").into());
            let mut state = lock(shared);
            state.until = Some((until, number("rate")));
            state.each = match query {
                query if query.contains("each=labels") => Some(Each::Labels),
                query if query.contains("each=pods") => Some(Each::Pods),
                _ => None,
            };
            drop(state);
            whole(stream, 200, &json!({}))
        }
        _ if cluster.count(plural) == 0 && path.contains("podgate.io") => {
            whole(stream, 404, &json!({"kind": "Status", "code": 404}))
        }
        _ => {
            let protobuf = !json && request.accepts_protobuf();
            let kind = protobuf::kind_of(plural).filter(|_| protobuf);
            let out = &mut BufWriter::with_capacity(256 << 10, stream);
            watch(out, plural, kind, query, cluster, shared)
        }
    }
}

fn counts(state: &State) -> Value {
    let Sent { listed, watched, watches } = state.aggregate;
    let [objects, bytes] = state.changes;
    json!({"lists": state.lists,
        "changes": {"objects": objects, "bytes": bytes, "relabelled": state.relabelled, "full": state.full},
        "aggregate": {"listed": listed, "watched": watched, "watches": watches}})
}

/// A streaming list, and the watch that follows.
fn watch(
    out: &mut impl Write,
    plural: &str,
    kind: Option<&str>,
    query: &str,
    cluster: Cluster,
    shared: &Shared,
) -> Result<()> {
    begin_watch(out, kind)?;
    let selects = query.contains("Selector=");
    // The pods of one node.
    let node = query.split('&').find_map(|it| it.split_once("spec.nodeName%3Dnode-"));
    let node = node.and_then(|(_, number)| number.parse::<usize>().ok());
    let is_elsewhere = |n: usize| node.is_some_and(|node| n % cluster.nodes != node);
    lock(shared).full += u64::from(plural == "pods" && node.is_none());
    if query.contains("sendInitialEvents=true") {
        let mut count = [0; 4];
        for n in (0..cluster.count(plural)).filter(|n| !is_elsewhere(*n)) {
            let added = json!({"type": "ADDED", "object": cluster.object(plural, n, LISTED)});
            let is_left_out = selects && cluster.is_left_out(plural, n);
            let bytes = match is_left_out {
                true => write_event(&mut std::io::sink(), kind, &added)?,
                false => write_event(out, kind, &added)?,
            };
            let place = 2 * usize::from(is_left_out);
            count[place] += 1;
            count[place + 1] += bytes as u64;
        }
        lock(shared).lists.insert(plural.to_owned(), count);
        write_event(out, kind, &bookmark(LISTED, true))?;
        out.flush()?;
    }
    let (mut version, mut n, mut marked) = (LISTED, 0, Instant::now());
    let mut due = Instant::now();
    loop {
        let state = lock(shared);
        let changing = state.until.filter(|(until, _)| Instant::now() < *until);
        let each = state.each;
        drop(state);
        if let Some((_, rate)) = changing
            && matches!(plural, "pods" | "nodes")
        {
            // Heartbeats of nodes come beside changes of pods, in bursts of a hundred.
            let burst = if plural == "pods" && rate == 0 { 100 } else { 1 };
            for _ in 0..burst {
                version += 1;
                // At a rate, each pod changes its label and later changes it back.
                let is_back = rate > 0 && version % 2 == 0 && each.is_none();
                let count = cluster.count(plural);
                if !is_back {
                    n = (n + STEP) % count;
                }
                let n = if is_back { (n + count - BACK * STEP % count) % count } else { n };
                let (of, n) = match each {
                    Some(Each::Pods) if plural == "pods" => turned_over(cluster, version),
                    _ => ("MODIFIED", n),
                };
                if of == "MODIFIED" && cluster.is_left_out(plural, n) || is_elsewhere(n) {
                    continue;
                }
                let mut object = cluster.object(plural, n, version);
                if of != "MODIFIED" {
                    object["status"]["phase"] = "Running".into();
                }
                let is_relabelled = if rate > 0 { !is_back } else { version % 10 == 0 };
                if plural == "pods" && is_relabelled {
                    if of == "MODIFIED" {
                        object["metadata"]["labels"]["tier"] = "changed".into();
                    }
                    // Few of them say when, so that the others keep their size.
                    if each.is_some() && version % STAMPED == 0 {
                        object["metadata"]["labels"][SENT] = now_ms().to_string().into();
                    }
                }
                let bytes = write_event(out, kind, &json!({"type": of, "object": object}))?;
                let mut state = lock(shared);
                state.changes[0] += 1;
                state.changes[1] += bytes as u64;
                let counts = plural == "pods" && is_relabelled && node.is_none();
                state.relabelled += u64::from(counts);
            }
            out.flush()?;
            if plural == "nodes" {
                std::thread::sleep(Duration::from_millis(60));
            } else if rate > 0 {
                // A pause that was too long is made up for, but not an idle time before the changes.
                due = due.max(Instant::now() - BOOKMARK) + Duration::from_secs(1) / rate;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            continue;
        }
        if marked.elapsed() >= BOOKMARK {
            marked = Instant::now();
            write_event(out, kind, &bookmark(version, false))?;
            out.flush()?;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A pod that was not there comes in place of one that goes: the event, and the number of the pod.
fn turned_over(cluster: Cluster, version: u64) -> (&'static str, usize) {
    let n = ((version - LISTED) / 2) as usize;
    match version % 2 {
        0 => ("ADDED", cluster.count("pods") + n),
        _ => ("DELETED", n % cluster.pods),
    }
}

fn bookmark(version: u64, is_end: bool) -> Value {
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if is_end {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    json!({"type": "BOOKMARK", "object": {"metadata": metadata}})
}
