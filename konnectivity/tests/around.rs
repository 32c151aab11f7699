//! Health, readiness, sockets, tokens and leases.

use std::sync::Arc;
use std::time::Duration;

use crate::common::api::{address_of, api, get, has_lease, kubeconfig, leases_of};
use crate::common::*;
use konnectivity::agent::Agent;
use konnectivity::client::Tunnel;
use konnectivity::kubernetes::{Cluster, LeaseOptions};
use konnectivity::rules::Rules;
use konnectivity::server::{Frontend, Server, Strategy, TokenAuth};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

#[tokio::test]
async fn readiness_follows_the_other_role() {
    let world = World::new("ready");
    let mut options = world.server_options();
    options.strategies = vec![Strategy::DestHost, Strategy::Default];
    let mut server = Server::start(options).await.unwrap();
    let any = ([127, 0, 0, 1], 0).into();
    let health = server.serve_health(any).unwrap();
    for path in ["/readyz", "/ready"] {
        assert!(get(health, path).await.starts_with("HTTP/1.1 500 "));
    }
    assert!(get(health, "/healthz").await.ends_with("\r\n\r\nok"));
    assert!(get(health, "/nowhere").await.starts_with("HTTP/1.1 404 "));
    // The first strategy counts: an agent that names no host does not make it ready.
    let mut options = world.agent_options(server.agent_address());
    let agent = Agent::start(options.clone()).unwrap();
    until("the agent", || server.agents() == 1).await;
    assert!(get(health, "/readyz").await.starts_with("HTTP/1.1 500 "));
    drop(agent);
    options.identifiers = "host=node1".to_owned();
    let mut agent = Agent::start(options).unwrap();
    let agent_health = agent.serve_health(any).unwrap();
    until("the agent", || server.agents() == 1 && agent.servers().len() == 1).await;
    assert!(get(health, "/readyz").await.starts_with("HTTP/1.1 200 "));
    assert!(get(agent_health, "/readyz").await.ends_with("\r\n\r\nok"));
    let verbose = get(agent_health, "/readyz?verbose").await;
    assert!(verbose.contains("[+]server-connected ok"), "{verbose}");
    let page = get(health, "/metrics").await;
    let name = "konnectivity_network_proxy_server_ready_backend_connections 1\n";
    assert!(page.contains(name), "{page}");
    assert!(page.contains("Content-Type: text/plain; version=0.0.4"), "{page}");
    drop(server);
    until("its end", || agent.servers().is_empty()).await;
    let answer = get(agent_health, "/readyz").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(get(agent_health, "/healthz").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn an_agent_whose_switch_does_not_run_is_not_ready_and_gets_no_dials() {
    let world = World::new("no-switch");
    let server = Server::start(world.server_options()).await.unwrap();
    let socket = world.path("switch.sock");
    let mut options = world.agent_options(server.agent_address());
    options.rules = Some(Arc::new(Rules::new(None, Some(&socket)).unwrap()));
    let mut agent = Agent::start(options).unwrap();
    let health = agent.serve_health(([127, 0, 0, 1], 0).into()).unwrap();
    let page = async || loop {
        let page = get(health, "/readyz").await;
        if page.contains("switch.sock") {
            return page;
        }
    };
    let page = soon(page()).await;
    assert!(page.starts_with("HTTP/1.1 503 "), "{page}");
    assert!(page.contains("[-]session-rules failed: "), "{page}");
    // Long enough for several attempts to connect.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((server.agents(), agent.servers().len()), (0, 0));
    let mut tunnel = Tunnel::unix(&world.socket()).await.unwrap();
    let target = echo().await.to_string();
    assert_eq!(soon(tunnel.dial(&target)).await, Err("No agent available".to_owned()));

    // The switch starts, and sends its rules: none.
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        let mut streams = Vec::new();
        for stream in listener.incoming().flatten() {
            let mut stream = std::io::BufReader::new(stream);
            let mut request = String::new();
            std::io::BufRead::read_line(&mut stream, &mut request).unwrap();
            assert!(request.contains("follow-session-rules"), "{request}");
            let rules = b"{\"result\":{\"pods\":{}}}\n";
            std::io::Write::write_all(stream.get_mut(), rules).unwrap();
            streams.push(stream);
        }
    });
    until("the agent", || server.agents() == 1).await;
    let mut tunnel = Tunnel::unix(&world.socket()).await.unwrap();
    soon(tunnel.dial(&target)).await.unwrap();
    until("it to know its server", || agent.servers().len() == 1).await;
    assert!(get(health, "/readyz").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_socket_that_is_there_already() {
    let world = World::new("socket");
    let first = Server::start(world.server_options()).await.unwrap();
    // The file of a server that was killed.
    std::mem::forget(first);
    let mut options = world.server_options();
    options.frontend = Frontend::Unix { path: world.socket(), delete_existing: false };
    let error = Server::start(options).await.unwrap_err().to_string();
    assert!(error.contains("server.sock: there is a file already"), "{error}");
    let second = Server::start(world.server_options()).await.unwrap();
    drop(second);
    assert!(!world.socket().exists());
    // A file that is not a socket is never removed.
    std::fs::write(world.socket(), "precious").unwrap();
    let error = Server::start(world.server_options()).await.unwrap_err().to_string();
    assert!(error.contains("this is not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(world.socket()).unwrap(), "precious");
}

#[tokio::test]
async fn a_server_that_ends_waits_for_its_connections() {
    let pair = Pair::new("grace").await;
    let target = echo().await.to_string();
    let mut tunnel = Tunnel::unix(&pair.socket()).await.unwrap();
    let connection = soon(tunnel.dial(&target)).await.unwrap();
    let stopped = tokio::spawn(pair.server.stop(PATIENCE));
    tokio::time::sleep(Duration::from_millis(100)).await;
    tunnel.send_data(connection, b"still");
    assert_eq!(soon(tunnel.receive_data(5)).await.unwrap(), b"still");
    assert!(!stopped.is_finished());
    drop(tunnel);
    soon(stopped).await.unwrap();
    until("its end", || pair.agent.servers().is_empty()).await;
}

/// An answer of the API server without an end is cut; its status is kept.
#[tokio::test]
async fn an_error_of_the_api_server_without_an_end_refuses_an_agent() {
    let world = World::new("endless");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let cluster = kubeconfig(&world, listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let head =
                    "HTTP/1.1 503 Away\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n";
                let mut sent = stream.write_all(head.as_bytes()).await;
                while sent.is_ok() {
                    sent = stream.write_all(&[b'x'; 4096]).await;
                }
            });
        }
    });
    let mut options = world.server_options();
    options.agent_files.ca = None;
    options.tokens = Some(TokenAuth {
        cluster: Arc::new(Cluster::connect(Some(&cluster)).await.unwrap()),
        audience: "konn".to_owned(),
        namespace: "kube-system".to_owned(),
        service_account: "konnectivity-agent".to_owned(),
    });
    let server = Server::start(options).await.unwrap();
    let metadata = [("agentid", "a"), ("authorization", "Bearer good")];
    let refused = soon(plain::agent(&world, server.agent_address(), &metadata)).await;
    let refused = refused.err().unwrap_or_default();
    assert!(refused.contains("tokenreviews: 503"), "{refused}");
}

#[tokio::test]
async fn agents_show_tokens() {
    let world = World::new("tokens");
    let cluster = Arc::new(Cluster::connect(Some(&api(&world).await)).await.unwrap());
    let mut options = world.server_options();
    options.agent_files.ca = None;
    options.tokens = Some(TokenAuth {
        cluster,
        audience: "konn".to_owned(),
        namespace: "kube-system".to_owned(),
        service_account: "konnectivity-agent".to_owned(),
    });
    let server = Server::start(options).await.unwrap();
    let metadata = |token| [("agentid", "a"), ("authorization", token)];
    for (metadata, error) in [
        (&metadata("Bearer bad")[..], "service account jwt not valid"),
        (&metadata("Bearer elsewhere"), "the token is not for audience 'konn'"),
        (&metadata("Bearer anywhere"), "the token is not for audience 'konn'"),
        (&metadata("Basic good"), "received token does not have"),
        (&[("agentid", "a")], "Authentication context was not found"),
        (
            &[("agentid", "a"), ("authorization", "Bearer good"), ("authorization", "Bearer good")],
            "too many (2) tokens",
        ),
    ] {
        let refused = soon(plain::agent(&world, server.agent_address(), metadata)).await;
        let refused = refused.err().unwrap_or_default();
        assert!(refused.contains(error), "{refused} instead of {error}");
    }
    assert_eq!(server.agents(), 0);
    let page = server.metrics();
    assert_eq!(metric(&page, "server_agents_refused_total{reason=\"token\"}"), 6.0);
    let good = metadata("Bearer good");
    let _agent = soon(plain::agent(&world, server.agent_address(), &good)).await.unwrap();
    until("it", || server.agents() == 1).await;
    // An agent reads its token from a file; the newline at the end is not part of it.
    let mut options = world.agent_options(server.agent_address());
    options.token = Some(world.path("token"));
    std::fs::write(world.path("token"), "good\n").unwrap();
    let _agent = Agent::start(options).unwrap();
    until("the agent with a file", || server.agents() == 2).await;
}

#[tokio::test]
async fn leases_tell_how_many_servers_there_are() {
    let world = World::new("leases");
    let kubeconfig = api(&world).await;
    let cluster = Arc::new(Cluster::connect(Some(&kubeconfig)).await.unwrap());
    let listed = address_of(&kubeconfig);
    let leases = LeaseOptions::new("kube-system", "k8s-app=konnectivity-server").unwrap();
    let mut servers = Vec::new();
    for name in ["a", "b"] {
        let mut options = world.server_options();
        options.server_id = name.to_owned();
        options.frontend =
            Frontend::Unix { path: world.path(&format!("{name}.sock")), delete_existing: true };
        options.leases = Some((Arc::clone(&cluster), leases.clone()));
        servers.push(Server::start(options).await.unwrap());
        // One after the other, so that the second finds the first.
        soon(has_lease(&listed, name)).await;
    }
    // The second has counted when it has said so to an agent.
    let metadata = [("agentid", "x")];
    let told = async {
        loop {
            let agent = plain::agent(&world, servers[1].agent_address(), &metadata).await.unwrap();
            if agent.headers["servercount"] == "2" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon(told).await;
    until("the dead one's end", || {
        servers.iter().any(|it| metric(&it.metrics(), "server_culled_leases_count") == 1.0)
    })
    .await;
    assert!(!leases_of(&listed).await.contains("dead"));
}
