//! A switch under test, and the plugin that attaches pods to it.

use std::error::Error;
use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ipnet::{IpNet, Ipv4Net};
use linux_net::{MacAddress, Namespace, Netlink, Route, VethEnd, VethPair};
use local_api::{Client, Request};
use serde_json::{Value, json};

use super::Args;
use super::cluster::{NAMESPACE, Pod, folder};
use agent::run::Status;

/// Why the test cannot go on; the text is printed.
pub(super) type Failure = Box<dyn Error + Send + Sync>;

/// Timeout of a step of the switch.
const PATIENCE: Duration = Duration::from_secs(20);
const AGAIN: Duration = Duration::from_millis(50);
/// The interface between two temporary nodes, its MTU in bytes, and that of pods: less a
/// tunnel's headers.
const UPLINK: &str = "uplink0";
const UPLINK_MTU: u32 = 1500;
const TUNNELLED_MTU: u32 = 1450;

/// A node with a switch; dropping it ends one that was started here.
pub(super) struct Node {
    namespace: Namespace,
    socket: PathBuf,
    plugin: PathBuf,
    cni_path: String,
    configuration: Value,
    temporary: Option<Temporary>,
}

/// A switch of the test's own.
struct Temporary {
    command: Command,
    log: PathBuf,
    child: Option<Child>,
}

impl Node {
    /// The node of the running switch.
    pub(super) fn running(args: &Args) -> Result<Self, Failure> {
        Ok(Self {
            namespace: Namespace::current()?,
            socket: args.socket.path().to_owned(),
            plugin: plugin(args)?,
            cni_path: args.cni_path.clone(),
            configuration: running(&args.configuration)?,
            temporary: None,
        })
    }

    /// Makes a namespace for a switch, which is not started yet, and connects it with the node
    /// before, if there is one.
    pub(super) fn temporary(
        args: &Args,
        work: &Path,
        manifests: &Path,
        number: u8,
        before: Option<&Self>,
    ) -> Result<Self, Failure> {
        let folder = folder(work, number);
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        agent::run::make_folder(&folder).map_err(failed)?;
        let namespace = Namespace::create().map_err(|error| format!("{error}; it needs root"))?;
        namespace.run(loopback)??;
        if let Some(before) = before {
            connect(&before.namespace, &namespace, number)?;
        }
        let socket = folder.join("podgate.sock");
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.args(["run", "--node-name", &name(number), "--listen", "127.0.0.1:0"]);
        command.args(["--umem-frames", "8192", "--sessions", "4096", "--manifests"]);
        command.arg(manifests).arg("--socket").arg(&socket).arg("--state-dir").arg(&folder);
        let mut configuration = json!({
            "cniVersion": "1.0.0", "name": "connectivity-test", "type": "podgate-cni",
            "socket": socket,
            "ipam": {"type": "host-local", "dataDir": folder.join("ipam"),
                "ranges": networks(number).map(|[subnet, first]| json!([{"subnet": subnet, "rangeStart": first}]))}});
        if args.nodes > 1 {
            command.args(["--uplink", UPLINK, "--masquerade", "off"]);
            configuration["mtu"] = json!(TUNNELLED_MTU);
        }
        let log = folder.join("switch.log");
        Ok(Self {
            namespace,
            socket,
            plugin: plugin(args)?,
            cni_path: args.cni_path.clone(),
            configuration,
            temporary: Some(Temporary { command, log, child: None }),
        })
    }

    /// Starts the switch of a temporary node.
    pub(super) fn start_switch(&mut self) -> Result<(), Failure> {
        let Some(Temporary { command, log, child }) = &mut self.temporary else { return Ok(()) };
        let output =
            fs::File::create(&*log).map_err(|error| format!("{}: {error}", log.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        let started = self.namespace.run(|| command.spawn())?;
        *child = Some(started.map_err(|error| format!("podgate run: {error}"))?);
        Ok(())
    }

    pub(super) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Calls the plugin for a pod, as a runtime would.
    pub(super) fn call_plugin(&self, command: &str, pod: &Pod) -> Result<String, Failure> {
        let failed = |error: std::io::Error| format!("{}: {error}", self.plugin.display());
        // Inherited by the plugin, which gives up the privilege to look into this process.
        let namespace = rustix::io::dup(&pod.namespace).map_err(|error| failed(error.into()))?;
        let mut call = Command::new(&self.plugin);
        call.env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", format!("{NAMESPACE}-{}-{}", std::process::id(), pod.name))
            .env("CNI_NETNS", format!("/proc/self/fd/{}", namespace.as_raw_fd()))
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", &self.cni_path)
            .env("CNI_ARGS", format!("K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={}", pod.name))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let called = self.namespace.run(|| {
            let mut child = call.spawn()?;
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(self.configuration.to_string().as_bytes())?;
            }
            child.wait_with_output()
        });
        let output = called?.map_err(failed)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        Err(format!("podgate-cni {command} of {}: {}", pod.name, text.trim()).into())
    }

    pub(super) fn status(&self) -> Result<Status, Failure> {
        let mut client = Client::connect(&self.socket, PATIENCE)?;
        Ok(serde_json::from_value(client.call(&Request::Status)?)?)
    }

    /// Waits until the switch has done `what`.
    pub(super) fn wait(
        &mut self,
        what: &str,
        is_done: impl Fn(&Status) -> bool,
    ) -> Result<Status, Failure> {
        let end = Instant::now() + PATIENCE;
        loop {
            let why = match self.status() {
                Ok(status) if is_done(&status) => return Ok(status),
                Ok(_) => "it does not".to_owned(),
                Err(why) => why.to_string(),
            };
            if self.has_ended() || Instant::now() >= end {
                let log = self.temporary.as_ref().map(|it| fs::read_to_string(&it.log));
                let log = log.and_then(Result::ok).unwrap_or_default();
                return Err(format!("the switch was to {what}: {why}\n{log}").into());
            }
            std::thread::sleep(AGAIN);
        }
    }

    fn has_ended(&mut self) -> bool {
        let child = self.temporary.as_mut().and_then(|it| it.child.as_mut());
        child.is_some_and(|child| child.try_wait().is_ok_and(|status| status.is_some()))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(child) = self.temporary.as_mut().and_then(|it| it.child.as_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn name(number: u8) -> String {
    format!("connectivity-test-{number}")
}

/// A temporary node's pod networks, each with the first address for a pod: addresses for
/// documentation (RFC 5737, RFC 3849).
fn networks(number: u8) -> [[String; 2]; 2] {
    let v4 = if number == 1 { "192.0.2" } else { "198.51.100" };
    let v6 = format!("2001:db8:0:{number}");
    [[format!("{v4}.0/24"), format!("{v4}.2")], [format!("{v6}::/64"), format!("{v6}::2")]]
}

/// A temporary node's address on the interface between the nodes.
fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(203, 0, 113, number)
}

/// A temporary node's object.
pub(super) fn object(number: u8) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name(number)},
        "spec": {"podCIDRs": networks(number).map(|[subnet, _]| subnet)},
        "status": {"addresses": [{"type": "InternalIP", "address": address(number)}]}})
}

fn loopback() -> Result<(), linux_net::Error> {
    let mut netlink = Netlink::open()?;
    let link = netlink.link("lo")?;
    netlink.set_up(link.index)
}

/// Connects node `number` with the one before by a veth pair.
fn connect(before: &Namespace, own: &Namespace, number: u8) -> Result<(), Failure> {
    let end =
        |number| VethEnd { name: UPLINK.to_owned(), mac: MacAddress([2, 0, 0, 0, 0, number]) };
    own.run(|| {
        let pair = VethPair {
            near: end(number),
            far: end(number - 1),
            far_namespace: Some(before),
            mtu: UPLINK_MTU,
        };
        Netlink::open()?.create_veth(&pair)
    })??;
    for (namespace, number) in [(before, number - 1), (own, number)] {
        namespace.run(|| {
            let mut netlink = Netlink::open()?;
            let link = netlink.link(UPLINK)?.index;
            let network = Ipv4Net::new_assert(address(number), 24);
            let route = Route::direct(IpNet::V4(network.trunc()), link);
            netlink.set_up_with(link, &[IpNet::V4(network)], &[route])
        })??;
    }
    Ok(())
}

/// The configuration of the plugin by which the running switch has pods attached.
fn running(path: &Path) -> Result<Value, Failure> {
    let failed = |what: &dyn std::fmt::Display| format!("{}: {what}", path.display());
    let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
    let list: Value = serde_json::from_str(&text).map_err(|error| failed(&error))?;
    let mut configuration = list["plugins"][0].clone();
    if configuration["type"] != setup::install::PLUGIN {
        return Err(failed(&"its first plugin is not podgate-cni").into());
    }
    for field in ["cniVersion", "name"] {
        configuration[field] = list[field].clone();
    }
    Ok(configuration)
}

fn plugin(args: &Args) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().ok();
    let beside = own.iter().filter_map(|own| Some(own.parent()?.join(setup::install::PLUGIN)));
    let usual =
        ["/usr/lib/podgate", "/opt/cni/bin"].map(|it| Path::new(it).join(setup::install::PLUGIN));
    let mut places = match &args.plugin {
        Some(given) => vec![given.clone()],
        None => beside.chain(usual).collect(),
    };
    let found = places.iter().position(|path| path.is_file());
    if let Some(found) = found {
        return Ok(places.swap_remove(found));
    }
    let places: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
    Err(format!("there is no {}", places.join(", nor ")).into())
}
