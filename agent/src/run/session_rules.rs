//! The session rules of local pods, for `podgate show session-rules` and for a proxy that
//! enforces them.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use control::{PodKey, SessionRules};
use dataplane::services::{Entry, Services};
use dataplane::wire::protocol;
use serde_json::Value;
use session_rules::{
    Action, Change, End, Installed, Ports, Rule, Scope, Service, Tags, Transport, changes,
};

use super::events::Event;
use super::table::Table;
use local_api::{ApiError, ErrorKind, SessionRule, SessionRuleStep, SessionService};

/// Maximum of rules shown.
const MOST: usize = 100_000;

/// The rules of one pod (`ns/pod`, or `pod` in namespace `default`), or of all local ones.
///
/// # Errors
/// `not-found` for a pod that has no tables here, `bad-request` for too many rules.
pub(crate) fn table(events: &Sender<Event>, pod: Option<&str>) -> Result<Table, ApiError> {
    let key = pod.map(|text| {
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        PodKey { namespace: namespace.into(), name: name.into() }
    });
    let (reply, answer) = channel();
    let ending = || ApiError::new(ErrorKind::NotReady, "podgate is ending");
    events.send(Event::SessionRules(key.clone(), reply)).map_err(|_| ending())?;
    match (answer.recv().map_err(|_| ending())?, key) {
        (Some((rules, _)), _) => in_table(&rules),
        (None, key) => {
            let key = key.map(|key| key.to_string()).unwrap_or_default();
            let text = format!(
                "pod {} has no tables here: it is not known, not on this node, has no \
                 address, has finished or is on the host network",
                key.escape_debug()
            );
            Err(ApiError::new(ErrorKind::NotFound, text))
        }
    }
}

/// Computes the changes that bring a follower's rules up to date.
pub(crate) struct Follower {
    installed: Installed,
    tags: Tags,
    pods: Option<BTreeMap<String, Vec<IpAddr>>>,
    services: BTreeMap<(SocketAddr, Transport), Service>,
}

/// Maximum of rules, or of services and their endpoints, in one step, which keeps a line far below the
/// client's limit.
const STEP: usize = 2_000;

impl Follower {
    /// A follower without rules.
    pub(crate) fn new() -> Self {
        let (installed, tags) = (Installed::default(), Tags::new("podgate-"));
        Self { installed, tags, pods: None, services: BTreeMap::new() }
    }

    /// Returns the steps from the follower's rules to the current ones; none if nothing changed.
    ///
    /// # Errors
    /// `not-ready` when the switch ends.
    pub(crate) fn steps(
        &mut self,
        events: &Sender<Event>,
    ) -> Result<Vec<SessionRuleStep>, ApiError> {
        let (reply, answer) = channel();
        let ending = || ApiError::new(ErrorKind::NotReady, "podgate is ending");
        events.send(Event::SessionRules(None, reply)).map_err(|_| ending())?;
        let (source, services) = answer.recv().ok().flatten().ok_or_else(ending)?;
        let services = translations(&services);
        let wanted: Vec<Rule> = source.of_pods().map(|(_, rule)| rule).collect();
        let pods: BTreeMap<String, Vec<IpAddr>> =
            source.pods().map(|(key, addresses)| (key.to_string(), addresses.to_vec())).collect();
        let untagged = |rule: &Rule| Rule { tag: "".into(), ..rule.clone() };
        let by: HashMap<Rule, Arc<str>> =
            wanted.iter().map(|rule| (untagged(rule), Arc::clone(&rule.tag))).collect();
        let changes = changes(&self.installed.dump(), &wanted, &mut self.tags);
        let same_services = self.services == services;
        if changes.is_empty() && same_services && self.pods.as_ref() == Some(&pods) {
            return Ok(Vec::new());
        }
        let mut steps = Vec::new();
        for some in changes.chunks(STEP) {
            let mut step = SessionRuleStep::default();
            for change in some {
                match change {
                    Change::Delete(tag) => step.delete.push(tag.to_string()),
                    Change::Add(rule) => {
                        let by = by.get(&untagged(rule)).map_or("", |by| by);
                        step.add.push(SessionRule::new(rule, by));
                    }
                }
            }
            steps.push(step);
        }
        for sent in service_changes(&self.services, &services) {
            let size = |it: &SessionService| 1 + it.endpoints.as_ref().map_or(0, Vec::len);
            match steps.last_mut() {
                Some(last) if last.services.iter().map(size).sum::<usize>() < STEP => {
                    last.services.push(sent);
                }
                _ => steps
                    .push(SessionRuleStep { services: vec![sent], ..SessionRuleStep::default() }),
            }
        }
        self.services = services;
        for change in changes {
            // Both sides start empty, and each tag is made once.
            self.installed
                .apply(change)
                .map_err(|error| ApiError::new(ErrorKind::Internal, error.to_string()))?;
        }
        self.pods = Some(pods.clone());
        match steps.last_mut() {
            Some(last) => last.pods = Some(pods),
            None => steps.push(SessionRuleStep { pods: Some(pods), ..SessionRuleStep::default() }),
        }
        Ok(steps)
    }
}

/// Where the node translates connections of its own processes.
pub(super) fn translations(services: &Services) -> BTreeMap<(SocketAddr, Transport), Service> {
    let by_address = services.iter().filter_map(|(address, protocol, port, entry)| {
        Some((address?.to_ip(), protocol, port, entry))
    });
    let by_node = services.node_ports().map(|(v6, protocol, port, entry)| {
        let any: IpAddr = match v6 {
            false => Ipv4Addr::UNSPECIFIED.into(),
            true => Ipv6Addr::UNSPECIFIED.into(),
        };
        (any, protocol, port, entry)
    });
    let translation = |(address, protocol, port, entry): (IpAddr, u8, u16, &Entry)| {
        let transport = match protocol {
            protocol::TCP => Transport::Tcp,
            protocol::UDP => Transport::Udp,
            _ => return None,
        };
        let endpoints = entry.backends(false).list().iter();
        let namespace = entry.port.name.split_once('/').map_or("", |(namespace, _)| namespace);
        let service = Service {
            owner: namespace.into(),
            sources: services.sources(address.into(), protocol, port).map(|it| it.to_vec()),
            affinity: entry.port.affinity_s.is_some(),
            endpoints: endpoints.map(|it| (it.address.to_ip(), it.port).into()).collect(),
        };
        Some(((SocketAddr::new(address, port), transport), service))
    };
    by_address.chain(by_node).filter_map(translation).collect()
}

/// The changes from the known services to the current ones.
fn service_changes<'s>(
    known: &'s BTreeMap<(SocketAddr, Transport), Service>,
    now: &'s BTreeMap<(SocketAddr, Transport), Service>,
) -> impl Iterator<Item = SessionService> + use<'s> {
    let gone = known.keys().filter(|key| !now.contains_key(key)).map(|key| (key, None));
    let set = now.iter().filter(|(key, service)| known.get(key) != Some(service));
    let set = set.map(|(key, service)| (key, Some(service)));
    gone.chain(set).map(|((at, transport), service)| SessionService::new(*at, *transport, service))
}

fn in_table(rules: &SessionRules) -> Result<Table, ApiError> {
    let mut table = Table::new(&[
        "pod",
        "scope",
        "transport",
        "local",
        "remote",
        "remote_port",
        "local_port",
        "action",
    ]);
    for (pod, rule) in rules.of_pods().chain(rules.accepted()) {
        if table.rows.len() == MOST {
            let text = format!("there are more than {MOST} session rules: name a pod");
            return Err(ApiError::new(ErrorKind::BadRequest, text));
        }
        table.add(row(pod, &rule));
    }
    Ok(table)
}

fn row(pod: &PodKey, rule: &Rule) -> Vec<Value> {
    let net = |end: &End| end.net.map_or_else(|| "any".to_owned(), |net| net.to_string());
    let ports = |end: &End| match end.ports {
        Ports::ANY => "any".to_owned(),
        Ports { first, last } if first == last => first.to_string(),
        Ports { first, last } => format!("{first}-{last}"),
    };
    let scope = match rule.scope {
        Scope::Local(_) => "local",
        Scope::Global => "global",
    };
    let transport = match rule.transport {
        Transport::Tcp => "TCP",
        Transport::Udp => "UDP",
    };
    let action = match rule.action {
        Action::Allow => "allow".to_owned(),
        Action::Deny => "deny".to_owned(),
        Action::DoNothing => "do-nothing".to_owned(),
        Action::Redirect(index) => format!("redirect {index}"),
    };
    let (local, remote) = (&rule.local, &rule.remote);
    vec![
        pod.to_string().into(),
        scope.into(),
        transport.into(),
        net(local).into(),
        net(remote).into(),
        ports(remote).into(),
        ports(local).into(),
        action.into(),
    ]
}
