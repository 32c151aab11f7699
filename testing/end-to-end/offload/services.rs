//! Short connections to services take the kernel's way, to the endpoint that the switch would choose.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::handshake::of_reasons;
use super::{ON, arrived, asks, connect_to_redis, connections, offload, settled};
use crate::pod::Pod;
use crate::policies::nothing_in;
use crate::{ClusterNode, requires_the_machine};

const CONNECTIONS: u64 = 50;
const SERVICES: [&str; 2] = ["10.96.0.10", "fd60::10"];

/// Services of both families with these endpoints, at the port of redis.
fn serve(node: &ClusterNode, endpoints: &[&Pod<'_>]) {
    let ports = json!([{"port": 6379}]);
    let mut items = Vec::new();
    for (service, family) in SERVICES.into_iter().zip(["IPv4", "IPv6"]) {
        let name = format!("db-{}", family.to_lowercase());
        let metadata = json!({"name": name, "namespace": "default",
            "labels": {"kubernetes.io/service-name": name}});
        let of_family = |pod: &&Pod<'_>| if family == "IPv4" { pod.v4() } else { pod.v6() };
        let endpoints: Vec<_> = endpoints.iter().map(of_family).collect();
        let endpoint = |it: &IpAddr| json!({"addresses": [it], "conditions": {"ready": true}});
        items.push(json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"clusterIP": service, "clusterIPs": [service], "ports": ports}}));
        items.push(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": metadata, "addressType": family, "ports": ports,
            "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>()}));
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    node.apply("services", &list.to_string());
}

fn opened(node: &ClusterNode) -> u64 {
    offload(node)["opened"].as_u64().unwrap()
}

/// Connects until templates open many connections in a row, whichever endpoint they lead to; how often. All are over
/// then.
fn await_templates(node: &ClusterNode, client: &Pod<'_>, to: IpAddr) -> u64 {
    let mut made = 0;
    node.eventually("templates", || {
        let before = opened(node);
        (0..20).for_each(|_| asks(&mut connect_to_redis(client, to)).unwrap());
        made += 20;
        (opened(node) >= before + 19).then_some(())
    });
    node.eventually("the end of entries", || (connections(node) == 0).then_some(made))
}

/// Observers see each.
#[test]
fn short_connections_to_a_service_take_the_kernels_way() {
    requires_the_machine!("redis-server");
    let node = ClusterNode::start(&ON);
    let (client, one) = (node.pod("client", "client"), node.pod("one", "server"));
    let two = node.pod("two", "server");
    let _redis = [one.serve_redis(), two.serve_redis()];
    serve(&node, &[&one, &two]);
    for service in SERVICES {
        let to: IpAddr = service.parse().unwrap();
        let made = await_templates(&node, &client, to);
        let shown = || {
            let verdicts = node.verdicts(&[]);
            let is_opening =
                |it: &&Value| it["reason"] == "policy-allowed" && it["to"]["ip"] == to.to_string();
            verdicts.iter().filter(is_opening).count() as u64
        };
        let punted = || of_reasons(&offload(&node));
        node.eventually("their verdicts", || (shown() == made).then_some(()));
        let before = (punted(), opened(&node), [arrived(&one), arrived(&two)]);
        for _ in 0..CONNECTIONS {
            asks(&mut connect_to_redis(&client, to)).unwrap();
        }
        assert!(opened(&node) > before.1 + CONNECTIONS * 9 / 10, "{to}: {}", offload(&node));
        assert!(punted() < before.0 + CONNECTIONS, "{to}: {}", offload(&node));
        node.eventually("all verdicts", || (shown() == made + CONNECTIONS).then_some(()));
        // Each endpoint has its share of them, of four packets or more.
        let both = [&one, &two].map(arrived);
        assert!((0..2).all(|n| both[n] > before.2[n] + 4 * 5), "{both:?} {:?}", before.2);
    }
    node.eventually("the end of sessions", || {
        let sessions = node.podgate(&["show", "sessions", "-o", "json"]);
        let states = sessions.lines().map(|it| serde_json::from_str::<Value>(it).unwrap());
        let states: Vec<Value> = states.map(|it| it["state"].clone()).collect();
        (!states.is_empty() && states.iter().all(|it| it == "ended")).then_some(())
    });
}

/// Counted by the endpoint's kernel: once services have changed, no first packet arrives.
#[test]
fn an_endpoint_that_goes_gets_no_next_connection_of_a_template() {
    requires_the_machine!("redis-server");
    let node = ClusterNode::start(&ON);
    let (client, one) = (node.pod("client", "client"), node.pod("one", "server"));
    let two = node.pod("two", "server");
    let _redis = [one.serve_redis(), two.serve_redis()];
    for round in 0..4 {
        let to: IpAddr = SERVICES[round % 2].parse().unwrap();
        serve(&node, &[&one, &two]);
        await_templates(&node, &client, to);
        serve(&node, &[&two]);
        let before = settled(&one);
        for _ in 0..20 {
            asks(&mut connect_to_redis(&client, to)).unwrap();
        }
        assert_eq!(arrived(&one), before, "round {round}");
        // A denial.
        await_templates(&node, &client, to);
        node.apply("policy", &nothing_in("server"));
        let before = (settled(&two), opened(&node));
        for _ in 0..10 {
            let within = Duration::from_millis(20);
            let to = SocketAddr::new(to, 6379);
            let connect = || TcpStream::connect_timeout(&to, within).is_ok();
            assert!(!client.namespace.enter(connect), "round {round}");
        }
        assert_eq!((arrived(&two), opened(&node)), before, "round {round}");
        node.withdraw("policy");
    }
}

/// A port that the client has just used with the endpoint itself, whose session is not over yet: the switch tells both
/// connections apart by another port, which the template does not know. One connection may be reset, and no more.
#[test]
fn a_port_serves_for_an_endpoint_and_then_for_its_service() {
    requires_the_machine!("redis-server");
    let node = ClusterNode::start(&ON);
    let (client, server) = (node.pod("client", "client"), node.pod("server", "server"));
    let _redis = server.serve_redis();
    serve(&node, &[&server]);
    let to: IpAddr = SERVICES[0].parse().unwrap();
    await_templates(&node, &client, to);
    client.namespace.exec(["sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 40000"]);
    asks(&mut connect_to_redis(&client, server.v4())).unwrap();
    node.eventually("an answer", || {
        let mut connection = client.try_connect(to, 6379).ok()?;
        assert_eq!(connection.local_addr().unwrap().port(), 40000);
        asks(&mut connection).ok()
    });
    assert!(node.is_well());
}
