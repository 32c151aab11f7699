//! The cross-platform interface: lines of `key=value` over a unix socket.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Changes, Error, State, WireGuardConfig, WireGuardKey, WireGuardPeerState};

/// Timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer that is read, in bytes.
const LONGEST: u64 = 16 << 20;
/// Times below this, of 2001, are taken for ages, as boringtun gives them.
const FIRST_TIME: Duration = Duration::from_secs(1_000_000_000);

pub(super) fn state(path: &Path) -> Result<State, Error> {
    let failed = |cause| Error::new(format!("ask {}", path.display()), cause);
    let answer = call(path, "get=1\n\n").map_err(failed)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    parse(&answer, now).map_err(failed)
}

pub(super) fn set(
    path: &Path,
    config: &WireGuardConfig,
    changes: &Changes<'_>,
) -> Result<(), Error> {
    let failed = |cause| Error::new(format!("configure {}", path.display()), cause);
    let request = |request: String| parse(&call(path, &request)?, Duration::ZERO).map(drop);
    requests(config, changes).into_iter().try_for_each(request).map_err(failed)
}

/// Returns the requests, one for each peer: boringtun applies fields of one peer to the next. A changed peer is removed
/// first, as not every program changes an existing one; so a change of the keepalive interval alone is not applied.
fn requests(config: &WireGuardConfig, changes: &Changes<'_>) -> Vec<String> {
    let mut requests = Vec::new();
    let mut add = |lines: String| requests.push(format!("set=1\n{lines}\n"));
    if changes.sets_key {
        add(format!("private_key={}\n", hex(&config.private_key)));
    }
    if changes.sets_port {
        add(format!("listen_port={}\n", config.port));
    }
    for key in &changes.removed {
        add(format!("public_key={}\nremove=true\n", hex(key)));
    }
    for peer in &changes.added {
        let allowed = peer.networks.iter().map(|network| format!("allowed_ip={network}\n"));
        let (key, allowed) = (hex(&peer.public_key), allowed.collect::<String>());
        let endpoint = peer.endpoint;
        let keepalive = match peer.keepalive {
            0 => String::new(),
            seconds => format!("persistent_keepalive_interval={seconds}\n"),
        };
        add(format!(
            "public_key={key}\nendpoint={endpoint}\n{keepalive}replace_allowed_ips=true\n{allowed}"
        ));
    }
    requests
}

fn call(path: &Path, request: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.take(LONGEST).read_to_string(&mut answer)?;
    Ok(answer)
}

fn parse(answer: &str, now: Duration) -> io::Result<State> {
    let invalid = |line: &str| io::Error::new(io::ErrorKind::InvalidData, format!("'{line}'"));
    let mut state = State::default();
    let mut errno = None;
    for line in answer.lines().filter(|line| !line.is_empty()) {
        let (key, value) = line.split_once('=').ok_or_else(|| invalid(line))?;
        let number = || value.parse::<u64>().map_err(|_| invalid(line));
        match (key, state.peers.last_mut()) {
            ("errno", _) => errno = Some(value.parse::<i32>().map_err(|_| invalid(line))?),
            // An extension of boringtun.
            ("own_public_key", None) => state.public_key = key_of(value),
            ("listen_port", None) => state.port = value.parse().ok(),
            ("public_key", _) => {
                let public_key = key_of(value).ok_or_else(|| invalid(line))?;
                state.peers.push(WireGuardPeerState { public_key, ..Default::default() });
            }
            ("endpoint", Some(peer)) => peer.endpoint = value.parse().ok(),
            ("allowed_ip", Some(peer)) => {
                peer.networks.insert(value.parse().map_err(|_| invalid(line))?);
            }
            ("persistent_keepalive_interval", Some(peer)) => {
                peer.keepalive = value.parse().map_err(|_| invalid(line))?;
            }
            ("last_handshake_time_sec", Some(peer)) => {
                let time = Duration::from_secs(number()?);
                let is_none = time.is_zero() && !answer.contains("own_public_key=");
                let age = if time < FIRST_TIME { time } else { now.saturating_sub(time) };
                peer.handshake_age = (!is_none).then_some(age);
            }
            ("rx_bytes", Some(peer)) => peer.received = number()?,
            ("tx_bytes", Some(peer)) => peer.sent = number()?,
            _ => {}
        }
    }
    match errno {
        Some(0) => Ok(state),
        Some(errno) => Err(io::Error::from_raw_os_error(errno.saturating_abs())),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn hex(key: &WireGuardKey) -> String {
    key.iter().fold(String::new(), |mut text, byte| {
        // As above.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn key_of(text: &str) -> Option<WireGuardKey> {
    let digits = |at| text.get(at..at + 2).and_then(|it| u8::from_str_radix(it, 16).ok());
    let bytes: Option<Vec<u8>> = (0..32).map(|n| digits(2 * n)).collect();
    bytes.filter(|_| text.len() == 64)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::super::WireGuardPeer;
    use super::*;

    #[test]
    fn an_answer_is_read() {
        let (key, other) = ("ab".repeat(32), "cd".repeat(32));
        let answer = format!(
            "private_key={key}\nlisten_port=51871\npublic_key={other}\nendpoint=[2001:db8::1]:7\n\
             allowed_ip=10.1.0.0/24\nallowed_ip=fd00::/64\npersistent_keepalive_interval=5\n\
             last_handshake_time_sec=1700000000\n\
             last_handshake_time_nsec=5\nrx_bytes=3\ntx_bytes=4\nprotocol_version=1\nerrno=0\n\n"
        );
        let state = parse(&answer, Duration::from_secs(1_700_000_007)).unwrap();
        assert_eq!((state.public_key, state.port), (None, Some(51871)));
        let networks = ["10.1.0.0/24", "fd00::/64"].map(|it| it.parse().unwrap());
        let peer = WireGuardPeerState {
            public_key: [0xcd; 32],
            endpoint: Some("[2001:db8::1]:7".parse().unwrap()),
            networks: networks.into(),
            keepalive: 5,
            handshake_age: Some(Duration::from_secs(7)),
            received: 3,
            sent: 4,
        };
        assert_eq!(state.peers, [peer]);
        for bad in ["", "public_key=abcd\nerrno=0\n", "nonsense\nerrno=0\n", "errno=98\n"] {
            assert!(parse(bad, Duration::ZERO).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_peer_is_removed_before_it_is_added() {
        let peer = WireGuardPeer {
            public_key: [2; 32],
            endpoint: "192.0.2.2:51871".parse().unwrap(),
            networks: ["10.2.0.0/24".parse().unwrap()].into(),
            keepalive: 5,
        };
        let config = WireGuardConfig {
            private_key: [1; 32],
            public_key: [3; 32],
            port: 51871,
            peers: vec![peer.clone()],
        };
        let changes = Changes {
            sets_key: true,
            sets_port: true,
            removed: vec![[2; 32]],
            added: vec![&peer],
            kept_alive: vec![&peer],
        };
        let (one, two) = ("01".repeat(32), "02".repeat(32));
        let wanted = [
            format!("set=1\nprivate_key={one}\n\n"),
            "set=1\nlisten_port=51871\n\n".to_owned(),
            format!("set=1\npublic_key={two}\nremove=true\n\n"),
            format!(
                "set=1\npublic_key={two}\nendpoint=192.0.2.2:51871\npersistent_keepalive_interval=5\n\
                 replace_allowed_ips=true\nallowed_ip=10.2.0.0/24\n\n"
            ),
        ];
        assert_eq!(requests(&config, &changes), wanted);
    }
}
