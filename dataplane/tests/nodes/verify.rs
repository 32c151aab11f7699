//! One of so many new connections is decided about again, by the definition of the rules.

use std::sync::Arc;

use acl::{Action, AddressMap, AddressMapBuilder, Block, End, PeerSetId, Rule, Table};
use dataplane::{AclBinding, Outcome, Parts};
use testkit::packet::tcp;

use crate::nodes::rig::{Rig, host, ip, pod};

/// A map in which the client, 10.1.0.2, is in one of these sets, and others in the other one.
fn map(client: u32, others: u32) -> Arc<AddressMap> {
    let mut builder = AddressMapBuilder::default();
    let block = |net: &str| [Block { net: net.parse().unwrap(), except: vec![] }];
    builder.add(PeerSetId(client), block("10.1.0.2/32"));
    builder.add(PeerSetId(others), block("10.1.0.128/25"));
    Arc::new(builder.build())
}

/// A server that lets set 1 in, behind a table that was compiled for one map, with another one.
fn parts(compiled_for: &Arc<AddressMap>, addresses: &Arc<AddressMap>, verify_every: u32) -> Parts {
    let rules = [Rule::new(Action::Permit, "set 1").source(End::Set(PeerSetId(1)))];
    let table = Table::compile(rules.into(), compiled_for);
    let mut ports =
        vec![pod("default/client", &["10.1.0.2"]), pod("default/server", &["10.1.0.3"]), host()];
    ports[1].as_mut().unwrap().to_pod = AclBinding::Table(Arc::new(table));
    Parts {
        generation: 7,
        ports,
        addresses: Arc::clone(addresses),
        node_addresses: vec![ip("192.0.2.1")],
        local_networks: vec!["10.1.0.0/24".parse().unwrap()],
        verify_every,
        ..Parts::default()
    }
}

/// The counts of decisions verified and contradicted, after ten new connections with this outcome.
fn counts(parts: Parts, outcome: Outcome) -> ([u64; 2], Option<String>) {
    let mut rig = Rig::new(parts);
    for port in 4000..4010 {
        let syn = tcp(&format!("10.1.0.2:{port}"), "10.1.0.3:80").syn().build();
        assert_eq!(rig.send(0, syn), outcome);
    }
    let counters = rig.counters();
    let last = counters.contradiction().map(|it| it.to_string());
    ([&counters.verified, &counters.contradicted].map(|it| it.value()), last)
}

#[test]
fn a_table_that_its_rules_contradict_is_counted() {
    let (right, other) = (map(1, 2), map(2, 1));
    let allowed = Outcome::PolicyAllowed;
    assert_eq!(counts(parts(&right, &right, 1), allowed), ([10, 0], None));
    assert_eq!(counts(parts(&right, &right, 3), allowed), ([3, 0], None));
    assert_eq!(counts(parts(&right, &right, 0), allowed), ([0, 0], None));
    // The identities of one map mean other sets in the table of another one.
    let (found, last) = counts(parts(&right, &other, 2), allowed);
    assert_eq!(found, [5, 5]);
    assert_eq!(
        last.as_deref(),
        Some(
            "10.1.0.2 port 4009 to 10.1.0.3 port 80, protocol 6: policy-allowed by the tables, \
             policy-denied by their rules (generation 7)"
        )
    );
    let (found, _) = counts(parts(&other, &right, 1), Outcome::PolicyDenied);
    assert_eq!(found, [10, 10], "a denial too");
}
