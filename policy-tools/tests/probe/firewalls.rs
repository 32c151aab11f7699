//! Answers of probes under egress and host firewalls.

use super::{Cluster, node, pod};

fn firewall(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: podgate.io/v1alpha1\nkind: ClusterEgressFirewall\n\
         metadata: {{name: {name}}}\nspec: {{{spec}}}\n"
    )
}

fn cluster() -> String {
    node("n1", "192.0.2.1", "10.1.1.0/24")
        + &node("n2", "192.0.2.2", "10.1.2.0/24")
        + &pod("a/x", "", "n1", "10.1.1.1", "")
        + &pod("a/y", "", "n2", "10.1.2.1", "")
        + &pod("b/trusted", "", "n1", "10.1.1.2", "")
        + "---\napiVersion: v1\nkind: Service\nmetadata: {name: kubernetes, namespace: default}\n\
           spec: {clusterIP: 10.96.0.1, ports: [{name: https, port: 443, targetPort: 6443}]}\n\
           ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
           metadata: {name: kubernetes, namespace: default, \
           labels: {kubernetes.io/service-name: kubernetes}}\n\
           endpoints: [{addresses: [198.51.100.7]}]\nports: [{name: https, port: 6443}]\n"
}

#[test]
fn link_local_destinations_are_those_that_pods_reach_by_default() {
    Cluster::new(&cluster()).says(&[
        "a/x 169.254.169.254 TCP 80: allow policy-allowed | default-allow",
        "a/x 169.254.169.253 TCP 80: deny link-local",
    ]);
}

#[test]
fn the_metadata_address_and_nodes_are_blocked_but_for_dns() {
    let dns = "{action: Allow, to: [{nodes: {}}], protocols: [\
               {udp: {destinationPort: {number: 53}}}, {tcp: {destinationPort: {number: 53}}}]}";
    let nodes =
        firewall("nodes", &format!("egress: [{dns}, {{action: Deny, to: [{{nodes: {{}}}}]}}]"));
    let metadata =
        firewall("metadata", "egress: [{action: Deny, to: [{networks: [169.254.169.254/32]}]}]");
    Cluster::new(&(cluster() + &nodes + &metadata)).says(&[
        "a/x 169.254.169.254 TCP 80: deny policy-denied | ClusterEgressFirewall metadata egress[0]",
        "a/x node/n2 TCP 10250: deny policy-denied | ClusterEgressFirewall nodes egress[1]",
        "a/x node/n1 TCP 10250: deny policy-denied | ClusterEgressFirewall nodes egress[1]",
        "a/x node/n2 UDP 53: allow policy-allowed | default-allow",
        "a/x a/y TCP 80: allow policy-allowed | default-allow",
        "a/x 203.0.113.1 TCP 443: allow policy-allowed | default-allow",
    ]);
}

#[test]
fn the_api_server_is_blocked_by_whatever_way_for_all_but_a_namespace() {
    let spec = "subject: {namespaces: {matchExpressions: [{key: kubernetes.io/metadata.name, \
                operator: NotIn, values: [b]}]}}, egress: [{action: Deny, to: [{apiServer: {}}]}]";
    Cluster::new(&(cluster() + &firewall("api", spec))).says(&[
        "a/x 198.51.100.7 TCP 6443: deny policy-denied | ClusterEgressFirewall api egress[0]",
        "a/x service/default/kubernetes TCP 443: deny policy-denied | ClusterEgressFirewall api egress[0]",
        "a/x 10.96.0.1 TCP 443: deny policy-denied | ClusterEgressFirewall api egress[0]",
        "b/trusted 198.51.100.7 TCP 6443: allow policy-allowed | default-allow",
        "b/trusted service/default/kubernetes TCP 443: allow policy-allowed | default-allow",
    ]);
}

#[test]
fn one_firewall_excepts_nothing_from_another() {
    let closed = "egress: [{action: Allow, to: [{namespaces: {}}]}, \
                  {action: Allow, to: [{networks: [203.0.113.0/24]}]}, \
                  {action: Deny, to: [{networks: [0.0.0.0/0, '::/0']}]}]";
    let other = "egress: [{action: Allow, to: [{networks: [198.51.100.0/24]}]}, \
                 {action: Deny, to: [{networks: [203.0.113.9/32]}]}]";
    Cluster::new(&(cluster() + &firewall("internet", closed) + &firewall("other", other))).says(&[
        "a/x a/y TCP 80: allow policy-allowed | default-allow",
        "a/x 203.0.113.1 TCP 443: allow policy-allowed | default-allow",
        "a/x 203.0.113.9 TCP 443: deny policy-denied | ClusterEgressFirewall other egress[1]",
        "a/x 198.51.100.8 TCP 443: deny policy-denied | ClusterEgressFirewall internet egress[2]",
    ]);
}

/// A service in front of one endpoint.
fn service(name: &str, ip: &str, endpoint: &str, ports: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: a}}\n\
         spec: {{clusterIP: {ip}, ports: [{{port: 80{ports}}}]}}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
         metadata: {{name: {name}, namespace: a, labels: {{kubernetes.io/service-name: {name}}}}}\n\
         endpoints: [{{addresses: [{endpoint}]}}]\nports: [{{port: 8080}}]\n"
    )
}

/// The kernel of the node sees the switch's address in the place of the client's, and the service's in the
/// place of the endpoint's.
#[test]
fn no_service_leads_around_the_firewalls_of_a_node_itself() {
    let host = |name: &str, spec: &str| {
        firewall(name, spec).replace("ClusterEgressFirewall", "ClusterHostFirewall")
    };
    let services = cluster()
        + &service("own", "10.96.0.11", "192.0.2.1", ", nodePort: 30080")
        + &service("outside", "10.96.0.12", "203.0.113.9", "")
        + &service("pod", "10.96.0.13", "10.1.2.1", "");
    let edge = host(
        "edge",
        "ingress: [{action: Deny, from: [{networks: [198.51.100.0/24]}]}], \
         egress: [{action: Deny, to: [{networks: [203.0.113.0/24, 10.1.2.0/24]}]}]",
    );
    Cluster::new(&(services.clone() + &edge)).says(&[
        "198.51.100.9 192.0.2.1 TCP 30080: deny policy-denied | ClusterHostFirewall edge ingress[0]",
        "198.51.101.9 192.0.2.1 TCP 30080: allow policy-allowed | default-allow",
        "node/n1 service/a/outside TCP 80: deny policy-denied | ClusterHostFirewall edge egress[0]",
        "node/n2 10.96.0.12 TCP 80: deny policy-denied | ClusterHostFirewall edge egress[0]",
        "node/n1 service/a/pod TCP 80: deny policy-denied | ClusterHostFirewall edge egress[0]",
        "node/n2 service/a/own TCP 80: allow policy-allowed | default-allow",
        "a/x service/a/outside TCP 80: allow policy-allowed | default-allow",
    ]);
    // Each firewall selects its own nodes, and each of them must permit.
    let only = "nodes: {matchLabels: {role: edge}}, \
                ingress: [{action: Allow, from: [{networks: [198.51.100.0/25]}]}, \
                {action: Deny, from: [{networks: [198.51.0.0/16]}]}]";
    let labelled = services.replacen("name: n1", "name: n1, labels: {role: edge}", 1);
    assert_ne!(labelled, services);
    Cluster::new(&(labelled + &host("only", only) + &edge.replace("198.51.100.0", "198.51.100.8/31, 198.51.101.0")))
        .says(&[
            "198.51.100.7 192.0.2.1 TCP 30080: allow policy-allowed | default-allow",
            "198.51.100.9 192.0.2.1 TCP 30080: deny policy-denied | ClusterHostFirewall edge ingress[0]",
            "198.51.100.200 192.0.2.1 TCP 30080: deny policy-denied | ClusterHostFirewall only ingress[1]",
            "node/n2 service/a/outside TCP 80: deny policy-denied | ClusterHostFirewall edge egress[0]",
        ]);
}

#[test]
fn a_firewall_may_be_about_the_pods_of_some_nodes() {
    let spec = "subject: {nodes: {matchLabels: {pool: edge}}}, \
                egress: [{action: Deny, to: [{networks: [203.0.113.0/24]}]}]";
    let edge =
        cluster().replace("metadata: {name: n1}", "metadata: {name: n1, labels: {pool: edge}}");
    assert_ne!(edge, cluster());
    let pending = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: pending, namespace: a}\n\
                   spec: {containers: [{name: c}]}\n";
    Cluster::new(&(edge + pending + &firewall("edge", spec))).says(&[
        "a/x 203.0.113.1 TCP 443: deny policy-denied | ClusterEgressFirewall edge egress[0]",
        "a/y 203.0.113.1 TCP 443: allow policy-allowed | default-allow",
        // Without a node it is asked about on one without labels.
        "a/pending 203.0.113.1 TCP 443: allow policy-allowed | default-allow",
    ]);
}
