//! Health, readiness, session rules, sockets, tokens and leases.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::api::{address_of, api, get, has_lease, kubeconfig, leases_of};
use crate::common::*;
use konnectivity::agent::Agent;
use konnectivity::audit::{Audit, Format};
use konnectivity::client::Tunnel;
use konnectivity::kubernetes::{Cluster, LeaseOptions};
use konnectivity::packet::Packet;
use konnectivity::rules::Rules;
use konnectivity::server::{Frontend, Server, Strategy, TokenAuth};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

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
async fn session_rules_are_asked_before_a_dial() {
    let world = World::new("rules");
    let (open, closed) = (echo().await, echo().await);
    let text = format!(
        "rules:\n- {{tag: closed, local: 127.0.0.1, ports: {}, action: deny}}\n",
        closed.port()
    );
    std::fs::write(world.path("rules.yaml"), text).unwrap();
    let rules = Arc::new(Rules::read(&world.path("rules.yaml")).unwrap());
    // At the agent, which resolves names; then at the server, for addresses.
    for at_server in [false, true] {
        let mut options = world.server_options();
        options.rules = Some(Arc::clone(&rules)).filter(|_| at_server);
        let server = Server::start(options).await.unwrap();
        let mut options = world.agent_options(server.agent_address());
        options.rules = Some(Arc::clone(&rules)).filter(|_| !at_server);
        let agent = Agent::start(options).unwrap();
        until("the agent", || server.agents() == 1).await;
        let mut tunnel = Tunnel::unix(&world.socket()).await.unwrap();
        soon(tunnel.dial(&open.to_string())).await.unwrap();
        let mut targets = vec![closed.to_string()];
        if !at_server {
            targets.push(format!("localhost:{}", closed.port()));
        }
        for target in targets {
            let mut tunnel = Tunnel::unix(&world.socket()).await.unwrap();
            let error = soon(tunnel.dial(&target)).await.unwrap_err();
            assert!(error.contains("denied by session rule"), "{target}: {error}");
            assert!(error.contains("[closed]"), "{target}: {error}");
        }
        let denied = if at_server { server.metrics() } else { agent.metrics() };
        assert!(denied.contains("reason=\"denied_by_rule\"} "), "{denied}");
    }
}

#[tokio::test]
async fn a_rule_that_changes_during_a_dial_holds_for_it() {
    let world = World::new("rules-meanwhile");
    // A queue of one connection, which is full: a dial is retried until there is room.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listener = socket.listen(0).unwrap();
    let target = listener.local_addr().unwrap();
    let _first = TcpStream::connect(target).await.unwrap();
    let path = world.path("rules.yaml");
    std::fs::write(&path, "rules: []\n").unwrap();
    let server = Server::start(world.server_options()).await.unwrap();
    let mut options = world.agent_options(server.agent_address());
    options.rules = Some(Arc::new(Rules::read(&path).unwrap()));
    let agent = Agent::start(options).unwrap();
    until("the agent", || server.agents() == 1).await;
    let mut tunnel = Tunnel::unix(&world.socket()).await.unwrap();
    let pending = "agent_pending_endpoint_dials";
    let dialled = tokio::spawn(async move {
        let dialled = tunnel.dial(&target.to_string()).await;
        (tunnel, dialled)
    });
    until("the dial", || metric(&agent.metrics(), pending) == 1.0).await;
    let text = format!(
        "rules:\n- {{tag: closed, local: 127.0.0.1, ports: {}, action: deny}}\n",
        target.port()
    );
    std::fs::write(&path, text).unwrap();
    // Longer than files are looked at, and rules evaluated anew.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(metric(&agent.metrics(), pending), 1.0, "the dial waits");
    let _accepted = listener.accept().await.unwrap();
    let (mut tunnel, dialled) = soon(dialled).await.unwrap();
    let error = match dialled {
        Err(error) => error,
        Ok(_) => match soon(tunnel.receive()).await {
            Some(Packet::CloseResponse { error, .. }) => error,
            other => panic!("{other:?}"),
        },
    };
    assert!(error.contains("denied by session rule") && error.contains("[closed]"), "{error}");
}

/// A connection that carries data until its end: the number of exchanges so far, and the reason of the end.
async fn carry(
    socket: std::path::PathBuf,
    target: String,
    exchanges: Arc<AtomicU64>,
) -> Result<(), String> {
    let mut tunnel = Tunnel::unix(&socket).await.unwrap();
    let connection = tunnel.dial(&target).await?;
    loop {
        tunnel.send_data(connection, b"question");
        tunnel.receive_data(8).await?;
        exchanges.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Hundreds of connections carry data, and others open all the time, while a denial comes and goes.
#[tokio::test]
async fn rules_that_change_under_load_end_what_they_deny_and_nothing_else() {
    const EACH: usize = 120;
    let world = World::new("rules-load");
    let (kept, denied) = (echo().await.to_string(), echo().await.to_string());
    let path = world.path("rules.yaml");
    std::fs::write(&path, "rules: []\n").unwrap();
    let mut options = world.server_options();
    options.audit = Audit::new(None, Format::Json).unwrap();
    let server = Server::start(options).await.unwrap();
    let mut options = world.agent_options(server.agent_address());
    options.rules = Some(Arc::new(Rules::read(&path).unwrap()));
    let agent = Agent::start(options).unwrap();
    until("the agent", || server.agents() == 1).await;
    let open = || metric(&agent.metrics(), "agent_open_endpoint_connections") as usize;
    let carriers = |target: &String| {
        let start = |_| {
            let exchanges = Arc::<AtomicU64>::default();
            let carrying = carry(world.socket(), target.clone(), Arc::clone(&exchanges));
            (exchanges, tokio::spawn(carrying))
        };
        (0..EACH).map(start).collect::<Vec<_>>()
    };
    let goes_on = |all: &[(Arc<AtomicU64>, _)]| {
        let counts = |all: &[(Arc<AtomicU64>, _)]| -> Vec<u64> {
            all.iter().map(|(exchanges, _)| exchanges.load(Ordering::Relaxed)).collect()
        };
        let before = counts(all);
        move |all: &[(Arc<AtomicU64>, _)]| counts(all).iter().zip(&before).all(|(now, it)| now > it)
    };
    let lasting = carriers(&kept);
    for _ in 0..3 {
        let doomed = carriers(&denied);
        let all_carry = goes_on(&doomed);
        until("all to carry data", || all_carry(&doomed) && open() == 2 * EACH).await;
        let port = denied.rsplit(':').next().unwrap();
        let rule = format!("{{tag: closed, local: 127.0.0.1, ports: {port}, action: deny}}");
        std::fs::write(&path, format!("rules:\n- {rule}\n")).unwrap();
        // Connections open one after the other, by several clients at once, until the change and after it.
        let is_in_force = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..8)
            .map(|n| {
                let (socket, is_in_force) = (world.socket(), Arc::clone(&is_in_force));
                let (kept, denied) = (kept.clone(), denied.clone());
                tokio::spawn(async move {
                    for dial in n.. {
                        let was_in_force = is_in_force.load(Ordering::SeqCst);
                        let mut tunnel = Tunnel::unix(&socket).await.unwrap();
                        let target = if dial % 2 == 0 { &denied } else { &kept };
                        match soon(tunnel.dial(target)).await {
                            Ok(_) => assert!(target == &kept || !was_in_force, "opened"),
                            Err(error) => {
                                assert!(target == &denied, "{error}");
                                assert!(error.contains("denied by session rule"), "{error}");
                                is_in_force.store(true, Ordering::SeqCst);
                            }
                        }
                        if was_in_force && dial > n + 40 {
                            return;
                        }
                    }
                })
            })
            .collect();
        for (_, carrying) in doomed {
            let error = soon(carrying).await.unwrap().unwrap_err();
            assert!(error.contains("denied by session rule"), "{error}");
        }
        for client in clients {
            soon(client).await.unwrap();
        }
        assert!(is_in_force.load(Ordering::SeqCst));
        let lasting_carry = goes_on(&lasting);
        until("the others to go on", || lasting_carry(&lasting)).await;
        until("the rest to be closed", || open() == EACH).await;
        assert_eq!(metric(&agent.metrics(), "agent_pending_endpoint_dials"), 0.0);
        assert_eq!(metric(&server.metrics(), "server_pending_backend_dials"), 0.0);
        std::fs::write(&path, "rules: []\n").unwrap();
        let opens = async || {
            let mut tunnel = Tunnel::unix(&world.socket()).await.unwrap();
            soon(tunnel.dial(&denied)).await.is_ok()
        };
        while !opens().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    assert!(lasting.iter().all(|(_, carrying)| !carrying.is_finished()));
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
    // What is no socket is never removed.
    std::fs::write(world.socket(), "precious").unwrap();
    let error = Server::start(world.server_options()).await.unwrap_err().to_string();
    assert!(error.contains("this is no socket"), "{error}");
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
