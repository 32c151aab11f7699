//! A node with a running switch.

mod calls;

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde_json::{Value, json};
use testkit::api_server::ApiServer;
use testkit::{Boringtun, Namespace, Process, TempDir, mounting};

pub(crate) const PODGATE: &str = env!("CARGO_BIN_EXE_podgate");

/// Timeout of expected events. Waits for unexpected ones are much shorter.
pub(crate) const PATIENCE: Duration = testkit::PATIENCE;
/// Timeout of a client whose connection the policy denies.
pub(crate) const BLOCKED: Duration = Duration::from_secs(2);

/// A namespace with `podgate run` in it. The first one's name is `node1`.
pub(crate) struct ClusterNode {
    pub(crate) namespace: Namespace,
    number: u8,
    folder: TempDir,
    /// Where its manifests are; several nodes may share them.
    manifests: PathBuf,
    switch: Mutex<Option<Process>>,
    /// The binary that the next start runs.
    pub(crate) program: PathBuf,
    arguments: Vec<String>,
    /// Variables of the switch.
    environment: Vec<(&'static str, PathBuf)>,
    /// MTU of pods attached from now on.
    pub(crate) mtu: AtomicU32,
    /// In place of manifests, if there is one; several nodes may share it.
    pub(crate) api_server: Option<Arc<Mutex<ApiServer>>>,
}

impl ClusterNode {
    /// Starts a switch with these further arguments, and waits until it is ready.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_of(Path::new(PODGATE), arguments)
    }

    /// The same with another binary.
    pub(crate) fn start_of(program: &Path, arguments: &[&str]) -> Self {
        let folder = TempDir::new("node");
        let manifests = folder.path().join("manifests");
        fs::create_dir(&manifests).unwrap();
        let mut node = Self::new(1, Namespace::new("node"), folder, manifests, arguments);
        node.program = program.to_owned();
        node.write(
            "node1",
            "apiVersion: v1\nkind: Node\nmetadata: {name: node1}\nspec:\n  podCIDRs: [10.77.0.0/24, \
             fd77::/64]\n",
        );
        node.start_switch();
        node
    }

    /// Node `number` of several that share a folder of manifests, in a namespace that has
    /// its interfaces already. Its object is there; the switch does not run yet.
    pub(crate) fn among(
        number: u8,
        namespace: Namespace,
        shared: &Path,
        arguments: &[&str],
    ) -> Self {
        Self::new(number, namespace, TempDir::new("node"), shared.to_path_buf(), arguments)
    }

    fn new(
        number: u8,
        namespace: Namespace,
        folder: TempDir,
        manifests: PathBuf,
        arguments: &[&str],
    ) -> Self {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Self {
            namespace,
            number,
            folder,
            manifests,
            switch: Mutex::default(),
            program: PODGATE.into(),
            arguments,
            environment: Vec::new(),
            mtu: AtomicU32::new(1500),
            api_server: None,
        }
    }

    /// Its name.
    pub(crate) fn name(&self) -> String {
        format!("node{}", self.number)
    }

    /// The parts of its pods' addresses that tell nodes apart: `10.N` and `fdN:`.
    pub(crate) fn pods(&self) -> u8 {
        76 + self.number
    }

    /// The same with an API server, which listens inside the node, in place of manifests.
    pub(crate) fn with_api_server(arguments: &[&str]) -> Self {
        let namespace = Namespace::new("node");
        let place = namespace.path().to_owned();
        Self::with_api_server_at(namespace, (place, [127, 0, 0, 1].into()), arguments)
    }

    /// The same in a namespace that has its interfaces already, with an API server at an address of
    /// another one.
    pub(crate) fn with_api_server_at(
        namespace: Namespace,
        (place, ip): (PathBuf, IpAddr),
        arguments: &[&str],
    ) -> Self {
        let server = api_server_at(place, ip);
        server.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"},
            "spec": {"podCIDRs": ["10.77.0.0/24", "fd77::/64"]}}));
        server.apply(json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "default"}}));
        let folder = TempDir::new("node");
        let manifests = folder.path().join("manifests");
        let mut node = Self::new(1, namespace, folder, manifests, arguments);
        node.api_server = Some(Arc::new(Mutex::new(server)));
        node.start_switch();
        node
    }

    /// The API server in place of manifests.
    pub(crate) fn api_server(&self) -> MutexGuard<'_, ApiServer> {
        let server = self.api_server.as_ref().expect("there is one");
        server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the switch, again if it was killed.
    pub(crate) fn start_switch(&self) {
        *self.switch() = Some(self.spawn_switch(&[]));
        self.await_readiness();
    }

    /// Starts a switch that waits for the end of the running one, ends that one, and returns how it
    /// ended and the time from there to the other's readiness.
    pub(crate) fn replace_switch(&self) -> (ExitStatus, Duration) {
        let next = self.spawn_switch(&["--takeover-wait", "1m"]);
        next.wait_for_line("waiting for its end", PATIENCE);
        let began = Instant::now();
        let ended = self.stop_switch();
        *self.switch() = Some(next);
        self.await_readiness();
        (ended, began.elapsed())
    }

    fn await_readiness(&self) {
        self.eventually("readiness", || {
            self.http("/readyz").starts_with("HTTP/1.1 200").then_some(())
        });
    }

    fn spawn_switch(&self, further: &[&str]) -> Process {
        let program = self.program.display().to_string();
        let mut command = self.namespace.command([
            program.as_str(),
            "run",
            "--node-name",
            &self.name(),
            "--umem-frames",
            "16384",
            "--listen",
            "127.0.0.1:9470",
        ]);
        match &self.api_server {
            Some(_) => command.arg("--kubeconfig").arg(self.api_server().kubeconfig()),
            None => command.arg("--manifests").arg(&self.manifests),
        };
        command.arg("--socket").arg(self.path("podgate.sock"));
        command.arg("--state-dir").arg(self.state_dir());
        // A test's own option takes precedence, and another enforcer excludes it.
        let excludes = |argument: &String| argument == "--flow-offload" || argument == "nftables";
        let is_said = self.arguments.iter().any(excludes);
        if !flow_offload() && !is_said {
            command.args(["--flow-offload", "off"]);
        }
        command.args(&self.arguments).args(further);
        // The tables of many switches at once are smaller than by default.
        command.env("PODGATE_SESSIONS", "65536");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        Process::spawn(&mut command)
    }

    /// Makes the WireGuard devices of its switch, which finds the sockets where it looks for them.
    pub(crate) fn make_devices(&mut self) -> [Boringtun; 2] {
        let folder = self.path("wireguard");
        fs::create_dir(&folder).unwrap();
        let devices = ["podgate-wg", "podgate-wg2"]
            .map(|name| Boringtun::start_in(&self.namespace, name, &folder));
        let command = mounting(&folder, &format!("{} \"$@\"", self.program.display()));
        let wrapper = self.path("podgate");
        let script = format!("#!/bin/sh\nexec unshare --mount sh -c '{command}' sh \"$@\"\n");
        fs::write(&wrapper, script).unwrap();
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
        self.program = wrapper;
        devices
    }

    /// Sets the arguments of the next start.
    pub(crate) fn set_arguments(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    }

    /// Sets a variable of the switch's environment from the next start on.
    pub(crate) fn set_variable(&mut self, name: &'static str, value: String) {
        self.environment.push((name, value.into()));
    }

    /// Gives the switch a wall clock of its own from the next start on, by libfaketime;
    /// [`ClusterNode::set_clock`] sets it. Its monotonic clock stays the machine's.
    pub(crate) fn fake_clock(&mut self, library: &str) {
        self.set_clock(0);
        self.environment = vec![
            ("LD_PRELOAD", library.into()),
            ("FAKETIME_TIMESTAMP_FILE", self.path("clock")),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ];
    }

    /// Sets the switch's wall clock this many seconds ahead of the machine's.
    pub(crate) fn set_clock(&self, ahead: i64) {
        let next = self.path("clock.next");
        fs::write(&next, format!("{ahead:+}\n")).unwrap();
        fs::rename(next, self.path("clock")).unwrap();
    }

    /// Ends the switch as a crash would: at once.
    pub(crate) fn kill_switch(&self) {
        self.switch().take().expect("the switch runs").kill();
    }

    fn switch(&self) -> MutexGuard<'_, Option<Process>> {
        self.switch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The switch's process, to send it signals and to change its limits.
    pub(crate) fn switch_id(&self) -> Pid {
        let id = self.switch().as_ref().expect("the switch runs").id();
        Pid::from_raw(id.cast_signed()).expect("a process has a number")
    }

    /// Asks the switch to end, and waits for it.
    pub(crate) fn stop_switch(&self) -> ExitStatus {
        let mut switch = self.switch().take().expect("the switch runs");
        let id = switch.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        switch.wait(PATIENCE)
    }

    /// Where the switch keeps what outlives it.
    pub(crate) fn state_dir(&self) -> PathBuf {
        self.path("state")
    }

    /// The switch's local API.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path("podgate.sock")
    }

    /// The folder of its manifests.
    pub(crate) fn manifests(&self) -> &Path {
        &self.manifests
    }

    /// Deletes all files, those the switch uses among them.
    pub(crate) fn delete_files(&self) {
        // The switch may write one meanwhile.
        let is_written = |error: &std::io::Error| error.kind() == ErrorKind::DirectoryNotEmpty;
        let remove = || fs::remove_dir_all(self.folder.path());
        while remove().as_ref().is_err_and(is_written) {}
        assert!(!self.folder.path().exists());
    }

    /// Writes a manifest into the watched folder, whole at once.
    pub(crate) fn write(&self, name: &str, manifest: &str) {
        let hidden = self.path(&format!(".{name}"));
        fs::write(&hidden, manifest).unwrap();
        fs::rename(hidden, self.manifest(name)).unwrap();
    }

    /// Writes a manifest and waits until every worker decides by it.
    pub(crate) fn apply(&self, name: &str, manifest: &str) {
        self.change(|| self.write(name, manifest));
    }

    /// Takes a manifest away and waits until every worker decides without it.
    pub(crate) fn withdraw(&self, name: &str) {
        self.change(|| fs::remove_file(self.manifest(name)).unwrap());
    }

    /// Waits for a change to be known and in force. (One that concerns no pod is known by the
    /// count of objects, and publishes nothing.)
    fn change(&self, make: impl FnOnce()) {
        let known = |status: &Value| (status["generation"].clone(), status["objects"].clone());
        let before = known(&self.status());
        make();
        self.eventually("the change", || {
            let status = self.status();
            let in_force = status["generation"] == status["generation_in_force"];
            let in_sync = kernel_in_sync(&status);
            (in_force && in_sync && known(&status) != before).then_some(())
        });
    }

    /// Waits for something that must happen.
    pub(crate) fn eventually<T>(&self, what: &str, attempt: impl FnMut() -> Option<T>) -> T {
        self.eventually_within(PATIENCE, what, attempt)
    }

    /// The same for what takes longer.
    pub(crate) fn eventually_within<T>(
        &self,
        patience: Duration,
        what: &str,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(value) = attempt() {
                return value;
            }
            if Instant::now() > deadline {
                panic!("{what} did not happen; the switch said:\n{}", self.log().join("\n"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A file in the node's folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn manifest(&self, name: &str) -> PathBuf {
        self.manifests.join(format!("{name}.yaml"))
    }
}

/// An API server at an address of a namespace.
pub(crate) fn api_server_at(place: PathBuf, ip: IpAddr) -> ApiServer {
    ApiServer::listening(move |address| {
        let address = SocketAddr::new(ip, address.port());
        linux_net::in_namespace(&place, || TcpListener::bind(address))
            .map_err(std::io::Error::other)?
    })
}

/// Returns whether the tests that do not say it themselves run with flow offload, which is the default.
pub(crate) fn flow_offload() -> bool {
    std::env::var("PODGATE_TEST_FLOW_OFFLOAD").map_or(true, |mode| mode != "off")
}

/// Returns whether the kernel has everything the switch wants of it, or refuses it.
pub(crate) fn kernel_in_sync(status: &Value) -> bool {
    let parts = status["kernel"].as_array().unwrap();
    parts.iter().all(|part| part["in_sync"] == true || !part["error"].is_null())
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
