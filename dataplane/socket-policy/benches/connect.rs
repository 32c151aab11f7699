//! Time that the programs add to a `connect()`: UDP sockets, which send nothing, with and without programs in turns.
//!
//! Needs root and bpftool. `cargo bench -p socket-policy` prints the median of all rounds with their quartiles, and the time of
//! the program alone as the kernel counts it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use session_rules::{Action, End, Ports, Rule, Scope, Service, Services, Transport};
use socket_policy::{Options, SocketPolicy};
use testkit::{Namespace, TempDir};

const ROUNDS: usize = 60;
const CALLS: u32 = 20_000;

fn main() {
    let folder = TempDir::new("connect-bench");
    let root = folder.path().join("cgroup2");
    std::fs::create_dir(&root).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "cgroup2", "none"]).arg(&root).status().unwrap();
    assert!(mounted.success(), "needs root and cgroup v2");
    let cgroup = root.join(testkit::unique_name("connect-bench"));
    std::fs::create_dir(&cgroup).unwrap();
    // A socket is of the cgroup of the process that opens it.
    std::fs::write(cgroup.join("cgroup.procs"), "0").unwrap();
    let namespace = Namespace::new("connect-bench");
    namespace.exec(["ip", "address", "add", "10.9.0.1/8", "dev", "lo"]);
    namespace.enter(|| measure(&cgroup));
    std::fs::write(root.join("cgroup.procs"), "0").unwrap();
    std::fs::remove_dir(&cgroup).unwrap();
    let unmounted = Command::new("umount").arg(&root).status().unwrap();
    assert!(unmounted.success());
}

/// Compares cases in turns.
fn measure(cgroup: &Path) {
    let own = [IpAddr::from([10, 9, 0, 1])];
    let address = SocketAddr::from(([10, 200, 0, 7], 80));
    let service = SocketAddr::from(([10, 96, 0, 1], 80));
    let (rules, services) = (rules(), services(service));
    let mut times: [Vec<f64>; 3] = Default::default();
    for _ in 0..ROUNDS {
        times[0].push(call(address));
        let policy = SocketPolicy::load(Options::default()).unwrap();
        policy.attach("default/a", &own, cgroup, false).unwrap();
        policy.set_rules(&rules, &[], &services, &[]).unwrap();
        times[1].push(call(address));
        times[2].push(call(service));
        assert_eq!((policy.counters().denied, policy.counters().asked), (0, 2 * u64::from(CALLS)));
        policy.detach("default/a").unwrap();
    }
    println!(
        "{} rules; nanoseconds a connect() of a UDP socket, {ROUNDS} rounds in turns",
        rules.len()
    );
    let mut base = 0.0;
    for (name, times) in
        ["without", "an address", "a service of 10 endpoints"].iter().zip(&mut times)
    {
        times.sort_by(f64::total_cmp);
        let [low, median, high] = [1, 2, 3].map(|quarter| times[times.len() * quarter / 4]);
        if base == 0.0 {
            base = median;
        }
        println!("{name:<28}{median:>8.0} ({low:.0} to {high:.0}){:>+8.0}", median - base);
    }
    let policy = SocketPolicy::load(Options::default()).unwrap();
    policy.attach("default/a", &own, cgroup, false).unwrap();
    policy.set_rules(&rules, &[], &services, &[]).unwrap();
    let switch = "/proc/sys/kernel/bpf_stats_enabled";
    let before = std::fs::read_to_string(switch).unwrap();
    std::fs::write(switch, "1").unwrap();
    let times = [address, service].map(program_time);
    std::fs::write(switch, before).unwrap();
    let [instructions, ..] = statistics();
    println!(
        "connect4 has {instructions} instructions and runs for {:.0} ns for an address, {:.0} ns for the service, the \
         kernel's clock included",
        times[0], times[1]
    );
}

/// Nanoseconds of a run of `connect4` for this address, by the kernel's statistics.
fn program_time(to: SocketAddr) -> f64 {
    let [_, time, count] = statistics();
    call(to);
    let [_, later, more] = statistics();
    (later - time) as f64 / (more - count) as f64
}

/// Instructions of the program that was loaded last, the nanoseconds for which it ran, and how often.
fn statistics() -> [u64; 3] {
    let shown = Command::new("bpftool").args(["-j", "prog", "show", "name", "connect4"]).output();
    let shown = String::from_utf8(shown.expect("bpftool").stdout).unwrap();
    let field = |name: &str| {
        let (_, value) = shown.rsplit_once(&format!("\"{name}\":"))?;
        value.split(|it: char| !it.is_ascii_digit()).next()?.parse().ok()
    };
    let [size, time, count] =
        ["bytes_xlated", "run_time_ns", "run_cnt"].map(|it| field(it).unwrap_or(0));
    [size / 8, time, count]
}

/// Time of one call.
fn call(to: SocketAddr) -> f64 {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let begin = Instant::now();
    for _ in 0..CALLS {
        socket.connect(to).unwrap();
    }
    begin.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

/// Allowed networks and denied ones inside, 2,000 of each, for two protocols, in front of a denial of the rest.
fn rules() -> Vec<Rule> {
    let rule = |transport, net: Option<String>, ports, action| Rule {
        scope: Scope::Local("default/a".into()),
        transport,
        local: End::ANY,
        remote: End { net: net.map(|it| it.parse().unwrap()), ports },
        action,
        tag: "NetworkPolicy default/a egress[0]".into(),
    };
    let mut rules = Vec::new();
    for transport in [Transport::Tcp, Transport::Udp] {
        rules.push(rule(transport, None, Ports::ANY, Action::Deny));
        rules.push(rule(transport, Some("10.200.0.0/16".into()), Ports::one(80), Action::Allow));
        for n in 0..2_000_u32 {
            let net = Ipv4Addr::from(0x0a10_0000 + (n << 8));
            let port = Ports::one(1 + n as u16);
            rules.push(rule(transport, Some(format!("{net}/24")), port, Action::Allow));
            rules.push(rule(transport, Some(format!("{net}/32")), port, Action::Deny));
        }
    }
    rules
}

/// A service whose last endpoint alone is allowed.
fn services(at: SocketAddr) -> Services {
    let denied = (1..10).map(|n| SocketAddr::from(([10, 201, 0, n], 80)));
    let endpoints = denied.chain([([10, 200, 0, 7], 80).into()]).collect();
    let mut services = Services::default();
    services.set(at, Transport::Udp, Some(Service { endpoints, ..Service::default() }));
    services
}
