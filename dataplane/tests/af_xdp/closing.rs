//! Ports that are closed beside others: the kernel takes its time, and workers do not wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use dataplane::port::af_xdp::{PortOptions, Umem, UmemConfig};
use dataplane::port::{Buffers, Port, PortGone};
use dataplane::switch::{Config, RxMode};
use dataplane::{Frame, PortId, Switch};
use testkit::Namespace;

use crate::af_xdp::pair::words;

const PORTS: usize = 8;

/// A port that is closed once the worker has gone round meanwhile.
struct Watched {
    port: Box<dyn Port>,
    rounds: Arc<AtomicU64>,
    closed: Arc<AtomicU64>,
}

impl Port for Watched {
    fn receive(
        &mut self,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        self.port.receive(buffers, most, frames)
    }

    fn send(&mut self, buffers: &mut Buffers<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone> {
        self.port.send(buffers, frames)
    }

    fn close(self: Box<Self>, buffers: &mut Buffers<'_>) {
        let before = self.rounds.load(SeqCst);
        self.port.close(buffers);
        testkit::eventually("a round", || (self.rounds.load(SeqCst) > before).then_some(()));
        self.closed.fetch_add(1, SeqCst);
    }
}

/// Counts the rounds of its worker.
struct Rounds(Arc<AtomicU64>);

impl Port for Rounds {
    fn receive(
        &mut self,
        _buffers: &mut Buffers<'_>,
        _most: usize,
        _frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        self.0.fetch_add(1, SeqCst);
        Ok(())
    }

    fn send(
        &mut self,
        _buffers: &mut Buffers<'_>,
        _frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        Ok(())
    }

    fn close(self: Box<Self>, _buffers: &mut Buffers<'_>) {}
}

#[test]
fn a_worker_goes_round_while_the_kernel_closes_ports() {
    testkit::requires_root!();
    let namespace = Namespace::new("closing");
    for n in 0..PORTS {
        namespace.exec(words(&format!("ip link add pod{n} type veth peer name eth{n}")));
        namespace.exec(words(&format!("ip link set pod{n} up")));
        namespace.exec(words(&format!("ip link set eth{n} up")));
    }
    namespace.enter(|| {
        let config = UmemConfig { frames: 8192, hugepages: false };
        let (umem, memory, frames) = Umem::create(&config).expect("a UMEM");
        let config = Config { workers: 1, rx_mode: RxMode::Polling, ..Config::default() };
        let switch = Switch::start(&config, &memory, frames, |_| None).unwrap();
        let (rounds, closed) = (Arc::default(), Arc::default());
        for n in 0..PORTS {
            let port = umem.open(&format!("pod{n}"), &PortOptions::default()).expect("a port");
            let (rounds, closed) = (Arc::clone(&rounds), Arc::clone(&closed));
            let port = Watched { port: Box::new(port), rounds, closed };
            switch.add_port(PortId(n as u16), Box::new(port));
        }
        switch.add_port(PortId(PORTS as u16), Box::new(Rounds(rounds)));
        (0..PORTS).for_each(|n| switch.remove_port(PortId(n as u16)));
        switch.finish_closing();
        assert_eq!(closed.load(SeqCst), PORTS as u64, "the worker waited for the kernel");
        drop(switch);
    });
}
