//! Delay of a denial that is made while an API server is away, or answers oddly.
//!
//! ```text
//! cargo run --release -p control --example outage_figures [ROUNDS]
//! ```
//!
//! Each round has a server of its own, and waits as the switch does. Late is counted from the moment when
//! the server has the denial and serves again.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use control::api_server::{Access, Event, Pace, connect, watch};
use control::{Kind, Object};
use serde_json::{Value, json};
use testkit::TempDir;

/// The behaviour of the server.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Serves,
    /// Connections end without an answer.
    Away,
    Status(u16),
    /// Watches expire, and lists are served.
    WatchesExpire,
    /// Requests get no answer, ever.
    Hangs,
}

/// A name, what the server does for how many seconds, and when the denial is made.
type Case = (&'static str, &'static [(Mode, u64)], u64);

const CASES: [Case; 7] = [
    ("away for 20 s", &[(Mode::Away, 20)], 10),
    ("away for 60 s", &[(Mode::Away, 60)], 30),
    ("away for 20 s, then 403 for 3 s", &[(Mode::Away, 20), (Mode::Status(403), 3)], 21),
    ("500 for 20 s", &[(Mode::Status(500), 20)], 10),
    ("410 to lists and watches for 10 s", &[(Mode::Status(410), 10)], 5),
    ("410 to watches for 10 s, lists are served", &[(Mode::WatchesExpire, 10)], 5),
    ("hangs for 20 s", &[(Mode::Hangs, 20)], 10),
];

#[derive(Clone, Copy)]
struct State {
    mode: Mode,
    is_denied: bool,
}

/// The state of a server, and the requests that wait for a change of it.
struct World(Mutex<State>, Condvar);

impl World {
    fn state(&self) -> State {
        *self.0.lock().expect("a lock")
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.lock().expect("a lock"));
        self.1.notify_all();
    }

    /// Waits until something holds.
    fn wait(&self, holds: impl Fn(State) -> bool) -> State {
        let state = self.0.lock().expect("a lock");
        *self.1.wait_while(state, |state| !holds(*state)).expect("a lock")
    }
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|it| it.parse().ok()).unwrap_or(10);
    println!("| case | median, s | worst, s |\n|---|--:|--:|");
    std::thread::scope(|scope| {
        let cases = CASES.map(|case| {
            let rounds = (0..rounds).map(|_| scope.spawn(move || round(&case)));
            (case.0, rounds.collect::<Vec<_>>())
        });
        for (name, rounds) in cases {
            let late = rounds.into_iter().map(|round| round.join().expect("a round"));
            let mut late: Vec<f64> = late.map(|it| it.as_secs_f64()).collect();
            late.sort_by(f64::total_cmp);
            println!("| {name} | {:.2} | {:.2} |", late[late.len() / 2], late[late.len() - 1]);
        }
    });
}

fn round((_, phases, denial): &Case) -> Duration {
    let state = State { mode: Mode::Serves, is_denied: false };
    let world = Arc::new(World(Mutex::new(state), Condvar::new()));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let shared = Arc::clone(&world);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let world = Arc::clone(&shared);
            // An error is a client that went.
            std::thread::spawn(move || serve(&stream, &world).is_ok());
        }
    });
    let folder = TempDir::new("outage");
    let path = folder.path().join("kubeconfig");
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "u", "user": {}}]});
    std::fs::write(&path, config.to_string()).expect("a file");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let connection = connect(&Access::Kubeconfig(path)).await.expect("a connection");
        let (sender, mut events) = tokio::sync::mpsc::channel(64);
        let _watches = watch(&connection.client, Pace::default(), &sender);
        while events.recv().await != Some(Event::Synced) {}
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (phases, denial, acting) = (phases.to_vec(), *denial, Arc::clone(&world));
        let script = std::thread::spawn(move || act(&phases, denial, &acting));
        let known = loop {
            let is_denial = |object: &Object| matches!(object, Object::NetworkPolicy(_));
            match events.recv().await.expect("an event") {
                Event::Apply(object, _) if is_denial(&object) => break Instant::now(),
                Event::Resync(Kind::NetworkPolicy, objects, _) if !objects.is_empty() => {
                    break Instant::now();
                }
                _ => {}
            }
        };
        // A list that is served meanwhile may have it before the end of the phases.
        let served = script.join().expect("the script");
        known.saturating_duration_since(served)
    })
}

/// Plays the phases; returns from when on the denial could be known.
fn act(phases: &[(Mode, u64)], denial: u64, world: &World) -> Instant {
    let (mut at, mut known_from) = (0, None);
    for &(mode, seconds) in phases {
        world.change(|state| state.mode = mode);
        let mut until = |second: u64| {
            std::thread::sleep(Duration::from_secs(second - at));
            at = second;
        };
        let end = at_end(phases, mode);
        if (end - seconds..end).contains(&denial) {
            until(denial);
            world.change(|state| state.is_denied = true);
            known_from = (mode == Mode::WatchesExpire).then(Instant::now);
        }
        until(end);
    }
    world.change(|state| state.mode = Mode::Serves);
    known_from.unwrap_or_else(Instant::now)
}

/// The second in which a mode ends.
fn at_end(phases: &[(Mode, u64)], mode: Mode) -> u64 {
    let until = phases.iter().position(|it| it.0 == mode).expect("a phase");
    phases[..=until].iter().map(|it| it.1).sum()
}

/// Answers the requests of a connection.
fn serve(stream: &TcpStream, world: &World) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut out = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        while reader.read_line(&mut line)? > 2 {}
        let mode = world.state().mode;
        let (is_watch, is_list) = (path.contains("watch=1"), path.contains("sendInitialEvents"));
        match mode {
            Mode::Away => return Ok(()),
            Mode::Hangs => loop {
                std::thread::park();
            },
            Mode::Status(code) => whole(out, code)?,
            Mode::WatchesExpire if is_watch && !is_list => whole(out, 410)?,
            _ if !is_watch => whole(out, 404)?,
            _ => follow(&mut out, is_list, path.contains("/networkpolicies"), mode, world)?,
        }
    }
}

/// Serves a streaming list, if one is requested, and the watch after it, until the state changes.
fn follow(
    out: &mut impl Write,
    lists: bool,
    is_policies: bool,
    mode: Mode,
    world: &World,
) -> std::io::Result<()> {
    out.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
    )?;
    let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "deny", "namespace": "x", "resourceVersion": "7"},
        "spec": {"podSelector": {}}});
    let mut told = false;
    if lists {
        told = world.state().is_denied;
        if told && is_policies {
            event(out, "ADDED", &policy)?;
        }
        let end = json!({"metadata": {"resourceVersion": "5",
            "annotations": {"k8s.io/initial-events-end": "true"}}});
        event(out, "BOOKMARK", &end)?;
    }
    let expired = json!({"kind": "Status", "code": 410, "message": "old"});
    if mode == Mode::WatchesExpire {
        return event(out, "ERROR", &expired)
            .and(Err(std::io::ErrorKind::ConnectionAborted.into()));
    }
    let tells = |state: State| is_policies && mode == Mode::Serves && state.is_denied;
    loop {
        let now = world.wait(|state| state.mode != mode || !told && tells(state)).mode;
        if now != mode {
            if matches!(now, Mode::Status(410) | Mode::WatchesExpire) {
                event(out, "ERROR", &expired)?;
            }
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        told = true;
        event(out, "ADDED", &policy)?;
    }
}

fn event(out: &mut impl Write, kind: &str, object: &Value) -> std::io::Result<()> {
    let line = json!({"type": kind, "object": object}).to_string() + "\n";
    write!(out, "{:x}\r\n{line}\r\n", line.len())?;
    out.flush()
}

fn whole(mut out: impl Write, code: u16) -> std::io::Result<()> {
    let body = json!({"kind": "Status", "code": code, "message": "odd"}).to_string();
    let head = "Content-Type: application/json\r\nContent-Length";
    write!(out, "HTTP/1.1 {code} Odd\r\n{head}: {}\r\n\r\n{body}", body.len())?;
    out.flush()
}
