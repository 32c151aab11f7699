//! `podgate check` as a process, in network namespaces of its own (as root).

use std::process::Output;

use serde_json::Value;
use testkit::{Namespace, TempDir};

const PODGATE: &str = env!("CARGO_BIN_EXE_podgate");

fn check(namespace: &Namespace, arguments: &[&str]) -> (Option<i32>, Value) {
    let folder = TempDir::new("check-cni");
    let cni = folder.path().to_str().unwrap();
    let command = [&[PODGATE, "check", "-o", "json", "--cni-folder", cni], arguments].concat();
    let Output { status, stdout, stderr } = namespace.try_exec(command);
    let text = String::from_utf8_lossy(&stdout);
    let report = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&stderr)));
    (status.code(), report)
}

fn level(report: &Value, check: &str) -> String {
    let found = report["findings"].as_array().unwrap();
    let found = found.iter().find(|finding| finding["check"] == check);
    found.unwrap_or_else(|| panic!("{check}: {report}"))["level"].as_str().unwrap().to_owned()
}

fn config(text: &str) -> (TempDir, String) {
    let folder = TempDir::new("check-config");
    let path = folder.path().join("config.yaml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

#[test]
fn a_machine_that_runs_the_switch_is_good() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("nft"), "needs nft");
    let namespace = Namespace::new("check");
    let (code, report) = check(&namespace, &["--pods", "10"]);
    assert_eq!(code, Some(0), "{report}");
    for name in [
        "kernel",
        "kernel-faults",
        "capabilities",
        "af-xdp",
        "flow-offload",
        "nftables",
        "memlock",
        "memory",
        "ports",
    ] {
        assert_eq!(level(&report, name), "good", "{name}");
    }
    assert_eq!(report["modes"]["ports"], "native, copy");
    assert_eq!(report["modes"]["flow_offload"], true);
    let frames = report["memory"]["umem_bytes"].as_u64().unwrap() / 4096;
    assert!((16_384..=65_536).contains(&frames), "{report}");
    assert_eq!(report["memory"]["kernel_bytes_per_port"], frames * 133);
    let left = namespace.exec(["ip", "-brief", "link"]);
    assert_eq!(left.lines().count(), 1, "only lo: {left}");
}

#[test]
fn too_many_pods_are_a_warning_and_an_uplink_that_is_not_there_is_fatal() {
    testkit::requires_root!();
    let namespace = Namespace::new("check");
    let (_file, without) = config("flow-offload: off\n");
    let pods = |count: u32| {
        let (code, report) =
            check(&namespace, &["--pods", &count.to_string(), "--config", &without]);
        assert_eq!(report["modes"]["flow_offload"], false);
        (code, level(&report, "ports"), report["memory"]["total_bytes"].as_u64().unwrap())
    };
    let (code, ports, cost) = pods(1000);
    assert_eq!((code, ports.as_str()), (Some(1), "warning"));
    let (_, shared) = check(&namespace, &["--pods", "1000"]);
    assert!(shared["memory"]["total_bytes"].as_u64().unwrap() * 10 < cost, "{shared}");
    let (_folder, config) = config("uplink: pgnone0\n");
    let (code, report) = check(&namespace, &["--pods", "10", "--config", &config]);
    assert_eq!((code, level(&report, "uplink").as_str()), (Some(2), "fatal"));
}

#[test]
fn a_configuration_that_cannot_be_used_is_named() {
    testkit::requires_root!();
    let (_folder, config) = config("frames: 7\n");
    let command = std::process::Command::new(PODGATE).args(["check", "--config", &config]).output();
    let output = command.unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("config.yaml") && text.contains("frames"), "{text}");
}

#[test]
fn without_privileges_it_says_what_is_missing() {
    testkit::requires_root!();
    let namespace = Namespace::new("check");
    let command = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"];
    let output = namespace.try_exec([&command[..], &[PODGATE, "check"]].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("NET_ADMIN, NET_RAW, IPC_LOCK, BPF missing"), "{text}");
    assert!(text.contains("podgate cannot run here"), "{text}");
}

/// Runs `podgate` on a kernel that describes itself with these structures: its file is mounted
/// over.
fn on_kernel(namespace: &Namespace, structs: &[(&str, &[&str])], arguments: &[&str]) -> Output {
    let folder = TempDir::new("check-btf");
    let types = folder.path().join("vmlinux");
    std::fs::write(&types, testkit::btf(structs)).unwrap();
    let script = "mount --bind \"$0\" /sys/kernel/btf/vmlinux && exec \"$@\"";
    let shell = ["unshare", "--mount", "sh", "-c", script, types.to_str().unwrap(), PODGATE];
    namespace.try_exec([&shell, arguments].concat())
}

const PANICS: (&str, &[&str]) = ("xsk_addr_head", &["num_descs", "addrs_list"]);

#[test]
fn a_kernel_that_panics_is_refused_before_anything_is_attached() {
    testkit::requires_root!();
    let namespace = Namespace::new("panics");
    let folder = TempDir::new("panics");
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir(path("manifests")).unwrap();
    let (manifests, state, socket) = (path("manifests"), path("state"), path("socket"));
    let run = ["run", "--node-name", "n", "--manifests", &manifests, "--state-dir", &state];
    let run = [&run[..], &["--socket", &socket, "--listen", "127.0.0.1:0"]].concat();
    for arguments in [&run[..], &["check"], &["connectivity-test"]] {
        let output = on_kernel(&namespace, &[PANICS], arguments);
        let [stdout, stderr] =
            [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
        let text = format!("{stdout}{stderr}");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        for part in ["30f241fcf52a", "0ebc27a4c67d", "--enforcer nftables"] {
            assert!(text.contains(part), "{arguments:?}: {text}");
        }
    }
    assert!(!folder.path().join("state").exists(), "nothing is done");
    let left = namespace.exec(["ip", "-brief", "link"]);
    assert_eq!(left.lines().count(), 1, "only lo: {left}");
}

#[test]
fn the_other_enforcer_is_no_matter_of_such_a_kernel() {
    testkit::requires_root!();
    testkit::requires!(testkit::has_program("nft"), "needs nft");
    let namespace = Namespace::new("panics");
    let (folder, config) = config("enforcer: nftables\n");
    let cni = folder.path().to_str().unwrap();
    let arguments = ["check", "-o", "json", "--cni-folder", cni, "--config", &config];
    let output = on_kernel(&namespace, &[PANICS], &arguments);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert_eq!(level(&report, "kernel-faults"), "note", "{report}");
}
