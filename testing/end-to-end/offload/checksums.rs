//! Translated packets have correct checksums, and partial ones can still be completed.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::Process;

use super::{ON, bytes, iperf3};
use crate::cluster_node::PATIENCE;
use crate::pod::Pod;
use crate::{ClusterNode, requires_the_machine};

/// Looks at packets that reach the pod as its kernel gets them, until SIGTERM: a finished checksum must be
/// right, an unfinished one the sum of the pseudo header (which is what hardware starts from).
const VERIFY: &str = r"
import signal, socket, struct
ALL, PACKET, AUXDATA, NOT_READY, OUTGOING = 3, 263, 8, 8, 4
raw = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ALL))
raw.setsockopt(PACKET, AUXDATA, 1)
raw.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
raw.bind(('eth0', ALL))
raw.settimeout(0.2)
def fold(data):
    if len(data) % 2:
        data += b'\0'
    total = sum(struct.unpack('!%dH' % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return total
over = []
signal.signal(signal.SIGTERM, lambda *_: over.append(True))
print('looking', flush=True)
counts = dict(right=0, unfinished=0, wrong=0, longest=0)
# A slow machine does not look at all of them.
while not (over and counts['right'] + counts['unfinished'] > 1000):
    try:
        data, extra, _, (_, ethertype, kind, _, _) = raw.recvmsg(70000, 100)
    except TimeoutError:
        if over:
            break
        continue
    if kind == OUTGOING or ethertype not in (0x800, 0x86dd):
        continue
    if ethertype == 0x800:
        data = data[:struct.unpack('!H', data[2:4])[0]]
        protocol, rest, ends = data[9], data[(data[0] & 15) * 4:], data[12:20]
        if fold(data[:(data[0] & 15) * 4]) != 0xffff:
            counts['wrong'] += 1
    else:
        protocol, rest, ends = data[6], data[40:40 + struct.unpack('!H', data[4:6])[0]], data[8:40]
    if protocol not in (6, 17):
        continue
    at = 16 if protocol == 6 else 6
    pseudo = fold(ends + struct.pack('!II', len(rest), protocol))
    status = struct.unpack('I', extra[0][2][:4])[0]
    field = struct.unpack('!H', rest[at:at + 2])[0]
    counts['longest'] = max(counts['longest'], len(rest))
    if status & NOT_READY:
        counts['unfinished' if field == pseudo else 'wrong'] += 1
    elif protocol == 17 and field == 0 and ethertype == 0x800:
        counts['right'] += 1
    else:
        counts['right' if fold(struct.pack('!H', pseudo) + rest) == 0xffff else 'wrong'] += 1
import json
print(json.dumps(counts), flush=True)
";

/// Starts to look at what a pod gets.
pub(super) fn look(pod: &Pod<'_>) -> Process {
    let look = pod.namespace.spawn(["python3", "-c", VERIFY]);
    look.wait_for_line("looking", PATIENCE);
    look
}

/// Ends `look`, and returns its counts.
pub(super) fn counts_of(look: &Process) -> Value {
    let id = Pid::from_raw(look.id().cast_signed()).unwrap();
    kill_process(id, Signal::TERM).unwrap();
    serde_json::from_str(&look.wait_for_line("{", PATIENCE)).unwrap()
}

#[test]
fn checksums_of_translated_packets_are_right_or_finishable() {
    requires_the_machine!("iperf3", "python3");
    let node = ClusterNode::start(&ON);
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    for (n, (service, backend)) in
        [("10.96.0.10", server.v4()), ("fd60::10", server.v6())].into_iter().enumerate()
    {
        let ports = json!([{"name": "tcp", "port": 5201},
            {"name": "udp", "port": 5201, "protocol": "UDP"}]);
        let metadata = json!({"name": format!("web{n}"), "namespace": "default",
            "labels": {"kubernetes.io/service-name": format!("web{n}")}});
        let family = if backend.is_ipv4() { "IPv4" } else { "IPv6" };
        let both = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Service", "metadata": metadata,
                "spec": {"clusterIP": service, "clusterIPs": [service], "ports": ports}},
            {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
                "addressType": family, "ports": ports,
                "endpoints": [{"addresses": [backend], "conditions": {"ready": true}}]}]});
        node.apply(&format!("service{n}"), &both.to_string());
        for (options, is_cut) in [(&["-b", "200M"][..], true), (&["-u", "-b", "20M"], false)] {
            // The answers are translated too: they are looked at in the client.
            for pod in [&server, &client] {
                let look = look(pod);
                let before = bytes(&node);
                let received = iperf3(&client, &server, service.parse().unwrap(), options);
                assert!((bytes(&node) - before) as f64 > received / 2.0, "by the kernel");
                let counts = counts_of(&look);
                let of = |what: &str| counts[what].as_u64().unwrap();
                assert_eq!(of("wrong"), 0, "{service} {options:?} at {}: {counts}", pod.name);
                assert!(of("right") + of("unfinished") > 10, "{counts}");
                if std::ptr::eq(pod, &server) {
                    assert!(of("unfinished") > 100, "senders leave checksums: {counts}");
                    assert_eq!(of("longest") > 2000, is_cut, "and long packets uncut: {counts}");
                }
            }
        }
    }
}
