//! A switch to which many pods are attached.
//!
//! Interfaces are there already: what the plugin and its IPAM take is not counted.

use std::error::Error;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use cli::commands::Cli;
use local_api::{AttachPod, Client};
use testkit::{Namespace, Process, manifests};

use crate::forwarder::own_path;
use crate::rig::{mac_of, words};

/// Timeout of hundreds of pods on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Runs this program as `podgate`, with its own arguments.
pub fn run() -> ExitCode {
    Cli::parse().run()
}

/// The node of the switch, and of its pods.
pub const NODE: &str = "node1";

/// Writes objects below `folder`, and says where.
///
/// # Errors
/// If they cannot be written.
pub fn write_manifests(folder: &Path, objects: &str) -> Result<String> {
    let manifests = folder.join("manifests");
    std::fs::create_dir(&manifests)?;
    std::fs::write(manifests.join("all.yaml"), objects)?;
    Ok(manifests.display().to_string())
}

/// Starts `podgate run` with these arguments, and waits until it is ready; returns its local API's socket, too.
///
/// # Errors
/// If the path of this program is not known.
pub fn start(node: &Namespace, folder: &Path, arguments: &[&str]) -> Result<(Process, PathBuf)> {
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
    let command = [program, "run", "--socket", &at, "--state-dir", &state];
    let common = ["--listen", "127.0.0.1:0", "--rx-mode", "adaptive"];
    node.spawn([&command[..], &common, arguments].concat())
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

/// The address of the `n`th of many pods.
pub fn address(n: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a58_0100 + n as u32)
}

/// Joins pods, the `n`th in the namespace `place(n)`; returns the objects of the node and of them, and the requests
/// to attach them.
///
/// # Errors
/// As [`join`].
pub fn pods<'a>(
    node: &Namespace,
    count: usize,
    place: impl Fn(usize) -> &'a Namespace,
) -> Result<(String, Vec<AttachPod>)> {
    let mut objects = manifests::node(NODE, "192.0.2.1", "10.88.0.0/16");
    let mut requests = Vec::new();
    for n in 0..count {
        let (name, address) = (format!("p{n}"), address(n));
        requests.push(join(node, format!("pg{n}"), place(n), &format!("eth{n}"), &name, address)?);
        objects += &manifests::pod(&format!("default/{name}"), "", NODE, &address.to_string(), "");
    }
    Ok((objects, requests))
}

/// Attaches pods, one after the other.
///
/// # Errors
/// If the switch refuses one, or does not answer.
pub fn attach(socket: &Path, requests: &[AttachPod]) -> Result<()> {
    let mut api = Client::connect(socket, PATIENCE)?;
    Ok(requests.iter().try_for_each(|request| api.attach_pod(request).map(drop))?)
}

/// A time in milliseconds.
pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
