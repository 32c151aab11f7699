//! Two servers behind a balancer with leases, two agents, all restarted one after the other while
//! connections are open, with certificates of two authorities in turn. Everything over IPv6.
//!
//! `scripts/konnectivity-soak` runs this for longer and with more connections.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::api::{address_of, api, has_lease, kubeconfig};
use crate::common::*;
use konnectivity::agent::{Agent, ServerCount};
use konnectivity::client::Tunnel;
use konnectivity::kubernetes::{Cluster, LeaseOptions};
use konnectivity::packet::Packet;
use konnectivity::server::{Frontend, Server};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const ANY_PORT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V6(std::net::Ipv6Addr::LOCALHOST), 0);
const NAMES: [&str; 2] = ["a", "b"];

/// Servers, agents, and the balancer between them.
struct Fleet {
    world: World,
    api: SocketAddr,
    leases: (Arc<Cluster>, LeaseOptions),
    /// Where the balancer finds the servers.
    addresses: Mutex<[SocketAddr; 2]>,
    balancer: SocketAddr,
    target: String,
}

impl Fleet {
    async fn new() -> Arc<Self> {
        let world = World::new("high-availability");
        let kubeconfig = api(&world).await;
        let cluster = Arc::new(Cluster::connect(Some(&kubeconfig)).await.unwrap());
        let leases = LeaseOptions::new("kube-system", "k8s-app=konnectivity-server").unwrap();
        let listener = TcpListener::bind(ANY_PORT).await.unwrap();
        let echo = TcpListener::bind(ANY_PORT).await.unwrap();
        let fleet = Arc::new(Self {
            world,
            api: address_of(&kubeconfig),
            leases: (cluster, leases),
            addresses: Mutex::new([ANY_PORT; 2]),
            balancer: listener.local_addr().unwrap(),
            target: echo.local_addr().unwrap().to_string(),
        });
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = echo.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _over = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        let balanced = Arc::clone(&fleet);
        tokio::spawn(async move {
            let mut turn = 0;
            while let Ok((mut client, _)) = listener.accept().await {
                turn += 1;
                let address = balanced.addresses.lock().unwrap()[turn % 2];
                tokio::spawn(async move {
                    // A server that is not there is for the agent to try again.
                    let Ok(mut server) = TcpStream::connect(address).await else { return };
                    let _over = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        fleet
    }

    fn socket(&self, at: usize) -> std::path::PathBuf {
        self.world.path(&format!("{}.sock", NAMES[at]))
    }

    async fn server(&self, at: usize) -> Server {
        self.server_with(at, Some(self.leases.clone())).await
    }

    async fn server_with(&self, at: usize, leases: Option<(Arc<Cluster>, LeaseOptions)>) -> Server {
        let mut options = self.world.server_options();
        options.server_id = NAMES[at].to_owned();
        options.agents = ANY_PORT;
        options.frontend = Frontend::Unix { path: self.socket(at), delete_existing: true };
        options.leases = leases;
        let server = Server::start(options).await.unwrap();
        self.addresses.lock().unwrap()[at] = server.agent_address();
        server
    }

    fn agent(&self, id: usize) -> Agent {
        let mut options = self.world.agent_options(self.balancer);
        options.agent_id = format!("agent-{id}");
        let (cluster, leases) = self.leases.clone();
        options.server_count = ServerCount::Leases(cluster, leases);
        Agent::start(options).unwrap()
    }
}

/// Outcomes of the connections.
#[derive(Debug, Default)]
struct Tally {
    finished: AtomicUsize,
    /// Not taken by a server that ends.
    refused: AtomicUsize,
    broken: Mutex<Vec<String>>,
}

/// Opens a connection and exchanges bytes, for about a second where the machine has nothing else to do.
/// Each answer comes within `PATIENCE`.
async fn connection(fleet: &Fleet, at: usize, seed: usize) -> Result<(), (bool, String)> {
    let refused = |why: String| (false, why);
    let mut tunnel =
        soon(Tunnel::unix(&fleet.socket(at))).await.map_err(|error| refused(error.to_string()))?;
    let connection = soon(tunnel.dial(&fleet.target)).await.map_err(refused)?;
    for round in 0..20 {
        let bytes = (seed + round).to_be_bytes().repeat(16);
        tunnel.send_data(connection, &bytes);
        let answer = soon(tunnel.receive_data(bytes.len())).await.map_err(|why| (true, why))?;
        assert!(answer == bytes, "the bytes of somebody else");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tunnel.send(&Packet::CloseRequest { connection, half: false });
    soon(tunnel.receive()).await;
    Ok(())
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |it| it.parse().expect(name))
}

#[tokio::test]
async fn a_restarted_server_is_found_before_leases_count_it() {
    let fleet = Fleet::new().await;
    let [first, second] = [fleet.server(0).await, fleet.server(1).await];
    for name in NAMES {
        soon(has_lease(&fleet.api, name)).await;
    }
    let agent = fleet.agent(0);
    until("both", || agent.servers().len() == 2).await;
    second.stop(PATIENCE).await;
    let known = || metric(&agent.metrics(), "agent_known_server_count");
    until("the count without it", || known() == 1.0).await;
    let second = fleet.server_with(1, None).await;
    until("the agent again", || second.agents() == 1 && first.agents() == 1).await;
    assert_eq!(known(), 1.0, "the leases");
}

/// A client may have connected before, and is in no count: it has no stream yet. The server waits for the
/// end of its lease meanwhile.
#[tokio::test]
async fn a_server_that_ends_takes_no_dial_that_it_would_break() {
    let fleet = Fleet::new().await;
    let slow = TcpListener::bind(ANY_PORT).await.unwrap();
    let kubeconfig = kubeconfig(&fleet.world, slow.local_addr().unwrap());
    // Open, silent, or gone.
    let (silence, silent) = tokio::sync::watch::channel(0);
    let api = fleet.api;
    tokio::spawn(async move {
        while let Ok((mut client, _)) = slow.accept().await {
            let mut silent = silent.clone();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(api).await.unwrap();
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut client, &mut server) => return,
                    _ = silent.wait_for(|it| *it > 0) => {}
                }
                let _gone = silent.wait_for(|it| *it > 1).await;
            });
        }
    });
    let cluster = Arc::new(Cluster::connect(Some(&kubeconfig)).await.unwrap());
    let server = fleet.server_with(0, Some((cluster, fleet.leases.1.clone()))).await;
    fleet.addresses.lock().unwrap()[1] = server.agent_address();
    soon(has_lease(&fleet.api, NAMES[0])).await;
    let _agent = fleet.agent(0);
    until("the agent", || server.agents() > 0).await;
    let io = tokio::net::UnixStream::connect(fleet.socket(0)).await.unwrap();
    // It is accepted before a later one is, which ends again.
    let mut later = Tunnel::unix(&fleet.socket(0)).await.unwrap();
    soon(later.dial(&fleet.target)).await.unwrap();
    drop(later);
    let open = "server_grpc_connections{service_method=\"Proxy\"}";
    until("its end", || server.established() == 0 && metric(&server.metrics(), open) == 0.0).await;
    silence.send(1).unwrap();
    let stopped = tokio::spawn(server.stop(PATIENCE));
    let is_listening = || std::os::unix::net::UnixStream::connect(fleet.socket(0)).is_ok();
    until("the end of its listeners", || !is_listening()).await;
    let mut tunnel = Tunnel::over(io, "http", "server");
    let dialed = soon(tunnel.dial(&fleet.target)).await;
    assert!(dialed.as_ref().is_err_and(|why| why.contains("the server ends")), "{dialed:?}");
    silence.send(2).unwrap();
    soon(stopped).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restarts_break_no_connection() {
    let length = Duration::from_secs(setting("PODGATE_PROXY_SOAK_SECONDS", 0));
    let connections = setting("PODGATE_PROXY_SOAK_CONNECTIONS", 60) as usize;
    let fleet = Fleet::new().await;
    let mut servers = [fleet.server(0).await, fleet.server(1).await];
    for name in NAMES {
        soon(has_lease(&fleet.api, name)).await;
    }
    let mut agents = [fleet.agent(0), fleet.agent(1)];
    let connected = |servers: &[Server; 2]| servers.iter().all(|it| it.agents() >= 2);
    until("every agent at every server", || connected(&servers)).await;

    let tally = Arc::new(Tally::default());
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for client in 0..connections {
        let (fleet, tally, stop) = (Arc::clone(&fleet), Arc::clone(&tally), Arc::clone(&stop));
        clients.spawn(async move {
            let mut at = client % 2;
            while !stop.load(Ordering::Relaxed) {
                match connection(&fleet, at, client << 16).await {
                    Ok(()) => _ = tally.finished.fetch_add(1, Ordering::Relaxed),
                    // As a balancer's health check finds.
                    Err((false, _)) => {
                        tally.refused.fetch_add(1, Ordering::Relaxed);
                        at = 1 - at;
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    Err((true, why)) => tally.broken.lock().unwrap().push(why),
                }
            }
        });
    }

    let begin = Instant::now();
    let mut next = 2;
    fleet.world.trust_both();
    loop {
        // Before the restarts, and again between those of servers and agents: each end meets a peer with
        // the other authority's certificate.
        fleet.world.exchange_certificates();
        for at in 0..2 {
            let [first, second] = servers;
            let (old, kept) = if at == 0 { (first, second) } else { (second, first) };
            old.stop(PATIENCE).await;
            let new = fleet.server(at).await;
            servers = if at == 0 { [new, kept] } else { [kept, new] };
            until("every agent at the new server", || connected(&servers)).await;
        }
        fleet.world.exchange_certificates();
        for agent in &mut agents {
            // The new one first, so that an agent can be chosen at any time.
            let new = fleet.agent(next);
            next += 1;
            until("the new agent", || servers.iter().all(|it| it.agents() >= 3)).await;
            agent.drain();
            // Dials that its servers sent before they received the drain may still arrive, late where
            // the machine is busy.
            let mut idle = Instant::now();
            until_within(4 * PATIENCE, "the old one's last connection", || {
                if agent.targets() > 0 {
                    idle = Instant::now();
                }
                idle.elapsed() > Duration::from_secs(4)
            })
            .await;
            *agent = new;
        }
        let (finished, refused) =
            (tally.finished.load(Ordering::Relaxed), tally.refused.load(Ordering::Relaxed));
        println!("{:?}: {finished} connections, {refused} tries refused", begin.elapsed());
        if begin.elapsed() >= length {
            break;
        }
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let broken = std::mem::take(&mut *tally.broken.lock().unwrap());
    assert!(broken.is_empty(), "{} connections broke: {:?}", broken.len(), broken[0]);
    assert!(tally.finished.load(Ordering::Relaxed) >= connections, "{tally:?}");
    until("the end of all", || servers.iter().all(|it| it.established() == 0)).await;
    until("the end of all targets", || agents.iter().all(|it| it.targets() == 0)).await;
}
