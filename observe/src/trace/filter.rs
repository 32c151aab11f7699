//! Terms such as `in=default/web to=10.2.0.0/16 port=53`.

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::graph::trace::Filter;
use dataplane::{Outcome, Verdict};
use ipnet::IpNet;

use crate::verdicts::Protocol;

/// Names and arguments of the terms.
const TERMS: &str = "in, out, from, to, address, protocol, port, verdict, reason";

/// Reads terms, `NAME=VALUE`, separated by blanks or commas; `addresses` returns those of a pod.
///
/// # Errors
/// Names the term.
pub fn parse(text: &str, addresses: impl Fn(&str) -> Vec<IpAddr>) -> Result<Filter, String> {
    let mut filter = Filter::default();
    let terms = text.split(|c: char| c.is_whitespace() || c == ',').filter(|term| !term.is_empty());
    for term in terms {
        let shown = term.escape_debug();
        let Some((name, value)) = term.split_once('=').filter(|(_, value)| !value.is_empty())
        else {
            return Err(format!("filter: '{shown}' is not NAME=VALUE"));
        };
        let is_set = match name {
            "in" => filter.in_port.replace(port_name(value)).is_some(),
            "out" => filter.out_port.replace(port_name(value)).is_some(),
            "from" => filter.from.replace(place(name, value, &addresses)?).is_some(),
            "to" => filter.to.replace(place(name, value, &addresses)?).is_some(),
            "address" => filter.address.replace(place(name, value, &addresses)?).is_some(),
            "protocol" => filter.protocol.replace(protocol(value)?).is_some(),
            "port" => match value.parse() {
                Ok(port) => filter.port.replace(port).is_some(),
                Err(_) => return Err(format!("filter: port: '{shown}' has no port number")),
            },
            "verdict" => filter.verdict.replace(verdict(value)?).is_some(),
            "reason" => filter.outcome.replace(reason(value)?).is_some(),
            _ => return Err(format!("filter: there is no term '{shown}'; there are {TERMS}")),
        };
        if is_set {
            return Err(format!("filter: {name} is given twice"));
        }
    }
    Ok(filter)
}

/// Completes a port's name: `host`, `uplink`, or a pod, without a namespace of the default one as
/// in kubectl.
pub fn port_name(value: &str) -> Arc<str> {
    match value {
        "host" | "uplink" => value.into(),
        pod if pod.contains('/') => pod.into(),
        pod => format!("default/{pod}").into(),
    }
}

/// An address, a network, or a pod's addresses.
fn place(
    name: &str,
    value: &str,
    addresses: impl Fn(&str) -> Vec<IpAddr>,
) -> Result<Vec<IpNet>, String> {
    if let Ok(address) = value.parse::<IpAddr>() {
        return Ok(vec![address.into()]);
    }
    if let Ok(net) = value.parse::<IpNet>() {
        return Ok(vec![net]);
    }
    let found = addresses(&port_name(value));
    if found.is_empty() {
        let shown = value.escape_debug();
        return Err(format!(
            "filter: {name}: '{shown}' is not an address, a network, or a pod with an address"
        ));
    }
    Ok(found.into_iter().map(IpNet::from).collect())
}

fn protocol(value: &str) -> Result<u8, String> {
    value.parse().map(|protocol: Protocol| protocol.0).map_err(|names| {
        format!("filter: protocol: '{}' is none of {names}, and no number", value.escape_debug())
    })
}

fn verdict(value: &str) -> Result<Verdict, String> {
    match value {
        "forward" | "forwarded" => Ok(Verdict::Forward),
        "drop" | "dropped" => Ok(Verdict::Drop),
        "consume" | "consumed" => Ok(Verdict::Consume),
        _ => Err(format!(
            "filter: verdict: '{}' is none of forward, drop, consume",
            value.escape_debug()
        )),
    }
}

fn reason(value: &str) -> Result<Outcome, String> {
    Outcome::ALL.iter().copied().find(|outcome| outcome.name() == value).ok_or_else(|| {
        let value = value.escape_debug();
        format!("filter: reason: '{value}' is not an outcome, such as policy-denied or no-session")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Filter, String> {
        parse(text, |pod| match pod {
            "default/web" => vec!["10.1.0.3".parse().unwrap(), "fd00::3".parse().unwrap()],
            _ => Vec::new(),
        })
    }

    #[test]
    fn terms_are_read() {
        let filter = read("in=web, to=web from=10.0.0.0/8,protocol=udp port=53 verdict=dropped");
        let expected = Filter {
            in_port: Some("default/web".into()),
            to: Some(vec!["10.1.0.3/32".parse().unwrap(), "fd00::3/128".parse().unwrap()]),
            from: Some(vec!["10.0.0.0/8".parse().unwrap()]),
            protocol: Some(17),
            port: Some(53),
            verdict: Some(Verdict::Drop),
            ..Filter::default()
        };
        assert_eq!(filter, Ok(expected));
        let filter = read("out=host address=fd00::1 reason=no-session protocol=47").unwrap();
        assert_eq!(filter.out_port.as_deref(), Some("host"));
        assert_eq!((filter.outcome, filter.protocol), (Some(Outcome::NoSession), Some(47)));
        assert_eq!(read(" ,"), Ok(Filter::default()));
    }

    #[test]
    fn what_no_packet_can_meet_is_refused() {
        let cases = [
            ("web", "NAME=VALUE"),
            ("in=", "NAME=VALUE"),
            ("colour=red", "there are in, out"),
            ("from=nobody", "from: 'nobody'"),
            ("to=10.0.0.0/33", "to: '10.0.0.0/33'"),
            ("protocol=tpc", "tpc"),
            ("protocol=256", "256"),
            ("port=http", "port"),
            ("verdict=maybe", "maybe"),
            ("reason=bad-luck", "bad-luck"),
            ("port=1 port=2", "twice"),
        ];
        for (text, part) in cases {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
