//! Session rules for pods on the host network.

use super::*;

const NODE_PORT: &str = "
apiVersion: v1
kind: Service
metadata: {name: db, namespace: default}
spec:
  type: NodePort
  clusterIP: 10.96.0.9
  ports: [{protocol: TCP, port: 6379, nodePort: 30079}]
";

/// Output of `redis-cli` in a cgroup of the node itself about a server.
fn node_asks(node: &ClusterNode, cgroup: &Path, address: &str, port: &str) -> String {
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", cgroup.display());
    let limit = BLOCKED.as_secs().to_string();
    let ask = ["timeout", &limit, "redis-cli", "-h", address, "-p", port, "ping"];
    let output = node.namespace.try_exec([&["sh", "-c", &enter, "sh"], &ask[..]].concat());
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn policies_hold_for_what_a_pod_on_the_host_network_opens() {
    requires_the_machine!("redis-server", "redis-cli");
    let mut mounts = Mounts::new();
    let [agent, others] = ["0f-3", "0f-4"].map(|uid| mounts.make(uid));
    let mut options: Vec<String> = mounts.options().into();
    options.push("--host-network-policies=on".to_owned());
    options.push("--socket-error=econnrefused".to_owned());
    let node = ClusterNode::start(&options.iter().map(String::as_str).collect::<Vec<_>>());
    let object = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "agent", "namespace": "default", "uid": "0f-3", "labels": {"role": "agent"}},
        "spec": {"nodeName": node.name(), "hostNetwork": true,
            "containers": [{"name": "c", "image": "x"}]},
        "status": {"podIPs": [{"ip": "10.77.0.1"}]}});
    node.write("pod-agent", &object.to_string());
    let db = node.pod("db", "db");
    let _redis = db.serve_redis();
    node.write("service", NODE_PORT);
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "db", "namespace": "default", "labels": {"kubernetes.io/service-name": "db"}},
        "addressType": "IPv4", "ports": [{"protocol": "TCP", "port": 6379}],
        "endpoints": [{"addresses": [db.v4()], "conditions": {"ready": true}}]});
    node.write("slice", &slice.to_string());
    let direct = [db.v4().to_string(), "6379".to_owned()];
    let by_service = ["10.77.0.1".to_owned(), "30079".to_owned()];
    let is = |cgroup: &Path, wanted: &str| {
        for [address, port] in [&direct, &by_service] {
            node.eventually(&format!("{wanted} of {address}"), || {
                node_asks(&node, cgroup, address, port).contains(wanted).then_some(())
            });
        }
    };
    is(&agent, "PONG");
    node.apply("policy", NOTHING_OUT);
    is(&agent, "Connection refused");
    is(&others, "PONG");
    let event = denied_call(&node, "default/agent");
    assert_eq!(event["by"][0], "default-deny of NetworkPolicy default/closed-agent", "{event}");
    let status = node.status();
    assert_eq!(status["faults"], json!([]), "its egress is enforced");
    assert_eq!(status["socket_policies"]["stricter"], 0, "{status}");
    let rules = node.podgate(&["show", "session-rules", "default/agent"]);
    assert!(rules.contains("default/agent  local"), "{rules}");
    node.withdraw("policy");
    is(&agent, "PONG");
}

/// A redis of the node in this cgroup, at a port.
fn serve(node: &ClusterNode, cgroup: &Path, port: u16) -> Process {
    let redis = format!(
        "echo $$ > {}/cgroup.procs && exec redis-server --port {port} --bind '*' '-::*' \
         --protected-mode no --save '' --daemonize no",
        cgroup.display()
    );
    let server = node.namespace.spawn(["sh", "-c", &redis]);
    server.wait_for_line("Ready to accept connections", PATIENCE);
    server
}

#[test]
fn policies_hold_for_what_a_pod_on_the_host_network_accepts() {
    requires_the_machine!("redis-server", "redis-cli", "nft");
    let mut mounts = Mounts::new();
    let [agent, others] = ["0f-5", "0f-6"].map(|uid| mounts.make(uid));
    let mut options: Vec<String> = mounts.options().into();
    options.push("--host-network-policies=on".to_owned());
    let node = ClusterNode::start(&options.iter().map(String::as_str).collect::<Vec<_>>());
    // It declares another port than the one that it serves.
    let object = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "agent", "namespace": "default", "uid": "0f-5", "labels": {"role": "db"}},
        "spec": {"nodeName": node.name(), "hostNetwork": true,
            "containers": [{"name": "c", "image": "x", "ports": [{"containerPort": 7001}]}]},
        "status": {"podIPs": [{"ip": "10.77.0.1"}]}});
    node.write("pod-agent", &object.to_string());
    let frontend = node.pod("frontend", "frontend");
    let _servers = [serve(&node, &agent, 7000), serve(&node, &others, 7001)];
    let node_address: SocketAddr = "10.77.0.1:7000".parse().unwrap();
    let is = |port: u16, wanted: bool| {
        node.eventually(&format!("port {port}: {wanted}"), || {
            let (port, limit) = (port.to_string(), BLOCKED.as_secs().to_string());
            let ask = ["timeout", &limit, "redis-cli", "-h", "10.77.0.1", "-p", &port, "ping"];
            let answer = text(&frontend.namespace.try_exec(ask).stdout);
            (answer.contains("PONG") == wanted).then_some(())
        });
    };
    is(7000, true);
    let mut live = frontend.namespace.enter(|| TcpStream::connect(node_address).unwrap());
    live.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut asks = || -> std::io::Result<usize> {
        live.write_all(b"PING\r\n")?;
        live.read(&mut [0; 16])
    };
    assert_eq!(asks().unwrap(), "+PONG\r\n".len());

    node.apply("policy", NOTHING_IN);
    is(7000, false);
    is(7001, true);
    let asked_by_node = || {
        let output =
            node.namespace.try_exec(["redis-cli", "-h", "10.77.0.1", "-p", "7000", "ping"]);
        text(&output.stdout).contains("PONG")
    };
    assert!(asked_by_node(), "a node reaches its pods, as kubelet does");
    node.eventually("the open connection to end", || {
        (!asks().is_ok_and(|it| it > 0)).then_some(())
    });
    let event = node.eventually("the verdict", || {
        let mut denied = node.verdicts(&["--verdict", "dropped"]);
        denied.retain(|it| it["to"]["pod"] == "default/agent");
        denied.pop()
    });
    assert_eq!(event["by"][0], "default-deny of NetworkPolicy default/closed-db", "{event}");
    assert_eq!(
        (&event["to"]["port"], &event["from"]["pod"]),
        (&json!(7000), &json!("default/frontend"))
    );
    let status = node.status();
    assert_eq!((&status["faults"], &status["socket_policies"]["ended"]), (&json!([]), &json!(1)));
    assert_eq!(status["socket_policies"]["looser"], 0, "{status}");
    let rules = node.podgate(&["show", "session-rules", "default/agent"]);
    assert!(rules.contains("default/agent  global"), "{rules}");
    let tables = node.namespace.exec(["nft", "list", "tables"]);
    assert!(!tables.contains("podgate-host-"), "{tables}");

    // The programs stay with the last rules.
    node.kill_switch();
    node.start_switch();
    is(7000, false);
    is(7001, true);
    node.withdraw("policy");
    is(7000, true);
}
