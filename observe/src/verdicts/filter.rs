//! Which events an observer wants.

use local_api::{ApiError, ErrorKind, ObserveFilters};

use super::Event;

/// Filters that were checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter(ObserveFilters);

impl Filter {
    /// Validates the filter.
    ///
    /// # Errors
    /// Of kind `bad-request`, naming the filter.
    pub fn new(mut wanted: ObserveFilters) -> Result<Self, ApiError> {
        let bad = |text: String| ApiError::new(ErrorKind::BadRequest, format!("observe: {text}"));
        for (name, pod) in [("from_pod", &mut wanted.from_pod), ("to_pod", &mut wanted.to_pod)] {
            let Some(pod) = pod else { continue };
            // As kubectl does: without a namespace the default one is meant.
            if !pod.contains('/') {
                *pod = format!("default/{pod}");
            }
            let parts: Vec<&str> = pod.split('/').collect();
            if parts.len() != 2 || parts.iter().any(|part| part.is_empty()) {
                return Err(bad(format!("{name}: '{}' is no ns/pod", pod.escape_debug())));
            }
        }
        if let Some(protocol) = &mut wanted.protocol {
            let known = ["TCP", "UDP", "SCTP", "ICMP", "ICMPv6"];
            let found = known.into_iter().find(|name| name.eq_ignore_ascii_case(protocol));
            *protocol = match (found, protocol.parse::<u8>()) {
                (Some(name), _) => name.to_owned(),
                (None, Ok(number)) => number.to_string(),
                (None, Err(_)) => {
                    let text = protocol.escape_debug();
                    return Err(bad(format!("protocol: '{text}' is none of {}", known.join(", "))));
                }
            };
        }
        Ok(Self(wanted))
    }

    /// Whether an event is wanted.
    pub fn matches(&self, event: &Event) -> bool {
        let Self(wanted) = self;
        let pod = |wanted: &Option<String>, pod: &Option<std::sync::Arc<str>>| {
            wanted.as_ref().is_none_or(|wanted| pod.as_deref() == Some(wanted.as_str()))
        };
        wanted.verdict.is_none_or(|verdict| verdict == event.verdict)
            && pod(&wanted.from_pod, &event.from.pod)
            && pod(&wanted.to_pod, &event.to.pod)
            && wanted.protocol.as_ref().is_none_or(|name| event.protocol.as_ref() == Some(name))
            && wanted.port.is_none_or(|port| [event.from.port, event.to.port].contains(&Some(port)))
    }

    /// How many past events are wanted.
    pub fn last(&self) -> usize {
        self.0.last as usize
    }

    /// Whether new events are wanted.
    pub fn follow(&self) -> bool {
        self.0.follow
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdicts::event::tests::denied;
    use local_api::Verdict;

    #[test]
    fn each_filter_lets_its_own_through() {
        let cases: [(ObserveFilters, bool); 11] = [
            (ObserveFilters::default(), true),
            (ObserveFilters { verdict: Some(Verdict::Dropped), ..Default::default() }, true),
            (ObserveFilters { verdict: Some(Verdict::Forwarded), ..Default::default() }, false),
            (ObserveFilters { from_pod: Some("frontend".into()), ..Default::default() }, true),
            (ObserveFilters { from_pod: Some("default/db".into()), ..Default::default() }, false),
            (ObserveFilters { to_pod: Some("default/db".into()), ..Default::default() }, true),
            (ObserveFilters { to_pod: Some("other/db".into()), ..Default::default() }, false),
            (ObserveFilters { protocol: Some("tcp".into()), ..Default::default() }, true),
            (ObserveFilters { protocol: Some("17".into()), ..Default::default() }, false),
            (ObserveFilters { port: Some(6379), ..Default::default() }, true),
            (ObserveFilters { port: Some(80), ..Default::default() }, false),
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
        ];
        for (field, wanted) in cases {
            let error = Filter::new(wanted).unwrap_err();
            assert!(error.message.contains(field), "{error}");
        }
    }
}
