//! Domain names that questions mention, with the addresses that DNS gives for them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use control::{PodKey, View};
use domain_names::{Change, DomainPattern};

/// Domain names in lower case with their addresses, which every pod is taken to know from its DNS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainAddresses(BTreeMap<Arc<str>, BTreeSet<IpAddr>>);

/// One name with addresses, as written on a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    name: Arc<str>,
    addresses: Vec<IpAddr>,
}

impl FromIterator<Resolved> for DomainAddresses {
    fn from_iter<T: IntoIterator<Item = Resolved>>(all: T) -> Self {
        let mut names = Self::default();
        for Resolved { name, addresses } in all {
            names.0.entry(name).or_default().extend(addresses);
        }
        names
    }
}

impl DomainAddresses {
    /// The addresses of a name in lower case.
    pub fn of(&self, name: &str) -> impl Iterator<Item = IpAddr> + '_ {
        self.0.get(name).into_iter().flatten().copied()
    }

    /// The names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|name| &**name)
    }

    /// Adds an address of a name.
    pub(crate) fn add(&mut self, name: &str, address: IpAddr) {
        self.0.entry(name.into()).or_default().insert(address);
    }

    /// Adds the names of another list.
    pub(crate) fn extend(&mut self, other: &Self) {
        for (name, addresses) in &other.0 {
            self.0.entry(Arc::clone(name)).or_default().extend(addresses);
        }
    }

    /// The addresses of all names.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.0.values().flatten().copied()
    }

    /// DNS answers for the pods of a view: each name for the pods with a rule about it.
    pub(crate) fn changes(&self, view: &View) -> Vec<Change<PodKey>> {
        let mut changes = Vec::new();
        for (key, pod) in view.pods.iter() {
            let is_meant = |name: &str| pod.names.iter().any(|pattern| pattern.matches(name));
            for (name, addresses) in self.0.iter().filter(|(name, _)| is_meant(name)) {
                changes.push(Change {
                    pod: key.clone(),
                    name: Arc::clone(name),
                    open: addresses.iter().copied().collect(),
                    lingering: Vec::new(),
                });
            }
        }
        changes
    }
}

/// Reads a domain name, into lower case.
///
/// # Errors
/// The fault of the text.
pub fn name(text: &str) -> Result<Arc<str>, String> {
    let pattern: DomainPattern = text.parse().map_err(|error| format!("{text:?} {error}"))?;
    let name = pattern.to_string();
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    match name.rsplit('.').next() {
        _ if name.starts_with('*') => Err(format!("{text:?} stands for many names")),
        // The last label of a name is not a number (RFC 3696, section 2).
        Some(last) if is_number(last) => Err(format!("{text:?} is not a domain name")),
        _ => Ok(name.into()),
    }
}

/// Reads `NAME=ADDRESS[,ADDRESS…]`.
///
/// # Errors
/// The fault of the text.
pub fn resolved(text: &str) -> Result<Resolved, String> {
    let (name, addresses) =
        text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=ADDRESS"))?;
    let address = |text: &str| text.parse().map_err(|_| format!("{text:?} is not an IP address"));
    let addresses = addresses.split(',').map(address).collect::<Result<_, _>>()?;
    Ok(Resolved { name: self::name(name)?, addresses })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_addresses() {
        let read = |text: &str| resolved(text);
        let all: DomainAddresses =
            ["Api.Example.org.=192.0.2.1,2001:db8::1", "api.example.org=192.0.2.2"]
                .iter()
                .map(|text| read(text).unwrap())
                .collect();
        let wanted: [IpAddr; 3] =
            ["192.0.2.1", "192.0.2.2", "2001:db8::1"].map(|it| it.parse().unwrap());
        assert_eq!(all.of("api.example.org").collect::<Vec<IpAddr>>(), wanted);
        assert_eq!(all.of("example.org").count(), 0);
        for bad in [
            "",
            "api.example.org",
            "api.example.org=",
            "api.example.org=example.com",
            "*.example.org=192.0.2.1",
            "example=192.0.2.1",
            "10.0.0.300=192.0.2.1",
            "a b.example.org=192.0.2.1",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
