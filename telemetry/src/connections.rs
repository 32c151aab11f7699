//! Connections of a server, bounded in number.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::{AbortHandle, JoinSet};

/// Open connections, each with its task. Dropping it ends all of them.
#[derive(Debug)]
pub struct Connections {
    most: usize,
    tasks: JoinSet<()>,
    oldest_first: VecDeque<Open>,
}

#[derive(Debug)]
struct Open {
    task: AbortHandle,
    is_admitted: Admitted,
    /// The client's address; of IPv6 its network, in which a client has many addresses. `None` for
    /// clients of a unix socket.
    network: Option<IpAddr>,
}

/// Whether the client of a connection was let in.
#[derive(Clone, Debug, Default)]
pub struct Admitted(Arc<AtomicBool>);

impl Admitted {
    /// Keeps the connection from being replaced.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Connections {
    /// At most this many connections.
    pub fn new(most: usize) -> Self {
        Self { most, tasks: JoinSet::new(), oldest_first: VecDeque::new() }
    }

    /// Serves one more connection, from `client` if it has an address. If there are too many it
    /// replaces one whose client was not let in, the oldest of the network with most of them; if there
    /// is none the new one is dropped.
    pub fn begin<F>(&mut self, client: Option<SocketAddr>, serve: impl FnOnce(Admitted) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        while self.tasks.try_join_next().is_some() {}
        self.oldest_first.retain(|connection| !connection.task.is_finished());
        if self.oldest_first.len() >= self.most {
            match self.replaceable().and_then(|at| self.oldest_first.remove(at)) {
                Some(oldest) => oldest.task.abort(),
                None => return,
            }
        }
        let is_admitted = Admitted::default();
        let task = self.tasks.spawn(serve(is_admitted.clone()));
        let network = client.map(network_of);
        self.oldest_first.push_back(Open { task, is_admitted, network });
    }

    /// The place of the connection that a new one replaces.
    fn replaceable(&self) -> Option<usize> {
        let all =
            || self.oldest_first.iter().enumerate().filter(|(_, it)| !it.is_admitted.is_set());
        let of_network = |network| all().filter(|(_, it)| it.network == network).count();
        // Of equal ones the first.
        let most = all().map(|(at, it)| (of_network(it.network), std::cmp::Reverse(at))).max();
        most.map(|(_, std::cmp::Reverse(at))| at)
    }
}

fn network_of(client: SocketAddr) -> IpAddr {
    match client.ip().to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 64 << 64).into()),
        v4 => v4,
    }
}
