//! The node's own network: a trait, which tests implement without root, and the kernel behind
//! it.

use std::net::IpAddr;

use control::View;
use dataplane::wire::Mac;
use linux_net::filter::{self, Filter};
use linux_net::host_port::{self, HostPortConfig};
use linux_net::masquerade::{self, Masquerader};
use linux_net::redirect::{Redirector, Redirects};
use linux_net::{ForwardPolicy, Netlink, NextHop};
use nftables::{Enforcer, Failsafe, HOST_TABLES, host_ruleset};

use super::error::KernelError;

/// The network configuration of the node itself. Each call brings one part of it into the
/// given state from any other, and may wait for the kernel.
pub trait HostNetwork: Send {
    /// Returns the name of the interface with one of the node's addresses, else of its
    /// default route.
    ///
    /// # Errors
    /// If the kernel does not answer or there is no such interface.
    fn find_uplink(&mut self, node_addresses: &[IpAddr]) -> Result<String, KernelError>;

    /// Creates or restores the host port.
    ///
    /// # Errors
    /// If there is no host port; what the kernel refuses beyond that is in the result.
    fn set_up_host_port(&mut self, config: &HostPortConfig) -> Result<HostEnd, KernelError>;

    /// Masquerades what pods send to the world.
    ///
    /// # Errors
    /// If the kernel refuses it, or another program's rules drop it.
    fn masquerade(&mut self, rules: &masquerade::Rules) -> Result<(), KernelError>;

    /// Drops tunnel packets and forged sources that the kernel would route.
    ///
    /// # Errors
    /// If the kernel refuses it.
    fn filter(&mut self, rules: &filter::Rules) -> Result<(), KernelError>;

    /// Redirects to the switch what the node's own processes send to services.
    ///
    /// # Errors
    /// If the kernel refuses it.
    fn redirect(&mut self, redirects: &Redirects) -> Result<(), KernelError>;

    /// Enforces the host firewalls of a view. The ports of tunnels that the kernel makes are failsafe
    /// ports beside the given ones.
    ///
    /// # Errors
    /// If the kernel refuses it.
    fn host_firewall(&mut self, view: &View, failsafe: &Failsafe) -> Result<(), KernelError>;

    /// Removes the redirects; translations of open connections stay.
    ///
    /// # Errors
    /// If the kernel refuses it.
    fn release_redirects(&mut self) -> Result<(), KernelError>;

    /// Returns the next hop towards `address`. If its MAC address is not known, the kernel resolves
    /// it, and an event reports it. Repeated calls keep the kernel's entry fresh: the kernel does
    /// not see what the switch sends.
    ///
    /// # Errors
    /// If there is no route to the address.
    fn next_hop(&mut self, address: IpAddr) -> Result<NextHop, KernelError>;
}

/// The kernel's end of the host port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEnd {
    /// Its MAC address.
    pub mac: Mac,
    /// Errors about addresses and routes that the kernel refused; all others are as configured.
    pub refused: Vec<String>,
}

/// The real configuration, through netlink and `nft`, as one thread sees it.
pub(super) struct KernelNetwork {
    netlink: Netlink,
    masquerader: Masquerader,
    forward_policy: ForwardPolicy,
    filter: Filter,
    /// The rules of the filter that were set last.
    filtered: Option<filter::Rules>,
    redirector: Redirector,
    host_firewall: Enforcer,
    /// Whether there may be tables of host firewalls.
    has_host_firewall: bool,
}

impl KernelNetwork {
    /// In the calling thread's network namespace.
    pub(super) fn open() -> Result<Self, KernelError> {
        let netlink = Netlink::open()?;
        let (masquerader, filter) = (Masquerader::default(), Filter::default());
        let redirector = Redirector::default();
        let host_firewall = Enforcer::new(HOST_TABLES);
        Ok(Self {
            netlink,
            masquerader,
            forward_policy: ForwardPolicy::default(),
            filter,
            filtered: None,
            redirector,
            host_firewall,
            has_host_firewall: true,
        })
    }

    /// Logs which tunnel devices get nothing by the filter's rules.
    fn warn_of_tunnels(&mut self, rules: &filter::Rules) -> Result<(), KernelError> {
        let Some(port) = rules.tunnel_port else { return Ok(()) };
        let links = self.netlink.links()?;
        for link in links.iter().filter(|link| link.tunnel_port == Some(port)) {
            tracing::warn!(
                "{}: a tunnel device of the kernel on the overlay's port {port} gets no packets; delete it, or \
                 change --vxlan-port on all nodes",
                link.name
            );
        }
        Ok(())
    }
}

impl HostNetwork for KernelNetwork {
    fn find_uplink(&mut self, node_addresses: &[IpAddr]) -> Result<String, KernelError> {
        let link = self.netlink.uplink(node_addresses)?;
        link.map(|link| link.name).ok_or_else(|| {
            "no interface has one of the node's addresses, nor is there a default route".into()
        })
    }

    fn set_up_host_port(&mut self, config: &HostPortConfig) -> Result<HostEnd, KernelError> {
        let port = host_port::set_up(config)?;
        let mac = port.host.mac.ok_or_else(|| format!("{} has no MAC", port.host.name))?;
        Ok(HostEnd { mac: mac.0, refused: port.refused })
    }

    fn masquerade(&mut self, rules: &masquerade::Rules) -> Result<(), KernelError> {
        self.masquerader.set(rules)?;
        let host_port = HostPortConfig::default().host_interface;
        match self.forward_policy.dropping(&host_port)? {
            [] => Ok(()),
            [first, ..] => Err(format!(
                "the chain {first} drops what is forwarded: pods reach nothing outside of the cluster; accept what comes \
                 from and goes to {host_port} there (iptables -I FORWARD -i {host_port} -j ACCEPT; iptables -I FORWARD \
                 -o {host_port} -j ACCEPT)"
            )
            .into()),
        }
    }

    fn filter(&mut self, rules: &filter::Rules) -> Result<(), KernelError> {
        self.filter.set(rules)?;
        if self.filtered.as_ref() != Some(rules) {
            self.warn_of_tunnels(rules)?;
            self.filtered = Some(rules.clone());
        }
        Ok(())
    }

    fn redirect(&mut self, redirects: &Redirects) -> Result<(), KernelError> {
        Ok(self.redirector.set(redirects)?)
    }

    fn host_firewall(&mut self, view: &View, failsafe: &Failsafe) -> Result<(), KernelError> {
        if view.has_host_rules() {
            let mut failsafe = failsafe.clone();
            let links = self.netlink.links()?;
            let tunnels = links.iter().filter_map(|link| link.tunnel_port);
            tunnels.for_each(|port| failsafe.add_tunnel(port));
            let ruleset = host_ruleset(view, &failsafe);
            self.has_host_firewall = true;
            self.host_firewall.set(ruleset)?;
            return Ok(self.host_firewall.verify()?);
        }
        // Once: the first time, an earlier process may have left some.
        if std::mem::replace(&mut self.has_host_firewall, false) && self.host_firewall.is_in_force()
        {
            self.host_firewall.remove()?;
        }
        Ok(())
    }

    fn release_redirects(&mut self) -> Result<(), KernelError> {
        Ok(self.redirector.release()?)
    }

    fn next_hop(&mut self, address: IpAddr) -> Result<NextHop, KernelError> {
        Ok(self.netlink.next_hop(address)?)
    }
}

/// The kernel's own addresses, but for those of loopback.
pub(super) fn addresses(netlink: &mut Netlink) -> Result<Vec<IpAddr>, KernelError> {
    let addresses = netlink.addresses()?;
    let addresses = addresses.into_iter().map(|own| own.address.addr());
    let mut addresses: Vec<_> = addresses.filter(|address| !address.is_loopback()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}
