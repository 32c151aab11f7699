//! Observability: HTTP, verdicts, tables, status.

use std::collections::BTreeSet;

use agent::config::{Config, Options};
use agent::run::Status;
use local_api::{AnyOf, ObserveFilters, Request, Show, TraceAdd, Verdict};
use observe::trace::Line;
use observe::verdicts::Event;
use serde_json::json;
use testkit::packet;

use crate::node::{Node, NodeFiles, POLICY, cluster, remote_pod, until};
use crate::{API, DB, WEB, syn};

#[test]
fn what_others_ask_over_http() {
    let files = NodeFiles::new("http");
    files.manifest("cluster.yaml", &cluster(&["db", "web"]));
    let node = Node::start(&files);
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    web.send(&syn(WEB, DB, 80));
    db.expects(&syn(WEB, DB, 80), DB);
    assert_eq!(node.http("GET /healthz HTTP/1.1"), (200, "ok\n".to_owned()));
    assert_eq!(node.http("GET /readyz HTTP/1.1"), (200, "ok\n".to_owned()));
    assert_eq!(node.http("GET /nothing HTTP/1.1").0, 404);
    assert_eq!(node.http("POST /metrics HTTP/1.1").0, 405);
    assert_eq!(node.http("HEAD /metrics HTTP/1.1"), (200, String::new()));
    assert_eq!(node.http("\u{1}\u{2}").0, 400);
    assert_eq!(node.http(&format!("GET /{} HTTP/1.1", "x".repeat(10_000))).0, 431);
    // A worker counts what it sent after it sent it.
    let sent = "podgate_port_sent_packets_total{interface=\"pg-db\",namespace=\"default\",\
                pod=\"db\",port=\"default/db\"} 1\n";
    until(|| node.http("GET /metrics HTTP/1.1").1.contains(sent));
    let (code, page) = node.http("GET /metrics HTTP/1.1");
    assert_eq!(code, 200);
    for expected in [
        "podgate_packets_total{reason=\"policy-allowed\",verdict=\"forward\"} 1\n",
        "podgate_packets_total{reason=\"policy-denied\",verdict=\"drop\"} 0\n",
        "podgate_port_received_packets_total{interface=\"pg-web\",namespace=\"default\",\
         pod=\"web\",port=\"default/web\"} 1\n",
        "podgate_sessions 1\n",
        "podgate_ports_lost_total 0\n",
        "podgate_objects{kind=\"Pod\"} 2\n",
        "podgate_ready 1\n",
        "podgate_attach_duration_seconds_count{result=\"ok\"} 2\n",
    ] {
        assert!(page.contains(expected), "{expected} is not in\n{page}");
    }
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let parts = ["_bucket", "_sum", "_count"];
        let family = parts.iter().find_map(|it| name.strip_suffix(it)).unwrap_or(name);
        for comment in ["HELP", "TYPE"] {
            assert!(page.contains(&format!("# {comment} {family} ")), "{comment} of {line}");
        }
    }
}

#[test]
fn observers_choose_and_follow() {
    let files = NodeFiles::new("observe");
    files.manifest(
        "cluster.yaml",
        &(cluster(&["db", "web"]) + "---\n" + &remote_pod("far", "10.2.0.9")),
    );
    files.manifest("policy.yaml", POLICY);
    let node = Node::start(&files);
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    web.send(&syn(WEB, DB, 6379));
    web.send(&packet::ping(WEB, "10.2.0.9", 1, 1));
    web.send(&packet::udp("10.1.0.3:5000", "10.2.0.9:53").payload(b"q"));
    db.send(&syn(DB, WEB, 80));
    node.wait_for_event(|event| event.to.port == Some(80));
    let ask = |filters: ObserveFilters| -> Vec<Event> {
        let filters = ObserveFilters { last: 100, ..filters };
        let events = node.client().stream(&Request::Observe(Box::new(filters))).unwrap();
        events.map(|event| serde_json::from_value(event.unwrap()).unwrap()).collect()
    };
    let only = |events: Vec<Event>| -> Event {
        assert_eq!(events.len(), 1, "{events:?}");
        events.into_iter().next().unwrap()
    };
    let all = ask(ObserveFilters::default());
    assert_eq!(all.len(), 4);
    assert!(all.iter().all(|event| &*event.node == "node-a"));
    let dropped =
        only(ask(ObserveFilters { verdict: Verdict::Dropped.into(), ..Default::default() }));
    assert_eq!(dropped.from.pod.as_deref(), Some("default/web"));
    let ping = only(ask(ObserveFilters { protocol: "icmp".into(), ..Default::default() }));
    assert_eq!((ping.icmp_type, ping.to.pod.as_deref()), (Some(8), Some("default/far")));
    assert_eq!(ping.out_port.as_deref(), Some("host"));
    let dns = only(ask(ObserveFilters { port: 53.into(), ..Default::default() }));
    assert_eq!(dns.protocol, Some(observe::verdicts::Protocol(17)));
    only(ask(ObserveFilters { from_pod: "db".into(), ..Default::default() }));
    assert_eq!(ask(ObserveFilters { to_pod: "far".into(), ..Default::default() }).len(), 2);
    // What a policy's rules decided, until it is another one.
    let rules = || node.show("policies").unwrap();
    until(|| rules().contains("default-deny 1"));
    files.manifest("policy.yaml", &POLICY.replace("role: api", "role: cache"));
    until(|| !rules().contains("default-deny 1"));
    files.manifest("policy.yaml", POLICY);
    // Labels are known from the first filter by them on.
    let by_label =
        |selector: &str| ObserveFilters { to_label: selector.into(), ..Default::default() };
    assert_eq!(ask(by_label("role=db")).len(), 1);
    assert_eq!(ask(by_label("role in (db, web)")).len(), 2);
    let workload = ObserveFilters { from_workload: "Pod/db".into(), ..Default::default() };
    assert_eq!(only(ask(workload)).to.port, Some(80));
    let both = ObserveFilters { port: AnyOf(vec![53.into(), 80.into()]), ..Default::default() };
    assert_eq!(ask(both).len(), 2);
    let bad = ObserveFilters { protocol: "nonsense".into(), ..Default::default() };
    let mut events = node.client().stream(&Request::Observe(Box::new(bad))).unwrap();
    assert!(events.next().unwrap().unwrap_err().to_string().contains("nonsense"));

    let filters = ObserveFilters { follow: true, to_pod: "db".into(), ..Default::default() };
    let mut events = node.client().stream(&Request::Observe(Box::new(filters))).unwrap();
    let following = std::thread::spawn(move || events.next().unwrap().unwrap());
    // Verdicts before the observer is there are past; so one is sent until it is seen.
    let mut port = 7000;
    until(|| {
        port += 1;
        web.send(&syn(WEB, DB, port));
        following.is_finished()
    });
    let event: Event = serde_json::from_value(following.join().unwrap()).unwrap();
    assert_eq!(event.to.pod.as_deref(), Some("default/db"));
}

#[test]
fn every_table_can_be_shown() {
    let files = NodeFiles::new("show");
    files.manifest("cluster.yaml", &cluster(&["db", "web", "api"]));
    files.manifest("policy.yaml", POLICY);
    let node = Node::start(&files);
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    let _api = node.attach("api", API);
    db.send(&syn(DB, WEB, 80));
    web.expects(&syn(DB, WEB, 80), WEB);
    let expected = [
        ("ports", "default/db"),
        ("runtime", "session"),
        ("errors", "policy-allowed"),
        ("sessions", "default/web"),
        ("names", "TTL-LEFT"),
        ("graph", "parse -> anti-spoofing"),
        ("tables", "NetworkPolicy default/db"),
        ("identities", "PEER-SETS"),
        ("addresses", "default/web"),
        ("peer-sets", "NetworkPolicy default/db ingress[0]"),
        ("policies", "NetworkPolicy"),
        ("staged", "CONNECTIONS"),
        ("session-rules", "10.1.0.2/32"),
        ("memory", "packet-buffers"),
        ("config", "frames-per-port"),
    ];
    assert_eq!(agent::run::TABLES.map(|(name, _)| name), expected.map(|(name, _)| name));
    for (what, text) in expected {
        let shown = node.show(what).unwrap();
        assert!(shown.contains(text), "{what}:\n{shown}");
    }
    let of_address = |what: &str, text: &str| {
        let show = Show { what: what.into(), pod: Some(text.into()), ..Show::default() };
        node.client().call(&Request::Show(show))
    };
    let address = |text: &str| of_address("addresses", text);
    let known = &address(API).unwrap()["rows"][0];
    let expected = (&json!("default/api"), &json!("NetworkPolicy default/db ingress[0]"));
    assert_eq!((&known[1], &known[4]), expected, "{known}");
    let unknown = address("203.0.113.9").unwrap();
    assert_eq!(unknown["rows"][0], json!(["203.0.113.9", "", 0, "", ""]));
    assert!(address("web").unwrap_err().to_string().contains("'web' is no IP address"));
    let sets = of_address("peer-sets", API).unwrap();
    let set =
        json!([known[3].as_str().unwrap().parse::<u32>().unwrap(), 1, "default/api", known[4]]);
    assert_eq!(sets["rows"], json!([set]));
    assert_eq!(of_address("peer-sets", WEB).unwrap()["rows"], json!([]));
    let error = node.show("nothing").unwrap_err();
    assert!(error.to_string().contains("sessions"), "{error}");
}

#[test]
fn a_status_survives_the_wire() {
    let files = NodeFiles::new("wire");
    files.manifest("cluster.yaml", &cluster(&["db"]));
    let node = Node::start(&files);
    let _db = node.attach("db", DB);
    let value = node.client().call(&Request::Status).unwrap();
    let status: Status = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(&status).unwrap(), value);
}

#[test]
fn session_rules_of_one_pod_and_of_all() {
    let files = NodeFiles::new("session-rules");
    files.manifest("cluster.yaml", &cluster(&["db", "api"]));
    files.manifest("policy.yaml", POLICY);
    let node = Node::start(&files);
    let _pods = (node.attach("db", DB), node.attach("api", API));
    until(|| node.status().generation_in_force == node.status().generation);
    let expected = "\
POD         SCOPE   TRANSPORT  LOCAL        REMOTE       REMOTE-PORT  LOCAL-PORT  ACTION
default/db  global  TCP        10.1.0.2/32  any          any          any         deny
default/db  global  TCP        10.1.0.2/32  10.1.0.4/32  any          any         allow
default/db  global  UDP        10.1.0.2/32  any          any          any         deny
default/db  global  UDP        10.1.0.2/32  10.1.0.4/32  any          any         allow
";
    assert_eq!(node.show_of("session-rules", Some("db")).unwrap(), expected);
    assert_eq!(node.show("session-rules").unwrap(), expected, "the other pod is open");
    let unknown = node.show_of("session-rules", Some("default/nobody")).unwrap_err();
    assert!(unknown.to_string().contains("default/nobody has no tables here"), "{unknown}");
    let misplaced = node.show_of("ports", Some("db")).unwrap_err();
    assert!(misplaced.to_string().contains("'ports' is not shown for one pod"), "{misplaced}");
}

#[test]
fn packets_are_followed_from_node_to_node() {
    let files = NodeFiles::new("trace");
    files.manifest("cluster.yaml", &cluster(&["db", "web"]));
    files.manifest("policy.yaml", POLICY);
    let node = Node::start(&files);
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    let add = |count: u32, filter: &str| {
        node.client().call(&Request::TraceAdd(TraceAdd { count, filter: filter.to_owned() }))
    };
    let show = || -> (Vec<Line>, serde_json::Value) {
        let answers = node.client().stream(&Request::TraceShow).unwrap();
        let mut answers: Vec<_> = answers.map(|answer| answer.unwrap()).collect();
        let end = answers.pop().expect("the counts");
        (answers.into_iter().map(|line| serde_json::from_value(line).unwrap()).collect(), end)
    };
    assert_eq!(show(), (vec![], serde_json::json!({"followed": 0, "wanted": 0})));
    add(2, "in=web, to=db port=6379 verdict=drop").unwrap();
    web.send(&syn(WEB, DB, 80));
    web.send(&packet::ping(WEB, "10.2.0.9", 1, 1));
    for _ in 0..3 {
        web.send(&syn(WEB, DB, 6379));
    }
    until(|| show().0.len() == 2);
    let (lines, end) = show();
    assert_eq!(end, serde_json::json!({"followed": 2, "wanted": 2}));
    let line = &lines[0];
    assert_eq!((line.n, line.worker, &*line.verdict), (1, 0, "drop"));
    assert_eq!((line.in_port.as_deref(), line.out.as_deref()), (Some("default/web"), None));
    let nodes: Vec<&str> = line.trace.iter().map(|decision| &*decision.node).collect();
    assert_eq!(nodes, ["parse", "anti-spoofing", "session", "policy"]);
    let (parse, policy) = (&line.trace[0].fields, &line.trace[3].fields);
    assert_eq!((&parse["source"], &parse["destination_port"]), (&WEB.into(), &6379.into()));
    assert_eq!(policy["ingress"]["permits"], false);
    assert_eq!(policy["by"][0], "default-deny of NetworkPolicy default/db");
    assert_eq!(policy["outcome"], "policy-denied");
    let text = line.to_string();
    for part in ["in by default/web", "TCP 10.1.0.3:", "default/db ingress: rule", "= drop"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    // A new trace forgets the old one; a cleared one follows nothing.
    add(50, "").unwrap();
    db.send(&syn(DB, WEB, 80));
    until(|| show().0.len() == 1);
    assert_eq!(show().0[0].reason.as_deref(), Some("policy-allowed"));
    node.client().call(&Request::TraceClear).unwrap();
    assert_eq!(show().1["wanted"], 0);

    for (count, filter, part) in [
        (0, "", "count"),
        (10_001, "", "count"),
        (1, "colour=red", "colour"),
        (1, "to=nobody", "nobody"),
    ] {
        let error = add(count, filter).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn verdicts_know_services_and_filters_unknown_pods() {
    let files = NodeFiles::new("observe-more");
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: front, namespace: default}\n\
                   spec: {clusterIP: 10.96.0.7, ports: [{port: 80}]}\n";
    files.manifest("cluster.yaml", &(cluster(&["db", "web"]) + service));
    files.manifest("policy.yaml", POLICY);
    let node = Node::start(&files);
    let (web, _db) = (node.attach("web", WEB), node.attach("db", DB));
    web.send(&syn(WEB, "10.96.0.7", 80));
    let told = node.wait_for_event(|it| it.to.service.as_deref() == Some("default/front"));
    // The switch answers itself: the packet was for nobody.
    assert_eq!((told.reason.as_str(), told.to.pod.as_deref()), ("no-endpoint", None));
    assert_eq!(told.from.pod.as_deref(), Some("default/web"));
    assert!(told.to_string().contains("-> 10.96.0.7:80 (service default/front) no-endpoint"));
    let ask = |filters: ObserveFilters| {
        let filters = ObserveFilters { last: 100, ..filters };
        let events = node.client().stream(&Request::Observe(Box::new(filters))).unwrap();
        events.map(|event| event.map_err(|error| error.to_string())).collect::<Vec<_>>()
    };
    let to = |service: &str| ObserveFilters { to_service: service.into(), ..Default::default() };
    assert_eq!((ask(to("default/front")).len(), ask(to("default/back")).len()), (1, 0));
    // An unknown pod is refused, except in a stream: the pod may be created later.
    let ghost = ObserveFilters { from_pod: "ghost".into(), ..Default::default() };
    let refused = ask(ghost.clone()).remove(0).unwrap_err();
    assert!(refused.contains("no pod default/ghost is known"), "{refused}");
    for (filters, unknown) in [
        (ObserveFilters { policy: "ghost".into(), ..Default::default() }, "policy ghost"),
        (
            ObserveFilters { namespace: "ghosts".into(), ..Default::default() },
            "pod of namespace ghosts",
        ),
    ] {
        let refused = ask(filters).remove(0).unwrap_err();
        assert!(refused.contains(&format!("no {unknown} is known")), "{refused}");
    }
    // A pod on the host network is known without a verdict.
    let agent = "apiVersion: v1\nkind: Pod\nmetadata: {name: agent, namespace: default}\n\
                 spec: {nodeName: node-a, hostNetwork: true, containers: []}\n\
                 status: {podIPs: [{ip: 192.0.2.1}]}\n";
    let agents = || ask(ObserveFilters { from_pod: "agent".into(), ..Default::default() });
    assert!(agents()[0].as_ref().unwrap_err().contains("no pod default/agent is known"));
    files.manifest("agent.yaml", agent);
    until(|| agents().is_empty());
    std::fs::remove_file(files.path("manifests/agent.yaml")).unwrap();
    until(|| agents().iter().any(Result::is_err));
    let policy = ObserveFilters { policy: "db".into(), ..Default::default() };
    assert!(ask(policy).iter().all(Result::is_ok), "it is there, and has decided nothing");
    let followed = ObserveFilters { follow: true, ..ghost };
    let first = node
        .client()
        .stream(&Request::Observe(Box::new(followed)))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    assert_eq!(first["notice"], "no pod default/ghost is known yet");
}

#[test]
fn verdicts_are_exported_as_observe_prints_them() {
    let files = NodeFiles::new("export");
    files.manifest("cluster.yaml", &cluster(&["db", "web"]));
    files.manifest("policy.yaml", POLICY);
    let path = files.path("flows.json");
    let options = Options {
        flow_export: Some(path.clone()),
        flow_export_filter: Some("verdict=dropped port=6379 to-label=role in (db)".into()),
        ..Options::default()
    };
    let config = Config::resolve(options, "node-a", &BTreeSet::new()).unwrap();
    let node = Node::start_with(&files, |it| it.flow_export = config.flow_export);
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    for port in [80, 6379] {
        web.send(&syn(WEB, DB, port));
    }
    db.send(&syn(DB, WEB, 6379));
    web.expects(&syn(DB, WEB, 6379), WEB);
    let lines = || std::fs::read_to_string(&path).unwrap_or_default();
    until(|| lines().ends_with('\n'));
    let denied = node
        .wait_for_event(|event| event.verdict == Verdict::Dropped && event.to.port == Some(6379));
    assert_eq!(lines(), serde_json::to_string(&denied).unwrap() + "\n");
    until(|| {
        let page = node.http("GET /metrics HTTP/1.1").1;
        page.contains("podgate_flow_export_written_total 1\n")
    });
    let page = node.http("GET /metrics HTTP/1.1").1;
    assert!(page.contains("podgate_flow_export_dropped_total 0\n"), "{page}");

    // A file system that refuses: verdicts are dropped and counted, the switch goes on.
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let node = Node::start_on(&files, node.stop(), |it| {
        let options = Options { flow_export: Some(path.clone()), ..Options::default() };
        let config = Config::resolve(options, "node-a", &BTreeSet::new()).unwrap();
        it.flow_export = config.flow_export;
    });
    let (db, web) = (node.taken_up("db", DB), node.taken_up("web", WEB));
    db.send(&syn(DB, WEB, 81));
    web.expects(&syn(DB, WEB, 81), WEB);
    until(|| {
        let page = node.http("GET /metrics HTTP/1.1").1;
        page.contains("podgate_flow_export_dropped_total 1\n")
    });
}
