//! Pods that a container runtime attaches with the CNI plugin and host-local, some at a time; and host-local alone.
//!
//! ```text
//! cargo build --release -p cni
//! cargo run --release -p bench --bin node -- plugin [PODS] [ROUNDS] [PLUGIN…]     (as root)
//! ```
//!
//! Each PLUGIN is a `podgate-cni` of another build, measured in turns with the one beside this program.

use std::error::Error;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bench::attach::{self, milliseconds};
use bench::rig::needs_root;
use bench::{Samples, argument, print_table};
use serde_json::json;
use testkit::{Namespace, TempDir, manifests, unique_name};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Calls at a time.
const TOGETHER: usize = 16;
/// Where distributions put the plugins of others.
const PLUGINS: &str = "/usr/lib/cni";

pub(crate) fn main(args: &[String]) -> Result<()> {
    needs_root()?;
    let (pods, rounds) = (argument(args, 1, 500)?, argument(args, 2, 2)?);
    let own = std::env::current_exe()?.with_file_name("podgate-cni").display().to_string();
    let programs: Vec<String> = std::iter::once(own).chain(args.iter().skip(3).cloned()).collect();
    let mut figures: Vec<[Samples; 2]> = programs.iter().map(|_| Default::default()).collect();
    let mut alone = Samples::new();
    for round in 1..=rounds {
        for (program, [all, of_switch]) in programs.iter().zip(&mut figures) {
            eprintln!("round {round} of {rounds}: {program}");
            Node::new(pods)?.attach(program, all, of_switch)?;
        }
        eprintln!("round {round} of {rounds}: host-local alone");
        Node::new(pods)?.each(&format!("{PLUGINS}/host-local"), &mut alone)?;
    }
    let mut rows = Vec::new();
    for (program, [all, of_switch]) in programs.iter().zip(&figures) {
        rows.push(all.tail(format!("{program}: ADD with host-local"), 0));
        rows.push(of_switch.tail("… of which the switch", 0));
    }
    rows.push(alone.tail("host-local alone", 0));
    let head = format!("{pods} pods, {TOGETHER} at a time: milliseconds");
    print_table(&[head.as_str(), "median", "p99", "most"], &rows);
    Ok(())
}

/// A node and namespaces of pods.
struct Node {
    folder: TempDir,
    namespace: Namespace,
    pods: Pods,
}

impl Node {
    fn new(pods: usize) -> Result<Self> {
        let folder = TempDir::new("bench-plugin");
        Ok(Self { folder, namespace: Namespace::new("bench-node"), pods: Pods::new(pods)? })
    }

    /// Calls ADD of a plugin for each pod; how long each took.
    fn each(&self, program: &str, samples: &mut Samples) -> Result<()> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut times = Vec::new();
            while let Some(pod) = self.pods.0.get(next.fetch_add(1, Ordering::Relaxed)) {
                let began = Instant::now();
                self.add(program, pod)?;
                times.push(milliseconds(began.elapsed()));
            }
            Ok::<_, String>(times)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..TOGETHER).map(|_| scope.spawn(work)).collect();
            for thread in threads {
                samples.extend(thread.join().map_err(|_| "a panic")??);
            }
            Ok(())
        })
    }

    /// Attaches all pods to a switch.
    fn attach(&self, program: &str, all: &mut Samples, of_switch: &mut Samples) -> Result<()> {
        let pod =
            |pod: &String| manifests::pod(&format!("default/{pod}"), "", attach::NODE, "", "");
        let objects = attach::node_object() + &self.pods.0.iter().map(pod).collect::<String>();
        let arguments = ["--listen", "127.0.0.1:0"];
        let (switch, _) = attach::start(&self.namespace, self.folder.path(), &objects, &arguments)?;
        self.each(program, all)?;
        for line in switch.output() {
            let time = line.split_once("milliseconds=").map(|(_, rest)| rest);
            of_switch.extend(time.and_then(|rest| rest.split_whitespace().next()?.parse().ok()));
        }
        Ok(())
    }

    /// Calls a plugin as a runtime does.
    fn add(&self, program: &str, pod: &str) -> std::result::Result<(), String> {
        let path = |name: &str| self.folder.path().join(name);
        let config = json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "type": "podgate-cni",
            "socket": path("socket"),
            "ipam": {
                "type": "host-local",
                "dataDir": path("ipam"),
                "ranges": [[{ "subnet": "10.88.0.0/16", "rangeStart": "10.88.0.2" }]]
            }
        });
        let text = |error: std::io::Error| format!("{program}: {error}");
        let mut child = self
            .namespace
            .command([program])
            .env("CNI_COMMAND", "ADD")
            .env("CNI_CONTAINERID", pod)
            .env("CNI_NETNS", format!("/run/netns/{pod}"))
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", PLUGINS)
            .env(
                "CNI_ARGS",
                format!("K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod};IgnoreUnknown=1"),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(text)?;
        let input = child.stdin.take();
        // One that does not read it says so.
        let _ = input.map(|mut input| input.write_all(config.to_string().as_bytes()));
        let output = child.wait_with_output().map_err(text)?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stdout))),
        }
    }
}

/// Names of network namespaces, which are deleted at the end.
struct Pods(Vec<String>);

impl Pods {
    fn new(count: usize) -> Result<Self> {
        let label = unique_name("pod");
        let pods = Self((0..count).map(|n| format!("{label}-{n}")).collect());
        let lines: String = pods.0.iter().map(|pod| format!("netns add {pod}\n")).collect();
        ip(&["-batch", "-"], &lines)?;
        Ok(pods)
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        let lines: String = self.0.iter().map(|pod| format!("netns delete {pod}\n")).collect();
        if let Err(error) = ip(&["-force", "-batch", "-"], &lines) {
            eprintln!("{error}");
        }
    }
}

fn ip(arguments: &[&str], lines: &str) -> Result<()> {
    let mut child = Command::new("ip").args(arguments).stdin(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("ip: no input")?.write_all(lines.as_bytes())?;
    let status = child.wait()?;
    status.success().then_some(()).ok_or_else(|| format!("ip {arguments:?}: {status}").into())
}
