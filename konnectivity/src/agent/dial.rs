//! Opens a connection to a target. Errors are worded as in the original, since tools search for
//! those texts.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::rules::Rules;

/// Time that an address has before the next one is tried beside it (RFC 8305, section 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Error of a dial.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DialError {
    /// The metric's label; the original knows `timeout` and `unknown`.
    pub(crate) reason: &'static str,
    pub(crate) text: String,
}

/// Opens a connection to `host:port`, within `timeout` in all.
pub(crate) async fn dial(
    protocol: &str,
    target: &str,
    rules: Option<&Rules>,
    timeout: Duration,
) -> Result<TcpStream, DialError> {
    if protocol != "tcp" {
        return Err(failed("unknown", format!("dial {protocol}: unknown network {protocol}")));
    }
    let opened = tokio::time::timeout(timeout, open(target, rules)).await;
    opened.unwrap_or_else(|_| Err(failed("timeout", format!("dial tcp {target}: i/o timeout"))))
}

async fn open(target: &str, rules: Option<&Rules>) -> Result<TcpStream, DialError> {
    connect(target, resolve(target).await?, rules).await
}

/// Connects to the first of a target's addresses that rules permit and that answers (RFC 8305).
async fn connect(
    target: &str,
    addresses: Vec<SocketAddr>,
    rules: Option<&Rules>,
) -> Result<TcpStream, DialError> {
    let mut error = None;
    let mut left = families_in_turn(addresses).into_iter();
    // Its end ends the attempts that are left.
    let mut attempts = JoinSet::new();
    loop {
        if let Some(address) = left.next() {
            let address = match rules.map_or(Ok(address), |rules| rules.choose(address)) {
                Ok(address) => address,
                Err(denied) => {
                    error.get_or_insert(failed("denied_by_rule", denied.to_string()));
                    continue;
                }
            };
            attempts.spawn(async move { (address, TcpStream::connect(address).await) });
        }
        let patience = if left.len() > 0 { ATTEMPT_DELAY } else { Duration::MAX };
        match tokio::time::timeout(patience, attempts.join_next()).await {
            Ok(Some(Ok((_, Ok(stream))))) => {
                crate::accept::prepare(&stream);
                return Ok(stream);
            }
            Ok(Some(Ok((address, Err(cause))))) => {
                let text = format!("dial tcp {address}: {}", cause_text(&cause));
                error.get_or_insert(failed("unknown", text));
            }
            Ok(None) if left.len() == 0 => break,
            Ok(_) | Err(_) => {}
        }
    }
    let none = || failed("unknown", format!("dial tcp: lookup {target}: no such host"));
    Err(error.unwrap_or_else(none))
}

/// Alternates between the families, beginning with that of the first address (RFC 8305, section 4).
fn families_in_turn(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first = addresses.first().is_some_and(SocketAddr::is_ipv4);
    let (mut one, mut other): (VecDeque<_>, VecDeque<_>) =
        addresses.into_iter().partition(|it| it.is_ipv4() == first);
    let next = || one.pop_front().into_iter().chain(other.pop_front());
    std::iter::repeat_with(next)
        .map(Vec::from_iter)
        .take_while(|it| !it.is_empty())
        .flatten()
        .collect()
}

async fn resolve(target: &str) -> Result<Vec<SocketAddr>, DialError> {
    if let Ok(address) = target.parse() {
        return Ok(vec![address]);
    }
    let missing =
        || failed("unknown", format!("dial tcp: address {target}: missing port in address"));
    let (host, port) = target.rsplit_once(':').ok_or_else(missing)?;
    if host.contains(':') {
        let text = format!("dial tcp: address {target}: too many colons in address");
        return Err(failed("unknown", text));
    }
    let port: u16 = port
        .parse()
        .map_err(|_| failed("unknown", format!("dial tcp: address {port}: invalid port")))?;
    // An empty host means this host.
    let name = if host.is_empty() { "localhost" } else { host };
    match tokio::net::lookup_host((name, port)).await {
        Ok(addresses) => Ok(addresses.collect()),
        Err(error) => {
            tracing::debug!("lookup {host}: {error}");
            Err(failed("unknown", format!("dial tcp: lookup {host}: no such host")))
        }
    }
}

fn failed(reason: &'static str, text: String) -> DialError {
    DialError { reason, text }
}

fn cause_text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        io::ErrorKind::ConnectionReset => "connect: connection reset by peer".to_owned(),
        io::ErrorKind::TimedOut => "connect: connection timed out".to_owned(),
        io::ErrorKind::AddrNotAvailable => "connect: cannot assign requested address".to_owned(),
        io::ErrorKind::InvalidInput => "connect: invalid argument".to_owned(),
        _ if error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => {
            "socket: too many open files".to_owned()
        }
        _ => format!("connect: {}", error.to_string().to_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn error(target: &str) -> String {
        dial("tcp", target, None, Duration::from_secs(5)).await.unwrap_err().text
    }

    #[tokio::test]
    async fn rules_hold_for_each_address_of_a_name() {
        let folder = testkit::TempDir::new("dial");
        let path = folder.path().join("rules.yaml");
        std::fs::write(&path, "rules: [{tag: closed, local: 127.0.0.2, action: deny}]\n").unwrap();
        let rules = Rules::read(&path).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let [open, closed] =
            ["127.0.0.1:0", "127.0.0.2:0"].map(|at| std::net::TcpListener::bind(at).unwrap());
        let [open, closed] = [&open, &closed].map(|it| it.local_addr().unwrap());
        let dial = async |addresses: [SocketAddr; 2], rules| {
            connect("name:80", addresses.into(), rules).await
        };
        assert!(dial([free, closed], None).await.is_ok());
        assert!(dial([free, closed], Some(&rules)).await.is_err());
        let denied = dial([closed, free], Some(&rules)).await.unwrap_err();
        assert_eq!(denied.reason, "denied_by_rule");
        let reached = dial([closed, open], Some(&rules)).await.unwrap();
        assert_eq!(reached.peer_addr().unwrap(), open);
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_holds_up_no_other() {
        // A queue of one connection, which is full: the kernel answers no further one.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let full = socket.listen(0).unwrap();
        let dead = full.local_addr().unwrap();
        let _first = TcpStream::connect(dead).await.unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap();
        for addresses in [vec![dead, open], vec![dead, dead, open]] {
            let reached = connect("name:80", addresses, None);
            let reached = tokio::time::timeout(Duration::from_secs(20), reached).await;
            assert_eq!(reached.unwrap().unwrap().peer_addr().unwrap(), open);
        }
    }

    #[test]
    fn families_are_tried_in_turn() {
        let parse = |it: &str| it.parse::<SocketAddr>().unwrap();
        let six = ["[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8::3]:1"].map(parse);
        let four = ["192.0.2.1:1"].map(parse);
        let mixed = families_in_turn([&six[..], &four].concat());
        assert_eq!(mixed, [six[0], four[0], six[1], six[2]]);
        let mixed = families_in_turn([&four[..], &six].concat());
        assert_eq!(mixed, [four[0], six[0], six[1], six[2]]);
        assert_eq!(families_in_turn(Vec::new()), []);
    }

    #[tokio::test]
    async fn errors_are_worded_as_the_originals() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(
            error(&free.to_string()).await,
            format!("dial tcp {free}: connect: connection refused")
        );
        assert_eq!(error("nowhere").await, "dial tcp: address nowhere: missing port in address");
        assert_eq!(error("a:b:1").await, "dial tcp: address a:b:1: too many colons in address");
        assert_eq!(error("a:http").await, "dial tcp: address http: invalid port");
        assert_eq!(
            error("nobody.invalid:1").await,
            "dial tcp: lookup nobody.invalid: no such host"
        );
        let other = dial("udp", "127.0.0.1:1", None, Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(other.text, "dial udp: unknown network udp");
    }
}
