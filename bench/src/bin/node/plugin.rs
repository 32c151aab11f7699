//! Pods that a container runtime attaches with the CNI plugin and host-local, some at a time; host-local alone, and
//! the same changes of interfaces by `ip -batch` alone.
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

use bench::rig::needs_root;
use bench::{Samples, attach, print_table};
use serde_json::json;
use testkit::{Namespace, TempDir, unique_name};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PODS: usize = 500;
const ROUNDS: usize = 2;
/// Calls at a time.
const TOGETHER: usize = 16;
/// Where distributions put the plugins of others.
const PLUGINS: &str = "/usr/lib/cni";

pub(crate) fn main(args: &[String]) -> Result<()> {
    needs_root()?;
    let number = |at: usize, default| args.get(at).map_or(Ok(default), |text| text.parse());
    let (pods, rounds) = (number(1, PODS)?, number(2, ROUNDS)?);
    let own = std::env::current_exe()?.with_file_name("podgate-cni").display().to_string();
    let programs: Vec<String> = std::iter::once(own).chain(args.iter().skip(3).cloned()).collect();
    let mut figures: Vec<[Samples; 2]> = programs.iter().map(|_| Default::default()).collect();
    let mut alone: [Samples; 2] = Default::default();
    for round in 1..=rounds {
        for (program, [all, of_switch]) in programs.iter().zip(&mut figures) {
            eprintln!("round {round} of {rounds}: {program}");
            let node = Node::new(pods)?;
            node.attach(program, all, of_switch)?;
        }
        for (kind, samples) in ["host-local", "interfaces"].into_iter().zip(&mut alone) {
            eprintln!("round {round} of {rounds}: {kind} alone");
            let node = Node::new(pods)?;
            let one = |pod: &str| match kind {
                "host-local" => node.call(&format!("{PLUGINS}/host-local"), "ADD", pod),
                _ => node.change_interfaces(pod),
            };
            node.each(samples, one)?;
        }
    }
    let row = |what: String, samples: &Samples| {
        let figures = [0.5, 0.99].map(|share| samples.quantile(share)).into_iter();
        let figures = figures.chain([samples.most()]).map(|ms| format!("{ms:.0}"));
        std::iter::once(what).chain(figures).collect::<Vec<_>>()
    };
    let mut rows = Vec::new();
    for (program, [all, of_switch]) in programs.iter().zip(&figures) {
        rows.push(row(format!("{program}: ADD with host-local"), all));
        rows.push(row("… of which the switch".to_owned(), of_switch));
    }
    let [host_local, interfaces] = &alone;
    rows.push(row("host-local alone".to_owned(), host_local));
    rows.push(row("the changes of interfaces alone, by ip -batch".to_owned(), interfaces));
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

    /// Calls `one` for each pod; how long each took.
    fn each(
        &self,
        samples: &mut Samples,
        one: impl Fn(&str) -> std::result::Result<(), String> + Sync,
    ) -> Result<()> {
        let (next, one) = (AtomicUsize::new(0), &one);
        let work = || {
            let mut times = Vec::new();
            while let Some(pod) = self.pods.0.get(next.fetch_add(1, Ordering::Relaxed)) {
                let began = Instant::now();
                one(pod)?;
                times.push(began.elapsed().as_secs_f64() * 1e3);
            }
            Ok::<_, String>(times)
        };
        let times = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..TOGETHER).map(|_| scope.spawn(work)).collect();
            let times = threads.into_iter().map(|it| it.join().expect("a thread"));
            times.collect::<std::result::Result<Vec<_>, _>>()
        })?;
        times.into_iter().flatten().for_each(|ms| samples.add(ms));
        Ok(())
    }

    /// Attaches all pods to a switch.
    fn attach(&self, program: &str, all: &mut Samples, of_switch: &mut Samples) -> Result<()> {
        let mut objects =
            "apiVersion: v1\nkind: Node\nmetadata: {name: n}\nspec: {podCIDRs: [10.88.0.0/16]}\n"
                .to_owned();
        for pod in &self.pods.0 {
            objects += &format!(
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}, namespace: default}}\n\
                 spec: {{nodeName: n}}\n"
            );
        }
        let arguments = ["--listen", "127.0.0.1:0"];
        let (switch, _) = attach::start(&self.namespace, self.folder.path(), &objects, &arguments)?;
        self.each(all, |pod| self.call(program, "ADD", pod))?;
        for line in switch.output() {
            let time = line.split_once("milliseconds=").map(|(_, rest)| rest);
            let time = time.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
            time.into_iter().for_each(|ms| of_switch.add(ms));
        }
        Ok(())
    }

    /// Calls a plugin as a runtime does.
    fn call(&self, program: &str, command: &str, pod: &str) -> std::result::Result<(), String> {
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
            .env("CNI_COMMAND", command)
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

    /// The plugin's changes, by two calls of `ip`: at the switch's end and at the pod's.
    fn change_interfaces(&self, pod: &str) -> std::result::Result<(), String> {
        let near = format!("pg{}", pod.rsplit('-').next().unwrap_or_default());
        let queues = "numtxqueues 1 numrxqueues 1";
        let here = format!(
            "link add {near} {queues} type veth peer name eth0 netns {pod} {queues}\n\
             link set {near} alias podgate:pods:{pod}:eth0\nlink set {near} arp off\n\
             link set {near} up\n"
        );
        let there = "link set eth0 up\naddress add 10.88.0.2/32 dev eth0\n\
                     route add 169.254.1.1 dev eth0\nroute add default via 169.254.1.1 dev eth0\n";
        batch(self.namespace.name(), &here)?;
        batch(pod, there)
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

fn batch(namespace: &str, lines: &str) -> std::result::Result<(), String> {
    ip(&["-n", namespace, "-batch", "-"], lines)
}

fn ip(arguments: &[&str], lines: &str) -> std::result::Result<(), String> {
    let text = |error: std::io::Error| format!("ip: {error}");
    let mut child =
        Command::new("ip").args(arguments).stdin(Stdio::piped()).spawn().map_err(text)?;
    let mut input = child.stdin.take().ok_or("ip: no input")?;
    input.write_all(lines.as_bytes()).map_err(text)?;
    drop(input);
    let status = child.wait().map_err(text)?;
    status.success().then_some(()).ok_or_else(|| format!("ip {}: {status}", arguments.join(" ")))
}
