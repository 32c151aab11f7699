//! Memory of an idle switch.

use std::fs;
use std::time::Duration;

use testkit::{Namespace, TempDir};

/// For a start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a packet buffer.
const FRAME: u64 = 4096;

/// Bytes in memory, those of files apart, of a switch that has just started.
fn memory(flow_offload: &str) -> u64 {
    let (node, folder) = (Namespace::new("memory"), TempDir::new("memory"));
    let path = |name: &str| folder.path().join(name).display().to_string();
    let manifest = "apiVersion: v1\nkind: Node\nmetadata: {name: n}\n";
    fs::write(folder.path().join("node.yaml"), manifest).unwrap();
    let (manifests, state, socket) = (path("node.yaml"), path("state"), path("socket"));
    let options = [
        ["--node-name", "n"],
        ["--manifests", &manifests],
        ["--state-dir", &state],
        ["--socket", &socket],
        ["--listen", "127.0.0.1:0"],
        ["--hugepages", "off"],
        ["--flow-offload", flow_offload],
    ];
    let command = [env!("CARGO_BIN_EXE_podgate"), "run"].into_iter().chain(options.concat());
    let switch = node.spawn(command);
    switch.wait_for_line("local API at ", PATIENCE);
    let status = fs::read_to_string(format!("/proc/{}/status", switch.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn an_idle_switch_keeps_few_packet_buffers_where_one_link_serves_all_pods() {
    testkit::requires_root!();
    let cores = std::thread::available_parallelism().unwrap().get() as u64;
    let frames = 16_384.max(512 * cores).min(65_536);
    let [with, without] = ["on", "off"].map(memory);
    // 120 MB on up to 32 cores.
    assert!(with <= frames * FRAME + 53_000_000, "{with}");
    assert!(without >= 65_536 * FRAME, "{without}");
}
