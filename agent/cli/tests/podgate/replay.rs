//! `podgate replay` from the outside: what it writes, prints and refuses.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use dataplane::capture::{Reader, Record};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use pcap_fixtures::Fixture;
use testkit::TempDir;

fn fixture(name: &str) -> Fixture {
    let mut all = Fixture::all().expect("fixtures are complete");
    all.retain(|fixture| fixture.name == name);
    all.pop().expect("the fixture is there")
}

fn podgate(fixture: &Fixture, capture: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_podgate"));
    command.arg("replay").arg("--manifests").arg(&fixture.manifests);
    command.args(["--node", &fixture.node]).arg("--pcap").arg(capture);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn refused(output: &Output, code: i32, parts: &[&str]) {
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{errors}");
    for part in parts {
        assert!(errors.contains(part), "{part:?} is missing in: {errors}");
    }
}

/// The expected lines.
fn lines(fixture: &Fixture) -> impl Iterator<Item = serde_json::Value> {
    fixture.expected.lines().map(|line| serde_json::from_str(line).expect("JSON"))
}

fn records(path: &Path) -> Vec<Record> {
    let records: Result<_, _> = Reader::open(path).expect("a capture").collect();
    records.expect("a whole capture")
}

#[test]
fn what_left_is_kept() {
    let folder = TempDir::new("replay-write");
    let out = folder.path().join("out.pcapng");
    let fixture = fixture("redis-policy");
    let output = podgate(&fixture, &fixture.capture).arg("--write").arg(&out).output();
    assert!(output.expect("the binary runs").status.success());

    let came = records(&fixture.capture);
    let left = records(&out);
    let forwarded: Vec<(usize, String)> = lines(&fixture)
        .filter(|line| line["verdict"] == "forward")
        .map(|line| (line["n"].as_u64().unwrap() as usize, line["out"].as_str().unwrap().into()))
        .collect();
    assert_eq!(left.len(), forwarded.len());
    for (record, (n, port)) in left.iter().zip(forwarded) {
        assert_eq!((record.interface.as_deref(), record.time), (Some(&*port), came[n - 1].time));
        assert_eq!(record.data[6..12], dataplane::SWITCH_MAC, "the switch is the sender");
        let packet = SlicedPacket::from_ethernet(&record.data).expect("a packet");
        let Some(NetSlice::Ipv4(ip)) = packet.net else { panic!("IPv4 went in") };
        let header = ip.header();
        assert_eq!(header.ttl(), 63, "the switch is a hop");
        assert_eq!(header.to_header().calc_header_checksum(), header.header_checksum());
        let Some(TransportSlice::Tcp(tcp)) = packet.transport else { panic!("TCP went in") };
        let sum = tcp.calc_checksum_ipv4(header.source(), header.destination());
        assert_eq!(sum.expect("short"), tcp.checksum());
    }
}

/// The pod sees its own port, the client the service's address.
#[test]
fn both_ends_of_a_connection_to_a_service_see_what_they_should() {
    let folder = TempDir::new("replay-services");
    let out = folder.path().join("out.pcapng");
    let fixture = fixture("services");
    let output = podgate(&fixture, &fixture.capture).arg("--write").arg(&out).output();
    assert!(output.expect("the binary runs").status.success());
    let seen = |record: &Record| {
        let flow = dataplane::wire::parse(&record.data).expect("a packet").flow;
        let at = |address: acl::Address, port| format!("{}:{port}", address.to_ip());
        let ends = (at(flow.source, flow.source_port), at(flow.destination, flow.destination_port));
        format!("{} {} > {}", record.interface.as_deref().unwrap_or_default(), ends.0, ends.1)
    };
    let left = records(&out);
    assert_eq!(seen(&left[0]), "default/web 10.1.1.200:40000 > 10.1.1.201:8080");
    assert_eq!(seen(&left[1]), "default/client 10.96.0.10:80 > 10.1.1.200:40000");
    let told: Vec<String> = left.iter().map(seen).collect();
    for line in [
        // A pod that reaches itself, and is answered.
        "default/web 10.96.0.10:40000 > 10.1.1.201:8080",
        "default/web 10.96.0.10:80 > 10.1.1.201:40000",
        // Nobody is there: a reset in the service's name.
        "default/client 10.96.0.12:80 > 10.1.1.200:40002",
    ] {
        assert!(told.iter().any(|it| it == line), "{line} is not among {told:#?}");
    }
}

#[test]
fn answers_of_the_switch_leave_where_the_question_came_from() {
    let folder = TempDir::new("replay-answers");
    let out = folder.path().join("out.pcapng");
    let fixture = fixture("arp-nd");
    let output = podgate(&fixture, &fixture.capture).arg("--write").arg(&out).output();
    assert!(output.expect("the binary runs").status.success());
    let left = records(&out);
    let asked: Vec<String> = lines(&fixture)
        .filter(|line| line["reason"] == "arp-reply" || line["reason"] == "nd-reply")
        .map(|line| line["in"].as_str().expect("a name").to_string())
        .collect();
    assert!(
        left.iter()
            .map(|record| record.interface.as_deref())
            .eq(asked.iter().map(|port| Some(&**port)))
    );
    let reply = &left[0].data;
    assert_eq!(reply[20..22], [0, 2], "an ARP reply");
    assert_eq!(reply[28..32], [10, 1, 1, 1], "for the gateway");
    assert_eq!(reply[22..28], dataplane::SWITCH_MAC);
}

#[test]
fn text_has_a_line_for_each_packet_and_the_counts() {
    let fixture = fixture("redis-policy");
    let output = podgate(&fixture, &fixture.capture).output().expect("the binary runs");
    let lines = text(&output.stdout);
    let first = lines.lines().next().expect("a line");
    for part in ["default/frontend", "10.1.1.10:6379", "drop", "default/db-allow"] {
        assert!(first.contains(part), "{part:?} is missing in: {first}");
    }
    assert!(lines.contains("\n23 packets: 18 forwarded, 5 dropped, 0 consumed\n"), "{lines}");
}

#[test]
fn a_trace_tells_what_each_node_decided() {
    let fixture = fixture("redis-policy");
    let with = |more: &[&str]| {
        let output = podgate(&fixture, &fixture.capture).args(more).output();
        text(&output.expect("the binary runs").stdout)
    };
    let traced = with(&["--trace", "-o", "json"]);
    let mut untraced = String::new();
    for line in traced.lines() {
        let mut value: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let Some(trace) = value.as_object_mut().unwrap().remove("trace") else { continue };
        let trace = trace.as_array().expect("a list of nodes");
        assert_eq!(trace[0]["node"], "parse");
        assert_eq!(trace.last().unwrap()["outcome"], value["reason"], "{line}");
        // The rest is what it is without.
        let wanted = lines(&fixture).find(|line| line["n"] == value["n"]).expect("a line");
        assert_eq!(value, wanted);
        untraced += line;
    }
    assert_eq!(untraced.matches("\"trace\"").count(), 23, "every packet is followed");
    let text = with(&["--trace"]);
    for part in ["    parse          TCP 10.1.1.11:", "default/db ingress: rule ", "    session  "]
    {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

#[test]
fn the_pace_does_not_change_the_verdicts() {
    let fixture = fixture("redis-policy");
    let with = |more: &[&str]| {
        podgate(&fixture, &fixture.capture).args(more).output().expect("the binary runs").stdout
    };
    assert_eq!(with(&["-o", "json", "--speed", "real"]), with(&["-o", "json", "--speed", "max"]));
}

#[test]
fn captures_come_through_standard_input_as_well() {
    let fixture = fixture("redis-policy");
    let mut child = podgate(&fixture, Path::new("-"))
        .args(["-o", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let capture = fs::read(&fixture.capture).expect("a file");
    child.stdin.take().expect("piped").write_all(&capture).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(text(&output.stdout), fixture.expected);
}

#[test]
fn a_cut_capture_gives_the_whole_packets_and_the_offset() {
    let folder = TempDir::new("replay-cut");
    let fixture = fixture("redis-policy");
    let cut = folder.path().join("cut.pcapng");
    let whole = fs::read(&fixture.capture).expect("a file");
    let end = records(&fixture.capture)[3].offset;
    fs::write(&cut, &whole[..end as usize + 9]).expect("room");
    let output = podgate(&fixture, &cut).args(["-o", "json"]).output().expect("the binary runs");
    refused(&output, 2, &["cut.pcapng", &format!("offset {end}"), "cut"]);
    let lines = text(&output.stdout);
    assert_eq!(lines.lines().count(), 4, "three packets and the summary: {lines}");
    assert_eq!(lines.lines().nth(2), fixture.expected.lines().nth(2));
    assert!(lines.contains(r#"{"summary":{"packets":3,"#), "{lines}");
}

#[test]
fn what_cannot_be_used_is_named() {
    let folder = TempDir::new("replay-refused");
    let fixture = fixture("redis-policy");
    let run = |command: &mut Command| command.output().expect("the binary runs");

    let mut elsewhere = fixture.clone();
    elsewhere.node = "node9".into();
    let output = run(&mut podgate(&elsewhere, &fixture.capture));
    refused(&output, 2, &["'node9'", "node1, node2"]);

    // Without Node objects, nodes are known by their pods.
    let text = std::fs::read_to_string(fixture.manifests.join("cluster.yaml")).unwrap();
    let documents = text.split("---\n").filter(|document| !document.contains("kind: Node\n"));
    let mut pods_only = fixture.clone();
    pods_only.manifests = folder.path().join("pods.yaml");
    std::fs::write(&pods_only.manifests, documents.collect::<Vec<_>>().join("---\n")).unwrap();
    assert!(run(&mut podgate(&pods_only, &fixture.capture)).status.success());
    pods_only.node = "node9".into();
    refused(&run(&mut podgate(&pods_only, &fixture.capture)), 2, &["'node9'", "node1"]);

    let no_capture = fixture.manifests.join("cluster.yaml");
    let output = run(&mut podgate(&fixture, &no_capture));
    refused(&output, 2, &["cluster.yaml", "offset 0", "not a capture"]);
    let output = run(&mut podgate(&fixture, Path::new("/nonexistent.pcap")));
    refused(&output, 2, &["/nonexistent.pcap", "No such file"]);

    let mut broken = fixture.clone();
    broken.manifests = folder.path().to_path_buf();
    let policy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
                  metadata: {name: odd}\nspec: {podSelector: 7}\n";
    fs::write(folder.path().join("odd.yaml"), policy).expect("room");
    let output = run(&mut podgate(&broken, &fixture.capture));
    refused(&output, 2, &["odd.yaml", "podSelector"]);
    assert!(output.stdout.is_empty(), "nothing is replayed");

    let copy = folder.path().join("copy.pcapng");
    fs::copy(&fixture.capture, &copy).expect("room");
    let output = run(podgate(&fixture, &copy).arg("--write").arg(&copy));
    refused(&output, 2, &["copy.pcapng", "being replayed"]);
    assert_eq!(records(&copy).len(), 23, "it is untouched");

    let nowhere: PathBuf = folder.path().join("missing/out.pcapng");
    let output = run(podgate(&fixture, &fixture.capture).arg("--write").arg(nowhere));
    refused(&output, 1, &["missing/out.pcapng", "No such file"]);
}
