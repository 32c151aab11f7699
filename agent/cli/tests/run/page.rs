//! The page for browsers.

use std::fmt::Write as _;
use std::process::Command;

use control::model::Stage;
use local_api::{Request, TraceAdd};
use serde_json::Value;
use testkit::TempDir;

use crate::node::{Node, NodeFiles, POLICY, Pod, cluster, until};
use crate::{API, DB, WEB, syn};

/// Pods of Deployments on another node, with a policy for each workload.
fn elsewhere() -> String {
    let mut text = String::new();
    let workloads = [
        ("ingress", "proxy", 2, "web", "default"),
        ("monitoring", "prometheus", 1, "api", "default"),
        ("monitoring", "grafana", 1, "proxy", "ingress"),
        ("forum", "front", 3, "proxy", "ingress"),
        ("forum", "posts", 2, "front", "forum"),
    ];
    for (n, (namespace, name, pods, from, from_namespace)) in workloads.iter().enumerate() {
        for pod in 0..*pods {
            let _ = write!(
                text,
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}-5d4f9-x{pod}, namespace: \
                 {namespace}, labels: {{role: {name}, pod-template-hash: 5d4f9}}}}\nspec: {{nodeName: \
                 node-b, containers: []}}\nstatus: {{podIPs: [{{ip: 10.2.{n}.{}}}]}}\n",
                pod + 2
            );
        }
        let _ = write!(
            text,
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, \
             namespace: {namespace}}}\nspec: {{podSelector: {{matchLabels: {{role: {name}}}}}, ingress: \
             [{{from: [{{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: \
             {from_namespace}}}}}, podSelector: {{matchLabels: {{role: {from}}}}}}}], ports: [{{port: \
             80{n}0}}]}}]}}\n"
        );
    }
    text
}

fn played(files: &NodeFiles) -> (Node, [Pod; 3]) {
    files.manifest("cluster.yaml", &(cluster(&["db", "web", "api"]) + &elsewhere()));
    files.manifest("policy.yaml", POLICY);
    let node = Node::start_with(files, |config| {
        (config.web_page, config.session_accounting) = (true, true);
    });
    let pods = [node.attach("db", DB), node.attach("web", WEB), node.attach("api", API)];
    let [db, web, api] = &pods;
    let add = TraceAdd { count: 20, filter: "to=db".into() };
    node.client().call(&Request::TraceAdd(add)).unwrap();
    api.send(&syn(API, DB, 6379));
    db.expects(&syn(API, DB, 6379), DB);
    for port in [22, 22, 6379] {
        web.send(&syn(WEB, DB, port));
    }
    node.wait_for_event(|event| event.to.port == Some(6379) && event.reason == "policy-denied");
    until(|| node.http("GET /page HTTP/1.1").0 == 200);
    (node, pods)
}

#[test]
fn the_page_has_the_picture_and_what_the_switch_decides() {
    let files = NodeFiles::new("page");
    let (node, pods) = played(&files);
    let (_, page) = node.http("GET /page HTTP/1.1");
    for part in
        ["data-name=\"default/db\"", "proxy (2 pods)", "data-name=\"internet\"", "live.json"]
    {
        assert!(page.contains(part), "{part} is not in\n{page}");
    }
    let live = || -> Value {
        let (code, text) = node.http("GET /page/live.json HTTP/1.1");
        assert_eq!(code, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    };
    until(|| live()["trace"]["lines"].as_array().unwrap().len() == 4);
    let seen = live();
    let flow = |from: &str, port: u16| {
        let flows = seen["flows"].as_array().unwrap().iter();
        flows
            .clone()
            .find(|it| it["from"] == from && it["port"] == port)
            .unwrap_or_else(|| panic!("{seen}"))
    };
    let (opened, denied) = (flow("default/api", 6379), flow("default/web", 22));
    assert_eq!((&opened["verdict"], &opened["count"]), (&"forward".into(), &1.into()));
    assert_eq!((&denied["verdict"], &denied["count"]), (&"drop".into(), &2.into()));
    assert_eq!(denied["by"][0], "default-deny of NetworkPolicy default/db");
    assert_eq!(denied["from_place"], "default/web");
    assert_eq!(
        (&seen["pairs"][0]["from"], &seen["pairs"][0]["sessions"]),
        (&"default/api".into(), &1.into())
    );
    let traced = &seen["trace"]["lines"][1];
    assert_eq!(
        (&traced["from"], &traced["to"], &traced["verdict"]),
        (&"default/web".into(), &"default/db".into(), &"drop".into())
    );
    assert_eq!(traced["trace"][3]["node"], "policy");
    assert!(seen["ports"].as_array().unwrap().iter().any(|port| port["name"] == "default/db"));
    // It can be read, and nothing else.
    assert_eq!(node.http("POST /page HTTP/1.1").0, 405);
    assert_eq!(node.http("GET /page/other HTTP/1.1").0, 404);
    // A change of policies is another picture.
    let before = seen["drawing"].as_u64().unwrap();
    files.remove("policy.yaml");
    until(|| live()["drawing"].as_u64().unwrap() > before);
    drop(pods);
}

#[test]
fn the_page_shows_staged_policies_as_not_enforced() {
    let files = NodeFiles::new("page-staged");
    files.manifest("cluster.yaml", &cluster(&["db", "web", "api"]));
    files.manifest("policy.yaml", POLICY);
    let node = Node::start_with(&files, |config| {
        (config.web_page, config.default_stage) = (true, Stage::Staged);
    });
    until(|| node.http("GET /page HTTP/1.1").0 == 200);
    let (_, page) = node.http("GET /page HTTP/1.1");
    let banner = "<div id=\"banner\" role=\"alert\">stage-all is on: no policy without \
                  podgate.io/stage=enforced is enforced, 1 staged</div>";
    assert!(page.contains(banner), "{page}");
    // Without an enforced policy every pod is drawn as open.
    assert!(page.contains("open: no ingress or egress policy"), "{page}");
    let (_, live) = node.http("GET /page/live.json HTTP/1.1");
    let live: Value = serde_json::from_str(&live).unwrap();
    assert_eq!(live["not_enforced"][0]["reason"], "stage-all");
    let (_, metrics) = node.http("GET /metrics HTTP/1.1");
    assert!(metrics.contains("podgate_not_enforced{reason=\"stage-all\"} 1\n"), "{metrics}");
    assert!(metrics.contains("podgate_not_enforced{reason=\"policy-closed\"} 0\n"), "{metrics}");
    let (code, health) = node.http("GET /readyz HTTP/1.1");
    assert_eq!(code, 200, "{health}");
    assert!(health.starts_with("ok\nnot enforced: stage-all is on"), "{health}");
    let status = node.status();
    assert!(status.healthy && status.problems[0].starts_with("stage-all"), "{status}");
}

#[test]
fn there_is_no_page_unless_it_is_wanted() {
    let files = NodeFiles::new("no-page");
    files.manifest("cluster.yaml", &cluster(&[]));
    let node = Node::start(&files);
    assert_eq!(node.http("GET /page HTTP/1.1").0, 404);
    assert_eq!(node.http("GET /page/live.json HTTP/1.1").0, 404);
    assert!(!node.http("GET / HTTP/1.1").1.contains("/page"));
}

fn chromium(arguments: &[&str], page: &str) -> Option<String> {
    let program = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|it| Command::new(it).arg("--version").output().is_ok())?;
    let folder = TempDir::new("profile");
    let profile = format!("--user-data-dir={}", folder.path().display());
    let output = Command::new(program)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=9000",
            &profile,
        ])
        .args(arguments)
        .arg(page)
        .output()
        .unwrap();
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// With `PODGATE_SCREENSHOT=FILE` it also makes the image of the documentation.
#[test]
fn a_browser_draws_connections_and_the_path_of_a_packet() {
    let files = NodeFiles::new("browser");
    let (node, _pods) = played(&files);
    let page = format!("http://{}/page", node.http_address());
    let Some(dom) = chromium(&["--dump-dom"], &page) else {
        return testkit::skipped(
            "a_browser_draws_connections_and_the_path_of_a_packet",
            "chromium is not installed",
        );
    };
    for part in [
        "class=\"live drop\"",
        "<title>default/web to default/db: TCP 22, TCP 6379, 3 denied</title>",
        "class=\"live forward\"",
        "class=\"live traced\"",
        "<td>default-deny of NetworkPolicy default/db</td>",
        "<b>anti-spoofing</b>",
        "node-a, snapshot",
    ] {
        assert!(dom.contains(part), "{part} is not in\n{dom}");
    }
    if let Ok(image) = std::env::var("PODGATE_SCREENSHOT") {
        chromium(&[&format!("--screenshot={image}"), "--window-size=1180,1130"], &page);
    }
}
