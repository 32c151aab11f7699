//! Time that the switch adds to answers of DNS, and what it keeps of them.
//!
//! ```text
//! cargo run --release -p bench --bin node -- names [ANSWERS [ROUNDS [FLOODS]]]     (as root)
//! ```
//!
//! A pod whose policy names domains and one without such a policy ask the same resolver, which is
//! a third pod: for names with addresses that have to be put in force first, for the same names again,
//! and from the pod without the policy. The three take turns, 30 times a second, since a pod may open
//! 32 addresses a second. The switch is `podgate run` with manifests.
//!
//! Beside them, FLOODS pods ask for new names without a pause. At the end of each round a NetworkPolicy denies
//! the pod without names its resolver: the time until its last answer is a denial's.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use bench::rig::{PATIENCE, needs_root, words};
use bench::{Samples, attach, print_table};
use local_api::{AttachPod, Client};
use testkit::{Namespace, TempDir};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Names that each pod queries in a round. All rounds together stay below the number of addresses that
/// one pod may have open.
const ANSWERS: u32 = 200;
const ROUNDS: u32 = 5;
/// Time between two answers that open addresses.
const PACE: Duration = Duration::from_millis(34);
/// Time that all else takes, in which nothing is on its way.
const PAUSE: Duration = Duration::from_millis(2);

/// The first number of a flood's names; each is answered with 64 addresses.
const FLOOD: u32 = 20_000;

/// A denial for the pod without names.
const DENIAL: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: denial, namespace: default}
spec: {podSelector: {matchLabels: {role: free}}, policyTypes: [Egress]}
"#;
/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(3);
/// A question without an answer for this time is denied.
const DENIED: Duration = Duration::from_millis(300);

const PODS: [&str; 3] = ["client", "free", "resolver"];
const METRICS: &str = "127.0.0.1:9470";

/// The pods, the node, and the policy.
const MANIFESTS: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: n}
spec: {podCIDRs: [10.88.0.0/24]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: names}
spec:
  tier: Admin
  priority: 1
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {role: client}}}}
  egress:
  - {action: Accept, to: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {role: resolver}}}}]}
  - {action: Accept, to: [{domainNames: ["*.names.test"]}]}
  - {action: Deny, to: [{networks: ["0.0.0.0/0"]}]}
"#;

/// Kinds of answers that are measured.
const KINDS: [&str; 3] = ["with a new address", "again", "of a pod without names"];

pub(crate) fn main(args: &[String]) -> Result<()> {
    let number = |at: usize, default: u32| args.get(at).map_or(Ok(default), |text| text.parse());
    match (number(1, ANSWERS), number(2, ROUNDS), number(3, 0)) {
        (Ok(answers @ 1..), Ok(rounds @ 1..), Ok(floods @ 0..=100)) => {
            measure(answers, rounds, floods)
        }
        _ => Err("ANSWERS and ROUNDS are numbers above 0, FLOODS is one up to 100".into()),
    }
}

fn measure(answers: u32, rounds: u32, floods: u32) -> Result<()> {
    needs_root()?;
    let node = Namespace::new("bench-node");
    let floods: Vec<String> = (0..floods).map(|n| format!("flood-{n}")).collect();
    let names: Vec<&str> = PODS.into_iter().chain(floods.iter().map(String::as_str)).collect();
    let pods: Vec<Namespace> = names.iter().map(|name| Namespace::new(name)).collect();
    let folder = TempDir::new("bench-names");
    let mut objects = MANIFESTS.to_owned();
    let mut requests = Vec::new();
    for ((name, pod), n) in names.iter().copied().zip(&pods).zip(2..) {
        let role = if name.starts_with("flood") { "client" } else { name };
        objects += &format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: default, labels: \
             {{role: {role}}}}}\nspec: {{nodeName: n}}\nstatus: {{podIPs: [{{ip: {}}}]}}\n",
            address(n)
        );
        requests.push(join(&node, pod, name, n)?);
    }
    node.exec(words("ip link set lo up"));
    let (_switch, socket) = attach::start(&node, folder.path(), &objects, &["--listen", METRICS])?;
    let mut client = Client::connect(&socket, PATIENCE)?;
    requests.iter().try_for_each(|request| client.attach_pod(request).map(drop))?;
    let resolver = pods[2].enter(|| UdpSocket::bind("0.0.0.0:53"))?;
    std::thread::spawn(move || serve(&resolver));
    let [asking, free] = [&pods[0], &pods[1]].map(|pod| pod.enter(Asking::open));
    let (mut asking, mut free) = (asking?, free?);
    // Neighbours are resolved by the first queries.
    (0..100).try_for_each(|_| free.ask(0).map(drop))?;
    asking.ask(0)?;
    for (flood, n) in pods[PODS.len()..].iter().zip(1..) {
        let mut asking = flood.enter(Asking::open)?;
        let names = n * FLOOD..(n + 1) * FLOOD;
        std::thread::spawn(move || {
            names.into_iter().try_for_each(|it| asking.ask(it).map(drop)).is_ok()
        });
    }
    let denial = folder.path().join("manifests").join("denial.yaml");
    let mut denials = Samples::new();
    let before = metric(&node, "process_resident_memory_bytes")?;
    let mut figures = KINDS.map(|_| [Samples::new(), Samples::new()]);
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        let mut times = KINDS.map(|_| Samples::new());
        for n in 0..answers {
            let began = Instant::now();
            let name = 1 + round * answers + n;
            times[0].push(asking.ask(name)?);
            std::thread::sleep(PAUSE);
            // The other two in turns.
            for kind in if n % 2 == 0 { [1, 2] } else { [2, 1] } {
                let pod = if kind == 1 { &mut asking } else { &mut free };
                times[kind].push(pod.ask(name)?);
                std::thread::sleep(PAUSE);
            }
            std::thread::sleep(PACE.saturating_sub(began.elapsed()));
        }
        denials.add(deny(&mut free, &denial)?);
        for (all, times) in figures.iter_mut().zip(times) {
            let times = times.sorted();
            all[0].add(times.median());
            all[1].add(times.quantile(0.99));
        }
    }
    let rows = KINDS.into_iter().zip(&figures);
    let rows: Vec<Vec<String>> = rows
        .map(|(kind, [p50, p99])| vec![kind.to_owned(), p50.to_string(), p99.to_string()])
        .collect();
    print_table(&["an answer, in microseconds", "p50", "p99"], &rows);
    println!("\na denial: {denials} ms");
    let missed = ["late", "paced", "uncopied", "unheld"].map(|reason| {
        let value =
            metric(&node, &format!("podgate_dns_answers_missed_total{{reason=\"{reason}\"}}"));
        value.map(|value| format!("{reason} {value}"))
    });
    let missed: Result<Vec<String>> = missed.into_iter().collect();
    println!("\nanswers that were not held to the end: {}", missed?.join(", "));
    println!(
        "held: {} names, {} addresses; the switch's memory {:.1} MB, {:.1} MB before",
        metric(&node, "podgate_domain_names")?,
        metric(&node, "podgate_domain_addresses{state=\"open\"}")?,
        metric(&node, "process_resident_memory_bytes")? / 1e6,
        before / 1e6
    );
    Ok(())
}

fn address(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 88, 0, n)
}

/// Joins a pod to the node, with what its plugin would set up in it.
fn join(node: &Namespace, pod: &Namespace, name: &str, n: u8) -> Result<AttachPod> {
    let request = attach::join(node, format!("pg{n}"), pod, "eth0", name, address(n))?;
    for command in [
        format!("ip address add {}/32 dev eth0", address(n)),
        "ip route add default via 169.254.1.1 dev eth0 onlink".to_owned(),
        "ethtool -K eth0 tx off".to_owned(),
    ] {
        pod.exec(words(&command));
    }
    Ok(request)
}

/// Answers every question with one address, which is made of the name's number, or a flood's with many.
fn serve(socket: &UdpSocket) {
    let mut bytes = [0; 512];
    while let Ok((count, from)) = socket.recv_from(&mut bytes) {
        let mut message = bytes[..count].to_vec();
        // Behind the header: the label's length, `n`, and the number.
        let digits =
            message.get(14..).unwrap_or_default().iter().take_while(|it| it.is_ascii_digit());
        let number = digits.fold(0_u32, |sum, digit| sum * 10 + u32::from(digit - b'0'));
        message[2..4].copy_from_slice(&[0x81, 0x80]);
        let many = if number < FLOOD { 1 } else { 64 };
        message[7] = many as u8;
        for n in 0..many {
            message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4]);
            let address = u32::from(Ipv4Addr::new(203, 0, 0, 0)) + number * many + n;
            message.extend(address.to_be_bytes());
        }
        let _ = socket.send_to(&message, from);
    }
}

/// A pod's socket for questions.
struct Asking {
    socket: UdpSocket,
    id: u16,
}

impl Asking {
    fn open() -> std::io::Result<Self> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(SocketAddr::new(address(4).into(), 53))?;
        socket.set_read_timeout(Some(ANSWER))?;
        Ok(Self { socket, id: 0 })
    }

    /// Asks for the address of a name; returns microseconds until the answer.
    fn ask(&mut self, number: u32) -> Result<f64> {
        self.id = self.id.wrapping_add(1);
        let mut question = self.id.to_be_bytes().to_vec();
        question.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        for label in [format!("n{number}").as_str(), "names", "test"] {
            question.push(label.len() as u8);
            question.extend(label.bytes());
        }
        question.extend([0, 0, 1, 0, 1]);
        let began = Instant::now();
        self.socket.send(&question)?;
        let mut answer = [0; 1500];
        while self.socket.recv(&mut answer)? < 2 || answer[..2] != question[..2] {}
        Ok(began.elapsed().as_secs_f64() * 1e6)
    }
}

/// Denies a pod its resolver; returns milliseconds until its last answer, and waits until it is allowed
/// again.
fn deny(pod: &mut Asking, file: &Path) -> Result<f64> {
    let written = file.with_extension("new");
    std::fs::write(&written, DENIAL)?;
    let began = Instant::now();
    std::fs::rename(written, file)?;
    pod.socket.set_read_timeout(Some(DENIED))?;
    let mut last = Instant::now();
    while pod.ask(0).is_ok() {
        last = Instant::now();
    }
    std::fs::remove_file(file)?;
    while pod.ask(0).is_err() {}
    pod.socket.set_read_timeout(Some(ANSWER))?;
    Ok((last - began).as_secs_f64() * 1e3)
}

/// The value of a metric, with its labels.
fn metric(node: &Namespace, name: &str) -> Result<f64> {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(METRICS)?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        Ok(page)
    };
    let page = node.enter(ask)?;
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(value.ok_or_else(|| format!("no metric {name}"))?.trim().parse()?)
}
