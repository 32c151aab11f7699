//! Any bytes as a file of session rules.

use konnectivity::rules::parse;
use session_rules::{Connection, Table, Transport, linear};

/// Reads them, and compares the compiled table with the linear search at the ends of each rule.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(rules) = parse(text) else { return };
    assert_eq!(parse(text).as_ref(), Ok(&rules), "a text has one meaning");
    let table = Table::compile(rules.clone());
    for rule in rules.iter().take(16) {
        let address = |net: Option<ipnet::IpNet>| {
            net.map_or_else(|| "192.0.2.1".parse().expect("an address"), |net| net.addr())
        };
        for port in [rule.local.ports.first, rule.local.ports.last, 1] {
            let connection = Connection {
                scope: rule.scope.clone(),
                transport: Transport::Tcp,
                local: (address(rule.local.net), port),
                remote: (address(rule.remote.net), 1),
            };
            assert_eq!(table.lookup(&connection), linear::lookup(&rules, &connection));
        }
    }
}
