//! Forwarders between the pods of a [`Rig`].

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use acl::{Action, Address, AddressMapBuilder, Block, End, PeerSetId, PortRange, Rule, Table};
use dataplane::port::af_xdp::{Umem, UmemConfig};
use dataplane::services::{Backend, Backends, Entry, Scope, ServicePort, Services};
use dataplane::switch::{Config, RxMode};
use dataplane::wire::{Flow, Mac, protocol};
use dataplane::{AclBinding, Parts, PortId, PortKind, PortState, Switch};
use flow_offload::layout::{FlowEntry, FlowKey};
use flow_offload::{Offload, Options};
use linux_net::Netlink;
use testkit::{Process, has_program};

use crate::rig::{PATIENCE, Rig, SERVICE, Settings, filled_with, kernel, mac, put_in_force, words};
use crate::vpp::{self, Vpp};

/// The port that the policy lets through.
pub const SERVER_PORT: u16 = 5201;
const RULES: u16 = 100;
/// Beginning of the switch's line that counts frames forwarded by programs and frames left to the switch.
const COUNTED: &str = "counted";
/// Addresses in the set that the kernel's filters look in.
const SET: u32 = 1000;

/// Load on the switch beside the two pods that talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Beside {
    /// Further pods.
    pub idle: u16,
    /// Further rules of the policy, each for a source and a port.
    pub rules: u32,
    /// Further entries in the map of flow offload.
    pub entries: u32,
}

/// A forwarder between the two pods that talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarder {
    /// This switch, on core 0: sessions, and a policy of 100 rules.
    Podgate,
    /// The same with flow offload.
    Offload,
    /// The kernel's bridge as `BridgeUncut`, behind an nftables chain that looks up a set of 1,000
    /// addresses.
    BridgeFiltered,
    /// The kernel as a router, with the same chain.
    Route,
    /// The same with what policies and services of Kubernetes need of it: connection tracking, by which answers pass, and
    /// the translation of [`SERVICE`].
    RouteTracked,
    /// A tc program that hands every packet to the other pod and looks at none: the limit of flow offload's way
    /// (Debian: clang).
    Redirect,
    /// FD.io VPP (its program) on core 0: a bridge with the rules of `Podgate` as a reflexive ACL at the
    /// receiver.
    Vpp(&'static Path),
    /// DPDK's testpmd on core 0, which looks at nothing and swaps nothing.
    Testpmd,
    /// The kernel's bridge, between pods that cut and finish their packets themselves.
    Bridge,
    /// The kernel's bridge, between pods that leave all to "hardware": it passes segments of up to
    /// 64 KiB uncut.
    BridgeUncut,
}

impl Forwarder {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Podgate => "podgate",
            Self::Offload => "podgate, flow offload",
            Self::BridgeFiltered => "bridge, nftables",
            Self::Route => "kernel route, nftables",
            Self::RouteTracked => "kernel route, nftables, conntrack",
            Self::Redirect => "tc, redirect_peer alone",
            Self::Vpp(_) => "VPP, ACL",
            Self::Testpmd => "testpmd io",
            Self::Bridge => "bridge, offloads off",
            Self::BridgeUncut => "bridge, offloads on",
        }
    }

    /// The settings of the interfaces that its users have.
    pub fn settings(self) -> Settings {
        match self {
            Self::Podgate => Settings::CniPlugin,
            Self::Offload => Settings::FlowOffload,
            Self::BridgeFiltered
            | Self::Route
            | Self::RouteTracked
            | Self::Redirect
            | Self::BridgeUncut => Settings::Kernel,
            Self::Vpp(_) | Self::Testpmd | Self::Bridge => Settings::Cut,
        }
    }

    /// This switch, testpmd if it is installed, and VPP if its program is given.
    pub fn usual(vpp: Option<&'static Path>) -> Vec<Self> {
        let mut list = vec![Self::Podgate];
        if has_program("dpdk-testpmd") {
            list.push(Self::Testpmd);
        } else {
            eprintln!("dpdk-testpmd is not installed (Debian: dpdk-dev); measuring podgate alone");
        }
        list.extend(vpp.map(Self::Vpp));
        list
    }

    /// Starts it between the pods; with `idle` further pods attached, if it is this switch.
    pub fn start(self, rig: &Rig, idle: usize) -> Result<Running<'_>, Box<dyn Error>> {
        let idle = u16::try_from(idle)?;
        self.start_beside(rig, Beside { idle, ..Beside::default() })
    }

    /// Starts this switch as another build of this command has it.
    pub fn start_build<'a>(rig: &'a Rig, program: &str) -> Result<Running<'a>, Box<dyn Error>> {
        rig.clear();
        let process = Some(switch(rig, program, "switch", Beside::default()));
        Ok(Running { rig, process, _vpp: None })
    }

    /// The same with whatever stands beside the pods that talk.
    pub fn start_beside(self, rig: &Rig, beside: Beside) -> Result<Running<'_>, Box<dyn Error>> {
        rig.clear();
        rig.set(self.settings());
        let mut peer = None;
        let process = match self {
            Self::Vpp(program) => {
                let rules = vpp::acl(&policy(), |_| Vec::new());
                peer = Some(vpp::bridge(program, rig.node.name(), ["pga", "pgb"], &rules)?);
                None
            }
            Self::Podgate => Some(switch(rig, &own_path()?, "switch", beside)),
            Self::Offload => Some(switch(rig, &own_path()?, "offload", beside)),
            Self::Testpmd => {
                let testpmd = rig.node.spawn(words(
                    "dpdk-testpmd -l 0,1 --main-lcore 1 --no-pci --no-huge -m 512 --no-shconf \
                     --vdev net_af_xdp0,iface=pga --vdev net_af_xdp1,iface=pgb -- \
                     --forward-mode=io --auto-start --stats-period 1 --total-num-mbufs=32768",
                ));
                testpmd.wait_for_line("Port statistics", PATIENCE);
                Some(testpmd)
            }
            Self::Route | Self::RouteTracked => {
                rig.route();
                filter(rig, "ip", self == Self::RouteTracked);
                None
            }
            Self::Redirect => {
                redirect(rig)?;
                None
            }
            Self::Bridge | Self::BridgeUncut | Self::BridgeFiltered => {
                if self == Self::BridgeFiltered {
                    filter(rig, "bridge", false);
                }
                let mtu = rig.node.exec(words("cat /sys/class/net/pga/mtu"));
                rig.node.exec(words(&format!("ip link add bridge mtu {} type bridge", mtu.trim())));
                // Where the module br_netfilter is loaded, a bridge passes packets through the IP layer's
                // hooks as well: a bridge at its best does not.
                for family in ["ip", "ip6", "arp"] {
                    let hook = format!("net.bridge.bridge-nf-call-{family}tables=0");
                    rig.node.try_exec(["sysctl", "-qew", &hook]);
                }
                for interface in ["pga", "pgb"] {
                    rig.node.exec(words(&format!("ip link set {interface} master bridge")));
                }
                rig.node.exec(words("ip link set bridge up"));
                // A bridge's port learns for a moment before it forwards.
                let forwards = || {
                    let ports = rig.node.exec(words("bridge link show"));
                    ports.matches("state forwarding").count() == 2
                };
                while !forwards() {
                    std::thread::sleep(Duration::from_millis(50));
                }
                None
            }
        };
        Ok(Running { rig, process, _vpp: peer })
    }
}

/// Starts the switch of a build of this command.
fn switch(rig: &Rig, program: &str, mode: &str, beside: Beside) -> Process {
    let Beside { idle, rules, entries } = beside;
    let [idle, rules, entries] = [idle.into(), rules, entries].map(|n| n.to_string());
    let line = [program, mode, &rig.mac_a, &rig.mac_b, &idle, &rules, &entries];
    let switch = rig.node.spawn(line);
    switch.wait_for_line("in force", PATIENCE);
    switch
}

/// Attaches a program to each pod's interface that redirects into the other pod.
fn redirect(rig: &Rig) -> Result<(), Box<dyn Error>> {
    let folder = testkit::TempDir::new("bench-redirect");
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
        let compile = format!("clang -O2 -target bpf -c {source} -o {object}");
        let attach = format!("tc filter add dev {interface} ingress bpf da obj {object} sec tc");
        rig.node.exec(words(&compile));
        rig.node.exec(words(&format!("tc qdisc add dev {interface} clsact")));
        rig.node.exec(words(&attach));
    }
    Ok(())
}

/// Makes the kernel's own forwarding look up each source in a set; where it tracks connections, those that open.
fn filter(rig: &Rig, family: &str, tracked: bool) {
    let others = (2..SET + 2).map(|n| std::net::Ipv4Addr::from(0x0a58_0000 + n).to_string());
    let elements: Vec<String> = others.collect();
    let (services, established) = match tracked {
        true => (
            format!(
                "chain services {{ type nat hook prerouting priority dstnat; ip daddr {SERVICE} dnat to 10.88.0.3; }}"
            ),
            "ct state established,related accept;",
        ),
        false => Default::default(),
    };
    let rules = format!(
        "table {family} bench {{\n set pods {{ type ipv4_addr; elements = {{ {} }} }}\n {services}\n chain forward \
         {{ type filter hook forward priority 0; policy drop; {established} ip saddr @pods accept; }}\n}}\n",
        elements.join(", ")
    );
    let folder = testkit::TempDir::new("bench-nft");
    let file = folder.path().join("rules");
    fs::write(&file, rules).expect("a file of rules");
    rig.node.exec(["nft", "-f", &file.display().to_string()]);
}

/// A forwarder at work, until this is dropped.
pub struct Running<'a> {
    rig: &'a Rig,
    process: Option<Process>,
    _vpp: Option<Vpp>,
}

impl Running<'_> {
    /// Packets that programs of flow offload have forwarded, and those that they left to the switch;
    /// as of a moment ago.
    pub fn counted(&self) -> Option<[f64; 2]> {
        let lines = self.process.as_ref()?.output();
        let last = lines.iter().rev().find_map(|line| line.strip_prefix(COUNTED))?;
        let numbers: Vec<f64> = last.split_whitespace().filter_map(|it| it.parse().ok()).collect();
        numbers.try_into().ok()
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        match &mut self.process {
            Some(process) => drop(process.kill()),
            // One that was never there is deleted as well.
            None => drop(self.rig.node.try_exec(words("ip link delete bridge"))),
        }
        self.rig.set(Settings::CniPlugin);
    }
}

/// The path of this program, for starting it again inside a namespace.
pub fn own_path() -> Result<String, Box<dyn Error>> {
    Ok(fs::read_link("/proc/self/exe")?.to_string_lossy().into_owned())
}

/// Runs if the program was started by [`Forwarder::start`]: the switch of a rig, until killed.
pub fn is_switch(args: &[String]) -> Option<Result<(), Box<dyn Error>>> {
    match args {
        [word, mac_a, mac_b, idle, rules, entries] if word == "switch" || word == "offload" => {
            Some(serve([mac_a, mac_b], [idle, rules, entries], word == "offload"))
        }
        _ => None,
    }
}

fn serve(macs: [&str; 2], numbers: [&str; 3], offloads: bool) -> Result<(), Box<dyn Error>> {
    let (mac_a, mac_b) = (mac(macs[0])?, mac(macs[1])?);
    let [idle, more_rules, entries] = numbers;
    let (idle, more_rules, entries): (u16, u32, u32) =
        (idle.parse()?, more_rules.parse()?, entries.parse()?);
    let umem_config = UmemConfig { frames: 16384 + u32::from(idle) * 128, hugepages: false };
    let (umem, memory, frames) = Umem::create(&umem_config)?;
    let rx_mode = match std::env::var("BENCH_RX_MODE").as_deref() {
        Ok("polling") => RxMode::Polling,
        Ok("adaptive") => RxMode::Adaptive,
        // Beside flow offload the switch has little to do.
        _ if offloads => RxMode::Adaptive,
        _ => RxMode::Polling,
    };
    let config = Config { rx_mode, cores: vec![0], ..Config::default() };
    let switch = Arc::new(Switch::start(&config, &memory, frames, |_| None)?);
    let mut sets = AddressMapBuilder::default();
    let mut rules = policy();
    let rest = rules.pop();
    rules.extend((0..more_rules).map(|n| {
        let (source, set) = (Address::from_v4_bits(0xac10_0000 + n / 16), PeerSetId(n / 16));
        if n.is_multiple_of(16) {
            sets.add(set, [Block { net: source.to_ip().into(), except: Vec::new() }]);
        }
        Rule::new(Action::Permit, "more")
            .source(End::Set(set))
            .protocol(protocol::TCP)
            .destination_ports(PortRange::one(10_000 + (n % 16) as u16))
    }));
    rules.extend(rest);
    let map = Arc::new(sets.build());
    let table = AclBinding::Table(Arc::new(Table::compile(rules.into(), &map)));
    let pod = |name: &str, mac, address: u32, to_pod| {
        let addresses = vec![acl::Address::from_v4_bits(address)];
        let (mac, from_pod) = (Some(mac), AclBinding::Open);
        Some(PortState { mac, addresses, to_pod, from_pod, ..PortState::new(name, PortKind::Pod) })
    };
    let mut ports = vec![
        pod("a", mac_a, 0x0a58_0002, table.clone()),
        pod("b", mac_b, 0x0a58_0003, table.clone()),
    ];
    let mut interfaces = vec![("pga".to_owned(), 2048), ("pgb".to_owned(), 2048)];
    for n in 0..idle {
        let mac = [2, 0, 0, 1, (n >> 8) as u8, n as u8];
        ports.push(pod(&format!("idle{n}"), mac, 0x0a58_0100 + u32::from(n), table.clone()));
        interfaces.push((format!("idle{n}"), 64));
    }
    let offload =
        if offloads { Some(offload(&umem, &switch, [mac_a, mac_b], entries)?) } else { None };
    let own = if offloads { &interfaces[2..] } else { &interfaces[..] };
    for (n, (interface, fill)) in own.iter().enumerate() {
        let port = umem.open(interface, &filled_with(*fill))?;
        switch.add_port(PortId((n + interfaces.len() - own.len()) as u16), Box::new(port));
    }
    let services = Arc::new(services()?);
    let parts = Parts { generation: 1, ports, addresses: map, services, ..Parts::default() };
    put_in_force(&switch, offload.as_ref(), parts)?;
    loop {
        let Some(offload) = &offload else {
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
    rules.push(Rule::new(Action::Deny, "the rest"));
    rules
}

/// The receiver behind a cluster address.
fn services() -> Result<Services, Box<dyn Error>> {
    let backend = Backend { address: Address::from_v4_bits(0x0a58_0003), port: SERVER_PORT };
    let backends = Backends::new(vec![backend]);
    let (internal, any) = (backends.clone(), backends);
    let port = Arc::new(ServicePort { internal, any, ..ServicePort::default() });
    let address = Address::from(SERVICE.parse::<std::net::IpAddr>()?);
    let mut services = Services::default();
    for protocol in [protocol::TCP, protocol::UDP] {
        let entry = Entry { port: Arc::clone(&port), scope: Scope::Cluster };
        services.add(address, protocol, SERVER_PORT, entry);
    }
    services.claim(address);
    Ok(services)
}

/// Behind all ports.
const TRUNK: PortId = PortId(1023);

/// Attaches programs to the two pods that talk; their map has other entries too.
fn offload(
    umem: &Umem,
    switch: &Arc<Switch>,
    macs: [Mac; 2],
    entries: u32,
) -> Result<Offload, Box<dyn Error>> {
    let (kernel, link) = kernel(umem, switch, TRUNK)?;
    let others = (0..entries).map(|n| {
        let flow = Flow {
            source: Address::from_v4_bits(0x0a59_0000 + n % 250),
            destination: Address::from_v4_bits(0x0a5a_0000 + n / 250 % 250),
            source_port: (20_000 + n / 62_500) as u16,
            destination_port: SERVER_PORT,
            protocol: protocol::TCP,
        };
        (FlowKey::new(1 + n % 250, &flow), FlowEntry::default())
    });
    let (keys, values): (Vec<_>, Vec<_>) = others.unzip();
    if kernel.put_flows(&keys, &values) < keys.len() {
        return Err("the map of flow offload is full".into());
    }
    let mut netlink = Netlink::open()?;
    [&link.kernel, &link.switch].into_iter().try_for_each(|end| netlink.set_up(end.index))?;
    let offload = Offload::start(kernel, Arc::clone(switch), Options::default())?;
    for (n, (interface, mac)) in ["pga", "pgb"].into_iter().zip(macs).enumerate() {
        let id = PortId(n as u16);
        let tag = switch.add_member(id, TRUNK);
        let index = netlink.link(interface)?.index;
        offload.add_port(id, index, tag, mac)?;
        offload.attach_ports(&[(id, index)]).into_iter().collect::<std::result::Result<(), _>>()?;
    }
    Ok(offload)
}
