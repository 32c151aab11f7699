//! The kernel's own traffic on an uplink while switches come, go and are killed.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use dataplane::port::af_xdp::UplinkFilter;
use testkit::{Namespace, Process};

use crate::af_xdp::pair::{End, PATIENCE, Pair, words};

/// A node's interface `pod0` with an address, and a neighbour outside.
struct Rig {
    node: Namespace,
    outside: Namespace,
}

const OVERLAY: u16 = 4789;
/// Tells the test's own program, started a second time, to be the switch.
const BE_THE_SWITCH: &str = "PODGATE_TEST_HOLD_UPLINK";

impl Rig {
    fn new(label: &str, queues: usize) -> Self {
        let Pair { switch: node, pod: outside } = Pair::new(label);
        if queues > 1 {
            let ends = format!("numtxqueues {queues} numrxqueues {queues}");
            node.exec(words("ip link delete pod0"));
            node.exec(words(&format!(
                "ip link add pod0 {ends} type veth peer name eth0 netns {} {ends}",
                outside.name()
            )));
            node.exec(words("ip link set pod0 up"));
            outside.exec(words("ip link set eth0 up"));
        }
        node.exec(words("ip address add 192.0.2.1/24 dev pod0"));
        outside.exec(words("ip address add 192.0.2.2/24 dev eth0"));
        Self { node, outside }
    }

    /// A connection to a server of the kernel's that says everything twice.
    fn connect(&self) -> TcpStream {
        let server = self.node.enter(|| TcpListener::bind("192.0.2.1:22").unwrap());
        std::thread::spawn(move || {
            let (mut connection, _) = server.accept().unwrap();
            let mut bytes = [0; 1024];
            while let Ok(count @ 1..) = connection.read(&mut bytes) {
                if connection.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
        });
        let stream = self.outside.enter(|| TcpStream::connect("192.0.2.1:22").unwrap());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A socket outside whose datagrams go to the node's overlay.
    fn overlay(&self) -> UdpSocket {
        let socket = self.outside.enter(|| UdpSocket::bind("192.0.2.2:0").unwrap());
        socket.connect(("192.0.2.1", OVERLAY)).unwrap();
        socket
    }

    fn start_switch(&self, test: &str) -> Process {
        let own = std::env::current_exe().unwrap();
        let mut command = self.node.command([own.as_os_str(), test.as_ref(), "--exact".as_ref()]);
        let switch = Process::spawn(command.arg("--nocapture").env(BE_THE_SWITCH, "1"));
        switch.wait_for_line("the uplink is open", PATIENCE);
        switch
    }
}

fn filter() -> UplinkFilter {
    UplinkFilter {
        vxlan_port: Some(OVERLAY),
        node_addresses: ["192.0.2.1".parse().unwrap()].into(),
        ..UplinkFilter::default()
    }
}

#[track_caller]
fn goes_on(connection: &mut TcpStream) {
    for n in 0..50_u8 {
        let mut answer = [0; 100];
        connection.write_all(&[n; 100]).unwrap();
        connection.read_exact(&mut answer).expect("the connection goes on");
        assert_eq!(answer, [n; 100]);
    }
}

/// Serves the uplink until killed, and tells what it takes.
fn be_the_switch() -> ! {
    let (mut end, mut uplink) = End::open_uplink_here("pod0");
    uplink.set(&filter()).unwrap();
    println!("the uplink is open");
    loop {
        let bytes = end.wait_bytes_for_ever();
        println!("took {}", String::from_utf8_lossy(&bytes[42..]));
    }
}

#[test]
fn connections_of_the_kernel_go_on_while_switches_start_and_are_killed() {
    testkit::requires_root!();
    if std::env::var_os(BE_THE_SWITCH).is_some() {
        be_the_switch();
    }
    let itself =
        "af_xdp::uplink::connections_of_the_kernel_go_on_while_switches_start_and_are_killed";
    let rig = Rig::new("uplink", 1);
    let mut connection = rig.connect();
    let overlay = rig.overlay();
    // Somebody in the kernel who gets what the switch does not take.
    let kernel = rig.node.enter(|| UdpSocket::bind(("192.0.2.1", OVERLAY)).unwrap());
    kernel.set_read_timeout(Some(PATIENCE)).unwrap();
    let kernel_gets = |text: &str| {
        let mut bytes = [0; 100];
        let count = kernel.recv(&mut bytes).expect("the datagram reaches the kernel");
        assert_eq!(&bytes[..count], text.as_bytes());
    };
    goes_on(&mut connection);
    overlay.send(b"before").unwrap();
    kernel_gets("before");
    for round in 0..3 {
        let mut switch = rig.start_switch(itself);
        goes_on(&mut connection);
        overlay.send(format!("during {round}").as_bytes()).unwrap();
        switch.wait_for_line(&format!("took during {round}"), PATIENCE);
        goes_on(&mut connection);
        switch.kill();
        overlay.send(format!("after {round}").as_bytes()).unwrap();
        goes_on(&mut connection);
    }
    // What is the switch's never reached the kernel, which would only have refused it.
    rig.node.exec(words("ip link set pod0 xdp off"));
    overlay.send(b"at last").unwrap();
    kernel_gets("at last");
}

#[test]
fn an_orderly_end_takes_the_program_off() {
    testkit::requires_root!();
    let rig = Rig::new("orderly", 1);
    let mut connection = rig.connect();
    let (mut end, mut uplink) = End::open_uplink(&rig.node, "pod0");
    uplink.set(&filter()).unwrap();
    assert_eq!(uplink.mode().to_string(), "native, copy");
    let is_attached =
        || rig.node.exec(words("ip link show pod0")).lines().any(|line| line.contains("xdp"));
    assert!(is_attached());
    goes_on(&mut connection);
    rig.node.enter(|| uplink.detach().unwrap());
    assert!(!is_attached());
    end.close();
    goes_on(&mut connection);
}

/// It is loaded once: later the process may not load any.
#[test]
fn an_uplink_that_is_opened_again_has_the_program_of_before_and_no_filter() {
    testkit::requires_root!();
    let rig = Rig::new("again", 1);
    let overlay = rig.overlay();
    let kernel = rig.node.enter(|| UdpSocket::bind(("192.0.2.1", OVERLAY)).unwrap());
    kernel.set_read_timeout(Some(PATIENCE)).unwrap();
    let program = || {
        let text = rig.node.exec(words("ip -details link show pod0"));
        text.split_once("prog/xdp id ").unwrap().1.split(' ').next().unwrap().to_owned()
    };
    let (mut end, mut uplink) = End::open_uplink(&rig.node, "pod0");
    let first = program();
    for round in ["one", "two"] {
        overlay.send(round.as_bytes()).unwrap();
        let mut bytes = [0; 100];
        let count = kernel.recv(&mut bytes).expect("without a filter the kernel gets it");
        assert_eq!(&bytes[..count], round.as_bytes());
        uplink.set(&filter()).unwrap();
        overlay.send(b"for the switch").unwrap();
        assert_eq!(end.wait_bytes()[42..], *b"for the switch");
        drop(uplink);
        uplink = end.reopen_uplink(&rig.node, "pod0");
        assert_eq!(program(), first);
    }
}

/// As a driver does that was reset: the program redirects, and nothing arrives.
#[test]
fn an_uplink_whose_packets_go_astray_is_to_be_opened_again() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("bpftool"), "needs bpftool");
    let rig = Rig::new("astray", 1);
    let overlay = rig.overlay();
    let (mut end, mut uplink) = End::open_uplink(&rig.node, "pod0");
    uplink.set(&filter()).unwrap();
    let look = |end: &mut End| {
        overlay.send(b"x").unwrap();
        testkit::transit(Duration::from_millis(20));
        end.try_look()
    };
    for _ in 0..30 {
        look(&mut end).unwrap();
        assert_eq!(end.wait_bytes()[42..], *b"x");
    }
    let link = rig.node.exec(words("ip -details link show pod0"));
    let program = link.split_once("prog/xdp id ").unwrap().1.split(' ').next().unwrap();
    let maps = rig.node.exec(["bpftool", "-j", "prog", "show", "id", program]);
    let maps = maps.split_once("\"map_ids\":[").unwrap().1.split(']').next().unwrap();
    let is_of_sockets =
        |id: &&str| rig.node.exec(["bpftool", "map", "show", "id", id]).contains("xskmap");
    let sockets = maps.split(',').find(is_of_sockets).unwrap();
    let key = words("key 0 0 0 0");
    let delete = ["bpftool", "map", "delete", "id", sockets].map(str::to_owned);
    rig.node.exec(delete.into_iter().chain(key));
    let why = (0..100).find_map(|_| look(&mut end).err()).expect("a reason to open it again");
    assert!(why.to_string().contains("interface pod0: packets that the XDP program"), "{why}");
    drop(uplink);
    let mut uplink = end.reopen_uplink(&rig.node, "pod0");
    uplink.set(&filter()).unwrap();
    overlay.send(b"again").unwrap();
    assert_eq!(end.wait_bytes()[42..], *b"again");
}

#[test]
fn every_queue_is_served() {
    testkit::requires_root!();
    let rig = Rig::new("queues", 4);
    let (mut end, mut uplink) = End::open_uplink(&rig.node, "pod0");
    uplink.set(&filter()).unwrap();
    all_flows_arrive(&rig, &mut end);
    // And where it is all the switch's.
    let rig = Rig::new("queues", 4);
    rig.outside.exec(words("ip neigh add 192.0.2.1 lladdr 02:00:00:00:00:01 dev eth0"));
    all_flows_arrive(&rig, &mut End::open(&rig.node, "pod0"));
}

fn all_flows_arrive(rig: &Rig, end: &mut End) {
    let mut expected = Vec::new();
    let mut taken = Vec::new();
    // Their ports lead the flows to one or the other queue.
    for n in 0..64 {
        let text = format!("flow {n:02}");
        rig.overlay().send(text.as_bytes()).unwrap();
        expected.push(text.into_bytes());
        // Beside what the kernel says by itself.
        let mut frames = std::iter::repeat_with(|| end.wait_bytes());
        let frame = frames.find(|frame| frame.get(42..46) == Some(b"flow")).unwrap();
        taken.push(frame[42..].to_vec());
    }
    assert_eq!(taken, expected);
    let queues = rig.node.exec(["sh", "-c", "ls -d /sys/class/net/pod0/queues/rx-* | wc -l"]);
    assert_eq!(queues.trim(), "4");
}

#[test]
fn a_program_of_somebody_else_is_left_alone() {
    testkit::requires_root!();
    let rig = Rig::new("foreign", 1);
    let other = testkit::TempDir::new("foreign");
    let (source, object) = (other.path().join("other.c"), other.path().join("other.o"));
    std::fs::write(
        &source,
        "__attribute__((section(\"xdp\"), used)) int somebodys(void *context) { return 2; }",
    )
    .unwrap();
    let compiled = std::process::Command::new("clang")
        .args(["-target", "bpf", "-O2", "-c"])
        .arg(&source)
        .arg("-o")
        .arg(&object)
        .status();
    assert!(compiled.unwrap().success());
    let object = object.to_string_lossy();
    rig.node.exec(words(&format!("ip link set pod0 xdp object {object} section xdp")));
    let error = rig.node.enter(|| End::refused_uplink("pod0"));
    assert!(error.contains("pod0") && error.contains("another program"), "{error}");
    assert!(rig.node.exec(words("ip link show pod0")).contains("xdp"));
}
