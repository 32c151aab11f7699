//! An agent's identifiers: a URL query, `host=node1&ipv4=10.0.0.1&default-route=true`.

use std::collections::BTreeSet;

/// The identifiers of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identifiers {
    /// Names and addresses of hosts, in one spelling.
    pub hosts: BTreeSet<String>,
    /// Networks; no strategy uses them.
    pub networks: BTreeSet<String>,
    /// True if the agent takes dials that match no other one.
    pub default_route: bool,
}

impl Identifiers {
    /// Reads identifiers from the wire: unknown keys are ignored.
    pub fn parse(query: &str) -> Self {
        let mut identifiers = Self::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            identifiers.add(&key, value.into_owned());
        }
        identifiers
    }

    /// Reads identifiers from a flag.
    ///
    /// # Errors
    /// Names an unknown key, or a separator that URL queries do not have.
    pub(crate) fn parse_strictly(query: &str) -> Result<Self, String> {
        if query.contains(';') {
            return Err(format!(
                "agent identifiers: '{query}' has a semicolon; pairs are separated by '&'"
            ));
        }
        let mut identifiers = Self::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            if !identifiers.add(&key, value.into_owned()) {
                return Err(format!(
                    "agent identifiers: unknown address type '{key}'; there are ipv4, ipv6, host, cidr, default-route"
                ));
            }
        }
        Ok(identifiers)
    }

    fn add(&mut self, key: &str, value: String) -> bool {
        match key {
            "ipv4" | "ipv6" | "host" => {
                self.hosts.insert(same_spelling(&value));
            }
            "cidr" => {
                self.networks.insert(value);
            }
            "default-route" => self.default_route |= value == "true",
            _ => return false,
        }
        true
    }
}

/// A host as it is compared: addresses in their shortest form, names in lower case.
pub(crate) fn same_spelling(host: &str) -> String {
    match host.trim_matches(['[', ']']).parse::<std::net::IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => host.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list() {
        let query = "ipv4=10.0.0.1&ipv4=10.0.0.2&host=Node1&ipv6=2001%3Adb8%3A%3A0001\
                     &cidr=10.0.0.0/8&default-route=true&rack=7";
        let found = Identifiers::parse(query);
        let hosts: Vec<&str> = found.hosts.iter().map(String::as_str).collect();
        assert_eq!(hosts, ["10.0.0.1", "10.0.0.2", "2001:db8::1", "node1"]);
        assert!(found.default_route && found.networks.contains("10.0.0.0/8"));
        let error = Identifiers::parse_strictly(query).unwrap_err();
        let known = "ipv4, ipv6, host, cidr, default-route";
        let wanted = format!("agent identifiers: unknown address type 'rack'; there are {known}");
        assert_eq!(error, wanted);
        assert_eq!(Identifiers::parse_strictly(""), Ok(Identifiers::default()));
    }
}
