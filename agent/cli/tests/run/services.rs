//! The rules in the kernel for services.

use std::net::SocketAddr;

use testkit::packet;

use crate::kernel::Kernel;
use crate::node::{Node, NodeFiles, POLICY, Pod, cluster, until};
use crate::{API, DB, WEB, syn};

fn service(name: &str, node_port: u16) -> String {
    let last = node_port % 100;
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default}}\nspec: \
         {{type: NodePort, clusterIPs: [10.96.0.{last}], externalIPs: [203.0.113.7], ports: [{{port: {node_port}, \
         nodePort: {node_port}}}]}}\n"
    )
}

#[test]
fn own_processes_are_led_to_services_that_have_node_ports_and_external_addresses() {
    let files = NodeFiles::new("redirects");
    files.manifest("cluster.yaml", &cluster(&[]));
    files.manifest("one.yaml", &service("one", 30080));
    let node = Node::start_with(&files, |config| {
        config.network.external_ips = vec!["203.0.113.0/24".parse().unwrap()];
    });
    let told = || node.kernel.redirects().expect("the kernel was programmed");
    let to = |text: &str| text.parse::<SocketAddr>().unwrap();
    let [v4, v6] = ["169.254.1.2:30080", "[fd70:6f64:6761:7465::1]:30080"].map(to);
    assert_eq!(told().node_ports, [(6, 30080, v4), (6, 30080, v6)].into());
    let external = ("203.0.113.7".parse().unwrap(), 6, 30080);
    // Its number there is the node port's.
    assert_ne!(told().addresses[&external], v4);
    assert_eq!(told().addresses.len(), 1);
    let own = ["10.1.0.1", "192.0.2.1"].map(|address| address.parse().unwrap());
    assert_eq!(told().node, own.into(), "the host port's own address, and the Node's");
    let before = told().addresses;
    files.manifest("two.yaml", &service("two", 30081));
    until(|| told().node_ports.len() == 4);
    assert_eq!(told().addresses[&external], before[&external], "what is there stays where it is");
    // An end leaves nothing that leads to a switch that is not there.
    let kernel = node.stop();
    assert_eq!(kernel.redirects(), None);
}

/// Whether the kernel has what this part of the switch wants, and why not.
fn programming(node: &Node, part: &str) -> (bool, Option<String>) {
    let parts = node.status().kernel;
    let found = parts.into_iter().find(|it| it.part == part).expect("the switch programs it");
    (found.in_sync, found.error)
}

/// Adds the policy; waits until it is in force, and denies a packet of a live connection.
fn expect_denial_in_force(node: &Node, files: &NodeFiles, web: &Pod) {
    let before = node.status().generation;
    files.manifest("policy.yaml", POLICY);
    until(|| node.status().generation_in_force > before);
    web.send(&packet::tcp("10.1.0.3:40000", "10.1.0.2:6379").data(b"x"));
    let denied = node.wait_for_event(|event| event.reason == "policy-denied");
    assert_eq!(denied.to.port, Some(6379));
}

#[test]
fn a_kernel_that_hangs_delays_no_policy_and_no_pod() {
    let files = NodeFiles::new("hangs");
    files.manifest("cluster.yaml", &cluster(&["db", "web", "far"]));
    let node = Node::start(&files);
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    web.send(&syn(WEB, DB, 6379));
    db.expects(&syn(WEB, DB, 6379), DB);
    node.kernel.hang(true);
    files.manifest("one.yaml", &service("one", 30080));
    // A pod outside of the pod network needs a route.
    let _far = node.attach("far", "10.9.0.5");
    let waits = |part| programming(&node, part) == (false, None);
    until(|| waits("redirects") && waits("host-port"));
    expect_denial_in_force(&node, &files, &web);
    assert!(waits("redirects"), "the kernel still hangs");
    node.kernel.hang(false);
    until(|| node.kernel.redirects().is_some_and(|it| !it.node_ports.is_empty()));
    until(|| node.status().kernel.iter().all(|part| part.in_sync));
}

/// Opening a port is a call of the kernel that may take long.
#[test]
fn a_port_that_opens_slowly_delays_no_snapshot_and_no_request() {
    let files = NodeFiles::new("slow-port");
    files.manifest("cluster.yaml", &cluster(&["db", "web", "late"]));
    let node = Node::start(&files);
    let (db, web) = (node.attach("db", DB), node.attach("web", WEB));
    web.send(&syn(WEB, DB, 6379));
    db.expects(&syn(WEB, DB, 6379), DB);
    node.kernel.hang_interfaces(true);
    let late = node.attach_in_background("late", API);
    until(|| node.kernel.is_waiting());
    until(|| node.status().waiting.iter().any(|it| it.reason == "its port to open"));
    expect_denial_in_force(&node, &files, &web);
    // Addresses of the kernel are read by the same thread.
    node.kernel.add_address("172.17.0.1".parse().unwrap());
    // A pod is detached although its neighbour's port still opens.
    node.client().detach_pod(&node.pod("web", WEB).attachment()).unwrap();
    assert!(!node.ports().contains("default/web"));
    assert!(node.kernel.is_waiting() && !late.is_finished(), "the kernel still hangs");
    node.kernel.hang_interfaces(false);
    late.join().unwrap().unwrap();
    assert!(node.kernel.is_up("pg-late"));
    until(|| node.status().kernel.iter().all(|part| part.in_sync));
}

/// The port of a pod that is detached while it opens is closed again, and its number is free.
#[test]
fn a_pod_detached_while_its_port_opens_leaves_nothing() {
    let files = NodeFiles::new("slow-detach");
    files.manifest("cluster.yaml", &cluster(&["db", "late"]));
    let node = Node::start(&files);
    node.kernel.hang_interfaces(true);
    let late = node.attach_in_background("late", API);
    until(|| node.kernel.is_waiting());
    let attachment = node.pod("late", API).attachment();
    until(|| !node.status().waiting.is_empty());
    node.client().detach_pod(&attachment).unwrap();
    assert!(late.join().unwrap().is_err());
    node.kernel.hang_interfaces(false);
    let _db = node.attach("db", DB);
    assert_eq!(node.ports().len(), 2, "the host port and the pod's");
    assert!(!node.kernel.is_up("pg-late"));
    // The same interface opens for the next request.
    let mut client = node.client();
    client.attach_pod(&node.pod("late", API)).unwrap();
    assert!(node.kernel.is_up("pg-late"));
}

#[test]
fn what_the_kernel_refused_is_tried_again_and_what_it_lost_is_restored() {
    let files = NodeFiles::new("refuses");
    files.manifest("cluster.yaml", &cluster(&[]));
    let node = Node::start(&files);
    until(|| programming(&node, "redirects") == (true, None));
    node.kernel.fail_redirects(2);
    files.manifest("one.yaml", &service("one", 30080));
    until(|| programming(&node, "redirects").1.is_some_and(|why| why.contains("refuses")));
    assert!(node.status().to_string().contains("redirects: the kernel refuses"));
    let has_service = || node.kernel.redirects().is_some_and(|it| !it.node_ports.is_empty());
    until(has_service);
    until(|| programming(&node, "redirects") == (true, None));
    node.kernel.flush();
    until(has_service);
}

#[test]
fn what_the_kernel_refuses_about_one_object_of_the_host_port_ends_no_start() {
    let files = NodeFiles::new("refuses-one");
    files.manifest("cluster.yaml", &cluster(&["web"]));
    let kernel = Kernel::default();
    kernel.refuse(&[
        "put route to 10.244.3.2/32: No such process",
        "put route to fd00::/64: Invalid",
    ]);
    let node = Node::start_on(&files, kernel, |_| {});
    let _web = node.attach("web", "10.1.0.3");
    until(|| programming(&node, "host-port").1.is_some_and(|why| why.contains("fd00::/64")));
    assert!(node.status().to_string().contains("host-port: put route to 10.244.3.2/32"));
    node.kernel.refuse(&[]);
    until(|| programming(&node, "host-port") == (true, None));
}

/// The answer at a local port, if there is one: status code and body.
fn health_check(port: u16) -> Option<(u16, serde_json::Value)> {
    use std::io::{Read, Write};

    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, serde_json::from_str(body).ok()?))
}

#[test]
fn load_balancers_learn_which_cluster_nodes_have_endpoints() {
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port();
    let files = NodeFiles::new("health-checks");
    files.manifest("cluster.yaml", &cluster(&[]));
    let node = Node::start(&files);
    files.manifest(
        "service.yaml",
        &format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: default}}\nspec: \
             {{type: LoadBalancer, clusterIPs: [10.96.0.9], externalTrafficPolicy: Local, \
             healthCheckNodePort: {port}, ports: [{{port: 80}}]}}\n"
        ),
    );
    until(|| node.status().objects.contains_key("Service"));
    // Another process has the port for a while.
    drop(held);
    until(|| health_check(port).is_some());
    let (code, body) = health_check(port).unwrap();
    assert_eq!((code, &body["localEndpoints"]), (503, &0.into()), "{body}");
    let slice = |node: &str| {
        format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nmetadata: \
             {{name: web-1, namespace: default, labels: {{kubernetes.io/service-name: web}}}}\n\
             endpoints: [{{addresses: [10.1.0.2], nodeName: {node}}}]\nports: [{{port: 80}}]\n"
        )
    };
    files.manifest("slice.yaml", &slice("node-a"));
    until(|| health_check(port).is_some_and(|(code, _)| code == 200));
    let (_, body) = health_check(port).unwrap();
    assert_eq!(body["service"], serde_json::json!({"namespace": "default", "name": "web"}));
    assert_eq!((&body["localEndpoints"], &body["serviceProxyHealthy"]), (&1.into(), &true.into()));
    files.manifest("slice.yaml", &slice("node-b"));
    until(|| health_check(port).is_some_and(|(code, _)| code == 503));
    files.remove("service.yaml");
    until(|| health_check(port).is_none());
}
