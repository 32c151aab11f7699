//! Pods as text: a line for what a pod has alone, and one for what pods of a controller have in common.
//!
//! ```text
//! common:  NAMESPACE FLAGS LABELS PORTS HOST-PORTS DECLARED-PORTS
//! own:     NAME NODE ADDRESSES CREATED UID
//! ```
//!
//! Fields are separated by a space and lists by commas; names are escaped as in a URL. A pod that is read back
//! equals the one that was written.

use std::hash::Hasher;
use std::net::IpAddr;
use std::sync::Arc;

use fnv::FnvHasher;

use super::super::watch::escaped;
use crate::PodKey;
use crate::model::{ContainerPort, HostPort, Labels, Pod, PodPorts, Protocol, Uid};
use crate::objects::{shared_name, shared_ports};

/// A pod in the order of pages: by the hash of its namespace, then of its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// The upper half is the namespace's, so that its pods, which have labels in common, are on few pages.
    pub(super) position: u64,
    pub(super) key: PodKey,
}

impl Place {
    pub(super) fn of(key: PodKey) -> Self {
        let upper = hash(&[&key.namespace]) & !u64::from(u32::MAX);
        Self { position: upper | hash(&[&key.name]) >> 32, key }
    }
}

/// The text of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) common: Arc<str>,
    pub(super) own: Box<str>,
}

impl Entry {
    /// The text of a pod; `None` for one that takes part in no policy: it is finished, or has no address.
    pub(super) fn of(pod: &Pod) -> Option<Self> {
        if pod.finished || pod.addresses.is_empty() {
            return None;
        }
        let labels =
            list(pod.labels.iter(), |(key, value)| format!("{}={}", escaped(key), escaped(value)));
        let ports = list(pod.ports.named.iter(), |port| {
            format!("{}@{}@{}", escaped(&port.name), port.protocol.number(), port.number)
        });
        let host_ports = list(pod.ports.host.iter(), |port| {
            let address = port.address.map(|it| it.to_string()).unwrap_or_default();
            format!("{}@{address}@{}@{}", port.number, port.protocol.number(), port.target)
        });
        let declared = list(pod.ports.declared.iter(), |(protocol, port)| {
            format!("{}@{port}", protocol.number())
        });
        let flags = [
            (pod.host_network, "h"),
            (!pod.complete, "i"),
            (pod.is_static, "s"),
            (pod.is_terminating, "t"),
        ]
        .map(|(is, flag)| if is { flag } else { "" });
        let namespace = escaped(&pod.key.namespace);
        let flags = flags.concat();
        let common = format!("{namespace} {flags} {labels} {ports} {host_ports} {declared}");
        let node = pod.node.as_deref().map(escaped).unwrap_or_default();
        let addresses = list(pod.addresses.iter(), ToString::to_string);
        let uid = pod.uid.as_ref().map(short_uid).unwrap_or_default();
        let name = escaped(&pod.key.name);
        let own = format!("{name} {node} {addresses} {} {uid}", pod.created);
        Some(Self { common: common.into(), own: own.into() })
    }

    /// A hash that is the same in every process and version.
    pub(super) fn hash(&self) -> u64 {
        hash(&[&self.common, &self.own])
    }
}

/// The common part of several pods, parsed.
#[derive(Clone, Debug)]
pub(super) struct Common {
    text: Arc<str>,
    namespace: Arc<str>,
    host_network: bool,
    complete: bool,
    is_static: bool,
    is_terminating: bool,
    labels: Arc<Labels>,
    ports: Arc<PodPorts>,
}

impl Common {
    /// Reads the text; `None` if it is damaged.
    pub(super) fn read(text: &str) -> Option<Self> {
        let [namespace, flags, labels, ports, host_ports, declared] = fields(text, ' ')?;
        let label = |text: &str| {
            let [key, value] = fields(text, '=')?;
            Some((unescaped(key)?, unescaped(value)?))
        };
        let port = |text: &str| {
            let [name, protocol, number] = fields(text, '@')?;
            let name = shared_name(&unescaped(name)?);
            Some(ContainerPort {
                name,
                protocol: protocol_of(protocol)?,
                number: number.parse().ok()?,
            })
        };
        let host_port = |text: &str| {
            let [number, address, protocol, target] = fields(text, '@')?;
            let address = match address {
                "" => None,
                address => Some(address.parse().ok()?),
            };
            let (number, target) = (number.parse().ok()?, target.parse().ok()?);
            Some(HostPort { number, address, protocol: protocol_of(protocol)?, target })
        };
        let declared_port = |text: &str| {
            let [protocol, number] = fields(text, '@')?;
            Some((protocol_of(protocol)?, number.parse().ok()?))
        };
        Some(Self {
            text: text.into(),
            namespace: shared_name(&name(namespace)?),
            host_network: flags.contains('h'),
            complete: !flags.contains('i'),
            is_static: flags.contains('s'),
            is_terminating: flags.contains('t'),
            labels: Arc::new(read_list(labels, label)?.into_iter().collect()),
            ports: shared_ports(PodPorts {
                named: read_list(ports, port)?.into(),
                host: read_list(host_ports, host_port)?.into(),
                declared: read_list(declared, declared_port)?.into(),
            }),
        })
    }

    /// Reads a pod that has this in common with others; `None` if its text is damaged.
    pub(super) fn pod(&self, own: &str) -> Option<(Arc<Pod>, Entry)> {
        let [pod_name, node, addresses, created, uid] = fields(own, ' ')?;
        let addresses: Vec<IpAddr> = read_list(addresses, |text| text.parse().ok())?;
        let pod = Pod {
            key: PodKey { namespace: Arc::clone(&self.namespace), name: name(pod_name)?.into() },
            uid: match uid {
                "" => None,
                uid => Some(long_uid(uid)?),
            },
            is_static: self.is_static,
            is_terminating: self.is_terminating,
            labels: Arc::clone(&self.labels),
            node: match node {
                "" => None,
                node => Some(shared_name(&unescaped(node)?)),
            },
            addresses: addresses.into(),
            host_network: self.host_network,
            finished: false,
            created: created.parse().ok()?,
            ports: Arc::clone(&self.ports),
            complete: self.complete,
        };
        if pod.addresses.is_empty() {
            return None;
        }
        Some((Arc::new(pod), Entry { common: Arc::clone(&self.text), own: own.into() }))
    }
}

/// The text of a pod that is gone.
pub(super) fn gone(key: &PodKey) -> String {
    format!("{} {}", escaped(&key.namespace), escaped(&key.name))
}

/// Reads the text of a pod that is gone; `None` if it is damaged.
pub(super) fn read_gone(text: &str) -> Option<PodKey> {
    let [namespace, pod_name] = fields(text, ' ')?;
    Some(PodKey { namespace: name(namespace)?.into(), name: name(pod_name)?.into() })
}

/// FNV-1a over the texts, each with an end, and the last mix of MurmurHash3: FNV alone leaves the upper bits of
/// short texts alike.
fn hash(texts: &[&str]) -> u64 {
    let mut hasher = FnvHasher::default();
    for text in texts {
        hasher.write(text.as_bytes());
        hasher.write_u8(0xff);
    }
    let mut hash = hasher.finish();
    for factor in [0xff51_afd7_ed55_8ccd_u64, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ hash >> 33).wrapping_mul(factor);
    }
    hash ^ hash >> 33
}

fn list<T>(items: impl Iterator<Item = T>, text: impl Fn(T) -> String) -> String {
    items.map(text).collect::<Vec<_>>().join(",")
}

fn read_list<'t, T>(text: &'t str, read: impl Fn(&'t str) -> Option<T>) -> Option<Vec<T>> {
    text.split(',').filter(|item| !item.is_empty()).map(read).collect()
}

/// Exactly so many fields.
fn fields<const N: usize>(text: &str, separator: char) -> Option<[&str; N]> {
    let mut parts = text.split(separator);
    let mut found = [""; N];
    for field in &mut found {
        *field = parts.next()?;
    }
    parts.next().is_none().then_some(found)
}

/// A name that is not empty.
fn name(text: &str) -> Option<String> {
    unescaped(text).filter(|name| !name.is_empty())
}

fn protocol_of(number: &str) -> Option<Protocol> {
    let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    all.into_iter().find(|it| it.number().to_string() == number)
}

/// The opposite of [`escaped`].
fn unescaped(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, more)) = rest.split_first() {
        rest = more;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, more) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = more;
    }
    String::from_utf8(bytes).ok()
}

/// A UUID without its dashes; another text behind `=`.
fn short_uid(uid: &Uid) -> String {
    match uid {
        Uid::Uuid(_) => uid.to_string().replace('-', ""),
        other => format!("={}", escaped(&other.to_string())),
    }
}

fn long_uid(text: &str) -> Option<Uid> {
    match (text.strip_prefix('='), Uid::from(text)) {
        (Some(uid), _) => Some(Uid::from(unescaped(uid)?)),
        (None, Uid::Hash(value)) => Some(Uid::Uuid(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Addresses;

    fn pod() -> Pod {
        let port = ContainerPort { name: "http".into(), protocol: Protocol::Udp, number: 80 };
        let host_port = |address: Option<&str>| HostPort {
            number: 8080,
            address: address.map(|it| it.parse().unwrap()),
            protocol: Protocol::Tcp,
            target: 80,
        };
        Pod {
            key: PodKey { namespace: "shop".into(), name: "web-1".into() },
            uid: Some("00000000-0000-4000-8000-0123456789ab".into()),
            is_static: true,
            is_terminating: true,
            labels: Arc::new(
                [("app.kubernetes.io/name", "web"), ("empty", "")].into_iter().collect(),
            ),
            node: Some("node-1.example".into()),
            addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()].into(),
            host_network: true,
            finished: false,
            created: 1_700_000_000,
            ports: Arc::new(PodPorts {
                named: vec![port].into(),
                host: vec![host_port(None), host_port(Some("::1"))].into(),
                declared: vec![(Protocol::Sctp, 9)].into(),
            }),
            complete: false,
        }
    }

    fn again(pod: &Pod) -> Arc<Pod> {
        let entry = Entry::of(pod).unwrap();
        let (read, again) = Common::read(&entry.common).unwrap().pod(&entry.own).unwrap();
        assert_eq!((&again, again.hash()), (&entry, entry.hash()));
        read
    }

    #[test]
    fn a_pod_is_the_same_afterwards() {
        let whole = pod();
        assert_eq!(*again(&whole), whole);
        // What no API server lets through is kept as well: an object that cannot be read may have it.
        let odd = Pod {
            uid: Some("0123456789abcdef0123456789abcdef".into()),
            is_static: false,
            is_terminating: false,
            labels: Arc::new([("a b,c=d", "%@é")].into_iter().collect()),
            node: None,
            addresses: vec!["::ffff:10.0.0.1".parse().unwrap()].into(),
            host_network: false,
            created: 0,
            ports: Arc::default(),
            complete: true,
            ..whole.clone()
        };
        assert_eq!(*again(&odd), odd);
        let unnamed = Pod { uid: None, labels: Arc::default(), ..odd };
        assert_eq!(*again(&unnamed), unnamed);
        assert_eq!(Entry::of(&Pod { finished: true, ..whole.clone() }), None);
        assert_eq!(Entry::of(&Pod { addresses: Addresses::default(), ..whole }), None);
    }

    #[test]
    fn damaged_text_is_no_pod() {
        let entry = Entry::of(&pod()).unwrap();
        let common = Common::read(&entry.common).unwrap();
        for bad in [
            "",
            "a",
            "a n 10.0.0.1 5",
            "a n 10.0.0.x 5 ",
            "a n  5 ",
            " n 10.0.0.1 5 ",
            "a n 10.0.0.1 x ",
        ] {
            assert!(common.pod(bad).is_none(), "{bad:?}");
        }
        for bad in ["", "  ", "ns  a=b  ", " h    ", "ns  a    ", "ns   p@7@1  ", "ns   %zz@6@1  "]
        {
            assert!(Common::read(bad).is_none(), "{bad:?}");
        }
        let key = pod().key;
        assert_eq!(read_gone(&gone(&key)), Some(key));
        assert!(read_gone("shop").is_none() && read_gone("shop ").is_none());
    }

    #[test]
    fn pods_of_a_namespace_are_side_by_side() {
        let place = |namespace: &str, name: &str| {
            Place::of(PodKey { namespace: namespace.into(), name: name.into() }).position
        };
        assert_eq!(place("a", "x") >> 32, place("a", "y") >> 32);
        assert_ne!(place("a", "x") >> 32, place("b", "x") >> 32);
        assert_ne!(place("a", "x"), place("a", "y"));
    }
}
