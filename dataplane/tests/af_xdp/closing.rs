//! Ports that are closed beside others: the kernel takes its time, and workers do not wait for it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dataplane::port::af_xdp::{PortOptions, Umem, UmemConfig};
use dataplane::port::{Buffers, Port, PortGone};
use dataplane::switch::{Config, RxMode};
use dataplane::{Frame, PortId, Switch};
use testkit::Namespace;

use crate::af_xdp::pair::words;

const PORTS: usize = 8;

/// Times a port's closing.
struct Timed {
    port: Box<dyn Port>,
    closings: Arc<Mutex<Vec<(Instant, Instant)>>>,
}

impl Port for Timed {
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
        let began = Instant::now();
        self.port.close(buffers);
        self.closings.lock().unwrap().push((began, Instant::now()));
    }
}

/// Notes the longest time between two rounds of its worker, in nanoseconds.
struct Rounds {
    last: Instant,
    longest: Arc<AtomicU64>,
}

impl Port for Rounds {
    fn receive(
        &mut self,
        _buffers: &mut Buffers<'_>,
        _most: usize,
        _frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        let now = Instant::now();
        self.longest.fetch_max((now - self.last).as_nanos() as u64, Relaxed);
        self.last = now;
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
        let closings = Arc::default();
        for n in 0..PORTS {
            let port = umem.open(&format!("pod{n}"), &PortOptions::default()).expect("a port");
            let port = Timed { port: Box::new(port), closings: Arc::clone(&closings) };
            switch.add_port(PortId(n as u16), Box::new(port));
        }
        let longest = Arc::new(AtomicU64::new(0));
        let rounds = Rounds { last: Instant::now(), longest: Arc::clone(&longest) };
        switch.add_port(PortId(PORTS as u16), Box::new(rounds));
        let counters = switch.counters().next().expect("a worker");
        let gone_round = || counters.busy_rounds.value() + counters.idle_rounds.value();
        longest.store(0, Relaxed);
        let mut during = 0;
        for n in 0..PORTS {
            switch.remove_port(PortId(n as u16));
            let before = gone_round();
            switch.finish_closing();
            during += gone_round() - before;
        }
        assert!(during > 0, "the worker waited for the kernel");
        let closings = closings.lock().unwrap();
        assert_eq!(closings.len(), PORTS);
        let times: Vec<Duration> = closings.iter().map(|(from, to)| *to - *from).collect();
        println!("the kernel closed ports in {times:?}");
        println!("longest round meanwhile: {:?}", Duration::from_nanos(longest.load(Relaxed)));
        drop(switch);
    });
}
