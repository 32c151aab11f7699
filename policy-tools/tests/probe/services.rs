//! Answers of probes about services.

use super::{Cluster, pod, policy};

fn service(spec: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: s, namespace: a}}\nspec: {{{spec}}}\n"
    )
}

fn slice(name: &str, family: &str, endpoints: &str, ports: &str) -> String {
    format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: {family}\n\
         metadata: {{name: {name}, namespace: a, labels: {{kubernetes.io/service-name: s}}}}\n\
         endpoints: [{endpoints}]\nports: [{ports}]\n"
    )
}

/// `x` asks; of the backends `good` lets it in on 8080, `bad` does not.
fn pods() -> String {
    pod("a/x", "", "n1", "10.1.1.1", "")
        + &pod("a/good", "", "n2", "10.1.2.1", "")
        + &pod("a/bad", "closed: 'yes'", "n2", "10.1.2.2", "")
        + &policy("closed", "podSelector: {matchLabels: {closed: 'yes'}}")
}

const PORTS: &str = "clusterIP: 10.96.0.1, ports: [{name: web, port: 80, targetPort: 8080}]";
const TARGET: &str = "{name: web, port: 8080, protocol: TCP}";

#[test]
fn ready_endpoints_that_agree() {
    let endpoints = "{addresses: [10.1.2.1]}, {addresses: [10.1.2.2], conditions: {ready: false}}";
    Cluster::new(&(pods() + &service(PORTS) + &slice("s-1", "IPv4", endpoints, TARGET))).says(&[
        "a/x service/a/s TCP 80: allow policy-allowed | default-allow",
        "a/x service/a/s TCP web: allow policy-allowed | default-allow",
        "a/x 10.96.0.1 TCP 80: allow policy-allowed | default-allow",
        "a/good service/a/s TCP 80: allow same-pod",
        "203.0.113.1 service/a/s TCP 80: allow policy-allowed | default-allow",
        "a/x service/a/s TCP 8080: deny unknown-port",
        "a/x service/a/s UDP 80: deny unknown-port",
        "a/x service/a/s TCP http: deny unknown-port-name",
        "a/x service/a/s ICMP: deny unknown-port",
    ]);
}

#[test]
fn endpoints_that_differ() {
    let endpoints = "{addresses: [10.1.2.1]}, {addresses: [10.1.2.2]}, {addresses: [198.51.100.7]}";
    Cluster::new(&(pods() + &service(PORTS) + &slice("s-1", "IPv4", endpoints, TARGET))).says(&[
        "a/x service/a/s TCP 80: deny backends-differ: a/good policy-allowed, a/bad policy-denied, \
         198.51.100.7 policy-allowed | default-deny of NetworkPolicy a/closed",
    ]);
}

#[test]
fn load_balancer_addresses_admit_their_source_ranges_alone() {
    let spec = "type: LoadBalancer, clusterIP: 10.96.0.1, ports: [{name: web, port: 80}], \
                externalIPs: [192.0.2.20], loadBalancerSourceRanges: [203.0.113.0/24, 10.1.1.0/24]";
    let service = service(spec).trim_end().to_owned()
        + "\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.10}]}}\n";
    let slice = slice("s-1", "IPv4", "{addresses: [10.1.2.1]}", TARGET);
    Cluster::new(&(pods() + &service + &slice)).says(&[
        "203.0.113.1 192.0.2.10 TCP 80: allow policy-allowed | default-allow",
        "198.51.100.1 192.0.2.10 TCP 80: deny source-not-admitted",
        "a/x 192.0.2.10 TCP 80: allow policy-allowed | default-allow",
        "a/bad 192.0.2.10 TCP 80: deny source-not-admitted",
        "198.51.100.1 192.0.2.20 TCP 80: allow policy-allowed | default-allow",
        "198.51.100.1 10.96.0.1 TCP 80: allow policy-allowed | default-allow",
    ]);
}

#[test]
fn no_endpoints() {
    let none = "a/x service/a/s TCP 80: deny no-endpoint";
    Cluster::new(&(pods() + &service(PORTS))).says(&[none]);
    let other = "{name: other, port: 8080, protocol: TCP}";
    let elsewhere = slice("s-1", "IPv4", "{addresses: [10.1.2.1]}", other);
    Cluster::new(&(pods() + &service(PORTS) + &elsewhere)).says(&[none]);
    let six = slice("s-1", "IPv6", "{addresses: ['fd00::1']}", TARGET);
    Cluster::new(&(pods() + &service(PORTS) + &six)).says(&[
        "a/x service/a/s TCP 80: deny no-endpoint",
        // The service's IPv4 address leads to no IPv6 endpoint.
        "a/x 10.96.0.1 TCP 80: deny no-endpoint",
    ]);
}

#[test]
fn a_target_port_by_name_is_each_pods_own() {
    let http = |port: u16| {
        format!("containers: [{{name: c, ports: [{{name: http, containerPort: {port}}}]}}]")
    };
    let manifests = pod("a/x", "", "n1", "10.1.1.1", "")
        + &pod("a/one", "", "n1", "10.1.1.2", &http(1111))
        + &pod("a/two", "", "n1", "10.1.1.3", &http(2222))
        + &policy("all", "podSelector: {}, ingress: [{ports: [{port: 1111}]}]")
        + &service("clusterIP: 10.96.0.1, ports: [{port: 80, targetPort: http}]")
        + &slice("s-1", "IPv4", "{addresses: [10.1.1.2]}, {addresses: [10.1.1.3]}", "");
    Cluster::new(&manifests).says(&[
        "a/x service/a/s TCP 80: deny backends-differ: a/one policy-allowed, a/two policy-denied | \
         default-deny of NetworkPolicy a/all",
    ]);
}

#[test]
fn an_internally_local_service_stays_on_the_cluster_node() {
    let endpoints = "{addresses: [10.1.2.1]}";
    let local = format!("internalTrafficPolicy: Local, {PORTS}");
    Cluster::new(&(pods() + &service(&local) + &slice("s-1", "IPv4", endpoints, TARGET))).says(&[
        "a/x service/a/s TCP 80: deny no-endpoint",
        "a/bad service/a/s TCP 80: allow policy-allowed | default-allow",
    ]);
}

#[test]
fn node_ports_and_external_addresses_lead_to_endpoints() {
    let nodes = "---\napiVersion: v1\nkind: Node\nmetadata: {name: n1}\nspec: {podCIDRs: [10.1.1.0/24]}\n\
                 status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n---\napiVersion: v1\nkind: \
                 Node\nmetadata: {name: n2}\nspec: {podCIDRs: [10.1.2.0/24]}\n\
                 status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}\n";
    let spec = |more: &str| {
        service(&format!(
            "{more}clusterIP: 10.96.0.1, externalIPs: [203.0.113.7], ports: [{{name: web, port: 80, \
             targetPort: 8080, nodePort: 30080}}]"
        ))
    };
    let good = slice("s-1", "IPv4", "{addresses: [10.1.2.1], nodeName: n2}", TARGET);
    let bad = slice("s-1", "IPv4", "{addresses: [10.1.2.2], nodeName: n2}", TARGET);
    let yes = [
        "a/x 192.0.2.1 TCP 30080",
        "a/x node/n1 TCP 30080",
        "203.0.113.200 192.0.2.1 TCP 30080",
        "203.0.113.200 203.0.113.7 TCP 80",
        "node/n1 192.0.2.1 TCP 30080",
        "a/x 203.0.113.7 TCP 80",
    ];
    let all = |what: &str| yes.map(|it| format!("{it}: {what}"));
    let says = |manifests: String, lines: &[String]| {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        Cluster::new(&manifests).says(&lines);
    };
    let open = "allow policy-allowed | default-allow";
    says(pods() + nodes + &spec("") + &good, &all(open));
    says(
        pods() + nodes + &spec("") + &bad,
        &all("deny policy-denied | default-deny of NetworkPolicy a/closed"),
    );
    // Local policies: of the cluster address, and for clients outside at another node.
    says(pods() + nodes + &spec("internalTrafficPolicy: Local, ") + &good, &all(open));
    Cluster::new(&(pods() + nodes + &spec("externalTrafficPolicy: Local, ") + &good)).says(&[
        "203.0.113.200 192.0.2.1 TCP 30080: deny no-endpoint",
        "203.0.113.200 192.0.2.2 TCP 30080: allow policy-allowed | default-allow",
        "a/x 192.0.2.1 TCP 30080: allow policy-allowed | default-allow",
        // Another port is the node's own.
        "203.0.113.200 192.0.2.1 TCP 30081: allow no-policy",
    ]);
}

#[test]
fn endpoints_that_end_serve_where_none_is_ready() {
    let ending =
        "{addresses: [10.1.2.1], conditions: {ready: false, serving: true, terminating: true}}";
    let gone =
        "{addresses: [10.1.2.2], conditions: {ready: false, serving: false, terminating: true}}";
    let slice = slice("s-1", "IPv4", &format!("{ending}, {gone}"), TARGET);
    Cluster::new(&(pods() + &service(PORTS) + &slice))
        .says(&["a/x service/a/s TCP 80: allow policy-allowed | default-allow"]);
}

fn nodes() -> String {
    super::node("n1", "192.0.2.1", "10.1.1.0/24") + &super::node("n2", "192.0.2.2", "10.1.2.0/24")
}

/// The endpoint lets one client outside in. Where its packet enters another node, the
/// switch there gives it its own address, as it does when it runs.
#[test]
fn a_client_outside_comes_by_every_cluster_node_with_the_address_that_it_has_there() {
    let spec = |more: &str| {
        service(&format!(
            "{more}clusterIP: 10.96.0.1, externalIPs: [203.0.113.7], \
             ports: [{{name: web, port: 80, targetPort: 8080, nodePort: 30080}}]"
        ))
    };
    let manifests = |more: &str| {
        nodes()
            + &pod("a/good", "app: good", "n2", "10.1.2.1", "")
            + &policy(
                "client",
                "podSelector: {matchLabels: {app: good}}, ingress: [{from: [{ipBlock: \
                 {cidr: 198.51.100.0/24}}]}]",
            )
            + &spec(more)
            + &slice("s-1", "IPv4", "{addresses: [10.1.2.1], nodeName: n2}", TARGET)
    };
    Cluster::new(&manifests("")).says(&[
        "198.51.100.9 203.0.113.7 TCP 80: deny backends-differ: a/good via n1 policy-denied, \
         a/good via n2 policy-allowed | default-deny of NetworkPolicy a/client",
        "198.51.100.9 192.0.2.1 TCP 30080: deny policy-denied | default-deny of NetworkPolicy a/client",
        "198.51.100.9 192.0.2.2 TCP 30080: allow policy-allowed | NetworkPolicy a/client ingress[0]",
    ]);
    // With the policy Local a load balancer sends only to nodes with endpoints.
    Cluster::new(&manifests("externalTrafficPolicy: Local, ")).says(&[
        "198.51.100.9 203.0.113.7 TCP 80: allow policy-allowed | NetworkPolicy a/client ingress[0]",
        "198.51.100.10 service/a/s TCP 80: allow policy-allowed | NetworkPolicy a/client ingress[0]",
        "203.0.113.200 service/a/s TCP 80: deny policy-denied | default-deny of NetworkPolicy a/client",
    ]);
}

/// A client's affinity hides no other endpoint of the service.
#[test]
fn every_endpoint_counts_where_clients_keep_theirs() {
    let endpoints = "{addresses: [10.1.2.1]}, {addresses: [10.1.2.2]}";
    let spec = format!("sessionAffinity: ClientIP, {PORTS}");
    Cluster::new(&(pods() + &service(&spec) + &slice("s-1", "IPv4", endpoints, TARGET))).says(&[
        "a/x service/a/s TCP 80: deny backends-differ: a/good policy-allowed, a/bad policy-denied | \
         default-deny of NetworkPolicy a/closed",
    ]);
}

/// The API ignores the target port of a headless service: its name stands for the pods' addresses.
#[test]
fn nothing_translates_the_port_of_a_headless_service() {
    let of = |port: u16| {
        pod("a/x", "", "n1", "10.1.1.1", "")
            + &pod("a/web", "app: web", "n1", "10.1.1.2", "")
            + &policy(
                "web",
                &format!("podSelector: {{}}, ingress: [{{ports: [{{port: {port}}}]}}]"),
            )
            + &service("clusterIP: None, ports: [{port: 80, targetPort: 8080}]")
            + &slice(
                "s-1",
                "IPv4",
                "{addresses: [10.1.1.2]}",
                "{name: '', port: 8080, protocol: TCP}",
            )
    };
    Cluster::new(&of(80))
        .says(&["a/x service/a/s TCP 80: allow policy-allowed | NetworkPolicy a/web ingress[0]"]);
    Cluster::new(&of(8080)).says(&[
        "a/x service/a/s TCP 80: deny policy-denied | default-deny of NetworkPolicy a/web",
    ]);
}

/// Policies mean each of the numbers, and so do questions.
#[test]
fn a_port_name_of_two_containers_is_each_of_their_numbers() {
    let containers = "containers: [{name: c, ports: [{name: metrics, containerPort: 9090}]}, {name: d, \
                      ports: [{name: metrics, containerPort: 9091}]}]";
    let pods =
        pod("a/x", "", "n1", "10.1.1.1", "") + &pod("a/srv", "", "n1", "10.1.1.2", containers);
    let by_name = policy("p", "podSelector: {}, ingress: [{ports: [{port: metrics}]}]");
    Cluster::new(&(pods.clone() + &by_name)).says(&[
        "a/x a/srv TCP 9090: allow policy-allowed | NetworkPolicy a/p ingress[0]",
        "a/x a/srv TCP 9091: allow policy-allowed | NetworkPolicy a/p ingress[0]",
        "a/x a/srv TCP 9092: deny policy-denied | default-deny of NetworkPolicy a/p",
        "a/x a/srv TCP metrics: allow policy-allowed | NetworkPolicy a/p ingress[0]",
    ]);
    let to = "podSelector: {}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}], ports: [{port: \
              metrics}]}]";
    Cluster::new(&(pods.clone() + &policy("p", to))).says(&[
        "a/x a/srv TCP 9091: allow policy-allowed | NetworkPolicy a/p egress[0]",
        "a/x a/srv TCP 9092: deny policy-denied | default-deny of NetworkPolicy a/p",
    ]);
    let one = policy("p", "podSelector: {}, ingress: [{ports: [{port: 9091}]}]");
    Cluster::new(&(pods + &one)).says(&[
        "a/x a/srv TCP metrics: deny ports-differ: port 9090 policy-denied, port 9091 policy-allowed | \
         default-deny of NetworkPolicy a/p",
    ]);
}
