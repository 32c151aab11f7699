//! What the kernel is told about services.

use std::net::SocketAddr;

use crate::node::{Node, NodeFiles, cluster, until};

fn service(name: &str, node_port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default}}\nspec: \
         {{externalIPs: [203.0.113.7], ports: [{{port: {node_port}, nodePort: {node_port}}}]}}\n"
    )
}

#[test]
fn own_processes_are_led_to_services_that_have_node_ports_and_external_addresses() {
    let files = NodeFiles::new("redirects");
    files.manifest("cluster.yaml", &cluster(&[]));
    files.manifest("one.yaml", &service("one", 30080));
    let node = Node::start(&files);
    let told = || node.kernel.redirects().expect("the kernel was told");
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
