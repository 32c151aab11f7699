//! Another switch takes the place of the running one, under a stream and short connections: nothing
//! breaks, and nothing that is denied opens.
//!
//! `PODGATE_PREVIOUS` names the binary that runs first, such as that of the last release; without it both
//! are today's.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use crate::cluster_node::{ClusterNode, PATIENCE, PODGATE, flow_offload};
use crate::pod::Pod;
use crate::requires_the_machine;
use crate::storm::Raise;

const ONLY_CLIENTS: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-clients, namespace: default}
spec:
  podSelector: {matchLabels: {role: server}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {role: client}}}]
";
const PORT: u16 = 7000;
/// Short connections a second.
const RATE: u64 = 100;

fn echo(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let mut stream = stream;
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = stream.read(&mut bytes) {
                if stream.write_all(&bytes[..length]).is_err() {
                    return;
                }
            }
        });
    }
}

fn connect(to: IpAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from((to, PORT)), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

#[test]
fn an_upgrade_breaks_no_connection_and_opens_none_that_is_denied() {
    requires_the_machine!();
    let previous = std::env::var_os("PODGATE_PREVIOUS").map(PathBuf::from);
    let mut node = ClusterNode::start_of(previous.as_deref().unwrap_or(PODGATE.as_ref()), &[]);
    node.apply("policy", ONLY_CLIENTS);
    // The pods outlive the borrow of the node; their namespaces go at the end.
    let pods = [("server", "server"), ("client", "client"), ("stranger", "stranger")];
    let pods = pods.map(|(name, role)| {
        let pod = std::mem::ManuallyDrop::new(node.pod(name, role));
        (pod.v4(), pod.namespace.path().to_owned(), pod.namespace.name().to_owned())
    });
    let (server, inside) = (pods[0].0, |n: usize| pods[n].1.clone());
    let listener = linux_net::in_namespace(&inside(0), || TcpListener::bind(("0.0.0.0", PORT)));
    let listener = listener.unwrap().unwrap();
    std::thread::spawn(move || echo(&listener));
    let (stop, opened, slowest) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let (failed, let_in, streamed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let runs = || !stop.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        // Each byte of the stream comes back, in order.
        scope.spawn(|| {
            let stream = linux_net::in_namespace(&inside(1), || connect(server)).unwrap();
            let mut stream = stream.unwrap();
            let mut n = 0_u64;
            while runs() {
                let mut back = [0; 8];
                stream
                    .write_all(&n.to_be_bytes())
                    .and_then(|()| stream.read_exact(&mut back))
                    .unwrap();
                assert_eq!(u64::from_be_bytes(back), n);
                n += 1;
                streamed.store(n, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            linux_net::in_namespace(&inside(1), || {
                std::thread::scope(|connections| {
                    while runs() {
                        connections.spawn(|| {
                            let began = Instant::now();
                            let answered = connect(server).and_then(|mut stream| {
                                stream.write_all(b"x")?;
                                stream.read_exact(&mut [0])
                            });
                            match answered {
                                Ok(()) => opened.fetch_add(1, Ordering::Relaxed),
                                Err(_) => failed.fetch_add(1, Ordering::Relaxed),
                            };
                            let took = began.elapsed().as_millis() as u64;
                            slowest.fetch_max(took, Ordering::Relaxed);
                        });
                        std::thread::sleep(Duration::from_millis(1000 / RATE));
                    }
                });
            })
            .unwrap();
        });
        scope.spawn(|| {
            linux_net::in_namespace(&inside(2), || {
                while runs() {
                    let address = SocketAddr::from((server, PORT));
                    if TcpStream::connect_timeout(&address, Duration::from_millis(50)).is_ok() {
                        let_in.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
            .unwrap();
        });
        let _stopping = Raise(&stop);
        let goes_on = |node: &ClusterNode| {
            let counts = || [&opened, &streamed].map(|it| it.load(Ordering::Relaxed));
            let before = counts();
            node.eventually("connections and the stream", || {
                counts().iter().zip(before).all(|(now, before)| *now >= before + 100).then_some(())
            });
        };
        goes_on(&node);
        node.program = PODGATE.into();
        let (ended, without) = node.replace_switch();
        assert!(ended.success());
        goes_on(&node);
        goes_on(&node);
        eprintln!("from the end of the one to the readiness of the other: {without:?}");
    });
    let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
    eprintln!(
        "{} connections, the slowest {} ms; {} bytes of the stream",
        count(&opened),
        count(&slowest),
        count(&streamed) * 8
    );
    assert_eq!(count(&failed), 0, "connections that failed");
    assert_eq!(count(&let_in), 0, "connections that are denied");
    for (_, _, namespace) in &pods {
        let deleted =
            std::process::Command::new("ip").args(["netns", "delete", namespace]).status();
        assert!(deleted.unwrap().success());
    }
}

/// The kernel forwards by the programs of the former switch until the next one's are there, and these
/// are put in place when its workers know all ports.
#[test]
fn an_upgrade_loses_no_datagram_of_a_connection_that_the_kernel_forwards() {
    requires_the_machine!();
    testkit::requires!(flow_offload(), "needs flow offload");
    let node = ClusterNode::start(&[]);
    let (server, client) = (node.pod("server", "server"), node.pod("client", "client"));
    let bind = |pod: &Pod<'_>| {
        let bind = || UdpSocket::bind(("0.0.0.0", PORT));
        linux_net::in_namespace(pod.namespace.path(), bind).unwrap().unwrap()
    };
    let (echoing, sending) = (bind(&server), bind(&client));
    for socket in [&echoing, &sending] {
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        // Room for what arrives while a busy machine keeps the receiver waiting.
        sockopt::set_socket_recv_buffer_size_force(socket, 8 << 20).unwrap();
    }
    sending.connect((server.v4(), PORT)).unwrap();
    let [sent, answers] = [const { AtomicU64::new(0) }; 2];
    let [stop, stop_receivers] = [const { AtomicBool::new(false) }; 2];
    let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let _stopping = [Raise(&stop), Raise(&stop_receivers)];
        scope.spawn(|| {
            let mut bytes = [0; 8];
            while !stop_receivers.load(Ordering::Relaxed) {
                if let Ok((_, from)) = echoing.recv_from(&mut bytes) {
                    echoing.send_to(&bytes, from).unwrap();
                }
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                sending.send(&count(&sent).to_be_bytes()).unwrap();
                sent.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        scope.spawn(|| {
            while !stop_receivers.load(Ordering::Relaxed) {
                if sending.recv(&mut [0; 8]).is_ok() {
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let goes_on = || {
            let before = count(&answers);
            node.eventually("answers", || (count(&answers) >= before + 300).then_some(()));
        };
        goes_on();
        node.replace_switch();
        goes_on();
        goes_on();
        stop.store(true, Ordering::Relaxed);
        node.eventually("an answer to each", || (count(&answers) == count(&sent)).then_some(()));
    });
}
