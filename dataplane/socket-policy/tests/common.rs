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
const CLIENT: &str = r#"
import ctypes, errno, mmap, os, socket, struct, sys, threading
kept = {}
def inet(kind, host, proto=0):
    family = socket.AF_INET6 if ':' in host else socket.AF_INET
    made = socket.socket(family, kind, proto)
    made.settimeout(5)
    return made
def by_io_uring(made, host, port):
    call = ctypes.CDLL(None, use_errno=True).syscall
    params = (ctypes.c_uint32 * 30)()
    ring = call(425, 1, params)
    if ring < 0:
        raise OSError(ctypes.get_errno(), 'io_uring_setup')
    # Words of io_uring_params: sq_off.tail, sq_off.array, cq_off.cqes.
    tail, entries, cqes = params[11], params[16], params[25]
    queue = mmap.mmap(ring, entries + 4)
    done = mmap.mmap(ring, cqes + 16, offset=0x8000000)
    jobs = mmap.mmap(ring, 64, offset=0x10000000)
    to = struct.pack('=H', socket.AF_INET) + struct.pack('!H', port) + socket.inet_aton(host) + bytes(8)
    to = ctypes.create_string_buffer(to, 16)
    # IORING_OP_CONNECT, its socket, the length of the address, and the address.
    jobs[:] = struct.pack('=BBHiQQ40x', 16, 0, 0, made.fileno(), 16, ctypes.addressof(to))
    queue[tail:tail + 4] = struct.pack('=I', 1)
    if call(426, ring, 1, 1, 1, None, 0) < 0:
        raise OSError(ctypes.get_errno(), 'io_uring_enter')
    result, = struct.unpack_from('=i', done, cqes + 8)
    if result < 0:
        raise OSError(-result, '')
def echo(made):
    try:
        while data := made.recv(100):
            made.send(data)
    except OSError:
        pass
def serve(made, kind):
    while True:
        try:
            if kind == 'udp':
                data, peer = made.recvfrom(100)
                made.sendto(data, peer)
            else:
                threading.Thread(target=echo, args=(made.accept()[0],), daemon=True).start()
        except OSError:
            pass
def listen(kind, host, port):
    made = inet(socket.SOCK_DGRAM if kind == 'udp' else socket.SOCK_STREAM, host, 262 if kind == 'mptcp' else 0)
    made.settimeout(None)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if ':' in host:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    made.bind((host, port))
    if kind == 'fast':
        made.setsockopt(socket.IPPROTO_TCP, 23, 10)
    if kind != 'udp':
        made.listen()
    return made
def run(what, *words):
    if what == 'serve':
        # KIND HOST PORT: echoes what comes.
        made = listen(words[0], words[1], int(words[2]))
        threading.Thread(target=serve, args=(made, words[0]), daemon=True).start()
        return
    if what == 'listen':
        # NAME KIND HOST PORT
        kept[words[0]] = listen(words[1], words[2], int(words[3]))
        return
    if what == 'serving':
        threading.Thread(target=serve, args=(kept[words[0]], words[1]), daemon=True).start()
        return
    if what == 'close':
        kept.pop(words[0]).close()
        return
    if what == 'open':
        # NAME KIND HOST PORT [OWN-HOST [OWN-PORT]]: a socket that has sent a byte to a server and got it back.
        kind, host, port = words[1], words[2], int(words[3])
        proto = 262 if kind == 'mptcp' else 0
        made = inet(socket.SOCK_DGRAM if kind == 'udp' else socket.SOCK_STREAM, host, proto)
        if len(words) > 4:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((words[4], int(words[5]) if len(words) > 5 else 0))
        made.settimeout(20 if kind in ('tcp', 'udp') else 5)
        kept[words[0]] = made
        if kind == 'fast':
            # With a time-out of Python's it would not wait for the handshake.
            made.settimeout(None)
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                made.setsockopt(socket.SOL_SOCKET, option, struct.pack('ll', 5, 0))
            made.sendto(b'x', 0x20000000, (host, port))
        else:
            made.connect((host, port))
            made.send(b'x')
        if made.recv(1) != b'x':
            raise OSError(errno.EPROTO, '')
        return
    if what == 'ask':
        # NAME HOST PORT: by sendto() and recvfrom().
        kept[words[0]].sendto(b'x', (words[1], int(words[2])))
        kept[words[0]].recvfrom(1)
        return
    if what == 'tell':
        kept[words[0]].sendto(b'x', (words[1], int(words[2])))
        return
    if what == 'flood':
        # OWN-HOST COUNT HOST PORT: a datagram of each of so many ports.
        for own in range(1024, 1024 + int(words[1])):
            with inet(socket.SOCK_DGRAM, words[0]) as made:
                made.bind((words[0], own))
                made.sendto(b'x', (words[2], int(words[3])))
        return
    if what == 'get':
        print(kept[words[0]].recvfrom(100)[1][1], flush=True)
        return
    if what == 'raw':
        socket.socket(socket.AF_INET6 if words[0] == '6' else socket.AF_INET, socket.SOCK_RAW, int(words[1])).close()
        return
    if what == 'thread':
        # CGROUP NAME KIND HOST PORT: a listener of a thread in that cgroup.
        failed = []
        def begin():
            try:
                with open(words[0] + '/cgroup.threads', 'w') as threads:
                    threads.write(str(threading.get_native_id()))
                kept[words[1]] = listen(words[2], words[3], int(words[4]))
            except OSError as error:
                failed.append(error)
        begun = threading.Thread(target=begin); begun.start(); begun.join()
        if failed:
            raise failed[0]
        return
    if what == 'accept':
        kept[words[0]].settimeout(0.5)
        kept[words[0]].accept()
        return
    if what == 'bound':
        # NAME KIND HOST PORT
        kept[words[0]] = inet(getattr(socket, 'SOCK_' + words[1]), words[2])
        kept[words[0]].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept[words[0]].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept[words[0]].bind((words[2], int(words[3])))
        return
    if what == 'patience':
        kept[words[0]].settimeout(float(words[1]))
        return
    if what == 'echo':
        kept[words[0]].send(b'y')
        if kept[words[0]].recv(1) != b'y':
            raise OSError(errno.EPROTO, '')
        return
    if what == 'hold':
        kept[words[0]] = inet(getattr(socket, 'SOCK_' + words[1]), words[2])
        return
    if what == 'held':
        return kept[words[0]].connect((words[1], int(words[2])))
    if what == 'alive':
        # A connection that is open carries a byte; nobody reads it.
        kept[words[0]].send(b'x')
        return
    if what == 'give':
        with socket.socket(socket.AF_UNIX) as way:
            way.connect(words[1])
            socket.send_fds(way, [b'x'], [kept[words[0]].fileno()])
        return
    if what == 'take':
        with socket.socket(socket.AF_UNIX) as way:
            way.bind(words[1]); way.listen(); print('listening', flush=True)
            with way.accept()[0] as peer:
                fd = socket.recv_fds(peer, 10, 1)[1][0]
        kept[words[0]] = socket.socket(fileno=fd)
        return
    if what == 'fork':
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, answer(words).encode()); os._exit(0)
        os.wait()
        text = os.read(read, 100).decode()
        if text != 'ok':
            raise OSError(getattr(errno, text), '')
        return
    host, port = words[0], int(words[1])
    if what == 'tcp':
        inet(socket.SOCK_STREAM, host).connect((host, port))
    elif what == 'udp':
        inet(socket.SOCK_DGRAM, host).connect((host, port))
    elif what == 'send':
        inet(socket.SOCK_DGRAM, host).sendto(b'x', (host, port))
    elif what == 'fast':
        inet(socket.SOCK_STREAM, host).sendto(b'x', 0x20000000, (host, port))
    elif what == 'mptcp':
        inet(socket.SOCK_STREAM, host, 262).connect((host, port))
    elif what == 'pktinfo':
        source = struct.pack('I4s4s', 0, socket.inet_aton(words[2]), bytes(4))
        info = [(socket.IPPROTO_IP, 8, source)]
        inet(socket.SOCK_DGRAM, host).sendmsg([b'x'], info, 0, (host, port))
    elif what == 'uring':
        made = inet(socket.SOCK_STREAM, host)
        made.settimeout(None)
        by_io_uring(made, host, port)
    elif what == 'device':
        made = inet(socket.SOCK_STREAM, host)
        made.setsockopt(socket.SOL_SOCKET, 25, b'lo')
        made.connect((host, port))
    elif what == 'transparent':
        made = inet(socket.SOCK_STREAM, host)
        made.setsockopt(socket.IPPROTO_IP, 19, 1)
        made.bind((words[2], 0))
        made.connect((host, port))
    else:
        raise ValueError(what)
def answer(words):
    try:
        run(*words)
        return 'ok'
    except OSError as error:
        return 'timeout' if isinstance(error, TimeoutError) and not error.errno else errno.errorcode.get(error.errno, repr(error))
print('ready', flush=True)
for line in sys.stdin:
    print(answer(line.split()), flush=True)
"#;

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
