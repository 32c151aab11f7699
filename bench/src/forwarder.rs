//! What forwards between the pods of a [`Rig`].

use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use acl::{Action, PortRange, Rule, Table};
use dataplane::port::af_xdp::{PortOptions, Umem, UmemConfig};
use dataplane::switch::{Config, RxMode};
use dataplane::wire::{Mac, protocol};
use dataplane::{AclBinding, Parts, PortId, PortKind, PortState, Snapshot, Switch};
use flow_offload::{Kernel, Offload, Options};
use linux_net::{Netlink, punt};
use testkit::{Process, has_program};

use crate::rig::{PATIENCE, Rig, mac, words};

/// The port that the policy lets through.
pub const SERVER_PORT: u16 = 5201;
const RULES: u16 = 100;

/// What forwards between the two pods that talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarder {
    /// This switch, on core 0: sessions, and a policy of 100 rules.
    Podgate,
    /// The same with flow offload.
    Offload,
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
            Self::Testpmd => "testpmd io",
            Self::Bridge => "bridge, offloads off",
            Self::BridgeUncut => "bridge, offloads on",
        }
    }

    /// This switch, and testpmd if it is installed.
    pub fn usual() -> Vec<Self> {
        let mut list = vec![Self::Podgate];
        if has_program("dpdk-testpmd") {
            list.push(Self::Testpmd);
        } else {
            eprintln!("dpdk-testpmd is not installed (Debian: dpdk); measuring podgate alone");
        }
        list
    }

    /// Starts it between the pods; with `idle` further pods attached, if it is this switch.
    pub fn start(self, rig: &Rig, idle: usize) -> Result<Running<'_>, Box<dyn Error>> {
        rig.clear();
        let process = match self {
            Self::Podgate | Self::Offload => {
                let own = own_path()?;
                let idle = idle.to_string();
                // As the CNI plugin does.
                if self == Self::Offload {
                    rig.set_offloads(true);
                }
                let mode = if self == Self::Offload { "offload" } else { "switch" };
                let line = [own.as_str(), mode, &rig.mac_a, &rig.mac_b, &idle];
                let switch = rig.node.spawn(line);
                switch.wait_for_line("in force", PATIENCE);
                Some(switch)
            }
            Self::Testpmd => {
                // It completes nothing.
                rig.set_offloads(false);
                let testpmd = rig.node.spawn(words(
                    "dpdk-testpmd -l 0,1 --main-lcore 1 --no-pci --no-huge -m 512 --no-shconf \
                     --vdev net_af_xdp0,iface=pga --vdev net_af_xdp1,iface=pgb -- \
                     --forward-mode=io --auto-start --stats-period 1 --total-num-mbufs=32768",
                ));
                testpmd.wait_for_line("Port statistics", PATIENCE);
                Some(testpmd)
            }
            Self::Bridge | Self::BridgeUncut => {
                rig.set_offloads(self == Self::BridgeUncut);
                let mtu = rig.node.exec(words("cat /sys/class/net/pga/mtu"));
                rig.node.exec(words(&format!("ip link add bridge mtu {} type bridge", mtu.trim())));
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
        Ok(Running { rig, process })
    }
}

/// A forwarder at work, until this is dropped.
pub struct Running<'a> {
    rig: &'a Rig,
    process: Option<Process>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        match &mut self.process {
            Some(process) => drop(process.kill()),
            None => drop(self.rig.node.try_exec(words("ip link delete bridge"))),
        }
        self.rig.end_offloads();
    }
}

/// The path of this program, for starting it again inside a namespace.
pub fn own_path() -> Result<String, Box<dyn Error>> {
    Ok(fs::read_link("/proc/self/exe")?.to_string_lossy().into_owned())
}

/// Runs if the program was started by [`Forwarder::start`]: the switch of a rig, until killed.
pub fn is_switch(args: &[String]) -> Option<Result<(), Box<dyn Error>>> {
    match args {
        [word, mac_a, mac_b, idle] if word == "switch" => Some(serve(mac_a, mac_b, idle, false)),
        [word, mac_a, mac_b, idle] if word == "offload" => Some(serve(mac_a, mac_b, idle, true)),
        _ => None,
    }
}

fn serve(mac_a: &str, mac_b: &str, idle: &str, offloads: bool) -> Result<(), Box<dyn Error>> {
    let (mac_a, mac_b, idle): (_, _, u16) = (mac(mac_a)?, mac(mac_b)?, idle.parse()?);
    let umem_config = UmemConfig { frames: 16384 + u32::from(idle) * 128, hugepages: false };
    let (umem, memory, frames) = Umem::create(&umem_config)?;
    // Beside flow offload the switch has little to do.
    let rx_mode = if offloads { RxMode::Adaptive } else { RxMode::Polling };
    let config = Config { rx_mode, cores: vec![0], ..Config::default() };
    let switch = Arc::new(Switch::start(&config, &memory, frames, |_| None)?);
    let map = Arc::default();
    let mut rules: Vec<Rule> = (0..RULES)
        .flat_map(|n| [protocol::UDP, protocol::TCP].map(|protocol| (n, protocol)))
        .map(|(n, protocol)| {
            Rule::new(Action::Permit, "bench")
                .protocol(protocol)
                .destination_ports(PortRange::one(SERVER_PORT + RULES / 2 - n))
        })
        .collect();
    rules.push(Rule::new(Action::Deny, "the rest"));
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
    let offload = if offloads { Some(offload(&umem, &switch, [mac_a, mac_b])?) } else { None };
    let own = if offloads { &interfaces[2..] } else { &interfaces[..] };
    for (n, (interface, fill)) in own.iter().enumerate() {
        let port = umem.open(interface, &PortOptions { fill: *fill, ..PortOptions::default() })?;
        switch.add_port(PortId((n + interfaces.len() - own.len()) as u16), Box::new(port));
    }
    let parts = Parts { generation: 1, ports, addresses: map, ..Parts::default() };
    let snapshot = Arc::new(Snapshot::new(parts));
    offload.iter().for_each(|offload| offload.prepare(&snapshot));
    switch.publish(&snapshot);
    if !switch.wait_in_force(1, PATIENCE) {
        return Err("the workers do not answer".into());
    }
    println!("in force");
    loop {
        std::thread::park();
    }
}

/// Behind all ports.
const TRUNK: PortId = PortId(1023);

/// Has the two pods that talk served by programs.
fn offload(umem: &Umem, switch: &Arc<Switch>, macs: [Mac; 2]) -> Result<Offload, Box<dyn Error>> {
    let link = punt::set_up(1)?;
    let port =
        umem.open(punt::SWITCH_END, &PortOptions { fill: 2048, ..PortOptions::default() })?;
    switch.add_port(TRUNK, Box::new(port));
    let kernel = Kernel::load(Options::default().entries)?;
    kernel.set_punt(link.kernel.index)?;
    let mut netlink = Netlink::open()?;
    [&link.kernel, &link.switch].into_iter().try_for_each(|end| netlink.set_up(end.index))?;
    let offload = Offload::start(kernel, Arc::clone(switch), Options::default())?;
    for (n, (interface, mac)) in ["pga", "pgb"].into_iter().zip(macs).enumerate() {
        let id = PortId(n as u16);
        let tag = switch.add_member(id, TRUNK);
        offload.add_port(id, netlink.link(interface)?.index, tag, mac)?;
    }
    Ok(offload)
}
