//! A switch with many pods that is killed and started again, and one that another takes over: how long the
//! start takes, its processor time, and for how long pods have no new connection.
//!
//! ```text
//! cargo run --release -p bench --bin node -- restart [PODS] [ROUNDS] [PROGRAM…]     (as root)
//! ```
//!
//! Each PROGRAM is a `podgate` of another build, measured in turns with this one's.

use std::collections::{BTreeSet, VecDeque};
use std::error::Error;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bench::attach::{self, PATIENCE, address, milliseconds, start_program};
use bench::forwarder::own_path;
use bench::rig::{echo, needs_root, words};
use bench::{Samples, argument, in_turns, print_table, process};
use testkit::{Namespace, Process, TempDir};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Names and values of `--flow-offload`, and one in how many of the pods there are: without it the kernel
/// sets aside memory for the whole UMEM with each port.
const MODES: [(&str, &str, usize); 2] = [("flow offload", "on", 1), ("AF_XDP ports", "off", 5)];
const PORT: u16 = 7000;
/// Pause between two probes.
const PACE: Duration = Duration::from_millis(1);
/// Source port of the stream; connections that are new have the next ones.
const FIRST_PORT: u16 = 10_000;
/// Connections that are looked at for an answer.
const LATE: usize = 256;
/// Time before and after a takeover, in which nothing happens.
const QUIET: Duration = Duration::from_secs(1);

/// Figures of a build in one mode, in milliseconds.
const FIGURES: [&str; 5] = [
    "a start with all pods, after a kill",
    "its processor time",
    "a takeover, from the signal to readiness",
    "new connections closed meanwhile",
    "longest pause of a stream",
];

pub(crate) fn main(args: &[String]) -> Result<()> {
    needs_root()?;
    let (pods, rounds) = (argument(args, 1, 500)?, argument(args, 2, 3)?);
    let others = args.iter().skip(3).cloned();
    let programs: Vec<String> = std::iter::once(own_path()?).chain(others).collect();
    let cases = programs.iter().flat_map(|program| MODES.map(|mode| (program, mode)));
    let cases: Vec<_> = cases.collect();
    let name = |(program, (name, _, part)): &(&String, (&str, &str, usize))| {
        format!("{program}, {name}, {} pods", (pods / part).max(2))
    };
    let names: Vec<String> = cases.iter().map(name).collect();
    let all = in_turns(rounds, &names, |n| {
        let (program, (_, mode, part)) = cases[n];
        measure(program, (pods / part).max(2), mode)
    })?;
    for (name, figures) in names.iter().zip(&all) {
        let row = |(what, samples): (&&str, &Samples)| {
            let figures = [0.5, 0.0, 1.0].map(|share| format!("{:.0}", samples.quantile(share)));
            std::iter::once((*what).to_owned()).chain(figures).collect()
        };
        let rows: Vec<Vec<String>> = FIGURES.iter().zip(figures).map(row).collect();
        print_table(&[&format!("{name}: ms"), "median", "least", "most"], &rows);
        println!();
    }
    Ok(())
}

fn measure(program: &str, pods: usize, mode: &str) -> Result<[f64; FIGURES.len()]> {
    let [node, idle, client, server] =
        ["bench-node", "bench-pods", "bench-a", "bench-b"].map(Namespace::new);
    let folder = TempDir::new("bench-restart");
    let (objects, requests) =
        attach::pods(&node, pods, |n| [&client, &server].get(n).unwrap_or(&&idle))?;
    for (n, pod) in [&client, &server].into_iter().enumerate() {
        pod.exec(words(&format!("ip addr add {}/32 dev eth{n}", address(n))));
        pod.exec(words(&format!("ip route add default via 10.88.0.1 dev eth{n} onlink")));
    }
    let manifests = attach::write_manifests(folder.path(), &objects)?;
    let run = |further: &[&str]| {
        let common = ["--node-name", attach::NODE, "--manifests", &manifests];
        let arguments = [&common[..], &["--flow-offload", mode], further].concat();
        start_program(program, &node, folder.path(), &arguments)
    };
    let ready = |switch: &Process| {
        switch.wait_for_line("local API at ", PATIENCE);
    };
    let mut switch = run(&[]);
    ready(&switch);
    attach::attach(&folder.path().join("socket"), &requests)?;

    switch.kill();
    let began = Instant::now();
    switch = run(&[]);
    ready(&switch);
    let start = milliseconds(began.elapsed());
    let processor = milliseconds(process::processor_time(switch.id())?);

    let socket = server.enter(|| UdpSocket::bind(("0.0.0.0", PORT)))?;
    let (is_over, to) = (AtomicBool::new(false), address(1));
    let [takeover, closed, pause] = std::thread::scope(|scope| -> Result<[f64; 3]> {
        scope.spawn(|| echo(&socket, &is_over));
        let fresh = scope.spawn(|| client.enter(|| longest_gap(to, true, &is_over)));
        let stream = scope.spawn(|| client.enter(|| longest_gap(to, false, &is_over)));
        std::thread::sleep(QUIET);
        let next = run(&["--takeover-wait", "1m"]);
        next.wait_for_line("waiting for its end", PATIENCE);
        std::thread::sleep(QUIET);
        let began = Instant::now();
        let ended = std::process::Command::new("kill").arg(switch.id().to_string()).status()?;
        assert!(ended.success());
        switch.wait(PATIENCE);
        ready(&next);
        let takeover = milliseconds(began.elapsed());
        switch = next;
        std::thread::sleep(QUIET);
        is_over.store(true, Ordering::Relaxed);
        let [fresh, stream] = [fresh, stream].map(|it| it.join().map_err(|_| "a panic"));
        Ok([takeover, fresh??, stream??])
    })?;
    switch.kill();
    Ok([start, processor, takeover, closed, pause])
}

/// Sends a datagram each millisecond, each by a connection of its own if they are `fresh`; the longest time
/// whose datagrams have no answer, in milliseconds.
fn longest_gap(
    to: Ipv4Addr,
    fresh: bool,
    is_over: &AtomicBool,
) -> std::result::Result<f64, String> {
    let text = |error: std::io::Error| error.to_string();
    let open = |port: u16| {
        let socket = UdpSocket::bind(("0.0.0.0", port))?;
        socket.connect((to, PORT))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let mut sockets = VecDeque::from([open(FIRST_PORT + u16::from(fresh)).map_err(text)?]);
    let (mut sent, mut answered) = (Vec::new(), BTreeSet::new());
    while !is_over.load(Ordering::Relaxed) {
        if fresh {
            // No session is left of its port.
            let port = FIRST_PORT + 2 + sent.len() as u16;
            sockets.push_back(open(port).map_err(text)?);
            if sockets.len() > LATE {
                sockets.pop_front();
            }
        }
        let number = sent.len() as u32;
        sent.push(Instant::now());
        // A full queue loses it, as the network may.
        let _ = sockets[sockets.len() - 1].send(&number.to_be_bytes());
        std::thread::sleep(PACE);
        let mut bytes = [0; 4];
        for socket in &sockets {
            while socket.recv(&mut bytes).is_ok() {
                answered.insert(u32::from_be_bytes(bytes) as usize);
            }
        }
    }
    // Not those that the sender itself makes; the last ones may still be under way.
    let answered: Vec<usize> = answered.into_iter().collect();
    let lost = answered.windows(2).filter(|pair| pair[1] > pair[0] + 1);
    let gaps = lost.map(|pair| milliseconds(sent[pair[1]] - sent[pair[0]]));
    Ok(gaps.fold(0.0, f64::max))
}
