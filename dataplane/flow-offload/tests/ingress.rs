//! Programs are the first at their interfaces, beside what others have there.

use dataplane::PortId;
use flow_offload::Kernel;
use flow_offload::layout::PuntedPort;
use testkit::Namespace;

const INTERFACE: &str = "pod";

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(' ')
}

/// A namespace with an interface, and the number of that.
fn with_interface() -> (Namespace, u32) {
    let namespace = Namespace::new("ingress");
    namespace.exec(words(&format!("ip link add {INTERFACE} type veth peer name other")));
    let index = namespace.exec(words(&format!("cat /sys/class/net/{INTERFACE}/ifindex")));
    (namespace, index.trim().parse().unwrap())
}

/// The output of `tc` about the ingress of the interface.
fn filters(namespace: &Namespace) -> String {
    namespace.exec(words(&format!("tc filter show dev {INTERFACE} ingress")))
}

fn add(kernel: &Kernel, index: u32) {
    kernel.add_port(PortId(1), &PuntedPort { ifindex: index, ..PuntedPort::default() }).unwrap();
}

#[test]
fn the_program_of_the_next_process_takes_the_place_of_the_last_ones() {
    testkit::requires_root!();
    let (namespace, index) = with_interface();
    namespace.enter(|| {
        let last = Kernel::load(1).unwrap();
        assert!(!last.is_guarded(index));
        add(&last, index);
        assert!(last.is_guarded(index));
        let next = Kernel::load(1).unwrap();
        add(&next, index);
        assert!(next.is_guarded(index) && !last.is_guarded(index));
        assert_eq!(filters(&namespace).matches("podgate:from_pod").count(), 1);
        drop((last, next));
        // Without a process it stays.
        assert!(filters(&namespace).contains("podgate:from_pod"));
        Kernel::release(index);
        let qdiscs = namespace.exec(words(&format!("tc qdisc show dev {INTERFACE}")));
        assert!(!qdiscs.contains("clsact"), "{qdiscs}");
    });
}

/// More than are replaced with one call, among them one without a discipline, one that another program guards, and
/// one that is gone.
#[test]
fn the_programs_of_many_interfaces_are_replaced() {
    testkit::requires_root!();
    const COUNT: u32 = 150;
    let namespace = Namespace::new("many");
    for n in 0..COUNT {
        namespace.exec(words(&format!(
            "ip link add pod{n} index {} type veth peer name far{n}",
            1000 + n
        )));
    }
    let all: Vec<u32> = (0..COUNT).map(|n| 1000 + n).collect();
    namespace.enter(|| {
        let last = Kernel::load(1).unwrap();
        assert!(last.attach_all(&all).iter().all(Result::is_ok), "none has a discipline yet");
        assert!(all.iter().all(|index| last.is_guarded(*index)));
        namespace.exec(words("tc qdisc del dev pod7 clsact"));
        namespace.exec(words("tc filter del dev pod8 ingress"));
        namespace.exec(words("tc filter add dev pod8 ingress pref 1 u32 match u32 0 0"));
        namespace.exec(words("ip link del pod9"));
        let next = Kernel::load(1).unwrap();
        for (index, attached) in all.iter().zip(next.attach_all(&all)) {
            assert_eq!(attached.is_ok(), *index != 1009, "{index}: {attached:?}");
            assert_eq!(next.is_guarded(*index), *index != 1009, "{index}");
            assert!(!last.is_guarded(*index), "{index}");
        }
        assert!(next.attach_all(&[]).is_empty());
    });
}

#[test]
fn a_discipline_without_an_egress_gets_no_filter_of_the_egress() {
    testkit::requires_root!();
    let (namespace, index) = with_interface();
    namespace.enter(|| {
        let kernel = Kernel::load(1).unwrap();
        namespace.exec(words(&format!("tc qdisc add dev {INTERFACE} ingress")));
        let error = kernel.set_host(index).unwrap_err().to_string();
        assert!(error.contains("without an egress"), "{error}");
        assert!(!filters(&namespace).contains("podgate"), "{}", filters(&namespace));
        namespace.exec(words(&format!("tc qdisc del dev {INTERFACE} ingress")));
        kernel.set_host(index).unwrap();
        assert!(!filters(&namespace).contains("podgate"), "{}", filters(&namespace));
    });
}

#[test]
fn a_filter_that_is_taken_off_is_missed() {
    testkit::requires_root!();
    let (namespace, index) = with_interface();
    namespace.enter(|| {
        let kernel = Kernel::load(1).unwrap();
        for loss in ["tc filter del dev pod ingress", "tc qdisc del dev pod clsact"] {
            add(&kernel, index);
            assert!(kernel.is_guarded(index));
            namespace.exec(words(loss));
            assert!(!kernel.is_guarded(index), "{loss}");
        }
    });
}

#[test]
fn programs_and_filters_of_others_stand_behind() {
    testkit::requires_root!();
    let (namespace, index) = with_interface();
    namespace.enter(|| {
        let first = Kernel::load(1).unwrap();
        add(&first, index);
        namespace.exec(words("tc filter add dev pod ingress pref 2 u32 match u32 0 0"));
        assert!(first.is_guarded(index), "{}", filters(&namespace));
        Kernel::release(index);
        assert!(filters(&namespace).contains("u32"), "others' filters stay");
        // A filter of another kind has the first priority: tcx runs before it.
        namespace.exec(words("tc filter add dev pod ingress pref 1 u32 match u32 0 0"));
        add(&first, index);
        assert!(first.is_guarded(index) && !filters(&namespace).contains("podgate"));
        // Where one is by tcx, so is the next.
        namespace.exec(words("tc qdisc del dev pod clsact"));
        let next = Kernel::load(1).unwrap();
        add(&next, index);
        assert!(next.is_guarded(index) && !first.is_guarded(index));
        assert!(!filters(&namespace).contains("podgate"));
    });
}

#[test]
fn the_program_of_the_host_port_stands_at_its_egress_beside_others() {
    testkit::requires_root!();
    let (namespace, index) = with_interface();
    let shown = || namespace.exec(words("tc filter show dev pod egress"));
    namespace.enter(|| {
        let last = Kernel::load(1).unwrap();
        last.set_host(index).unwrap();
        assert_eq!(shown().matches("podgate:from_host").count(), 1);
        namespace.exec(words("tc filter add dev pod egress pref 2 u32 match u32 0 0"));
        let next = Kernel::load(1).unwrap();
        next.set_host(index).unwrap();
        next.set_host(index).unwrap();
        assert_eq!(shown().matches("podgate:from_host").count(), 1, "{}", shown());
        Kernel::release_host(index);
        assert!(shown().contains("u32") && !shown().contains("podgate"), "{}", shown());
    });
}

/// A program in front of it that passes everything on to the kernel would take the switch's
/// packets.
#[test]
fn the_program_of_the_uplink_goes_in_front_of_others() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("clang"), "clang is not installed");
    let (namespace, index) = with_interface();
    let link = namespace.exec(words("cat /sys/class/net/other/ifindex")).trim().parse().unwrap();
    let folder = testkit::TempDir::new("passes");
    std::fs::write(
        folder.path().join("ok.c"),
        "__attribute__((section(\"tc\"))) int ok(void *packet) { return 0; }\n",
    )
    .unwrap();
    let other = "set -e; cd $0; clang -O2 -target bpf -c ok.c -o ok.o
        tc filter add dev pod ingress pref 1 handle 1 bpf da obj ok.o sec tc";
    namespace.enter(|| {
        let kernel = Kernel::load(1).unwrap();
        let steer = || {
            kernel.set_uplink(index, link).unwrap();
            kernel.steer_uplink().unwrap();
        };
        steer();
        assert!(kernel.is_uplink_guarded());
        namespace.exec(["sh", "-c", other, folder.path().to_str().unwrap()]);
        assert!(!kernel.is_uplink_guarded(), "{}", filters(&namespace));
        steer();
        assert!(kernel.is_uplink_guarded(), "{}", filters(&namespace));
    });
}

/// The address moved to a bridge, say, and the switch starts again there.
#[test]
fn the_program_at_a_former_uplink_goes() {
    testkit::requires_root!();
    let (namespace, index) = with_interface();
    let link = namespace.exec(words("cat /sys/class/net/other/ifindex")).trim().parse().unwrap();
    namespace.enter(|| {
        let kernel = Kernel::load(1).unwrap();
        add(&kernel, index);
        assert!(!Kernel::release_former_uplink(index), "a pod's");
        assert!(kernel.is_guarded(index));
        Kernel::release(index);
        for by_tcx in [false, true] {
            if by_tcx {
                namespace.exec(words("tc qdisc add dev pod clsact"));
                namespace.exec(words("tc filter add dev pod ingress pref 1 u32 match u32 0 0"));
            }
            kernel.set_uplink(index, link).unwrap();
            kernel.steer_uplink().unwrap();
            flow_offload::recognize_programs([index]);
            assert!(Kernel::release_former_uplink(index), "{}", filters(&namespace));
            assert!(!kernel.is_uplink_guarded());
            assert!(!Kernel::release_former_uplink(index), "it is gone");
        }
    });
}

/// A filter of a chain that Podgate does not use, so the kernel finds no such filter to delete.
#[test]
fn a_filter_that_the_kernel_keeps_keeps_no_other() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("clang"), "clang is not installed");
    let (namespace, index) = with_interface();
    let folder = testkit::TempDir::new("odd");
    std::fs::write(
        folder.path().join("odd.c"),
        "__attribute__((section(\"tc\"))) int odd(void *packet) { return 0; }\n",
    )
    .unwrap();
    let odd = "set -e; cd $0; clang -O2 -target bpf -c odd.c -o podgate:odd
        tc qdisc add dev pod clsact
        tc filter add dev pod egress chain 5 pref 1 bpf da obj podgate:odd sec tc";
    namespace.exec(["sh", "-c", odd, folder.path().to_str().unwrap()]);
    let shown = || namespace.exec(words("tc filter show dev pod egress"));
    namespace.enter(|| {
        let kernel = Kernel::load(1).unwrap();
        kernel.set_host(index).unwrap();
        let names = shown();
        assert!(names.find("podgate:odd") < names.find("podgate:from_host"), "{names}");
        Kernel::release_host(index);
        let names = shown();
        assert!(names.contains("podgate:odd") && !names.contains("podgate:from_host"), "{names}");
    });
}
