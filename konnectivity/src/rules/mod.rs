//! Session rules at the proxy: connections are allowed or denied before the dial.
//!
//! A proxied connection arrives at its target like any other, so the global rules apply: the
//! target is the local end, this host the remote one. If this host is a pod of the switch, the
//! local rules of that pod apply too. Without a matching rule, or with `do-nothing`, the
//! connection is allowed.
//!
//! The node translates connections to services. So the rules are evaluated for the target and for the endpoint
//! that is dialled in its place.
//!
//! Rules come from the switch on the same node (`switch.rs`), from a file (`file.rs`), or
//! from both; a denial by either counts.
//!
//! ```yaml
//! rules:
//! - tag: no-metadata             # its name, which the error shows
//!   local: 169.254.169.254/32    # the target; left out: any
//!   ports: 80                    # one, a range 1000-2000; left out: any
//!   remote: 10.0.0.0/8           # this host's address; left out: any
//!   action: deny                 # or allow
//! ```

mod denied;
mod file;
mod switch;

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;

pub(crate) use denied::{Denied, Unknown};
use file::FileRules;
pub use file::parse;
use session_rules::{Action, Connection, Scope, Services, Table, Transport};
use switch::SwitchRules;

/// All rules that apply.
#[derive(Debug)]
pub struct Rules {
    file: Option<FileRules>,
    switch: Option<Arc<SwitchRules>>,
}

impl Rules {
    /// Rules of a file, of the switch behind a unix socket, of both, or none.
    ///
    /// # Errors
    /// Names file, rule and field.
    pub fn new(file: Option<&Path>, socket: Option<&Path>) -> Result<Self, String> {
        let file = file.map(FileRules::read).transpose()?;
        let switch = socket.map(SwitchRules::follow).transpose();
        let switch = switch.map_err(|error| format!("start a thread: {error}"))?;
        Ok(Self { file, switch })
    }

    /// Rules of a file.
    ///
    /// # Errors
    /// Names file, rule and field.
    pub fn read(path: &Path) -> Result<Self, String> {
        Self::new(Some(path), None)
    }

    /// Evaluates the rules for a target whose address is written out, in any form that a resolver takes for
    /// an address. A name is left to the agent, which resolves it.
    pub(crate) fn evaluate_literal(&self, target: &str) -> Result<(), Denied> {
        match literal(target) {
            Some(address) => self.evaluate(address),
            None => Ok(()),
        }
    }

    /// Evaluates the rules for a target, and for every endpoint where the node has a service there; the
    /// error names the rule that denies.
    pub(crate) fn evaluate(&self, target: SocketAddr) -> Result<(), Denied> {
        let Some(service) = self.evaluate_address(target)? else { return Ok(()) };
        service.endpoints.iter().try_for_each(|endpoint| self.evaluate_endpoint(*endpoint))
    }

    /// Evaluates the rules for a target; returns the address to connect to. If the node has a service there, that is an
    /// endpoint that the rules allow, so that the evaluated address is the one reached.
    pub(crate) fn choose(&self, target: SocketAddr) -> Result<SocketAddr, Denied> {
        let service = match self.evaluate_address(target)? {
            Some(service) if service.is_chosen_from => service,
            _ => return self.evaluate(target).map(|()| target),
        };
        let endpoints = &service.endpoints;
        let mut denied = Ok(target);
        for nth in 0..endpoints.len() {
            let endpoint = endpoints[(service.first + nth) % endpoints.len()];
            match self.evaluate_endpoint(endpoint) {
                Ok(()) => return Ok(endpoint),
                Err(why) => denied = Err(why),
            }
        }
        // The node refuses connections to a service without endpoints.
        denied
    }

    /// Evaluates the rules for one address, as it is; returns the service that the node has there.
    fn evaluate_address(&self, target: SocketAddr) -> Result<Option<Translated>, Denied> {
        let target = SocketAddr::new(reached(target.ip()), target.port());
        let source = source_towards(target);
        if let Some(file) = &self.file {
            check_arrival(&file.current(), source, target)?;
        }
        let Some(switch) = &self.switch else { return Ok(None) };
        let known = switch.known().map_err(|unknown| Denied::Unknown(target, unknown))?;
        check_arrival(&known.table, source, target)?;
        let Some(pod) = known.pods.get(&source) else {
            return translated(&known.services, source, target);
        };
        let connection = Connection {
            scope: Scope::Local(Arc::clone(pod)),
            transport: Transport::Tcp,
            local: (source, 0),
            remote: (target.ip(), target.port()),
        };
        // The switch decides about a pod's packets, those to services too.
        check(&known.table, &connection, target).map(|()| None)
    }

    /// Evaluates the rules for an endpoint of a service.
    fn evaluate_endpoint(&self, endpoint: SocketAddr) -> Result<(), Denied> {
        match self.evaluate_address(endpoint)? {
            None => Ok(()),
            Some(_) => Err(Denied::Service(endpoint)),
        }
    }

    /// Fails while every dial is denied because the switch's rules have not arrived.
    pub(crate) fn known(&self) -> Result<(), Unknown> {
        self.switch.as_ref().map_or(Ok(()), |switch| switch.known().map(drop))
    }

    /// Grows with each change of the rules.
    pub(crate) fn generation(&self) -> u64 {
        let file = self.file.as_ref().map_or(0, FileRules::generation);
        file + self.switch.as_ref().map_or(0, |switch| switch.generation())
    }
}

/// A service where the node translates connections.
struct Translated {
    endpoints: Vec<SocketAddr>,
    /// The endpoint to try first.
    first: usize,
    /// True if the dial goes to an endpoint instead. At a port of a loopback address a process may listen, or another
    /// proxy of services translate.
    is_chosen_from: bool,
}

/// The service that connections from `source` to `target` reach, if there is one.
fn translated(
    services: &Services,
    source: IpAddr,
    target: SocketAddr,
) -> Result<Option<Translated>, Denied> {
    let is_loopback = target.ip().is_loopback();
    let is_named = services.find(target, Transport::Tcp, || false).is_some();
    // The kernel takes the address itself as the source of connections to it.
    let is_of_node = || is_loopback || source == target.ip();
    let Some(service) = services.find(target, Transport::Tcp, is_of_node) else { return Ok(None) };
    if !service.admits(source) {
        return Err(Denied::Source(target, source));
    }
    let endpoints = service.endpoints.clone();
    let hash = match service.affinity {
        true => BuildHasherDefault::<DefaultHasher>::default().hash_one(source),
        false => RandomState::new().hash_one(source),
    };
    let first = (hash % endpoints.len().max(1) as u64) as usize;
    Ok(Some(Translated { endpoints, first, is_chosen_from: is_named || !is_loopback }))
}

/// Evaluates the rules for connections that arrive at `target`.
fn check_arrival(table: &Table, source: IpAddr, target: SocketAddr) -> Result<(), Denied> {
    let connection = Connection {
        scope: Scope::Global,
        transport: Transport::Tcp,
        local: (target.ip(), target.port()),
        remote: (source, 0),
    };
    check(table, &connection, target)
}

fn check(table: &Table, connection: &Connection, target: SocketAddr) -> Result<(), Denied> {
    match table.lookup(connection) {
        Some(rule) if rule.action == Action::Deny => Err(Denied::Rule(target, rule.clone())),
        _ => Ok(()),
    }
}

/// The address that a connection to `address` reaches: the kernel takes the unspecified one for
/// loopback.
fn reached(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(it) if it.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(it) if it.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        address => address,
    }
}

/// Reads `host:port` if the host is an address: also IPv6 with a zone, and the short, octal and
/// hexadecimal forms of IPv4 that inet_aton(3) takes, such as `0` and `127.1`. An empty host is
/// loopback.
fn literal(target: &str) -> Option<SocketAddr> {
    let (host, port) = target.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let address = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(host) => host.split('%').next()?.parse::<Ipv6Addr>().ok()?.into(),
        None if host.is_empty() => Ipv4Addr::LOCALHOST.into(),
        None => ipv4(host)?.into(),
    };
    Some(SocketAddr::new(address, port))
}

/// Reads one to four numbers; the last fills all bytes that are left.
fn ipv4(host: &str) -> Option<Ipv4Addr> {
    let number = |text: &str| {
        let (digits, radix) = match text.as_bytes() {
            [b'0', b'x' | b'X', ..] => (&text[2..], 16),
            [b'0', _, ..] => (&text[1..], 8),
            _ => (text, 10),
        };
        let digits = if digits.is_empty() && radix == 16 { "0" } else { digits };
        digits.bytes().all(|it| it.is_ascii_alphanumeric()).then_some(())?;
        u32::from_str_radix(digits, radix).ok()
    };
    let parts: Vec<&str> = host.split('.').collect();
    let (last, first) = parts.split_last()?;
    if first.len() > 3 {
        return None;
    }
    let mut address = number(last)?;
    let room = 32 - 8 * first.len() as u32;
    if room < 32 && address >> room != 0 {
        return None;
    }
    for (at, part) in first.iter().enumerate() {
        let byte = number(part).filter(|it| *it <= 255)?;
        address |= byte << (24 - 8 * at);
    }
    Some(address.into())
}

/// Returns the source address of a dial, by the kernel's route lookup; nothing is sent.
fn source_towards(target: SocketAddr) -> IpAddr {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let connected = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(target)?;
        socket.local_addr()
    });
    connected.map_or(any, |address| address.ip())
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;

    fn rules(folder: &TempDir, text: &str) -> Result<Rules, String> {
        let path = folder.path().join("rules.yaml");
        std::fs::write(&path, text).unwrap();
        Rules::read(&path)
    }

    #[test]
    fn a_denial_names_its_rule() {
        let folder = TempDir::new("rules");
        let rules = rules(
            &folder,
            "rules:\n\
             - {tag: closed, local: 127.0.0.0/8, action: deny}\n\
             - {tag: open, local: 127.0.0.1, ports: 80-81, remote: 127.0.0.1, action: allow}\n",
        )
        .unwrap();
        assert_eq!(rules.evaluate_literal("127.0.0.1:80"), Ok(()));
        assert_eq!(rules.evaluate_literal("10.0.0.1:80"), Ok(()));
        // The agent evaluates names, which it resolves.
        assert_eq!(rules.evaluate_literal("localhost:1"), Ok(()));
        let denied = rules.evaluate_literal("127.0.0.1:82").unwrap_err().to_string();
        assert!(denied.starts_with("dial tcp 127.0.0.1:82: denied by session rule"), "{denied}");
        assert!(denied.ends_with("[closed]"), "{denied}");
        assert!(rules.evaluate_literal("[::ffff:127.0.0.1]:82").is_err());
    }

    #[test]
    fn no_spelling_of_loopback_passes() {
        let folder = TempDir::new("rules");
        let rules = rules(
            &folder,
            "rules:\n\
             - {tag: four, local: 127.0.0.0/8, action: deny}\n\
             - {tag: six, local: '::1', action: deny}\n",
        )
        .unwrap();
        for target in [
            "127.0.0.1:80",
            "0.0.0.0:80",
            "0:80",
            "0x0:80",
            "00.0:80",
            "127.1:80",
            "2130706433:80",
            "0x7f000001:80",
            "0177.0.0.1:80",
            ":80",
            "[::]:80",
            "[::1]:80",
            "[::1%lo]:80",
            "[::ffff:0.0.0.0]:80",
            "[::ffff:127.0.0.1]:80",
        ] {
            let denied = rules.evaluate_literal(target).expect_err(target);
            assert!(matches!(denied, Denied::Rule(..)), "{target}: {denied}");
        }
        // Not addresses, or others.
        for target in ["256.1.1.1:80", "1.2.3.4.5:80", "a.1:80", "0x:8", "+1:80", "10.1:80"] {
            let result = rules.evaluate_literal(target);
            assert!(result.is_ok() || target == "0x:8", "{target}: {result:?}");
        }
        assert_eq!(literal("10.1:80"), Some(([10, 0, 0, 1], 80).into()));
        assert_eq!(literal("256.1.1.1:80"), None);
        assert_eq!(literal("node1:80"), None);
        // The addresses of a resolved name are evaluated as well.
        assert!(rules.evaluate("0.0.0.0:1".parse().unwrap()).is_err());
        assert!(rules.evaluate("[::]:1".parse().unwrap()).is_err());
    }

    #[test]
    fn nothing_is_dialled_before_the_switchs_rules_are_known() {
        let folder = TempDir::new("rules");
        let rules = Rules::new(None, Some(&folder.path().join("switch.sock"))).unwrap();
        let denied = rules.evaluate("192.0.2.1:80".parse().unwrap()).unwrap_err();
        assert!(matches!(denied, Denied::Unknown(..)), "{denied}");
    }

    #[test]
    fn faults_name_rule_and_field() {
        let folder = TempDir::new("rules");
        let fault = |text: &str| rules(&folder, text).unwrap_err();
        let error = fault("rules:\n- {tag: a, local: 10.0.0.0/33, action: deny}\n");
        assert!(error.contains("rules.yaml: rules[0] (a): local: '10.0.0.0/33'"), "{error}");
        let error = fault("rules:\n- {tag: a, ports: 9-1, action: deny}\n");
        assert!(error.contains("ports: '9-1'"), "{error}");
        let error = fault("rules:\n- {tag: a, action: refuse}\n");
        assert!(error.contains("action: 'refuse'"), "{error}");
        let error = fault("rules:\n- {tag: a, locl: 1.2.3.4, action: deny}\n");
        assert!(error.contains("locl"), "{error}");
    }
}
