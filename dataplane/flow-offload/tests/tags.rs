//! A frame that the switch sends into the punt link reaches the pod that its tag names, and no other.

use std::time::Duration;

use dataplane::PortId;
use dataplane::wire::Mac;
use flow_offload::Kernel;
use flow_offload::layout::{PuntedPort, Reason};
use testkit::{Namespace, RawReceiver, RawSender, packet};

const POD: Mac = [2, 0, 0, 0, 0, 1];
const TAG: Mac = [6, 1, 0, 1, 0, 1];
/// Time in which a frame arrives; a busy machine takes longer.
const TRANSIT: Duration = Duration::from_millis(50);

/// Not even for the switch to decide: on the punt link it would have lost its tag.
#[test]
fn a_frame_of_a_vlan_goes_nowhere() {
    testkit::requires_root!();
    let (node, pod) = (Namespace::new("vlan"), Namespace::new("vlan-pod"));
    let script = format!(
        "set -e; ip link add pod type veth peer name eth0 netns {} address 02:00:00:00:00:01; \
         ip link add punt type veth peer name punted; \
         for it in pod punt punted; do \
           sysctl -qw net.ipv6.conf.$it.disable_ipv6=1; ip link set $it up; done",
        pod.name()
    );
    node.exec(["sh", "-c", &script]);
    pod.exec(["sh", "-c", "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1; ip link set eth0 up"]);
    let index = |name: &str| -> u32 {
        let path = format!("/sys/class/net/{name}/ifindex");
        node.exec(["cat", &path]).trim().parse().unwrap()
    };
    let sender = pod.enter(|| RawSender::open("eth0").unwrap());
    let (received, kernel) =
        node.enter(|| (RawReceiver::open("punted").unwrap(), Kernel::load(1).unwrap()));
    let port = PuntedPort { ifindex: index("pod"), tag: TAG, mac: POD, queue: 0 };
    node.enter(|| {
        kernel.set_punt(index("punt")).unwrap();
        kernel.add_port(PortId(1), &port).unwrap();
    });
    let reason = |name: &str| Reason::all().find(|it| it.name() == name).unwrap();
    let arrived = |tags: &[u16]| {
        let mut frame = packet::udp("10.1.0.2:1", "10.1.0.1:2").payload(b"x").from_mac(POD);
        for tag in tags {
            frame = frame.vlan(*tag);
        }
        sender.send(&frame.build()).unwrap();
        testkit::transit(TRANSIT);
        std::iter::from_fn(|| received.receive().unwrap()).count()
    };
    for (tags, refused) in [(&[7][..], 1), (&[7, 0], 1), (&[7, 9], 1), (&[], 0), (&[0], 0)] {
        let before = kernel.counters().of(reason("vlan"));
        let frames = arrived(tags);
        assert_eq!(kernel.counters().of(reason("vlan")) - before, refused, "{tags:?}");
        assert_eq!(frames == 0, refused == 1, "{tags:?}");
    }
}

#[test]
fn a_tag_leads_to_the_port_that_has_it_now() {
    testkit::requires_root!();
    let (node, pod) = (Namespace::new("tags"), Namespace::new("tags-pod"));
    let script = format!(
        "set -e; ip link add pod type veth peer name eth0 netns {} address 02:00:00:00:00:01; \
         ip link add punt type veth peer name punted; \
         for it in pod punt punted; do \
           sysctl -qw net.ipv6.conf.$it.disable_ipv6=1; ip link set $it up; done",
        pod.name()
    );
    node.exec(["sh", "-c", &script]);
    pod.exec(["sh", "-c", "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1; ip link set eth0 up"]);
    let index = |name: &str| -> u32 {
        let path = format!("/sys/class/net/{name}/ifindex");
        node.exec(["cat", &path]).trim().parse().unwrap()
    };
    let received = pod.enter(|| RawReceiver::open("eth0").unwrap());
    let (switch, kernel) =
        node.enter(|| (RawSender::open("punted").unwrap(), Kernel::load(1).unwrap()));
    node.enter(|| kernel.set_punt(index("punt")).unwrap());
    let add = |tag: Mac| {
        let port = PuntedPort { ifindex: index("pod"), tag, mac: POD, queue: 0 };
        node.enter(|| kernel.add_port(PortId(1), &port).unwrap());
    };
    let reaches = |tag: Mac| {
        let frame = |mac| packet::udp("10.1.0.1:1", "10.1.0.2:2").payload(b"x").to_mac(mac).build();
        let before = kernel.counters().no_port;
        switch.send(&frame(tag)).unwrap();
        testkit::transit(TRANSIT);
        let frames: Vec<_> = std::iter::from_fn(|| received.receive().unwrap()).collect();
        let arrived = frames.contains(&frame(POD));
        assert_eq!(kernel.counters().no_port - before, u64::from(!arrived), "{tag:?}");
        assert!(arrived || frames.is_empty(), "{frames:?}");
        arrived
    };
    add(TAG);
    assert!(reaches(TAG));
    for byte in 0..TAG.len() {
        let mut other = TAG;
        other[byte] ^= 1;
        assert!(!reaches(other), "{other:?}");
    }
    // The next port of that number.
    let next = [6, 1, 0, 2, 0, 1];
    add(next);
    assert!(reaches(next) && !reaches(TAG));
    kernel.remove_port(PortId(1));
    assert!(!reaches(next) && !reaches([0; 6]));
}
