//! Session rules give the verdicts of the ACLs.

use std::net::IpAddr;

use crate::common::generate::{NAMESPACES, OTHERS, PODS, edits, pod_addresses};
use crate::common::{TCP, UDP, acl, apply};
use control::{Control, PodAcl, Scope};
use proptest::prelude::*;
use session_rules::{
    Action, Change, Connection, Installed, Scope as SessionScope, Table, Tags, Transport, changes,
};

fn everybody() -> Vec<IpAddr> {
    let pods = NAMESPACES
        .iter()
        .flat_map(|namespace| PODS.iter().flat_map(|name| pod_addresses(namespace, name, false)));
    pods.chain(OTHERS.map(str::to_owned)).map(|text| text.parse().unwrap()).collect()
}

/// Verdict of the stack; without any rule, it permits.
fn allowed(table: &Table, connection: &Connection) -> bool {
    table.lookup(connection).is_none_or(|rule| rule.action == Action::Allow)
}

fn agree(control: &Control, table: &Table) {
    let view = control.view();
    for (key, pod) in view.pods.iter() {
        for own in &pod.addresses {
            for peer in everybody() {
                for (protocol, transport) in [(TCP, Transport::Tcp), (UDP, Transport::Udp)] {
                    for port in [1, 53, 79, 80, 81, 8080] {
                        let opens = acl(&view, &pod.from_pod, *own, peer, protocol, port).0;
                        let connection = Connection {
                            scope: SessionScope::Local(key.to_string().into()),
                            transport,
                            local: (*own, 40_000),
                            remote: (peer, port),
                        };
                        assert_eq!(allowed(table, &connection), opens, "{connection:?}");
                        let accepts = acl(&view, &pod.to_pod, peer, *own, protocol, port).0;
                        let connection = Connection {
                            scope: SessionScope::Global,
                            transport,
                            local: (*own, port),
                            remote: (peer, 40_000),
                        };
                        assert_eq!(allowed(table, &connection), accepts, "{connection:?}");
                    }
                }
            }
        }
    }
    assert!(
        view.pods
            .values()
            .all(|pod| !matches!(&pod.to_pod, PodAcl::Table(_)) || !table.rules().is_empty())
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_most_specific_rule_says_what_the_first_match_says(history in edits(8..30)) {
        let mut control = Control::new(Scope::All);
        let mut installed = Installed::default();
        let mut tags = Tags::new("podgate-");
        for edits in history.chunks(6) {
            edits.iter().for_each(|edit| apply(&mut control, edit));
            control.commit();
            // A stack that is kept up to date by differences.
            let steps = changes(&installed.dump(), &control.session_rules(), &mut tags);
            let adds = steps.iter().skip_while(|step| matches!(step, Change::Delete(_)));
            prop_assert!(adds.clone().all(|step| matches!(step, Change::Add(_))));
            for step in steps {
                installed.apply(step).unwrap();
            }
            agree(&control, &Table::compile(installed.dump()));
        }
    }
}
