//! The compiled table says what the definition says.

use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use session_rules::{Action, Connection, End, Ports, Rule, Scope, Table, Transport, linear};

fn end() -> impl Strategy<Value = End> {
    let nets = ["0.0.0.0/0", "10.0.0.0/8", "10.0.0.1/8", "10.0.0.1/32", "::/0", "fd00::1/128"];
    let net = proptest::option::of(select(nets.to_vec()));
    let ports = prop_oneof![
        Just(Ports::ANY),
        (0..4u16).prop_map(Ports::one),
        Just(Ports { first: 1, last: 2 }),
    ];
    (net, ports).prop_map(|(net, ports)| End { net: net.map(|it| it.parse().unwrap()), ports })
}

fn scope() -> impl Strategy<Value = Scope> {
    select(vec![Scope::Global, Scope::Local("x/a".into()), Scope::Local("x/b".into())])
}

fn transport() -> impl Strategy<Value = Transport> {
    select(vec![Transport::Tcp, Transport::Udp])
}

fn rule() -> impl Strategy<Value = Rule> {
    let action = select(vec![Action::Allow, Action::Deny, Action::DoNothing, Action::Redirect(1)]);
    (scope(), transport(), end(), end(), action).prop_map(
        |(scope, transport, local, remote, action)| Rule {
            scope,
            transport,
            local,
            remote,
            action,
            tag: "".into(),
        },
    )
}

fn connection() -> impl Strategy<Value = Connection> {
    let addresses = ["10.0.0.1", "10.0.0.2", "11.0.0.1", "fd00::1", "fd00::2"];
    let side = (select(addresses.to_vec()), 0..4u16)
        .prop_map(|(address, port)| (address.parse::<IpAddr>().unwrap(), port));
    (scope(), transport(), side.clone(), side).prop_map(|(scope, transport, local, remote)| {
        Connection { scope, transport, local, remote }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn compiled_equals_linear(rules in vec(rule(), 0..20), asked in vec(connection(), 1..40)) {
        let table = Table::compile(rules.clone());
        for connection in &asked {
            prop_assert_eq!(table.lookup(connection), linear::lookup(&rules, connection));
        }
    }
}
