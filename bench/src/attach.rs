//! A switch to which many pods are attached at once.
//!
//! Interfaces are there already: what the plugin and its IPAM take is not counted.

use std::error::Error;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use cli::commands::Cli;
use local_api::{AttachPod, Client};
use testkit::{Namespace, Process, TempDir};

use crate::forwarder::own_path;
use crate::rig::{mac_of, words};

/// Timeout of hundreds of pods on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Times in milliseconds, and what the switch and its pods take.
#[derive(Clone, Debug, Default)]
pub struct Attached {
    /// From the first request to the last answer.
    pub all: f64,
    /// Times of each pod.
    pub single: Vec<f64>,
    /// Times of pods attached one after the other.
    pub alone: Vec<f64>,
    /// Times of other requests to the control loop while the pods are attached.
    pub others: Vec<f64>,
    /// Megabytes of the whole machine.
    pub memory: f64,
}

/// Runs this program as `podgate`, with its own arguments, to the end.
pub fn run() -> ! {
    let code = Cli::parse().run();
    // The code is 0 for success alone.
    std::process::exit(i32::from(code != std::process::ExitCode::SUCCESS));
}

/// Starts `podgate run` for the node `n` with these objects and further arguments, and waits
/// until it is ready; returns its local API's socket, too.
///
/// # Errors
/// If its files cannot be written below `folder`.
pub fn start(
    node: &Namespace,
    folder: &Path,
    objects: &str,
    arguments: &[&str],
) -> Result<(Process, PathBuf)> {
    let manifests = folder.join("manifests");
    std::fs::create_dir(&manifests)?;
    std::fs::write(manifests.join("all.yaml"), objects)?;
    let manifests = manifests.display().to_string();
    let arguments = [&["--node-name", "n", "--manifests", &manifests], arguments].concat();
    start_with(node, folder, &arguments)
}

/// The same with the name of the node and the source of objects among the arguments.
///
/// # Errors
/// If the path of this program is not known.
pub fn start_with(
    node: &Namespace,
    folder: &Path,
    arguments: &[&str],
) -> Result<(Process, PathBuf)> {
    let switch = start_program(&own_path()?, node, folder, arguments);
    switch.wait_for_line("local API at ", PATIENCE);
    Ok((switch, folder.join("socket")))
}

/// Starts this `program`'s `run` with its local API's socket and state below `folder`.
pub fn start_program(
    program: &str,
    node: &Namespace,
    folder: &Path,
    arguments: &[&str],
) -> Process {
    let path = |name: &str| folder.join(name).display().to_string();
    let (at, state) = (path("socket"), path("state"));
    let command = [program, "run", "--socket", &at, "--state-dir", &state, "--rx-mode", "adaptive"];
    node.spawn(command.into_iter().chain(arguments.iter().copied()))
}

/// Joins a pod to the node by a veth pair, of which `far` is the pod's end; returns the request
/// to attach it.
///
/// # Errors
/// If the interface has no MAC address.
pub fn join(
    node: &Namespace,
    near: String,
    pod: &Namespace,
    far: &str,
    name: &str,
    address: Ipv4Addr,
) -> Result<AttachPod> {
    node.exec(words(&format!("ip link add {near} type veth peer name {far} netns {}", pod.name())));
    pod.exec(words(&format!("ip link set {far} up")));
    Ok(AttachPod {
        namespace: "default".into(),
        name: name.into(),
        uid: None,
        container_id: name.into(),
        interface: "eth0".into(),
        netns: "/run/netns/x".into(),
        host_interface: near,
        mac: mac_of(pod, far).parse()?,
        addresses: vec![address.into()],
    })
}

/// Attaches `alone` pods one after the other, then `pods` at once, to a switch with these further
/// arguments.
///
/// # Errors
/// If something cannot be started, or a pod is refused.
pub fn measure(pods: usize, alone: usize, arguments: &[&str]) -> Result<Attached> {
    let (node, others) = (Namespace::new("bench-node"), Namespace::new("bench-pods"));
    let folder = TempDir::new("bench-attach");
    let mut objects =
        "apiVersion: v1\nkind: Node\nmetadata: {name: n}\nspec: {podCIDRs: [10.88.0.0/16]}\n"
            .to_owned();
    let mut requests = Vec::new();
    for n in 0..pods + alone {
        objects += &format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p{n}, namespace: default}}\nspec: \
             {{nodeName: n}}\n"
        );
        let (near, far) = (format!("pg{n}"), format!("eth{n}"));
        let address = Ipv4Addr::from(0x0a58_0100 + n as u32);
        requests.push(join(&node, near, &others, &far, &format!("p{n}"), address)?);
    }
    let umem = ((pods + alone) * 512 + 4096).to_string();
    let before = used_memory()?;
    let further = [&["--listen", "127.0.0.1:0", "--umem-frames", &umem], arguments].concat();
    let (_switch, socket) = start(&node, folder.path(), &objects, &further)?;
    let mut client = Client::connect(&socket, PATIENCE)?;
    let mut attached = Attached::default();
    for request in requests.drain(..alone) {
        let asked = Instant::now();
        client.attach_pod(&request)?;
        attached.alone.push(milliseconds(asked.elapsed()));
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
        let attaching: Vec<_> = requests.iter().cloned().map(attach).collect();
        let times: Vec<_> = attaching.into_iter().map(|it| it.join().expect("a thread")).collect();
        attached.all = milliseconds(began.elapsed());
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        attached.others = asking.join().expect("a thread")?;
        for time in times {
            attached.single.push(time?);
        }
        Ok(())
    })?;
    attached.memory = used_memory()? - before;
    Ok(attached)
}

/// Megabytes that the machine uses, page cache apart.
fn used_memory() -> Result<f64> {
    // What was freed a moment ago is still on its way back (RCU).
    std::thread::sleep(Duration::from_millis(500));
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let of = |name: &str| -> Result<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = line.and_then(|line| line.split_whitespace().next()).ok_or("no such line")?;
        Ok(value.parse()?)
    };
    Ok((of("MemTotal")? - of("MemAvailable")?) / 1024.0)
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

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
