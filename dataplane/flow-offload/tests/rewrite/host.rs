//! Packets of the node's own kernel.

use std::time::Duration;

use flow_offload::{Hook, Kernel, Outcome};
use testkit::packet;

use super::ALWAYS;
use super::case::{Case, LOOPBACK, Path, of_case, sessions};

/// A packet without an entry that counts goes on to the switch as it is.
#[test]
fn the_kernels_packets_go_to_the_switch_without_an_entry() {
    testkit::requires_root!();
    let kernel = Kernel::load(16).unwrap();
    for v4 in [true, false] {
        let case = Case { path: Path::FromHost, ..Case::plain(v4) };
        let (key, entry) = of_case(&case, &case.snapshot(), &sessions());
        let frame = case.frame();
        let run = |frame: &[u8]| kernel.run(Hook::Host, LOOPBACK, frame, None).unwrap();
        let passes = |what: &str, frame: &[u8]| {
            let before = kernel.counters();
            assert_eq!(run(frame), Outcome::Passed, "{what}");
            let after = kernel.counters();
            let left = |counters: &flow_offload::Counters| -> u64 {
                counters.punted.iter().map(|(_, count)| count).sum()
            };
            assert_eq!(left(&after), left(&before) + 1, "{what}");
            assert_eq!(after.packets, before.packets, "{what}");
        };
        kernel.beat(ALWAYS).unwrap();
        passes("without an entry", &frame);
        kernel.put_flows(&[key], &[entry]);
        let forwards = || assert!(matches!(run(&frame), Outcome::Redirected(_)));
        forwards();
        passes("another MAC address", &packet::patch(frame.clone(), 11, &[0x77]));
        passes("another connection", &Case { ports: (4001, 80), ..case.clone() }.frame());
        passes("ARP", &packet::arp_request("10.1.0.1", "10.1.0.2").build());
        for guard in entry.guards.into_iter().filter(|guard| *guard != 0) {
            kernel.set_generation(guard, 1).unwrap();
            passes("a new generation", &frame);
            kernel.set_generation(guard, 0).unwrap();
            forwards();
        }
        kernel.beat(Duration::from_nanos(1)).unwrap();
        passes("an old heartbeat", &frame);
        // An entry for packets of a pod is none for those of the kernel.
        kernel.beat(ALWAYS).unwrap();
        kernel.remove_flow(&key).unwrap();
        let of_pod = Case { path: Path::Local, ..case.clone() };
        let (key, entry) = of_case(&of_pod, &of_pod.snapshot(), &sessions());
        kernel.put_flows(&[key], &[entry]);
        passes("a pod's entry", &frame);
        kernel.remove_flow(&key).unwrap();
    }
}
