//! Filters of an observer.

use std::fmt;
use std::net::IpAddr;
use std::time::SystemTime;

use acl::Origin;
use dataplane::Outcome;
use ipnet::IpNet;
use local_api::{ApiError, ErrorKind, ObserveFilters};

use super::{End, Event, Protocol};
use crate::time;

/// Filters that were checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    wanted: ObserveFilters,
    pod: Option<Pod>,
    from_pod: Option<Pod>,
    to_pod: Option<Pod>,
    ip: Option<IpNet>,
    from_ip: Option<IpNet>,
    to_ip: Option<IpNet>,
    protocol: Option<Protocol>,
    since: Option<SystemTime>,
    until: Option<SystemTime>,
}

/// A pod by name, in one namespace or in any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    namespace: Option<String>,
    name: String,
}

impl Pod {
    /// Whether a pod, as `ns/pod`, is this one.
    pub fn is(&self, pod: &str) -> bool {
        pod.split_once('/').is_some_and(|(namespace, name)| {
            name == self.name && self.namespace.as_ref().is_none_or(|it| it == namespace)
        })
    }
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => write!(f, "{} of any namespace", self.name),
        }
    }
}

/// An address, as a network of one, or a network.
pub fn network(text: &str) -> Option<IpNet> {
    text.parse().map(|one: IpAddr| one.into()).or_else(|_| text.parse()).ok()
}

fn bad(field: &str, text: &str, problem: &str) -> ApiError {
    let text = text.escape_debug();
    ApiError::new(ErrorKind::BadRequest, format!("observe: {field}: '{text}' {problem}"))
}

impl Filter {
    /// Validates the filter.
    ///
    /// # Errors
    /// Of kind `bad-request`, naming the filter.
    pub fn new(wanted: ObserveFilters) -> Result<Self, ApiError> {
        let pod = |field: &str, text: &Option<String>| -> Result<Option<Pod>, ApiError> {
            let Some(text) = text else { return Ok(None) };
            // As kubectl does: without a namespace the default one is meant.
            let usual = || Some("default".to_owned()).filter(|_| !wanted.all_namespaces);
            let (namespace, name) = match text.split_once('/') {
                Some((namespace, name)) => (Some(namespace.to_owned()), name),
                None => (wanted.namespace.clone().or_else(usual), text.as_str()),
            };
            let is_empty = name.is_empty() || namespace.as_ref().is_some_and(String::is_empty);
            match is_empty || name.contains('/') {
                true => Err(bad(field, text, "is no ns/pod")),
                false => Ok(Some(Pod { namespace, name: name.to_owned() })),
            }
        };
        let net = |field: &str, text: &Option<String>| -> Result<Option<IpNet>, ApiError> {
            let Some(text) = text else { return Ok(None) };
            let net = network(text).map(Some);
            net.ok_or_else(|| bad(field, text, "is neither an address nor a network"))
        };
        let moment = |field: &str, text: &Option<String>| -> Result<Option<SystemTime>, ApiError> {
            let Some(text) = text else { return Ok(None) };
            let time = time::moment(text).map(Some);
            time.ok_or_else(|| bad(field, text, "is no moment of RFC 3339"))
        };
        let protocol = |text: &String| {
            let refused =
                |names| bad("protocol", text, &format!("is none of {names}, nor a number"));
            text.parse().map_err(refused)
        };
        if let Some(reason) = &wanted.reason
            && !Outcome::ALL.iter().any(|outcome| outcome.name() == reason)
        {
            return Err(bad("reason", reason, "is no reason; see podgate show errors"));
        }
        if let Some(service) = &wanted.to_service
            && service.split('/').filter(|part| !part.is_empty()).count() != 2
        {
            return Err(bad("to_service", service, "is no ns/name"));
        }
        Ok(Self {
            pod: pod("pod", &wanted.pod)?,
            from_pod: pod("from_pod", &wanted.from_pod)?,
            to_pod: pod("to_pod", &wanted.to_pod)?,
            ip: net("ip", &wanted.ip)?,
            from_ip: net("from_ip", &wanted.from_ip)?,
            to_ip: net("to_ip", &wanted.to_ip)?,
            since: moment("since", &wanted.since)?,
            until: moment("until", &wanted.until)?,
            protocol: wanted.protocol.as_ref().map(protocol).transpose()?,
            wanted,
        })
    }

    /// Whether an event is wanted.
    pub fn matches(&self, event: &Event) -> bool {
        event.staged.is_some() == self.wanted.staged
            && self.is_in_time(event)
            && self.is_meant(event) != self.wanted.not
    }

    fn is_in_time(&self, event: &Event) -> bool {
        self.since.is_none_or(|since| event.time >= since)
            && self.until.is_none_or(|until| event.time < until)
    }

    fn is_meant(&self, event: &Event) -> bool {
        let Event { from, to, .. } = event;
        let wanted = &self.wanted;
        let pod = |wanted: &Option<Pod>, end: &End| {
            wanted.as_ref().is_none_or(|it| end.pod.as_ref().is_some_and(|pod| it.is(pod)))
        };
        let net = |wanted: Option<IpNet>, end: &End| {
            wanted.is_none_or(|net| end.ip.is_some_and(|ip| net.contains(&ip)))
        };
        let is_in = |end: &End, wanted: &Option<String>| {
            let pod = end.pod.as_ref().and_then(|pod| pod.split_once('/'));
            wanted.as_ref().is_none_or(|wanted| pod.is_some_and(|(own, _)| own == wanted))
        };
        let has = |end: &End, wanted: Option<u16>| wanted.is_none() || end.port == wanted;
        wanted.verdict.is_none_or(|verdict| verdict == event.verdict)
            && (pod(&self.pod, from) || pod(&self.pod, to))
            && pod(&self.from_pod, from)
            && pod(&self.to_pod, to)
            && (net(self.ip, from) || net(self.ip, to))
            && net(self.from_ip, from)
            && net(self.to_ip, to)
            && (is_in(from, &wanted.namespace) || is_in(to, &wanted.namespace))
            && is_in(from, &wanted.from_namespace)
            && is_in(to, &wanted.to_namespace)
            && self.protocol.is_none_or(|it| event.protocol == Some(it))
            && (has(from, wanted.port) || has(to, wanted.port))
            && has(from, wanted.from_port)
            && has(to, wanted.to_port)
            && wanted.reason.as_ref().is_none_or(|reason| event.reason.as_str() == reason)
            && wanted.policy.as_ref().is_none_or(|name| rules_of(event).any(|by| by.is_of(name)))
            && wanted.to_service.as_ref().is_none_or(|it| to.service.as_deref() == Some(it))
            && wanted.node.as_ref().is_none_or(|node| *event.node == **node)
    }

    /// The pods that it names.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        [&self.pod, &self.from_pod, &self.to_pod].into_iter().flatten()
    }

    /// The namespace that it names beside pods.
    pub fn namespace(&self) -> Option<&str> {
        self.wanted.namespace.as_deref()
    }

    /// The policy that it names.
    pub fn policy(&self) -> Option<&str> {
        self.wanted.policy.as_deref()
    }

    /// Number of past events, of the newest ones.
    pub fn last(&self) -> usize {
        self.wanted.last as usize
    }

    /// Number of past events, of the oldest ones, if set.
    pub fn first(&self) -> Option<usize> {
        self.wanted.first.map(|first| first as usize)
    }

    /// Whether new events are wanted.
    pub fn follow(&self) -> bool {
        self.wanted.follow
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
            (ObserveFilters { verdict: Some(Verdict::Dropped), ..Default::default() }, true),
            (ObserveFilters { verdict: Some(Verdict::Forwarded), ..Default::default() }, false),
            (ObserveFilters { from_pod: Some("frontend".into()), ..Default::default() }, true),
            (ObserveFilters { from_pod: Some("default/db".into()), ..Default::default() }, false),
            (ObserveFilters { to_pod: Some("default/db".into()), ..Default::default() }, true),
            (ObserveFilters { to_pod: Some("other/db".into()), ..Default::default() }, false),
            (ObserveFilters { pod: Some("default/db".into()), ..Default::default() }, true),
            (ObserveFilters { pod: Some("default/frontend".into()), ..Default::default() }, true),
            (ObserveFilters { pod: Some("default/web".into()), ..Default::default() }, false),
            (ObserveFilters { ip: Some("10.1.0.2".into()), ..Default::default() }, true),
            (ObserveFilters { ip: Some("10.1.0.3".into()), ..Default::default() }, true),
            (ObserveFilters { ip: Some("10.1.0.4".into()), ..Default::default() }, false),
            (ObserveFilters { to_port: Some(6379), ..Default::default() }, true),
            (ObserveFilters { from_port: Some(6379), ..Default::default() }, false),
            (ObserveFilters { from_namespace: Some("default".into()), ..Default::default() }, true),
            (ObserveFilters { to_namespace: Some("other".into()), ..Default::default() }, false),
            (ObserveFilters { protocol: Some("tcp".into()), ..Default::default() }, true),
            (ObserveFilters { protocol: Some("17".into()), ..Default::default() }, false),
            (ObserveFilters { port: Some(6379), ..Default::default() }, true),
            (ObserveFilters { port: Some(80), ..Default::default() }, false),
            (ObserveFilters { protocol: Some("6".into()), ..Default::default() }, true),
            (ObserveFilters { namespace: Some("default".into()), ..Default::default() }, true),
            (ObserveFilters { namespace: Some("other".into()), ..Default::default() }, false),
            (ObserveFilters { from_ip: Some("10.1.0.3".into()), ..Default::default() }, true),
            (ObserveFilters { from_ip: Some("10.1.0.0/30".into()), ..Default::default() }, true),
            (ObserveFilters { from_ip: Some("10.1.0.2".into()), ..Default::default() }, false),
            (ObserveFilters { to_ip: Some("10.1.0.2/32".into()), ..Default::default() }, true),
            (ObserveFilters { to_ip: Some("10.2.0.0/16".into()), ..Default::default() }, false),
            (ObserveFilters { reason: Some("policy-denied".into()), ..Default::default() }, true),
            (ObserveFilters { reason: Some("no-route".into()), ..Default::default() }, false),
            (ObserveFilters { policy: Some("db".into()), ..Default::default() }, true),
            (ObserveFilters { policy: Some("default/db".into()), ..Default::default() }, true),
            (ObserveFilters { policy: Some("other/db".into()), ..Default::default() }, false),
            (ObserveFilters { policy: Some("default".into()), ..Default::default() }, false),
            (ObserveFilters { to_service: Some("default/db".into()), ..Default::default() }, false),
            (ObserveFilters { node: Some("node-a".into()), ..Default::default() }, true),
            (ObserveFilters { node: Some("node-b".into()), ..Default::default() }, false),
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
            (ObserveFilters { not: true, port: Some(80), ..Default::default() }, true),
        ];
        for (wanted, expected) in cases {
            let filter = Filter::new(wanted.clone()).unwrap();
            assert_eq!(filter.matches(&denied()), expected, "{wanted:?}");
        }
    }

    #[test]
    fn what_no_event_can_have_is_refused() {
        let cases = [
            ("from_pod", ObserveFilters { from_pod: Some("a/b/c".into()), ..Default::default() }),
            ("to_pod", ObserveFilters { to_pod: Some("/b".into()), ..Default::default() }),
            ("protocol", ObserveFilters { protocol: Some("tpc".into()), ..Default::default() }),
            ("from_ip", ObserveFilters { from_ip: Some("db".into()), ..Default::default() }),
            ("reason", ObserveFilters { reason: Some("denied".into()), ..Default::default() }),
            ("to_service", ObserveFilters { to_service: Some("db".into()), ..Default::default() }),
            ("since", ObserveFilters { since: Some("yesterday".into()), ..Default::default() }),
        ];
        for (field, wanted) in cases {
            let error = Filter::new(wanted).unwrap_err();
            assert!(error.message.contains(field), "{error}");
        }
    }

    #[test]
    fn a_pod_without_a_namespace_is_of_any_where_that_is_wanted() {
        let wanted = ObserveFilters {
            to_pod: Some("db".into()),
            all_namespaces: true,
            ..Default::default()
        };
        let mut event = denied();
        event.to.pod = Some("other/db".into());
        assert!(Filter::new(wanted.clone()).unwrap().matches(&event));
        let usual = ObserveFilters { all_namespaces: false, ..wanted.clone() };
        assert!(!Filter::new(usual).unwrap().matches(&event));
        let named = ObserveFilters { namespace: Some("other".into()), ..wanted };
        assert!(Filter::new(named).unwrap().matches(&event));
    }
}
