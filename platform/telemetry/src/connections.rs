//! Connections of a server, bounded in number.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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

/// Flag of a connection whose client was authenticated.
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

/// Pause after a failed accept, such as for want of a file descriptor.
const PAUSE: Duration = Duration::from_millis(50);

/// Returns what a listener accepted, or `None` after a pause if it failed.
pub async fn accepted<T>(accepted: io::Result<T>) -> Option<T> {
    if let Err(error) = &accepted {
        tracing::debug!("accept: {error}");
        tokio::time::sleep(PAUSE).await;
    }
    accepted.ok()
}

fn network_of(client: SocketAddr) -> IpAddr {
    match client.ip().to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 64 << 64).into()),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(text: &str) -> Option<SocketAddr> {
        Some(SocketAddr::new(text.parse().unwrap(), 1))
    }

    /// Serves a connection that ends only when it is aborted. The returned `Arc` has one reference left
    /// then.
    fn open(connections: &mut Connections, at: &str) -> (Arc<()>, Admitted) {
        let (alive, mut admitted) = (Arc::new(()), Admitted::default());
        let held = Arc::clone(&alive);
        connections.begin(client(at), |it| {
            admitted = it;
            async move {
                std::future::pending::<()>().await;
                drop(held);
            }
        });
        (alive, admitted)
    }

    async fn ends(alive: &Arc<()>) -> bool {
        for _ in 0..100 {
            if Arc::strong_count(alive) == 1 {
                return true;
            }
            tokio::task::yield_now().await;
        }
        false
    }

    #[tokio::test]
    async fn a_new_connection_ends_the_oldest_of_the_network_with_most() {
        let mut connections = Connections::new(4);
        // Addresses of one IPv6 network are one client's.
        let one = open(&mut connections, "192.0.2.1").0;
        let many: Vec<_> = ["2001:db8::1", "2001:db8::2", "2001:db8::3"]
            .map(|at| open(&mut connections, at).0)
            .into();
        let other = open(&mut connections, "2001:db8:0:1::1").0;
        assert!(ends(&many[0]).await, "its task is aborted");
        let last = open(&mut connections, "::ffff:192.0.2.1").0;
        assert!(ends(&many[1]).await);
        // Two of 192.0.2.1 by now, in either form.
        let _more = open(&mut connections, "198.51.100.1").0;
        assert!(ends(&one).await);
        for alive in [&many[2], &other, &last] {
            assert!(!ends(alive).await);
        }
    }

    #[tokio::test]
    async fn an_admitted_client_is_not_replaced() {
        let mut connections = Connections::new(2);
        let (first, admitted) = open(&mut connections, "192.0.2.1");
        admitted.set();
        let (second, _) = open(&mut connections, "192.0.2.1");
        let (third, admitted) = open(&mut connections, "192.0.2.1");
        assert!(ends(&second).await && !ends(&first).await);
        admitted.set();
        let (fourth, _) = open(&mut connections, "192.0.2.1");
        assert!(ends(&fourth).await, "there is no room");
        assert!(!ends(&first).await && !ends(&third).await);
    }
}
