//! The faults, each injected into a node.

use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::{Value, json};
use testkit::Namespace;

use super::policy;
use crate::{ClusterNode, foreign};

/// The targets of faults.
pub(super) struct Stage<'a> {
    pub(super) node: &'a ClusterNode,
    pub(super) disk: &'a SmallDisk,
    pub(super) enforcer: &'static str,
    /// The folder with the leases of another plugin's addresses.
    pub(super) leases: &'a Path,
}

/// A tmpfs in place of a folder, small enough to be filled.
pub(super) struct SmallDisk(PathBuf);

impl SmallDisk {
    pub(super) fn mount(at: &Path) -> Self {
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=6m,mode=700", "podgate-chaos"])
            .arg(at)
            .status();
        assert!(mount.unwrap().success());
        Self(at.to_owned())
    }

    /// Leaves no block free.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("filler")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn pause(rng: &mut Rng, most_ms: u64) {
    std::thread::sleep(Duration::from_millis(rng.u64(..=most_ms)));
}

/// Kills the switch while `work` runs, and starts it again.
fn kill_during(node: &ClusterNode, rng: &mut Rng, work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let working = scope.spawn(work);
        pause(rng, 150);
        kill_process(node.switch_id(), Signal::KILL).unwrap();
        working.join().unwrap();
    });
    node.kill_switch();
    node.start_switch();
}

fn set_file_limit(node: &ClusterNode, current: Option<u64>) {
    // The switch inherited the hard limit.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let limit = Rlimit { current: current.or(maximum), maximum };
    prlimit(Some(node.switch_id()), Resource::Nofile, limit).unwrap();
}

/// A fault, injected into the node.
pub(super) type Fault = fn(&Stage<'_>, &mut Rng);

/// All of them; the last one needs a clock of its own.
pub(super) const FAULTS: [(&str, Fault); 10] = [
    ("kill -9", |Stage { node, .. }, rng| kill_during(node, rng, || {})),
    ("kill -9 during changes of policies", |Stage { node, .. }, rng| {
        let first = rng.u64(..1 << 32);
        kill_during(node, rng, || {
            (0..200).for_each(|n| node.api_server().apply(policy(first + n)));
        });
    }),
    ("kill -9 during ADD", |stage, rng| {
        let brief = Brief::new(stage);
        // Whether it succeeds is open.
        kill_during(stage.node, rng, || {
            brief.add();
        });
        assert!(brief.delete());
    }),
    ("kill -9 during DEL", |stage, rng| {
        let brief = Brief::new(stage);
        assert!(brief.add());
        kill_during(stage.node, rng, || assert!(brief.delete()));
        assert!(brief.delete());
    }),
    ("SIGSTOP", |Stage { node, .. }, rng| {
        kill_process(node.switch_id(), Signal::STOP).unwrap();
        pause(rng, 1500);
        kill_process(node.switch_id(), Signal::CONT).unwrap();
    }),
    ("an outage of the API server with a restart", |Stage { node, .. }, rng| {
        node.eventually("a saved state", || {
            node.status()["source"]["saved"].is_string().then_some(())
        });
        node.api_server().go_away();
        pause(rng, 300);
        node.kill_switch();
        node.start_switch();
        node.api_server().come_back();
        node.api_server().apply(policy(rng.u64(..)));
    }),
    ("a damaged saved state", |Stage { node, .. }, rng| {
        node.kill_switch();
        let path = node.state_dir().join("cluster-state");
        if let Ok(mut bytes) = std::fs::read(&path) {
            let at = rng.usize(..bytes.len());
            bytes[at] ^= 1 << rng.u8(..8);
            std::fs::write(&path, bytes).unwrap();
        }
        node.start_switch();
    }),
    ("no file descriptor left", |stage, rng| {
        let (node, brief) = (stage.node, Brief::new(stage));
        set_file_limit(node, Some(8));
        std::thread::scope(|scope| {
            // Whether it succeeds is open.
            let adding = scope.spawn(|| {
                brief.add();
            });
            node.api_server().apply(policy(rng.u64(..)));
            pause(rng, 1500);
            set_file_limit(node, None);
            adding.join().unwrap();
        });
        assert!(brief.delete());
    }),
    ("a full state disk with a restart", |Stage { node, disk, .. }, rng| {
        disk.fill();
        node.api_server().apply(policy(rng.u64(..)));
        pause(rng, 300);
        node.kill_switch();
        node.start_switch();
        disk.free();
    }),
    ("a jump of the wall clock", |Stage { node, .. }, rng| {
        let ahead = *rng.choice(&[-HOUR, 0, HOUR]).expect("not empty");
        node.set_clock(ahead);
        node.api_server().apply(policy(rng.u64(..)));
        node.eventually("an event at the new time", || {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
            let event = node.metric("podgate_source_last_event_timestamp_seconds");
            let wrong = event - (now.as_secs_f64() + ahead as f64);
            (wrong.abs() < HOUR as f64 / 2.0).then_some(())
        });
    }),
];

/// In seconds.
const HOUR: i64 = 3600;

/// A pod that comes and goes.
struct Brief<'a> {
    stage: &'a Stage<'a>,
    namespace: Namespace,
}

impl<'a> Brief<'a> {
    fn new(stage: &'a Stage<'a>) -> Self {
        Self { stage, namespace: Namespace::new("brief") }
    }

    fn is_ours(&self) -> bool {
        self.stage.enforcer == "afxdp"
    }

    fn call(&self, command: &str) -> Output {
        let Stage { node, leases, .. } = self.stage;
        match self.is_ours() {
            true => node.plugin(command, "brief", &self.namespace),
            false => {
                let configuration = foreign::configuration(node, "ptp", leases);
                let program = "/usr/lib/cni/ptp".as_ref();
                node.call_plugin(program, command, "brief", &self.namespace, &configuration)
            }
        }
    }

    /// The object with these addresses, as kubelet writes it.
    fn announce(&self, addresses: &[IpAddr]) {
        let ips: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
        self.stage.node.api_server().apply(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "brief", "namespace": "default", "labels": {"role": "brief"}},
            "spec": {"nodeName": "node1", "containers": [{"name": "c", "image": "x"}]},
            "status": {"podIPs": ips}}));
    }

    /// Returns whether it is attached.
    fn add(&self) -> bool {
        if self.is_ours() {
            self.announce(&[]);
            return self.call("ADD").status.success();
        }
        let output = self.call("ADD");
        let is_attached = output.status.success();
        if is_attached {
            self.announce(&foreign::addresses(&output));
        }
        is_attached
    }

    fn delete(&self) -> bool {
        self.call("DEL").status.success()
    }
}
