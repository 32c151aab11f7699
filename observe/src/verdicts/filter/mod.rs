//! Filters of an observer.

mod values;

use std::time::SystemTime;

use acl::{Direction, Origin};
use dataplane::Outcome;
use ipnet::IpNet;
use local_api::{AnyOf, ApiError, ObserveFilters, Ports};

use super::{End, Event, Pattern, Protocol, Selector, TcpFlags};
use crate::time;
use values::{Ends, OfWorkload, Scope, bad, direction, each, of_workload, pod, service};
pub use values::{Pod, network};

/// A validated filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    wanted: ObserveFilters,
    pods: Ends<Pod>,
    namespaces: Ends<String>,
    labels: Ends<Selector>,
    workloads: Ends<OfWorkload>,
    networks: Ends<IpNet>,
    names: Ends<Pattern>,
    services: Ends<String>,
    ports: Ends<Ports>,
    protocols: AnyOf<Protocol>,
    tcp_flags: AnyOf<TcpFlags>,
    directions: AnyOf<Direction>,
    since: Option<SystemTime>,
    until: Option<SystemTime>,
    except: Option<Box<Filter>>,
}

/// Fields of filters, each with its name.
macro_rules! fields {
    ($wanted:ident: $($field:ident),*) => { [$((stringify!($field), &$wanted.$field)),*] };
}

impl Filter {
    /// Validates the filter.
    ///
    /// # Errors
    /// A `bad-request` that names the filter.
    pub fn new(mut wanted: ObserveFilters) -> Result<Self, ApiError> {
        let except = wanted.except.take().map(|except| {
            // A POD without a namespace is of those that the other filters are about.
            let scope = Scope::of(&wanted);
            Self::read(*except, &scope).map(Box::new)
        });
        let scope = Scope::of(&wanted);
        Ok(Self { except: except.transpose()?, ..Self::read(wanted, &scope)? })
    }

    /// Reads filters without exceptions; `scope` is that of pods' names.
    fn read(wanted: ObserveFilters, scope: &Scope) -> Result<Self, ApiError> {
        let selector = |field: &str, text: &String| {
            let said = |problem| bad(field, text, &format!("is not a selector: {problem}"));
            Selector::parse(text).map_err(said)
        };
        let net = |field: &str, text: &String| {
            network(text).ok_or_else(|| bad(field, text, "is neither an address nor a network"))
        };
        let name = |field: &str, text: &String| {
            let said = |problem| bad(field, text, &format!("is not a name: {problem}"));
            Pattern::of_domain(text).map_err(said)
        };
        let moment = |field: &str, text: &Option<String>| -> Result<Option<SystemTime>, ApiError> {
            let Some(text) = text else { return Ok(None) };
            let time = time::moment(text).map(Some);
            time.ok_or_else(|| bad(field, text, "is not an RFC 3339 time"))
        };
        let protocol = |text: &String| {
            let refused =
                |names| bad("protocol", text, &format!("is none of {names}, nor a number"));
            text.parse().map_err(refused)
        };
        let flags = |text: &String| {
            let upper = text.to_ascii_uppercase();
            upper
                .parse()
                .map_err(|names| bad("tcp_flags", text, &format!("has others than {names}")))
        };
        let is_reason = |name: &String| Outcome::ALL.iter().any(|outcome| outcome.name() == name);
        if let Some(reason) = wanted.reason.0.iter().find(|name| !is_reason(name)) {
            return Err(bad("reason", reason, "is not a reason; see podgate show errors"));
        }
        Ok(Self {
            pods: Ends::read(fields!(wanted: pod, from_pod, to_pod), |field, text| {
                pod(field, text, scope)
            })?,
            namespaces: Ends::read(
                fields!(wanted: namespace, from_namespace, to_namespace),
                |_, text| Ok(text.clone()),
            )?,
            labels: Ends::read(fields!(wanted: label, from_label, to_label), selector)?,
            workloads: Ends::read(
                fields!(wanted: workload, from_workload, to_workload),
                |field, text| of_workload(field, text),
            )?,
            networks: Ends::read(fields!(wanted: ip, from_ip, to_ip), net)?,
            names: Ends::read(fields!(wanted: fqdn, from_fqdn, to_fqdn), name)?,
            services: Ends::read(
                fields!(wanted: service, from_service, to_service),
                |field, text| service(field, text),
            )?,
            ports: Ends::read(fields!(wanted: port, from_port, to_port), |_, port| Ok(*port))?,
            protocols: each(&wanted.protocol, protocol)?,
            tcp_flags: each(&wanted.tcp_flags, flags)?,
            directions: each(&wanted.direction, |text| direction(text))?,
            since: moment("since", &wanted.since)?,
            until: moment("until", &wanted.until)?,
            except: None,
            wanted,
        })
    }

    /// Returns whether an event matches.
    pub fn matches(&self, event: &Event) -> bool {
        event.staged.is_some() == self.wanted.staged
            && self.is_in_time(event)
            && self.is_meant(event) != self.wanted.not
            && !self.except.as_ref().is_some_and(|except| except.is_meant(event))
    }

    fn is_in_time(&self, event: &Event) -> bool {
        self.since.is_none_or(|since| event.time >= since)
            && self.until.is_none_or(|until| event.time < until)
    }

    fn is_meant(&self, event: &Event) -> bool {
        let wanted = &self.wanted;
        let is_in = |namespace: &String, end: &End| {
            let pod = end.pod.as_ref().and_then(|pod| pod.split_once('/'));
            pod.is_some_and(|(own, _)| own == namespace)
        };
        let has_all =
            |flags: &TcpFlags| event.tcp_flags.is_some_and(|own| own.0 & flags.0 == flags.0);
        wanted.verdict.any(|verdict| *verdict == event.verdict)
            && self.pods.matches(event, |it, end| end.pod.as_ref().is_some_and(|pod| it.is(pod)))
            && self.namespaces.matches(event, is_in)
            && self.labels.matches(event, |it, end| end.is_selected(it))
            && self.workloads.matches(event, OfWorkload::is_of)
            && self.networks.matches(event, |it, end| end.ip.is_some_and(|ip| it.contains(&ip)))
            && self
                .names
                .matches(event, |it, end| end.name.as_ref().is_some_and(|name| it.matches(name)))
            && self.services.matches(event, |it, end| end.service.as_deref() == Some(it))
            && self.ports.matches(event, |it, end| end.port.is_some_and(|port| it.contains(port)))
            && self.protocols.any(|it| event.protocol == Some(*it))
            && self.tcp_flags.any(has_all)
            && self.directions.any(|it| event.direction() == Some(*it))
            && wanted.reason.any(|reason| event.reason == reason.as_str())
            && wanted.policy.any(|name| rules_of(event).any(|by| by.is_of(name)))
            && wanted.node.any(|node| *event.node == **node)
    }

    /// Returns whether the filter depends on labels of pods.
    pub fn needs_labels(&self) -> bool {
        self.labels.iter().next().is_some()
            || self.workloads.iter().next().is_some()
            || self.except.as_ref().is_some_and(|except| except.needs_labels())
    }

    /// The pods that it names.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.iter().chain(self.except.iter().flat_map(|except| except.pods.iter()))
    }

    /// The namespaces that it names beside pods, for either end.
    pub fn namespaces(&self) -> &[String] {
        &self.wanted.namespace.0
    }

    /// The policies that it names.
    pub fn policies(&self) -> &[String] {
        &self.wanted.policy.0
    }

    /// Number of past events, of the newest ones.
    pub fn last(&self) -> usize {
        self.wanted.last as usize
    }

    /// Number of past events, of the oldest ones, if set.
    pub fn first(&self) -> Option<usize> {
        self.wanted.first.map(|first| first as usize)
    }

    /// Returns whether new events are wanted.
    pub fn follow(&self) -> bool {
        self.wanted.follow
    }
}

impl End {
    /// Returns whether the end is a pod that a selector selects by its labels.
    fn is_selected(&self, selector: &Selector) -> bool {
        self.labels.as_ref().is_some_and(|labels| {
            let labels = labels.iter().map(|(key, value)| ("k8s", &**key, &**value));
            selector.matches(&labels.collect::<Vec<_>>())
        })
    }
}

/// The rules that decided, or would decide if staged policies were enforced.
pub(super) fn rules_of(event: &Event) -> impl Iterator<Item = &Origin> {
    event.by.iter().chain(event.staged.iter().flat_map(|staged| &staged.by))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdicts::event::tests::denied;
    use local_api::Verdict;

    #[test]
    fn each_filter_lets_its_own_through() {
        let cases: [(ObserveFilters, bool); 44] = [
            (ObserveFilters::default(), true),
            (ObserveFilters { verdict: Verdict::Dropped.into(), ..Default::default() }, true),
            (ObserveFilters { verdict: Verdict::Forwarded.into(), ..Default::default() }, false),
            (ObserveFilters { from_pod: "frontend".into(), ..Default::default() }, true),
            (ObserveFilters { from_pod: "default/db".into(), ..Default::default() }, false),
            (ObserveFilters { to_pod: "default/db".into(), ..Default::default() }, true),
            (ObserveFilters { to_pod: "other/db".into(), ..Default::default() }, false),
            (ObserveFilters { pod: "default/db".into(), ..Default::default() }, true),
            (ObserveFilters { pod: "default/frontend".into(), ..Default::default() }, true),
            (ObserveFilters { pod: "default/web".into(), ..Default::default() }, false),
            (ObserveFilters { ip: "10.1.0.2".into(), ..Default::default() }, true),
            (ObserveFilters { ip: "10.1.0.3".into(), ..Default::default() }, true),
            (ObserveFilters { ip: "10.1.0.4".into(), ..Default::default() }, false),
            (ObserveFilters { to_port: 6379.into(), ..Default::default() }, true),
            (ObserveFilters { from_port: 6379.into(), ..Default::default() }, false),
            (ObserveFilters { from_namespace: "default".into(), ..Default::default() }, true),
            (ObserveFilters { to_namespace: "other".into(), ..Default::default() }, false),
            (ObserveFilters { protocol: "tcp".into(), ..Default::default() }, true),
            (ObserveFilters { protocol: "17".into(), ..Default::default() }, false),
            (ObserveFilters { port: 6379.into(), ..Default::default() }, true),
            (ObserveFilters { port: 80.into(), ..Default::default() }, false),
            (ObserveFilters { protocol: "6".into(), ..Default::default() }, true),
            (ObserveFilters { namespace: "default".into(), ..Default::default() }, true),
            (ObserveFilters { namespace: "other".into(), ..Default::default() }, false),
            (ObserveFilters { from_ip: "10.1.0.3".into(), ..Default::default() }, true),
            (ObserveFilters { from_ip: "10.1.0.0/30".into(), ..Default::default() }, true),
            (ObserveFilters { from_ip: "10.1.0.2".into(), ..Default::default() }, false),
            (ObserveFilters { to_ip: "10.1.0.2/32".into(), ..Default::default() }, true),
            (ObserveFilters { to_ip: "10.2.0.0/16".into(), ..Default::default() }, false),
            (ObserveFilters { reason: "policy-denied".into(), ..Default::default() }, true),
            (ObserveFilters { reason: "no-route".into(), ..Default::default() }, false),
            (ObserveFilters { policy: "db".into(), ..Default::default() }, true),
            (ObserveFilters { policy: "default/db".into(), ..Default::default() }, true),
            (ObserveFilters { policy: "other/db".into(), ..Default::default() }, false),
            (ObserveFilters { policy: "default".into(), ..Default::default() }, false),
            (ObserveFilters { to_service: "default/db".into(), ..Default::default() }, false),
            (ObserveFilters { node: "node-a".into(), ..Default::default() }, true),
            (ObserveFilters { node: "node-b".into(), ..Default::default() }, false),
            (
                ObserveFilters {
                    since: Some("2026-11-21T02:25:35.123Z".into()),
                    ..Default::default()
                },
                true,
            ),
            (
                ObserveFilters { since: Some("2026-11-21T02:25:36Z".into()), ..Default::default() },
                false,
            ),
            (
                ObserveFilters {
                    until: Some("2026-11-21T02:25:35.123Z".into()),
                    ..Default::default()
                },
                false,
            ),
            (
                ObserveFilters {
                    until: Some("2026-11-21T03:25:36+00:30".into()),
                    ..Default::default()
                },
                true,
            ),
            (ObserveFilters { not: true, ..Default::default() }, false),
            (ObserveFilters { not: true, port: 80.into(), ..Default::default() }, true),
        ];
        for (wanted, expected) in cases {
            let filter = Filter::new(wanted.clone()).unwrap();
            assert_eq!(filter.matches(&denied()), expected, "{wanted:?}");
        }
    }

    #[test]
    fn exceptions_are_inverted_and_the_filters_before_are_not() {
        let matches = |wanted: ObserveFilters, except: ObserveFilters| {
            let wanted = ObserveFilters { except: Some(Box::new(except)), ..wanted };
            Filter::new(wanted).unwrap().matches(&denied())
        };
        let usual = ObserveFilters::default;
        let dropped = || ObserveFilters { verdict: Verdict::Dropped.into(), ..usual() };
        let forwarded = || ObserveFilters { verdict: Verdict::Forwarded.into(), ..usual() };
        let to_db = || ObserveFilters { to_pod: "db".into(), ..usual() };
        let to_web = || ObserveFilters { to_pod: "web".into(), ..usual() };
        assert!(!matches(dropped(), to_db()));
        assert!(matches(dropped(), to_web()));
        // The verdict stands before, and is no exception.
        assert!(!matches(forwarded(), to_web()));
        assert!(!matches(forwarded(), to_db()));
        let elsewhere =
            ObserveFilters { namespace: "shop".into(), all_namespaces: true, ..usual() };
        assert!(!matches(elsewhere, to_web()));
        let ports =
            ObserveFilters { port: "6000-7000".parse::<Ports>().unwrap().into(), ..usual() };
        assert!(!matches(dropped(), ports.clone()));
        assert!(Filter::new(ports).unwrap().matches(&denied()));
    }

    #[test]
    fn what_no_event_can_have_is_refused() {
        let cases = [
            ("from_pod", ObserveFilters { from_pod: "a/b/c".into(), ..Default::default() }),
            ("to_pod", ObserveFilters { to_pod: "/b".into(), ..Default::default() }),
            ("protocol", ObserveFilters { protocol: "tpc".into(), ..Default::default() }),
            ("from_ip", ObserveFilters { from_ip: "db".into(), ..Default::default() }),
            ("reason", ObserveFilters { reason: "denied".into(), ..Default::default() }),
            ("to_service", ObserveFilters { to_service: "db".into(), ..Default::default() }),
            ("since", ObserveFilters { since: Some("yesterday".into()), ..Default::default() }),
        ];
        for (field, wanted) in cases {
            let error = Filter::new(wanted).unwrap_err();
            assert!(error.message.contains(field), "{error}");
        }
    }

    #[test]
    fn a_pod_without_a_namespace_is_of_any_where_that_is_wanted() {
        let wanted =
            ObserveFilters { to_pod: "db".into(), all_namespaces: true, ..Default::default() };
        let mut event = denied();
        event.to.pod = Some("other/db".into());
        assert!(Filter::new(wanted.clone()).unwrap().matches(&event));
        let usual = ObserveFilters { all_namespaces: false, ..wanted.clone() };
        assert!(!Filter::new(usual).unwrap().matches(&event));
        let named = ObserveFilters { namespace: "other".into(), ..wanted };
        assert!(Filter::new(named).unwrap().matches(&event));
    }

    #[test]
    fn labels_workloads_names_services_flags_and_directions() {
        let labels = |all: &[(&str, &str)]| {
            Some(all.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect())
        };
        let from = End {
            pod: Some("shop/web-5d4f-x2z".into()),
            labels: labels(&[("app", "web"), ("pod-template-hash", "5d4f")]),
            ..denied().from
        };
        let to = End {
            pod: None,
            service: Some("shop/db".into()),
            name: Some("db.example.org".into()),
            ..denied().to
        };
        let event = Event { from, to, denied: Some(Direction::Egress), ..denied() };
        let usual = ObserveFilters::default;
        let cases = [
            (ObserveFilters { label: "app=web".into(), ..usual() }, true),
            (ObserveFilters { from_label: "app in (web, api)".into(), ..usual() }, true),
            (ObserveFilters { to_label: "!old".into(), ..usual() }, false),
            (ObserveFilters { from_label: "app=db".into(), ..usual() }, false),
            (ObserveFilters { workload: "web".into(), ..usual() }, true),
            (ObserveFilters { from_workload: "deployment/web".into(), ..usual() }, true),
            (ObserveFilters { from_workload: "DaemonSet/web".into(), ..usual() }, false),
            (ObserveFilters { to_workload: "web".into(), ..usual() }, false),
            (ObserveFilters { fqdn: "*.example.org".into(), ..usual() }, true),
            (ObserveFilters { to_fqdn: "DB.example.org.".into(), ..usual() }, true),
            (ObserveFilters { from_fqdn: "*".into(), ..usual() }, false),
            (ObserveFilters { service: "shop/db".into(), ..usual() }, true),
            (ObserveFilters { from_service: "shop/db".into(), ..usual() }, false),
            (ObserveFilters { tcp_flags: "syn".into(), ..usual() }, true),
            (ObserveFilters { tcp_flags: "SYN,ACK".into(), ..usual() }, false),
            (ObserveFilters { direction: "egress".into(), ..usual() }, true),
            (ObserveFilters { direction: "ingress".into(), ..usual() }, false),
            // One value of each kind has to match.
            (ObserveFilters { port: AnyOf(vec![80.into(), 6379.into()]), ..usual() }, true),
            (
                ObserveFilters {
                    port: AnyOf(vec![80.into(), 6379.into()]),
                    to_port: 80.into(),
                    ..usual()
                },
                false,
            ),
            (ObserveFilters { namespace: AnyOf(vec!["a".into(), "shop".into()]), ..usual() }, true),
        ];
        for (wanted, expected) in cases {
            let filter = Filter::new(wanted.clone()).unwrap();
            assert_eq!(filter.matches(&event), expected, "{wanted:?}");
        }
        let cases = [
            ("from_label", ObserveFilters { from_label: "a b".into(), ..usual() }),
            ("workload", ObserveFilters { workload: "a/b/c".into(), ..usual() }),
            ("workload", ObserveFilters { workload: "Deploiment/web".into(), ..usual() }),
            ("tcp_flags", ObserveFilters { tcp_flags: "SIN".into(), ..usual() }),
            ("direction", ObserveFilters { direction: "both".into(), ..usual() }),
            ("service", ObserveFilters { service: "db".into(), ..usual() }),
        ];
        for (field, wanted) in cases {
            let error = Filter::new(wanted).unwrap_err();
            assert!(error.message.contains(field), "{error}");
        }
    }
}
