//! The kernel's nftables rules: one reconciler for each table, each with a thread of its own.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use ::nftables::Failsafe;
use control::View;
use control::model::Key;
use dataplane::Underlay;

use super::denials::Denials;
use super::host_firewall::HostFirewallReconciler;
use super::kernel_filter::KernelFilterReconciler;
use super::masquerade::MasqueradeReconciler;
use super::nftables::NftablesReconciler;
use super::reconciler::{Effects, PublishedSnapshot, Reconciler, Signal};
use super::redirects::RedirectReconciler;
use crate::config::{Config, Enforcer, Masquerade};
use crate::run::error::StartError;
use crate::run::kernel::{Interfaces, Programming, Programs};
use crate::run::shared_status::SharedStatus;
use crate::run::source::{API_SERVER, SourceInfo};

/// Keeps the kernel's tables in line with the view.
pub(super) struct KernelRules {
    pub(super) nftables: Option<NftablesReconciler>,
    /// Reads what they log.
    _denials: Denials,
    host_firewall: HostFirewallReconciler,
    masquerade: Option<MasqueradeReconciler>,
    filter: Option<KernelFilterReconciler>,
    redirects: Option<RedirectReconciler>,
}

impl KernelRules {
    /// Starts the threads.
    pub(super) fn start(
        shared: &SharedStatus,
        source: &SourceInfo,
        interfaces: &dyn Interfaces,
    ) -> Result<Self, StartError> {
        let config = &shared.config;
        let network = || interfaces.host_network();
        let nftables = (config.enforcer == Enforcer::Nftables)
            .then(|| NftablesReconciler::start(config))
            .transpose()?;
        let host_firewall = HostFirewallReconciler::start(network()?, failsafe(config, source))?;
        let mut rules = Self {
            nftables,
            _denials: Denials::start(&shared.broker)?,
            host_firewall,
            masquerade: None,
            filter: None,
            redirects: None,
        };
        if config.host_port {
            // Link-local destinations are reached through the kernel in any case.
            let by_kernel = match config.network.masquerade {
                Masquerade::Kernel => true,
                Masquerade::Direct => !config.network.link_local_destinations.is_empty(),
                Masquerade::Off => false,
            };
            if by_kernel {
                rules.masquerade = Some(MasqueradeReconciler::start(network()?)?);
            }
            rules.filter = Some(KernelFilterReconciler::start(network()?)?);
            rules.redirects = Some(RedirectReconciler::start(network()?)?);
        }
        Ok(rules)
    }

    /// Sets the desired state of the tables; does not wait for the kernel.
    fn reconcile(&mut self, published: &PublishedSnapshot, effects: &Effects) {
        let PublishedSnapshot { departed, has_uplink, .. } = published;
        let (config, source) = (&effects.shared.config, &effects.input.info);
        let view = &effects.control.view();
        let node = &config.node_name;
        if source.decides() {
            self.host_firewall.reconcile(view);
        }
        if let Some(nftables) = &self.nftables {
            nftables.reconcile(view, departed, source.decides());
        }
        if let Some(masquerade) = &mut self.masquerade {
            masquerade.reconcile(view, node, effects.services.redirects());
        }
        if let Some(filter) = &mut self.filter
            && published.has_host_port
        {
            filter.reconcile(view, node, &config.network.underlay, *has_uplink);
        }
        if let Some(redirects) = &mut self.redirects
            && published.has_host_port
        {
            let (services, own) = (effects.services.redirects(), effects.own_addresses());
            redirects.reconcile(services, own, api_server(view, source));
        }
    }

    /// Returns whether nftables enforces all policies, for pods of another CNI plugin.
    pub(super) fn enforces_alone(&self) -> bool {
        self.nftables.is_some()
    }

    /// Waits until every table was tried once, for `timeout` each.
    pub(super) fn wait(&self, timeout: Duration) {
        self.programmers().for_each(|it| it.wait(timeout));
    }

    /// Returns whether the kernel has the tables that enforce policies, of host firewalls and of
    /// the nftables enforcer.
    fn enforces_policies(&self) -> bool {
        let nftables = self.nftables.iter().map(|it| it.programmer.programming());
        nftables.chain([self.host_firewall.programmer.programming()]).all(|it| it.in_sync)
    }

    /// State of the tables.
    pub(super) fn programming(&self) -> impl Iterator<Item = Programming> {
        self.programmers().map(Programs::programming)
    }

    fn programmers(&self) -> impl Iterator<Item = &dyn Programs> {
        let masquerade = self.masquerade.iter().map(|it| &it.programmer as &dyn Programs);
        let filter = self.filter.iter().map(|it| &it.programmer as &dyn Programs);
        let redirects = self.redirects.iter().map(|it| &it.programmer as &dyn Programs);
        let nftables = self.nftables.iter().map(|it| &it.programmer as &dyn Programs);
        let ours = masquerade.chain(filter).chain(redirects).chain(nftables);
        ours.chain([&self.host_firewall.programmer as &dyn Programs])
    }
}

impl Reconciler for KernelRules {
    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects) {
        match signal {
            Signal::Due(_) => effects.has_kernel_rules = self.enforces_policies(),
            Signal::Published(published) => self.reconcile(published, effects),
            Signal::Kernel(_) => self.nftables.iter().for_each(|it| it.programmer.verify()),
            Signal::End => self.redirects.take().into_iter().for_each(RedirectReconciler::release),
            _ => {}
        }
    }
}

/// The ports that host firewalls leave open: the API server's as the switch knows it, and those of
/// tunnels, beside the fixed ones.
pub(super) fn failsafe(config: &Config, source: &SourceInfo) -> Failsafe {
    let mut failsafe = Failsafe::default();
    if source.kind == API_SERVER {
        failsafe.tcp_out.insert(port_of(&source.place));
    }
    if let Underlay::Overlay(overlay) = &config.network.underlay
        && config.network.uplink.is_some()
    {
        failsafe.add_tunnel(overlay.port);
    }
    failsafe
}

/// Where the API server is, as far as it is known: at the address in its URL, and at the endpoints
/// of its service.
fn api_server(view: &View, source: &SourceInfo) -> BTreeSet<SocketAddr> {
    let key = Key { namespace: "default".into(), name: "kubernetes".into() };
    let endpoints =
        view.services.get(&key).into_iter().flat_map(|it| it.endpoints.iter().flatten());
    let mut all: BTreeSet<SocketAddr> =
        endpoints.map(|it| SocketAddr::new(it.address, it.port)).collect();
    if source.kind == API_SERVER {
        let authority = authority(&source.place).unwrap_or_default();
        let address = || authority.trim_matches(['[', ']']).parse();
        let with_port = authority.parse();
        all.extend(with_port.or_else(|_| address().map(|it| SocketAddr::new(it, 443))));
    }
    all
}

fn authority(url: &str) -> Option<&str> {
    url.split("://").last().and_then(|rest| rest.split('/').next())
}

/// The port in the URL of an API server.
fn port_of(url: &str) -> u16 {
    let port = authority(url).and_then(|authority| authority.rsplit(':').next()?.parse().ok());
    port.unwrap_or(443)
}
