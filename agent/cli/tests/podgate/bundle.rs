//! `podgate bundle` as a process: what is in the archive, and that planted secrets are not.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::Command;

use testkit::TempDir;

const PODGATE: &str = env!("CARGO_BIN_EXE_podgate");

fn unpack(path: &std::path::Path) -> BTreeMap<String, String> {
    let file = std::fs::File::open(path).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let entry = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        Read::read_to_string(&mut entry, &mut text).unwrap();
        (name, text)
    };
    archive.entries().unwrap().map(entry).collect()
}

#[test]
fn planted_secrets_are_not_in_the_bundle() {
    let folder = TempDir::new("bundle");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let secrets = [
        "plantedtoken1",
        "plantedkey2",
        "plantedpass3",
        "plantedpem4",
        "plantedjwt5",
        "plantedline6",
        "plantedkey7",
    ];
    let kubeconfig = write(
        "kubeconfig",
        "users:\n- name: podgate\n  user:\n    token: plantedtoken1\n    client-key-data: plantedkey2\n",
    );
    let log = write(
        "podgate.log",
        "2026-11-26T07:51:13.366Z  INFO connecting to https://podgate:plantedpass3@api:6443\n\
         2026-11-26T07:51:13.366Z DEBUG eyJhbGciOiJSUzI1NiIsImtpZCI6Ik.plantedjwt5.c2lnbmF0dXJl\n\
         -----BEGIN EC PRIVATE KEY-----\nplantedpem4\n-----END EC PRIVATE KEY-----\n\
         2026-11-26T07:51:13.366Z  INFO ready\nplantedline6\n",
    );
    let config = write("config.yaml", "node-name: node-a\nlog-level: debug\n# plantedkey7\n");
    let key = write("wireguard.key", "plantedkey7\n");
    let bundle = folder.path().join("bundle.tar.gz");
    // A file that is there keeps no mode, and whoever has it open reads nothing.
    let opened = std::fs::File::create(&bundle).unwrap();
    let output = Command::new(PODGATE)
        .args([
            "bundle",
            "--config",
            &config,
            "--file",
            &kubeconfig,
            "--file",
            &log,
            "--file",
            &key,
            "--output",
        ])
        .arg(&bundle)
        .args(["--socket", "/nonexistent/podgate.sock"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files = unpack(&bundle);
    for (name, text) in &files {
        for secret in secrets {
            assert!(!text.contains(secret), "{name} holds {secret}");
        }
    }
    assert!(files["podgate/config.yaml"].contains("node-name: \"node-a\""));
    assert!(files["podgate/files/1-podgate.log"].contains("INFO ready"));
    assert!(files["podgate/files/0-kubeconfig"].contains("\"name\": \"podgate\""));
    assert!(files["podgate/errors.txt"].contains("status.json: podgate is not running"));
    assert!(
        files["podgate/check.json"].contains("\"findings\""),
        "{}",
        files["podgate/check.json"]
    );
    let mode = std::os::unix::fs::PermissionsExt::mode(&bundle.metadata().unwrap().permissions());
    assert_eq!((mode & 0o777, opened.metadata().unwrap().len()), (0o600, 0));
}
