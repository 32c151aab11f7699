//! A network, a hierarchy of cgroups, and processes that are asked to connect.
#![allow(unsafe_code, reason = "mounts file systems")]

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use session_rules::{Action, End, Ports, Rule, Scope, Transport};
use socket_policy::{Denied, Options, SocketPolicy, What};
use testkit::{Namespace, TempDir};

/// The pod's addresses.
pub(crate) const POD: [&str; 2] = ["10.9.0.100", "fd09::100"];
/// Addresses of others; something listens at port 80 of each.
pub(crate) const OTHERS: [&str; 4] = ["10.9.0.2", "10.9.0.3", "fd09::2", "fd09::3"];

/// Does what its input says, line by line, and answers each with `ok` or the name of the error.
const CLIENT: &str = include_str!("client.py");

/// The network and the hierarchy.
pub(crate) struct World {
    pub(crate) namespace: Namespace,
    pub(crate) folder: TempDir,
    /// The cgroups made, the last ones first.
    made: std::cell::RefCell<Vec<PathBuf>>,
    _listeners: Vec<TcpListener>,
}

impl World {
    pub(crate) fn new(label: &str) -> Self {
        let namespace = Namespace::new(label);
        for address in POD.iter().chain(&OTHERS) {
            let length = if address.contains(':') { "128" } else { "32" };
            let address = format!("{address}/{length}");
            namespace.exec(["ip", "address", "add", &address, "dev", "lo", "nodad"]);
        }
        let listeners = namespace.enter(|| {
            let listen =
                |it: &&str| TcpListener::bind((it.parse::<IpAddr>().unwrap(), 80)).unwrap();
            OTHERS.iter().map(listen).collect()
        });
        let folder = TempDir::new(label);
        for kind in ["cgroup2", "bpf"] {
            let at = folder.path().join(kind);
            std::fs::create_dir(&at).unwrap();
            mount(kind, &at);
        }
        Self { namespace, folder, made: Vec::default().into(), _listeners: listeners }
    }

    pub(crate) fn pins(&self) -> PathBuf {
        self.folder.path().join("bpf/podgate")
    }

    /// Makes a cgroup below that of the tests.
    pub(crate) fn cgroup(&self, name: &str) -> PathBuf {
        let own = testkit::unique_name("socket-policy");
        let path = self.folder.path().join("cgroup2").join(own).join(name);
        std::fs::create_dir_all(&path).unwrap();
        let mut made = self.made.borrow_mut();
        made.insert(0, path.parent().unwrap().to_owned());
        made.insert(0, path.clone());
        path
    }

    /// A process in a cgroup.
    pub(crate) fn client(&self, cgroup: &Path) -> Client {
        Self::process(&self.namespace, cgroup)
    }

    /// A process in a cgroup and a network namespace.
    pub(crate) fn process(namespace: &Namespace, cgroup: &Path) -> Client {
        let procs = cgroup.join("cgroup.procs");
        let enter = format!("echo $$ > {} && exec python3 -c \"$0\"", procs.display());
        let mut command = namespace.command(["sh", "-c", &enter, CLIENT]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sh");
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut client = Client { child, input, output: BufReader::new(output) };
        assert_eq!(client.line(), "ready");
        client
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for cgroup in self.made.borrow().iter() {
            // Its processes have ended, which the kernel notes a little later.
            for _ in 0..100 {
                match std::fs::remove_dir(cgroup) {
                    Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                        std::thread::sleep(std::time::Duration::from_millis(20));
                    }
                    _ => break,
                }
            }
        }
        let _ = socket_policy::remove_pins(&self.pins());
        for kind in ["cgroup2", "bpf"] {
            let at = self.folder.path().join(kind);
            let _ = Command::new("umount").arg(at).status();
        }
    }
}

fn mount(kind: &str, at: &Path) {
    let done = Command::new("mount").args(["-t", kind, "none"]).arg(at).status().expect("mount");
    assert!(done.success(), "mount {kind}");
}

/// A process that connects.
pub(crate) struct Client {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Client {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn begin(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
    }

    /// Does something, and returns `ok` or the name of the error.
    pub(crate) fn ask(&mut self, what: &str) -> String {
        self.begin(what);
        self.line()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Denies a pod's connections to an address, all ports or one.
pub(crate) fn deny_to(pod: &str, address: &str, ports: Ports) -> Vec<Rule> {
    let net = Some(address.parse::<IpAddr>().unwrap().into());
    let rule = |transport| Rule {
        scope: Scope::Local(pod.into()),
        transport,
        local: End::ANY,
        remote: End { net, ports },
        action: Action::Deny,
        tag: format!("NetworkPolicy {pod} egress").into(),
    };
    [Transport::Tcp, Transport::Udp].map(rule).into()
}

/// A call that was denied.
pub(crate) struct Call {
    pub(crate) pod: Arc<str>,
    pub(crate) by: Arc<str>,
    pub(crate) transport: Transport,
    pub(crate) process: (u32, String),
    pub(crate) user: u32,
    pub(crate) target: SocketAddr,
}

/// The one call that was denied since the last question.
pub(crate) fn only(policy: &SocketPolicy) -> Call {
    let mut denied = policy.denied();
    match (denied.pop(), &denied[..]) {
        (Some(Denied { pod, by, transport, what: What::Call { process, user, target } }), []) => {
            Call { pod, by, transport, process, user, target }
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) fn addresses() -> Vec<IpAddr> {
    POD.iter().map(|it| it.parse().unwrap()).collect()
}

/// Programs at the cgroup of `default/a` with these rules.
pub(crate) fn policy_at(cgroup: &Path, rules: &[Rule], options: Options) -> SocketPolicy {
    let policy = SocketPolicy::load(options).unwrap();
    policy.attach("default/a", &addresses(), cgroup, false).unwrap();
    policy.set_rules(rules, &[], &session_rules::Services::default(), &[]).unwrap();
    policy
}
