//! A node whose kernel is played: interfaces are names with a [`Wire`] behind them.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use agent::config::{Config, Options};
use agent::run::{Input, Running, StartError, Status, Table, start};
use dataplane::Memory;
use dataplane::port::memory::Wire;
use linux_net::MacAddress;
use local_api::{AttachPod, AttachedPod, Client, ClientError, ObserveFilters, Request, Show};
use observe::verdicts::Event;
use testkit::TempDir;
use testkit::packet::{Packet, SWITCH_MAC, mac_of};

use crate::kernel::Kernel;

/// Lets only pods with role `api` in to `db`.
pub(crate) const POLICY: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: default}
spec:
  podSelector: {matchLabels: {role: db}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {role: api}}}]
";

/// Whatever is waited for comes at once; this is for a machine that is busy.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The node `node-a`, and pods on it that have no address yet; each one's role is its name.
pub(crate) fn cluster(pods: &[&str]) -> String {
    let mut text = "
apiVersion: v1
kind: Node
metadata: {name: node-a}
spec: {podCIDRs: [10.1.0.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
"
    .to_owned();
    for name in pods {
        text += &format!(
            "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default, labels: {{role: {name}}}}}
spec: {{nodeName: node-a, containers: []}}
"
        );
    }
    text
}

/// A pod of another node.
pub(crate) fn remote_pod(name: &str, address: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec: {{nodeName: node-b, containers: []}}
status: {{podIPs: [{{ip: {address}}}]}}
"
    )
}

/// Waits until it is so.
pub(crate) fn until(mut it_is: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !it_is() {
        assert!(Instant::now() < deadline, "it did not come true within {LONG:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The folders of a switch, which outlive it.
pub(crate) struct NodeFiles(TempDir);

impl NodeFiles {
    pub(crate) fn new(label: &str) -> Self {
        let folder = TempDir::new(label);
        std::fs::create_dir(folder.path().join("manifests")).unwrap();
        Self(folder)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.path().join("podgate.sock")
    }

    /// The folder of manifests.
    pub(crate) fn manifests(&self) -> String {
        self.0.path().join("manifests").display().to_string()
    }

    pub(crate) fn manifest(&self, name: &str, text: &str) {
        let aside = self.0.path().join("aside");
        std::fs::write(&aside, text).unwrap();
        std::fs::rename(aside, self.0.path().join("manifests").join(name)).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        std::fs::remove_file(self.0.path().join("manifests").join(name)).unwrap();
    }

    /// A file beside the switch's folders.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Changes a byte in the middle of a file.
    pub(crate) fn damage(&self, name: &str) {
        let path = self.0.path().join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(path, bytes).unwrap();
    }

    /// The records of attached pods.
    pub(crate) fn records(&self) -> Vec<String> {
        let folder = std::fs::read_dir(self.0.path().join("state/attachments")).unwrap();
        let mut names: Vec<String> =
            folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// A running switch on a played kernel.
pub(crate) struct Node {
    running: Running,
    socket: PathBuf,
    pub(crate) kernel: Kernel,
}

/// A pod's end of its interface.
pub(crate) struct Pod {
    pub(crate) wire: Wire,
}

impl Node {
    pub(crate) fn start(files: &NodeFiles) -> Self {
        Self::start_with(files, |_| ())
    }

    pub(crate) fn start_with(files: &NodeFiles, change: impl FnOnce(&mut Config)) -> Self {
        Self::start_on(files, Kernel::default(), change)
    }

    pub(crate) fn start_on(
        files: &NodeFiles,
        kernel: Kernel,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let running = begin(files, &kernel, change).unwrap_or_else(|error| panic!("{error}"));
        Self { running, socket: files.socket(), kernel }
    }

    /// Starts a switch that may not start.
    pub(crate) fn try_start(files: &NodeFiles) -> Result<(), StartError> {
        begin(files, &Kernel::default(), |_| ()).map(drop)
    }

    /// The same, configured otherwise.
    pub(crate) fn try_start_with(
        files: &NodeFiles,
        change: impl FnOnce(&mut Config),
    ) -> Result<(), StartError> {
        begin(files, &Kernel::default(), change).map(drop)
    }

    /// Ends the switch; the kernel goes on.
    pub(crate) fn stop(self) -> Kernel {
        self.kernel
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.socket, LONG).unwrap()
    }

    pub(crate) fn pod(&self, name: &str, address: &str) -> AttachPod {
        let address = address.parse().unwrap();
        AttachPod {
            namespace: "default".into(),
            name: name.into(),
            uid: None,
            container_id: format!("c-{name}"),
            interface: "eth0".into(),
            netns: format!("/run/netns/{name}").into(),
            host_interface: format!("pg-{name}"),
            mac: MacAddress(mac_of(address)),
            addresses: vec![address],
        }
    }

    /// Does what the CNI plugin does for a pod.
    pub(crate) fn attach(&self, name: &str, address: &str) -> Pod {
        self.attach_in_background(name, address).join().unwrap().unwrap();
        assert!(self.kernel.is_up(&format!("pg-{name}")));
        self.taken_up(name, address)
    }

    pub(crate) fn attach_in_background(
        &self,
        name: &str,
        address: &str,
    ) -> JoinHandle<Result<AttachedPod, ClientError>> {
        self.kernel.add(&format!("pg-{name}"));
        let (mut client, pod) = (self.client(), self.pod(name, address));
        std::thread::spawn(move || client.attach_pod(&pod))
    }

    /// A pod that is attached already.
    pub(crate) fn taken_up(&self, name: &str, address: &str) -> Pod {
        assert_eq!(
            self.client().check_pod(&self.pod(name, address).attachment()).unwrap(),
            self.pod(name, address)
        );
        self.kernel.pod(&format!("pg-{name}"))
    }

    pub(crate) fn status(&self) -> Status {
        let value = self.client().call(&Request::Status).unwrap();
        serde_json::from_value(value).unwrap()
    }

    /// Where clients elsewhere are answered.
    pub(crate) fn https_address(&self) -> std::net::SocketAddr {
        self.running.https_address().unwrap()
    }

    /// Where the Hubble Observer API is answered.
    pub(crate) fn hubble_address(&self) -> std::net::SocketAddr {
        self.running.hubble_address().unwrap()
    }

    /// Ports by name.
    pub(crate) fn ports(&self) -> BTreeSet<String> {
        self.status().ports.into_iter().map(|port| port.name).collect()
    }

    /// A table as people see it.
    pub(crate) fn show(&self, what: &str) -> Result<String, ClientError> {
        self.show_of(what, None)
    }

    /// The same, of one pod.
    pub(crate) fn show_of(&self, what: &str, pod: Option<&str>) -> Result<String, ClientError> {
        let pod = pod.map(str::to_owned);
        let show = Show { what: what.to_owned(), pod, ..Show::default() };
        let value = self.client().call(&Request::Show(show))?;
        Ok(match value {
            serde_json::Value::String(text) => text,
            value => serde_json::from_value::<Table>(value).unwrap().to_string(),
        })
    }

    /// The first verdict that is the wanted one.
    pub(crate) fn wait_for_event(&self, is_it: impl Fn(&Event) -> bool) -> Event {
        let mut found = None;
        until(|| {
            let filters = ObserveFilters { last: 1000, ..Default::default() };
            let events = self.client().stream(&Request::Observe(Box::new(filters))).unwrap();
            let mut events = events.map(|event| serde_json::from_value(event.unwrap()).unwrap());
            found = events.find(&is_it);
            found.is_some()
        });
        found.unwrap()
    }

    /// Where HTTP is answered.
    pub(crate) fn http_address(&self) -> SocketAddr {
        self.running.http_address()
    }

    /// Status code and body of what is answered to a request with this first line.
    pub(crate) fn http(&self, line: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.running.http_address()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(format!("{line}\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }
}

impl Pod {
    pub(crate) fn send(&self, packet: &Packet) {
        self.wire.send(packet.build());
    }

    pub(crate) fn send_bytes(&self, frame: Vec<u8>) {
        self.wire.send(frame);
    }

    /// The next frame that the switch sends to the pod is this packet, forwarded.
    pub(crate) fn expects(&self, packet: &Packet, receiver: &str) {
        let mut frame = None;
        until(|| {
            frame = self.wire.receive();
            frame.is_some()
        });
        let mac = mac_of(receiver.parse().unwrap());
        let forwarded = packet.clone().from_mac(SWITCH_MAC).to_mac(mac).ttl(63);
        assert_eq!(frame.unwrap(), forwarded.build());
    }
}

fn begin(
    files: &NodeFiles,
    kernel: &Kernel,
    change: impl FnOnce(&mut Config),
) -> Result<Running, StartError> {
    let folder = files.0.path();
    let options = Options {
        node_name: Some("node-a".into()),
        manifests: vec![folder.join("manifests")],
        socket: Some(files.socket()),
        listen: Some("127.0.0.1:0".parse().unwrap()),
        state_dir: Some(folder.join("state")),
        workers: Some(2),
        max_ports: Some(16),
        sessions: Some(4096),
        ..Options::default()
    };
    let mut config = Config::resolve(options, "", &BTreeSet::new()).unwrap();
    // These ports are not the kernel's.
    config.flow_offload = false;
    change(&mut config);
    let (memory, frames) = Memory::heap(2048, 1024);
    start(Input::read(config, None)?, Box::new(kernel.clone()), &memory, frames)
}
