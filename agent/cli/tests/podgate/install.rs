//! `podgate install-cni` and `podgate status --wait` as processes, without a switch.

use std::os::unix::net::UnixListener;
use std::process::{Command, Output, Stdio};

use testkit::TempDir;

const PODGATE: &str = env!("CARGO_BIN_EXE_podgate");
const NOWHERE: &str = "/nonexistent/podgate.sock";

fn podgate(arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = Command::new(PODGATE).args(arguments).output().unwrap();
    let text = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (status.code(), text)
}

#[test]
fn the_plugin_is_put_in_place_without_a_switch() {
    let folder = TempDir::new("install");
    let plugin = folder.path().join("plugin");
    std::fs::write(&plugin, "a program").unwrap();
    let bin = folder.path().join("bin");
    let (plugin, bin_text) = (plugin.to_str().unwrap(), bin.to_str().unwrap());
    let arguments =
        ["install-cni", "--only", "plugin", "--plugin", plugin, "--plugin-folder", bin_text];
    let (code, text) = podgate(&arguments);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("podgate-cni is in place"), "{text}");
    assert_eq!(std::fs::read_to_string(bin.join("podgate-cni")).unwrap(), "a program");
}

#[test]
fn no_configuration_appears_before_the_switch_is_ready() {
    let folder = TempDir::new("install");
    let path = folder.path().to_str().unwrap();
    let (code, text) = podgate(&[
        "install-cni",
        "--only",
        "configuration",
        "--configuration-folder",
        path,
        "--socket",
        NOWHERE,
        "--timeout",
        "1s",
    ]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("podgate is not running"), "{text}");
    assert_eq!(std::fs::read_dir(path).unwrap().count(), 0);
}

#[test]
fn a_chain_with_bandwidth_is_refused_at_once() {
    let folder = TempDir::new("install");
    let template = folder.path().join("cni.conflist");
    let text = r#"{"cniVersion":"1.0.0","name":"n","plugins":[
        {"type":"podgate-cni","ipam":{"type":"host-local"}},{"type":"bandwidth"}]}"#;
    std::fs::write(&template, text).unwrap();
    let template = template.to_str().unwrap();
    let (code, text) = podgate(&["install-cni", "--template", template, "--socket", NOWHERE]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("cni.conflist") && text.contains("plugins[1].type: bandwidth"), "{text}");
}

#[test]
fn a_switch_is_waited_for_until_the_time_is_over() {
    let (code, text) = podgate(&["status", "--wait", "1s", "--socket", NOWHERE]);
    assert_eq!(code, Some(1), "{text}");
    // Asked again and again meanwhile.
    let folder = TempDir::new("wait");
    let socket = folder.path().join("podgate.sock");
    let mut command = Command::new(PODGATE);
    command.args(["status", "--wait", "1h", "--socket"]).arg(&socket);
    let mut waiting = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    (0..3).for_each(|_| drop(listener.accept().unwrap()));
    assert_eq!(waiting.try_wait().unwrap(), None);
    waiting.kill().unwrap();
    waiting.wait().unwrap();
}
