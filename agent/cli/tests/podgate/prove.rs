//! `podgate policy prove` from the outside.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use testkit::TempDir;

const SHOP: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: 5432}]
  - from: [{namespaceSelector: {matchLabels: {team: ops}}}]
    ports: [{port: 22}]
";

fn podgate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_podgate")).args(arguments).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The output of statements about the shop.
fn prove(folder: &Path, statements: &str, more: &[&str]) -> Output {
    let (manifests, file) = (folder.join("shop.yaml"), folder.join("invariants.yaml"));
    fs::write(&manifests, SHOP).expect("a file");
    fs::write(&file, statements).expect("a file");
    let [manifests, file] = [manifests, file].map(|it| it.display().to_string());
    let fixed = ["policy", "prove", "--manifests", &manifests, &file];
    podgate(&[&fixed[..], more].concat())
}

fn lines(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn statements_hold_or_are_refuted_by_a_pod_that_is_in_no_file() {
    let folder = TempDir::new("prove");
    let statements = "
- {name: reads, only: [shop/app=web], to: shop/app=db, protocol: TCP, port: 5432}
- {name: web, from: shop/app=web, to: shop/app=db, protocol: TCP, port: 5432, expect: allow}
- {name: udp, from: any-pod, to: shop/app=db, protocol: UDP, port: '*', expect: deny}
- {name: outside, from: internet, to: shop/app=db, port: '*', expect: deny}
";
    let output = prove(folder.path(), statements, &["-o", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(lines(&output).iter().all(|line| line["proved"] == true));

    let statements = "
- {name: all, only: [shop/app=web], to: shop/app=db, protocol: TCP, port: '*'}
- {name: back, from: shop/app=db, to: any-pod, protocol: TCP, port: 80, expect: deny}
";
    let output = prove(folder.path(), statements, &["-o", "json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let found = lines(&output);
    assert_eq!(found[0]["proved"], false);
    let example = &found[0]["counterexample"];
    assert_eq!(example["from"], "any pod of any namespace with team=ops (none in these files)");
    assert_eq!(example["to"], "any pod with app=db of namespace shop (none in these files)");
    assert_eq!((&example["protocol"], &example["port"]), (&"TCP".into(), &22.into()));
    assert_eq!(example["by"], serde_json::json!(["NetworkPolicy shop/db ingress[1]"]));
    assert_eq!(found[1]["proved"], false);
}

#[test]
fn replay_plays_what_is_kept_with_the_same_verdict() {
    let folder = TempDir::new("prove-write");
    let statements = "
- {from: any-pod, to: shop/app=db, protocol: TCP, port: '*', expect: deny}
- {from: any-pod, to: shop/app=db, protocol: TCP, port: 5432, expect: allow}
- {from: internet, to: shop/app=db, protocol: TCP, port: 5432, expect: allow}
- {from: shop/app=db, to: internet, protocol: UDP, port: 53, expect: deny}
";
    let kept = folder.path().join("kept");
    let output =
        prove(folder.path(), statements, &["-o", "json", "--write", &kept.display().to_string()]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    for (n, (line, verdict)) in
        lines(&output).iter().zip(["forward", "drop", "drop", "forward"]).enumerate()
    {
        let kept = kept.join((n + 1).to_string());
        let path = |name: &str| kept.join(name).display().to_string();
        let (manifests, packet) = (path("manifests.yaml"), path("packet.pcapng"));
        let output = podgate(&[
            "replay",
            "--manifests",
            &manifests,
            "--node",
            "node",
            "--pcap",
            &packet,
            "-o",
            "json",
        ]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let played = &lines(&output)[0];
        assert_eq!(played["verdict"], verdict, "{line} {played}");
        assert_eq!(played["by"], line["counterexample"]["by"], "{line} {played}");
    }
}

#[test]
fn replay_plays_both_connections_over_a_pod() {
    let folder = TempDir::new("prove-hops");
    let statement = "- {from: internet, to: shop/app=db, port: 5432, hops: 2, expect: deny}";
    let kept = folder.path().join("kept");
    let output =
        prove(folder.path(), statement, &["-o", "json", "--write", &kept.display().to_string()]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let found = lines(&output).remove(0);
    let example = &found["counterexample"];
    assert_eq!(example["from"], "203.0.113.9");
    assert_eq!(example["by"], serde_json::json!(["NetworkPolicy shop/db ingress[0]"]));
    assert_eq!(example["via"][0]["by"], serde_json::json!(["default-allow"]));
    let path = |name: &str| kept.join("1").join(name).display().to_string();
    let (manifests, packets) = (path("manifests.yaml"), path("packet.pcapng"));
    let fixed = ["replay", "--node", "node", "-o", "json", "--manifests", &manifests];
    let output = podgate(&[&fixed[..], &["--pcap", &packets]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let played = lines(&output);
    assert_eq!(played[0]["verdict"], "forward", "{played:?}");
    assert_eq!(played[1]["verdict"], "forward", "{played:?}");
    assert_eq!(played[1]["by"], example["by"]);
    assert_eq!(played[0]["out"], played[1]["in"], "the first one ends where the second begins");
}

#[test]
fn what_cannot_be_used_is_named() {
    let folder = TempDir::new("prove-unusable");
    let statements = "
- {from: any-pod, to: shop/app=db, port: 80, expect: deny, ports: 1}
- {only: [any-pod], from: internet, to: shop/app=db, port: 80}
- {from: any-pod, to: shop/app=db, expect: maybe}
";
    let output = prove(folder.path(), statements, &[]);
    assert_eq!(output.status.code(), Some(2));
    let errors = text(&output.stderr);
    for part in [
        "invariants.yaml: statement 1 (line 2): ports: unknown field",
        "statement 2 (line 3): from: a statement has either from or only",
        "statement 3 (line 4): expect: \"maybe\" is neither",
        "statement 3 (line 4): port: is missing",
    ] {
        assert!(errors.contains(part), "{part} is missing in: {errors}");
    }
    assert_eq!(prove(folder.path(), "[]", &[]).status.code(), Some(2));
}

#[test]
fn forms_for_other_tools() {
    let folder = TempDir::new("prove-forms");
    let statements = "- {name: ssh, from: any-pod, to: shop/app=db, port: 22, expect: deny}";
    let form = |form: &str| text(&prove(folder.path(), statements, &["-o", form]).stdout);
    let log: Value = serde_json::from_str(&form("sarif")).expect("JSON");
    let result = &log["runs"][0]["results"][0];
    assert_eq!(result["ruleId"], "refuted");
    assert_eq!(result["locations"][0]["physicalLocation"]["region"]["startLine"], 1);
    assert!(form("junit").contains("<testsuites tests=\"1\" failures=\"1\">"));
    assert!(form("github").starts_with("::error file="));
    assert!(form("text").contains("REFUTED  ssh"));
}
