//! Shares of the punt link.

use dataplane::PortId;
use dataplane::wire::Mac;
use flow_offload::layout::PuntedPort;
use flow_offload::{Hook, Kernel, Outcome};
use testkit::{Namespace, packet};

const POD: Mac = [2, 0, 0, 0, 0, 1];
/// Frames that a queue has room for.
const ROOM: usize = 2048;

/// Of each tenant's pods, however many.
#[test]
fn however_many_pods_flood_the_next_one_finds_room() {
    testkit::requires_root!();
    for flooding in [1_u16, 4, 6, 20] {
        let namespace = Namespace::new("shares");
        let index = |n: u16| 100 + u32::from(n);
        for n in 0..=flooding {
            let add = format!("ip link add pod{n} index {} type veth peer name far{n}", index(n));
            namespace.exec(add.split(' '));
            namespace.exec(format!("ip link set pod{n} up").split(' '));
        }
        namespace.enter(|| {
            let kernel = Kernel::load(1).unwrap();
            kernel.set_punt(index(0)).unwrap();
            for n in 0..=flooding {
                let tag = [6, 1, 0, 1, 0, n as u8];
                let port = PuntedPort { ifindex: index(n), tag, mac: POD, queue: 0 };
                kernel.enter_port(PortId(n), &port).unwrap();
            }
            let frame = packet::udp("10.1.0.2:1", "10.1.0.1:2").payload(b"x").from_mac(POD).build();
            let goes = |n: u16| match kernel.run(Hook::Pod, index(n), &frame, None).unwrap() {
                Outcome::Redirected(_) => true,
                Outcome::Dropped => false,
                other => panic!("{other:?}"),
            };
            // By turns, as many processors would.
            let mut on_link = vec![0_usize; usize::from(flooding) + 1];
            for _ in 0..600 {
                for n in 1..=flooding {
                    on_link[usize::from(n)] += usize::from(goes(n));
                }
            }
            assert!(on_link.iter().all(|it| *it <= 512), "{on_link:?}");
            let all: usize = on_link.iter().sum();
            // A pod that has nothing on the link.
            let quiet = (0..16).filter(|_| goes(0)).count();
            assert_eq!(quiet, 16, "{flooding} flood");
            assert!(all + quiet <= ROOM, "{flooding} flood: {all}");
        });
    }
}
