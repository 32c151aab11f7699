//! Pods that start at once: how long each waits until its tables are in force, and for how long
//! the control loop delays other requests during that time.
//!
//! ```text
//! cargo run --release -p bench --bin attach [PODS]     (as root)
//! ```
//!
//! The switch is `podgate run` with manifests. Interfaces are there already: what the plugin and
//! its IPAM take is not counted.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use agent::commands::Cli;
use bench::forwarder::own_path;
use bench::rig::PATIENCE;
use bench::{Samples, print_table};
use clap::Parser;
use local_api::{AttachPod, Client};
use testkit::{Namespace, TempDir, is_root};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PODS: usize = 100;
const ROUNDS: usize = 3;
/// Pods that are attached one after the other, before the others.
const ALONE: usize = 10;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|word| word == "run") {
        return Cli::parse_from(args).run();
    }
    let pods = args.get(1).map_or(Ok(PODS), |text| text.parse());
    let done = pods.map_err(|_| "PODS is a number".into()).and_then(compare);
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("attach: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What one run showed, in milliseconds.
#[derive(Default)]
struct Figures {
    /// From the first request to the last answer.
    all: Samples,
    /// Of single pods.
    single: Samples,
    /// The same one pod after the other.
    alone: Samples,
    /// Others that ask the control loop something while the pods are attached.
    others: Samples,
}

fn compare(pods: usize) -> Result<()> {
    if !is_root() {
        return Err("needs root, for network namespaces and AF_XDP".into());
    }
    let mut all = Figures::default();
    for round in 1..=ROUNDS {
        eprintln!("round {round} of {ROUNDS}");
        measure(pods, &mut all)?;
    }
    let row = |what: &str, samples: &Samples| {
        let figures = [0.5, 0.99].map(|share| samples.quantile(share)).into_iter();
        let figures = figures.chain([samples.most()]).map(|ms| format!("{ms:.1}"));
        [what.to_owned()].into_iter().chain(figures).collect::<Vec<_>>()
    };
    let rows = [
        row(&format!("{pods} pods at once, until all are attached"), &all.all),
        row("each of them", &all.single),
        row("a pod alone", &all.alone),
        row("another request to the control loop meanwhile", &all.others),
    ];
    print_table(&["milliseconds", "median", "p99", "most"], &rows);
    Ok(())
}

fn measure(pods: usize, figures: &mut Figures) -> Result<()> {
    let (node, others) = (Namespace::new("bench-node"), Namespace::new("bench-pods"));
    let folder = TempDir::new("bench-attach");
    let manifests = folder.path().join("manifests");
    std::fs::create_dir(&manifests)?;
    let mut objects =
        "apiVersion: v1\nkind: Node\nmetadata: {name: n}\nspec: {podCIDRs: [10.88.0.0/16]}\n"
            .to_owned();
    let mut requests = Vec::new();
    for n in 0..pods + ALONE {
        objects += &format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p{n}, namespace: default}}\nspec: \
             {{nodeName: n}}\n"
        );
        requests.push(pod(&node, &others, n)?);
    }
    std::fs::write(manifests.join("all.yaml"), objects)?;
    let socket = folder.path().join("socket");
    let own = own_path()?;
    let path = |path: &Path| path.display().to_string();
    let (state, umem) =
        (path(&folder.path().join("state")), ((pods + ALONE) * 512 + 4096).to_string());
    let (manifests, at) = (path(&manifests), path(&socket));
    let switch = node.spawn([
        own.as_str(),
        "run",
        "--node-name",
        "n",
        "--manifests",
        &manifests,
        "--socket",
        &at,
        "--state-dir",
        &state,
        "--umem-frames",
        &umem,
        "--listen",
        "127.0.0.1:0",
        "--rx-mode",
        "adaptive",
    ]);
    switch.wait_for_line("ready: ", PATIENCE);
    let mut client = Client::connect(&socket, PATIENCE)?;
    for request in requests.drain(..ALONE) {
        let asked = Instant::now();
        client.attach_pod(&request)?;
        figures.alone.add(milliseconds(asked.elapsed()));
    }
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let asking = scope.spawn(|| ask(&socket, &is_over));
        let began = Instant::now();
        let attach = |request: AttachPod| {
            let socket = &socket;
            scope.spawn(move || -> std::result::Result<f64, String> {
                let asked = Instant::now();
                let mut client = Client::connect(socket, PATIENCE).map_err(|e| e.to_string())?;
                client.attach_pod(&request).map_err(|e| e.to_string())?;
                Ok(milliseconds(asked.elapsed()))
            })
        };
        let attached: Vec<_> = requests.iter().cloned().map(attach).collect();
        let times: Vec<_> = attached.into_iter().map(|it| it.join().expect("a thread")).collect();
        figures.all.add(milliseconds(began.elapsed()));
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        asking.join().expect("a thread")?.into_iter().for_each(|ms| figures.others.add(ms));
        for time in times {
            figures.single.add(time?);
        }
        Ok(())
    })?;
    Ok(())
}

/// Asks the control loop for the attached pods, over and over; how long each answer took.
fn ask(
    socket: &Path,
    is_over: &std::sync::atomic::AtomicBool,
) -> std::result::Result<Vec<f64>, String> {
    let mut client = Client::connect(socket, PATIENCE).map_err(|error| error.to_string())?;
    let mut answers = Vec::new();
    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
        let asked = Instant::now();
        client.list_pods().map_err(|error| error.to_string())?;
        answers.push(milliseconds(asked.elapsed()));
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(answers)
}

fn pod(node: &Namespace, others: &Namespace, n: usize) -> Result<AttachPod> {
    let (near, far) = (format!("pg{n}"), format!("eth{n}"));
    let words = format!("ip link add {near} type veth peer name {far} netns {}", others.name());
    node.exec(words.split(' '));
    others.exec(format!("ip link set {far} up").split(' '));
    let mac = others.exec(format!("cat /sys/class/net/{far}/address").split(' '));
    Ok(AttachPod {
        namespace: "default".into(),
        name: format!("p{n}"),
        uid: None,
        container_id: format!("c{n}"),
        interface: "eth0".into(),
        netns: "/run/netns/x".into(),
        host_interface: near,
        mac: mac.trim().parse()?,
        addresses: vec![std::net::Ipv4Addr::from(0x0a58_0100 + n as u32).into()],
    })
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
