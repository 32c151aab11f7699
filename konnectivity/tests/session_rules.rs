//! Session rules, before a dial, during one, and for open connections.

use crate::common::*;
use konnectivity::agent::Agent;
use konnectivity::audit::{Audit, Format};
use konnectivity::client::Tunnel;
use konnectivity::packet::Packet;
use konnectivity::rules::Rules;
use konnectivity::server::Server;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};

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
