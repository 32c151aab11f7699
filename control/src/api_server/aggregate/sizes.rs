//! Bytes that a change of a pod takes in the log when many come together.

use std::sync::Arc;

use super::objects::Written;
use super::publisher::{About, Publisher};
use super::text::{Entry, Place};
use crate::PodKey;
use crate::model::{ContainerPort, Pod, PodPorts, Protocol};

/// Pods that come in a second, and as many that go.
const RATE: usize = 1_000;
/// Objects of the log in a second.
const OBJECTS: usize = 2;
/// Bytes of a watch event around the `spec` of an object of the log, measured at an API server (docs/scale.md).
const ENVELOPE: usize = 311;

/// A pod of a Deployment of ten, as a controller names it.
fn pod(n: usize) -> Pod {
    let (app, hash) = (n / 10, format!("{:010x}", n / 10 * 7919));
    let labels = [("app", format!("app-{app}")), ("pod-template-hash", hash.clone())];
    let port =
        |name: &str, number| ContainerPort { name: name.into(), protocol: Protocol::Tcp, number };
    let named = [port("http", 8080), port("metrics", 9090)];
    Pod {
        key: PodKey {
            namespace: format!("ns-{}", n / 100).into(),
            name: format!("app-{app}-{hash}-{:05x}", n * 7919 % 0xfffff).into(),
        },
        uid: Some(format!("6b1c1d9a-0f00-4000-8000-{:012x}", n * 7919).as_str().into()),
        labels: Arc::new(labels.into_iter().collect()),
        node: Some(format!("node-{:05}", n * 31 % 5000).into()),
        addresses: vec![[10, 64 + (n >> 16) as u8, (n >> 8) as u8, n as u8].into()].into(),
        host_network: false,
        finished: false,
        is_static: false,
        is_terminating: false,
        created: 1_767_225_600 + n as u32,
        ports: Arc::new(PodPorts { named: named.into(), ..PodPorts::default() }),
        complete: true,
    }
}

/// Writes the pages that are due.
fn write_pages(publisher: &mut Publisher) {
    while let Some(plan) = publisher.next_pages() {
        publisher.paged(&plan);
    }
}

/// Bytes of the log's objects until nothing waits.
fn log(publisher: &mut Publisher) -> usize {
    let mut bytes = 0;
    while publisher.has_pending() {
        write_pages(publisher);
        let Written { spec, .. } = publisher.next_log(&About::default()).unwrap();
        bytes += ENVELOPE + serde_json::to_string(&spec).unwrap().len();
    }
    bytes
}

#[test]
fn among_a_thousand_pods_a_second_a_change_takes_150_bytes_at_most() {
    let mut publisher = Publisher::default();
    publisher.adopt(Vec::new());
    let set = |publisher: &mut Publisher, pod: &Pod, is_there: bool| {
        let entry = Entry::of(pod).filter(|_| is_there);
        publisher.set(Place::of(pod.key.clone()), entry);
    };
    (0..4 * RATE).for_each(|n| set(&mut publisher, &pod(n), true));
    write_pages(&mut publisher);
    let (mut bytes, mut changes) = (0, 0);
    for n in 0..4 * RATE {
        set(&mut publisher, &pod(n), false);
        set(&mut publisher, &pod(4 * RATE + n), true);
        changes += 2;
        if n % (RATE / OBJECTS) == 0 {
            bytes += log(&mut publisher);
        }
    }
    bytes += log(&mut publisher);
    let of_one = bytes / changes;
    assert!((50..=150).contains(&of_one), "{of_one} bytes");
}
