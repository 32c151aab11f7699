//! The switch under test, and pods that are network namespaces.

use std::error::Error;
use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use control::Durability;
use linux_net::{Namespace, Netlink};
use local_api::{Client, Request};
use serde_json::{Value, json};

use super::Args;
use super::probe::{Family, serve};
use agent::run::Status;

/// Why the test cannot go on; the text is printed.
pub(super) type Failure = Box<dyn Error + Send + Sync>;

/// The namespace of Kubernetes that objects of the test are in.
const NAMESPACE: &str = "podgate-connectivity-test";
const PODS: [&str; 3] = ["client", "server", "other"];
/// The ports on which each pod serves.
pub(super) const PORTS: [u16; 2] = [8080, 8081];
/// Names the node itself as a place.
pub(super) const NODE: &str = "node";
/// Timeout of a step of the switch.
const PATIENCE: Duration = Duration::from_secs(20);
const AGAIN: Duration = Duration::from_millis(50);

/// The switch with its pods; dropping it takes everything back.
pub(super) struct Node {
    namespace: Namespace,
    socket: PathBuf,
    manifests: PathBuf,
    plugin: PathBuf,
    cni_path: String,
    configuration: Value,
    pods: Vec<Pod>,
    files: Vec<PathBuf>,
    /// The temporary switch, and its folder.
    switch: Option<(Child, PathBuf)>,
}

struct Pod {
    name: &'static str,
    namespace: Namespace,
    addresses: Vec<IpAddr>,
}

impl Node {
    /// Starts a temporary switch, or takes the running one, and attaches the pods.
    pub(super) fn start(args: &Args) -> Result<Self, Failure> {
        let plugin = plugin(args)?;
        let mut node = match &args.manifests {
            Some(folder) => Self::of(args, plugin, folder, running(&args.configuration)?)?,
            None => Self::temporary(args, plugin)?,
        };
        let status = node.wait("be ready", |status| status.ready)?;
        node.write_objects(&status.node)?;
        for name in PODS {
            node.attach(name)?;
        }
        for pod in &node.pods {
            for port in PORTS {
                let served = pod.namespace.run(|| serve(port))?;
                served.map_err(|error| format!("{}: listen on {port}: {error}", pod.name))?;
            }
        }
        Ok(node)
    }

    /// The running switch, without pods.
    fn of(
        args: &Args,
        plugin: PathBuf,
        manifests: &Path,
        configuration: Value,
    ) -> Result<Self, Failure> {
        Ok(Self {
            namespace: Namespace::current()?,
            socket: args.socket.path().to_owned(),
            manifests: manifests.to_owned(),
            plugin,
            cni_path: args.cni_path.clone(),
            configuration,
            pods: Vec::new(),
            files: Vec::new(),
            switch: None,
        })
    }

    fn temporary(args: &Args, plugin: PathBuf) -> Result<Self, Failure> {
        let work = PathBuf::from(format!("/run/podgate-connectivity-test.{}", std::process::id()));
        let failed = |error: std::io::Error| format!("{}: {error}", work.display());
        let manifests = work.join("manifests");
        agent::run::make_folder(&manifests).map_err(failed)?;
        let own = std::env::current_exe().map_err(failed)?;
        let log = fs::File::create(work.join("switch.log")).map_err(failed)?;
        let namespace = Namespace::create().map_err(|error| format!("{error}; it needs root"))?;
        let socket = work.join("podgate.sock");
        let object = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "connectivity-test"},
            "spec": {"podCIDRs": ["192.0.2.0/24", "2001:db8:0:1::/64"]}});
        fs::write(manifests.join("node.yaml"), object.to_string()).map_err(failed)?;
        let mut command = Command::new(own);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.args(["run", "--node-name", "connectivity-test", "--listen", "127.0.0.1:0"]);
        command.args(["--umem-frames", "8192", "--sessions", "4096", "--manifests"]);
        command.arg(&manifests).arg("--socket").arg(&socket).arg("--state-dir").arg(&work);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let range = |subnet: &str, first: &str| json!([{"subnet": subnet, "rangeStart": first}]);
        let configuration = json!({
            "cniVersion": "1.0.0", "name": "connectivity-test", "type": "podgate-cni",
            "socket": socket,
            "ipam": {"type": "host-local", "dataDir": work.join("ipam"), "ranges": [
                range("192.0.2.0/24", "192.0.2.2"), range("2001:db8:0:1::/64", "2001:db8:0:1::2")]}});
        let mut node = Self::of(args, plugin, &manifests, configuration)?;
        let child = namespace.run(|| -> Result<Child, Failure> {
            loopback()?;
            Ok(command.spawn().map_err(|error| format!("podgate run: {error}"))?)
        })??;
        (node.namespace, node.socket, node.switch) = (namespace, socket, Some((child, work)));
        Ok(node)
    }

    /// The families of which every pod has an address: those that the CNI configuration assigns.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn families(&self) -> Result<Vec<Family>, Failure> {
        let has_all = |family: &Family| {
            self.pods.iter().all(|pod| pod.addresses.iter().any(|it| family.is_of(*it)))
        };
        let families: Vec<Family> = Family::ALL.into_iter().filter(has_all).collect();
        if families.is_empty() {
            return Err(
                "the CNI configuration gives pods no address of a family that all have".into()
            );
        }
        Ok(families)
    }

    /// The address of a pod.
    pub(super) fn address(&self, pod: &str, family: Family) -> Result<IpAddr, Failure> {
        let pod = self.pod(pod)?;
        let mut addresses = pod.addresses.iter().copied();
        let address = addresses.find(|address| family.is_of(*address));
        let missing = || format!("{} has no {} address", pod.name, family.name());
        Ok(address.ok_or_else(missing)?)
    }

    /// Runs `work` inside a pod, or on the node.
    pub(super) fn inside<T: Send>(
        &self,
        place: &str,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, Failure> {
        let namespace = match place {
            NODE => &self.namespace,
            pod => &self.pod(pod)?.namespace,
        };
        Ok(namespace.run(work)?)
    }

    /// Writes a policy, or removes it, and waits until that is in force.
    pub(super) fn apply(
        &mut self,
        name: &'static str,
        policy: Option<&str>,
    ) -> Result<(), Failure> {
        let before = self.status()?.generation;
        match policy {
            Some(spec) => self.write(
                name,
                &format!(
                    "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
                     metadata: {{name: {name}, namespace: {NAMESPACE}}}{spec}"
                ),
            )?,
            None => {
                let path = self.path(name);
                fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        self.wait("take up a policy", |status| {
            status.generation > before && status.generation == status.generation_in_force
        })?;
        Ok(())
    }

    fn pod(&self, name: &str) -> Result<&Pod, Failure> {
        let found = self.pods.iter().find(|pod| pod.name == name);
        Ok(found.ok_or_else(|| format!("no pod {name}"))?)
    }

    fn write_objects(&mut self, node: &str) -> Result<(), Failure> {
        let pod = |name: &&str| {
            json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": name}},
                "spec": {"nodeName": node, "containers": [{"name": "main", "image": "none"}]}})
            .to_string()
        };
        let documents: Vec<String> = PODS.iter().map(pod).collect();
        self.write("pods", &documents.join("\n---\n"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.manifests.join(format!("{NAMESPACE}-{name}.yaml"))
    }

    /// The file appears whole.
    fn write(&mut self, name: &str, text: &str) -> Result<(), Failure> {
        let path = self.path(name);
        let written =
            control::replace_file(&path, Durability::Lazy, |out| out.write_all(text.as_bytes()));
        self.files.push(path.clone());
        Ok(written.map_err(|error| format!("{}: {error}", path.display()))?)
    }

    fn attach(&mut self, name: &'static str) -> Result<(), Failure> {
        let namespace = Namespace::create()?;
        let pod = Pod { name, namespace, addresses: Vec::new() };
        let result = self.call_plugin("ADD", &pod)?;
        // From here on dropping the node detaches it.
        self.pods.push(pod);
        let result: Value = serde_json::from_str(&result)?;
        let networks = result["ips"].as_array().into_iter().flatten();
        let addresses =
            networks.filter_map(|it| it["address"].as_str()?.split_once('/')?.0.parse().ok());
        if let Some(pod) = self.pods.last_mut() {
            pod.addresses = addresses.collect();
        }
        Ok(())
    }

    fn call_plugin(&self, command: &str, pod: &Pod) -> Result<String, Failure> {
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
        match output.status.success() {
            true => Ok(text),
            false => Err(format!("podgate-cni {command} of {}: {}", pod.name, text.trim()).into()),
        }
    }

    fn status(&self) -> Result<Status, Failure> {
        let mut client = Client::connect(&self.socket, PATIENCE)?;
        Ok(serde_json::from_value(client.call(&Request::Status)?)?)
    }

    fn wait(&mut self, what: &str, is_done: impl Fn(&Status) -> bool) -> Result<Status, Failure> {
        let end = Instant::now() + PATIENCE;
        loop {
            let why = match self.status() {
                Ok(status) if is_done(&status) => return Ok(status),
                Ok(_) => "it does not".to_owned(),
                Err(why) => why.to_string(),
            };
            let ended = match &mut self.switch {
                Some((child, _)) => child.try_wait().is_ok_and(|status| status.is_some()),
                None => false,
            };
            if ended || Instant::now() >= end {
                let log = self.switch.iter().map(|(_, work)| {
                    fs::read_to_string(work.join("switch.log")).unwrap_or_default()
                });
                return Err(format!(
                    "the switch was to {what}: {why}\n{}",
                    log.collect::<String>()
                )
                .into());
            }
            std::thread::sleep(AGAIN);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for pod in &self.pods {
            if let Err(error) = self.call_plugin("DEL", pod) {
                cli_runtime::note(error);
            }
        }
        for file in &self.files {
            // A policy may have been removed already.
            let _ = fs::remove_file(file);
        }
        if let Some((child, work)) = &mut self.switch {
            let _ = child.kill();
            let _ = child.wait();
            let _ = fs::remove_dir_all(work);
        }
    }
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

fn loopback() -> Result<(), linux_net::Error> {
    let mut netlink = Netlink::open()?;
    let link = netlink.link("lo")?;
    netlink.set_up(link.index)
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
