//! Forwarders between the pods of a [`Rig`].

use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use acl::{Action, Address, PortRange, Rule, Table};
use dataplane::services::{Backend, Backends, Entry, Scope, ServicePort, Services};
use dataplane::switch::RxMode;
use dataplane::wire::protocol;
use dataplane::{AclBinding, Parts, PortId, PortKind, PortState};
use testkit::{Process, TempDir, eventually, has_program};

use crate::rig::{
    self, PATIENCE, RECEIVER, Rig, SERVICE, Settings, filled, kernel, mac, offload, put_in_force,
    words,
};

/// The port that the policy lets through.
pub const SERVER_PORT: u16 = 5201;
/// Another one, that of a resolver.
pub const RESOLVER_PORT: u16 = 53;
const RULES: u16 = 100;
/// Beginning of the switch's line that counts frames forwarded by programs and frames left to the switch.
const COUNTED: &str = "counted";
/// Addresses in the set that the kernel's filters look in.
const SET: u32 = 1000;

/// A forwarder between the two pods that talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarder {
    /// This switch, on core 0: sessions, and a policy of 100 rules.
    Podgate,
    /// The same with flow offload.
    Offload,
    /// The kernel's bridge. Pods leave all to "hardware": it passes segments of up to 64 KiB uncut.
    Bridge,
    /// The same behind an nftables chain that looks up a set of 1,000 addresses.
    BridgeFiltered,
    /// The kernel as a router, with the same chain.
    Route,
    /// The same with what policies and services of Kubernetes need of it: connection tracking, by which answers pass, and
    /// the translation of [`SERVICE`].
    RouteTracked,
    /// A tc program that hands every packet to the other pod and looks at none: the limit of flow offload's way
    /// (Debian: clang).
    Redirect,
    /// DPDK's testpmd on core 0, which looks at nothing and swaps nothing.
    Testpmd,
}

impl Forwarder {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        self.described().0
    }

    /// Its name, and the interfaces that its users have.
    fn described(self) -> (&'static str, Settings) {
        use Settings::{CniPlugin, FlowOffload, Kernel};
        match self {
            Self::Podgate => ("podgate", CniPlugin),
            Self::Offload => ("podgate, flow offload", FlowOffload),
            Self::Bridge => ("bridge, offloads on", Kernel),
            Self::BridgeFiltered => ("bridge, nftables", Kernel),
            Self::Route => ("kernel route, nftables", Kernel),
            Self::RouteTracked => ("kernel route, nftables, conntrack", Kernel),
            Self::Redirect => ("tc, redirect_peer alone", Kernel),
            Self::Testpmd => ("testpmd io", CniPlugin),
        }
    }

    /// These and testpmd, if it is installed.
    pub fn with_testpmd(list: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut list: Vec<Self> = list.into_iter().collect();
        match has_program("dpdk-testpmd") {
            true => list.push(Self::Testpmd),
            false => eprintln!("dpdk-testpmd is not installed (Debian: dpdk-dev); it is left out"),
        }
        list
    }

    /// Starts this switch as another build of this command has it.
    pub fn start_build(program: &str) -> Running {
        let rig = Rig::new(Settings::CniPlugin);
        Running { process: Some(switch(&rig, program, "switch")), rig }
    }

    /// Starts it between two new pods.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn start(self) -> Result<Running, Box<dyn Error>> {
        let rig = Rig::new(self.described().1);
        let mut process = None;
        match self {
            Self::Podgate => process = Some(switch(&rig, &own_path()?, "switch")),
            Self::Offload => process = Some(switch(&rig, &own_path()?, "offload")),
            Self::Testpmd => {
                let testpmd = rig.node.spawn(words(
                    "dpdk-testpmd -l 0,1 --main-lcore 1 --no-pci --no-huge -m 512 --no-shconf \
                     --vdev net_af_xdp0,iface=pga --vdev net_af_xdp1,iface=pgb -- \
                     --forward-mode=io --auto-start --stats-period 1 --total-num-mbufs=32768",
                ));
                testpmd.wait_for_line("Port statistics", PATIENCE);
                process = Some(testpmd);
            }
            Self::Route | Self::RouteTracked => {
                rig.route();
                filter(&rig, "ip", self == Self::RouteTracked)?;
            }
            Self::Redirect => redirect(&rig)?,
            Self::Bridge | Self::BridgeFiltered => {
                if self == Self::BridgeFiltered {
                    filter(&rig, "bridge", false)?;
                }
                bridge(&rig);
            }
        }
        Ok(Running { process, rig })
    }
}

/// Starts the switch of a build of this command. (Builds before November 2026 take three numbers more.)
fn switch(rig: &Rig, program: &str, mode: &str) -> Process {
    let switch = rig.node.spawn([program, mode, &rig.mac_a, &rig.mac_b, "0", "0", "0"]);
    switch.wait_for_line("in force", PATIENCE);
    switch
}

/// Makes a bridge of both interfaces that forwards.
fn bridge(rig: &Rig) {
    rig.node.exec(words("ip link add bridge type bridge"));
    // Where the module br_netfilter is loaded, a bridge passes packets through the IP layer's
    // hooks as well: a bridge at its best does not.
    for family in ["ip", "ip6", "arp"] {
        let hook = format!("net.bridge.bridge-nf-call-{family}tables=0");
        rig.node.try_exec(["sysctl", "-qew", &hook]);
    }
    for interface in ["pga", "pgb", "bridge"] {
        let change = if interface == "bridge" { "up" } else { "master bridge" };
        rig.node.exec(words(&format!("ip link set {interface} {change}")));
    }
    // A bridge's port learns for a moment before it forwards.
    eventually("two ports that forward", || {
        let ports = rig.node.exec(words("bridge link show"));
        (ports.matches("state forwarding").count() == 2).then_some(())
    });
}

/// Attaches a program to each pod's interface that redirects into the other pod.
fn redirect(rig: &Rig) -> Result<(), Box<dyn Error>> {
    let folder = TempDir::new("bench-redirect");
    let [source, object] = ["redirect.c", "redirect.o"].map(|it| folder.path().join(it));
    for (interface, other) in [("pga", "pgb"), ("pgb", "pga")] {
        let to = rig.node.exec(words(&format!("cat /sys/class/net/{other}/ifindex")));
        // Helper 155 is bpf_redirect_peer (linux/bpf.h).
        let program = format!(
            "static long (*redirect_peer)(unsigned, unsigned long) = (void *)155;\n\
             __attribute__((section(\"tc\"), used)) int to_other(void *packet)\n\
             {{ return redirect_peer({}, 0); }}\n",
            to.trim()
        );
        fs::write(&source, program)?;
        let (source, object) = (source.display(), object.display());
        rig.node.exec(words(&format!("clang -O2 -target bpf -c {source} -o {object}")));
        rig.node.exec(words(&format!("tc qdisc add dev {interface} clsact")));
        rig.node.exec(words(&format!(
            "tc filter add dev {interface} ingress bpf da obj {object} sec tc"
        )));
    }
    Ok(())
}

/// Makes the kernel's own forwarding look up each source in a set; where it tracks connections, those that open.
fn filter(rig: &Rig, family: &str, is_tracked: bool) -> Result<(), Box<dyn Error>> {
    let others = (2..SET + 2).map(|n| std::net::Ipv4Addr::from(0x0a58_0000 + n).to_string());
    let elements = others.collect::<Vec<_>>().join(", ");
    let translated = format!(
        "chain services {{ type nat hook prerouting priority dstnat; ip daddr {SERVICE} dnat to {RECEIVER}; }}"
    );
    let (translated, answers) = match is_tracked {
        true => (translated.as_str(), "ct state established,related accept;"),
        false => ("", ""),
    };
    let rules = format!(
        "table {family} bench {{\n set pods {{ type ipv4_addr; elements = {{ {elements} }} }}\n {translated}\n \
         chain forward {{ type filter hook forward priority 0; policy drop; {answers} ip saddr @pods accept; }}\n}}\n"
    );
    let folder = TempDir::new("bench-nft");
    let file = folder.path().join("rules");
    fs::write(&file, rules)?;
    rig.node.exec(["nft", "-f", &file.display().to_string()]);
    Ok(())
}

/// A forwarder at work, until this is dropped.
pub struct Running {
    process: Option<Process>,
    /// The node and its pods, which end after the forwarder.
    pub rig: Rig,
}

impl Running {
    /// Packets that programs of flow offload have forwarded, and those that they left to the switch;
    /// as of a moment ago.
    pub fn counted(&self) -> Option<[f64; 2]> {
        let lines = self.process.as_ref()?.output();
        let last = lines.iter().rev().find_map(|line| line.strip_prefix(COUNTED))?;
        let numbers: Vec<f64> = last.split_whitespace().filter_map(|it| it.parse().ok()).collect();
        numbers.try_into().ok()
    }
}

/// The path of this program, for starting it again inside a namespace.
///
/// # Errors
/// If the kernel does not say it.
pub fn own_path() -> Result<String, Box<dyn Error>> {
    Ok(fs::read_link("/proc/self/exe")?.to_string_lossy().into_owned())
}

/// Runs if the program was started by [`Forwarder::start`]: the switch of a rig, until killed.
pub fn is_switch(args: &[String]) -> Option<Result<(), Box<dyn Error>>> {
    match args {
        [word, mac_a, mac_b, ..] if word == "switch" || word == "offload" => {
            Some(serve([mac_a, mac_b], word == "offload"))
        }
        _ => None,
    }
}

fn serve(macs: [&str; 2], offloads: bool) -> Result<(), Box<dyn Error>> {
    let macs = [mac(macs[0])?, mac(macs[1])?];
    let rx_mode = match std::env::var("BENCH_RX_MODE").as_deref() {
        Ok("polling") => RxMode::Polling,
        Ok("adaptive") => RxMode::Adaptive,
        // Beside flow offload the switch has little to do.
        _ if offloads => RxMode::Adaptive,
        _ => RxMode::Polling,
    };
    let (umem, switch) = rig::switch(rx_mode, vec![0])?;
    let map = Arc::default();
    let table = AclBinding::Table(Arc::new(Table::compile(policy().into(), &map)));
    let pods = [(PortId(0), "pga", macs[0]), (PortId(1), "pgb", macs[1])];
    let mut running = None;
    if offloads {
        running = Some(offload(kernel(&umem, &switch)?, &switch, &pods)?);
    } else {
        for (id, interface, _) in pods {
            switch.add_port(id, Box::new(umem.open(interface, &filled())?));
        }
    }
    let pod = |(id, name, mac): (PortId, &str, _)| {
        let addresses = vec![Address::from_v4_bits(0x0a58_0002 + u32::from(id.0))];
        let (mac, to_pod, from_pod) = (Some(mac), table.clone(), AclBinding::Open);
        Some(PortState { mac, addresses, to_pod, from_pod, ..PortState::new(name, PortKind::Pod) })
    };
    let (ports, services) = (pods.map(pod).to_vec(), Arc::new(services()?));
    let parts = Parts { generation: 1, ports, addresses: map, services, ..Parts::default() };
    put_in_force(&switch, running.as_ref(), parts)?;
    loop {
        let Some(offload) = &running else {
            std::thread::park();
            continue;
        };
        std::thread::sleep(Duration::from_millis(200));
        let counters = offload.state().counters;
        let punted: u64 = counters.punted.iter().map(|(_, count)| count).sum();
        println!("{COUNTED} {} {punted}", counters.packets);
    }
}

/// Ports of pods that are admitted; the port that packets go to is in the middle.
fn policy() -> Vec<Rule> {
    let mut rules: Vec<Rule> = (0..RULES)
        .flat_map(|n| [protocol::UDP, protocol::TCP].map(|protocol| (n, protocol)))
        .map(|(n, protocol)| {
            Rule::new(Action::Permit, "bench")
                .protocol(protocol)
                .destination_ports(PortRange::one(SERVER_PORT + RULES / 2 - n))
        })
        .collect();
    let questions = Rule::new(Action::Permit, "bench").protocol(protocol::UDP);
    rules.push(questions.destination_ports(PortRange::one(RESOLVER_PORT)));
    rules.push(Rule::new(Action::Deny, "the rest"));
    rules
}

/// The receiver behind a cluster address.
fn services() -> Result<Services, Box<dyn Error>> {
    let address = Address::from(SERVICE.parse::<std::net::IpAddr>()?);
    let mut services = Services::default();
    for (protocol, port) in [(protocol::TCP, SERVER_PORT), (protocol::UDP, RESOLVER_PORT)] {
        let backend = Backend { address: Address::from_v4_bits(0x0a58_0003), port };
        let internal = Backends::new(vec![backend]);
        let any = internal.clone();
        let of_port = Arc::new(ServicePort { internal, any, ..ServicePort::default() });
        services.add(address, protocol, port, Entry { port: of_port, scope: Scope::Cluster });
    }
    services.claim(address);
    Ok(services)
}
