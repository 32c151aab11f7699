//! Time that the switch adds to answers of DNS, and what it keeps of them.
//!
//! ```text
//! cargo run --release -p bench --bin node -- names [ANSWERS [ROUNDS]]     (as root)
//! ```
//!
//! A pod whose policy names domains and one without such a policy ask the same resolver, which is
//! a third pod: for names with addresses that have to be put in force first, for the same names again,
//! and from the pod without the policy. The three take turns, 30 times a second, since a pod may open
//! 32 addresses a second. The switch is `podgate run` with manifests.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use bench::rig::{PATIENCE, needs_root, words};
use bench::{Samples, argument, attach, print_table};
use local_api::Client;
use testkit::{Namespace, TempDir, manifests};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Time between two answers that open addresses.
const PACE: Duration = Duration::from_millis(34);
/// Time that all else takes, in which nothing is on its way.
const PAUSE: Duration = Duration::from_millis(2);

/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(3);
const PODS: [&str; 3] = ["client", "free", "resolver"];
const METRICS: &str = "127.0.0.1:9470";

/// The policy of the pod `client`.
const POLICY: &str = r#"---
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
    needs_root()?;
    // All rounds together stay below the number of addresses that one pod may have open.
    let (answers, rounds) = (argument(args, 1, 200)?, argument(args, 2, 5)?);
    let (node, folder) = (Namespace::new("bench-node"), TempDir::new("bench-names"));
    let pods = PODS.map(Namespace::new);
    let mut objects = attach::node_object() + POLICY;
    let mut requests = Vec::new();
    for ((name, pod), n) in PODS.iter().zip(&pods).zip(0..) {
        let address = attach::address(n);
        requests.push(attach::join(&node, format!("pg{n}"), pod, "eth0", name, address)?);
        for command in [
            format!("ip address add {address}/32 dev eth0"),
            "ip route add default via 169.254.1.1 dev eth0 onlink".to_owned(),
            "ethtool -K eth0 tx off".to_owned(),
        ] {
            pod.exec(words(&command));
        }
        let (pod, labels) = (format!("default/{name}"), format!("role: {name}"));
        objects += &manifests::pod(&pod, &labels, attach::NODE, &address.to_string(), "");
    }
    let (_switch, socket) = attach::start(&node, folder.path(), &objects, &["--listen", METRICS])?;
    let mut client = Client::connect(&socket, PATIENCE)?;
    requests.iter().try_for_each(|request| client.attach_pod(request).map(drop))?;
    let resolver = pods[2].enter(|| UdpSocket::bind("0.0.0.0:53"))?;
    std::thread::spawn(move || serve(&resolver));
    let (mut asking, mut free) = (pods[0].enter(Asking::open)?, pods[1].enter(Asking::open)?);
    // Neighbours are resolved by the first queries.
    (0..100).try_for_each(|_| free.ask(0).map(drop))?;
    asking.ask(0)?;
    let before = metric(&node, "process_resident_memory_bytes")?;
    let mut figures = KINDS.map(|_| [Samples::new(), Samples::new()]);
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        let mut times = KINDS.map(|_| Samples::new());
        for n in 0..answers {
            let began = Instant::now();
            let name = 1 + round * answers + n;
            times[0].add(asking.ask(name)?);
            std::thread::sleep(PAUSE);
            // The other two in turns.
            for kind in if n % 2 == 0 { [1, 2] } else { [2, 1] } {
                let pod = if kind == 1 { &mut asking } else { &mut free };
                times[kind].add(pod.ask(name)?);
                std::thread::sleep(PAUSE);
            }
            std::thread::sleep(PACE.saturating_sub(began.elapsed()));
        }
        for (all, times) in figures.iter_mut().zip(times) {
            all[0].add(times.median());
            all[1].add(times.quantile(0.99));
        }
    }
    let rows = KINDS.into_iter().zip(&figures);
    let rows: Vec<Vec<String>> = rows
        .map(|(kind, [p50, p99])| vec![kind.to_owned(), p50.to_string(), p99.to_string()])
        .collect();
    print_table(&["an answer, in microseconds", "p50", "p99"], &rows);
    let missed = ["late", "paced", "uncopied", "unheld"].map(|reason| {
        let name = format!("podgate_dns_answers_missed_total{{reason=\"{reason}\"}}");
        metric(&node, &name).map(|value| format!("{reason} {value}"))
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

/// Answers every question with one address, which is made of the name's number.
fn serve(socket: &UdpSocket) {
    let mut bytes = [0; 512];
    while let Ok((count, from)) = socket.recv_from(&mut bytes) {
        let mut message = bytes[..count].to_vec();
        // Behind the header: the label's length, `n`, and the number.
        let digits =
            message.get(14..).unwrap_or_default().iter().take_while(|it| it.is_ascii_digit());
        let number = digits.fold(0_u32, |sum, digit| sum * 10 + u32::from(digit - b'0'));
        message[2..4].copy_from_slice(&[0x81, 0x80]);
        message[7] = 1;
        message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4]);
        message.extend((u32::from(Ipv4Addr::new(203, 0, 0, 0)) + number).to_be_bytes());
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
        socket.connect(SocketAddr::new(attach::address(2).into(), 53))?;
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
