//! A packet generator: UDP frames over AF_XDP, at a rate, for a while, counted at the other end.
//!
//! `pktgen send` in one namespace, `pktgen receive` in another; `pktgen try` does both over a veth
//! pair of its own.

use std::error::Error;
use std::time::{Duration, Instant};

use bench::generator::{Received, Stream};
use bench::rig::{End, joined, mac};
use clap::{Args, Parser, Subcommand};
use dataplane::wire::Mac;
use testkit::Namespace;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Sends UDP frames over an AF_XDP socket, and counts them at the other end.
#[derive(Parser)]
#[command(after_help = "Example: pktgen try --size 64 --flows 1000 --rate 0.5 --duration 3\n\n\
                  The kernel does not see the interface while this runs: use one that nothing else \
                  needs.")]
struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Send a stream from an interface
    Send {
        #[command(flatten)]
        stream: StreamArgs,
        /// Interface to send from
        #[arg(long)]
        interface: String,
        /// MAC address frames come from
        #[arg(long, value_parser = parse_mac)]
        from_mac: Mac,
        /// MAC address frames go to
        #[arg(long, value_parser = parse_mac)]
        to_mac: Mac,
        /// IP address frames come from
        #[arg(long)]
        from: String,
        /// IP address frames go to
        #[arg(long)]
        to: String,
    },
    /// Count the streams that arrive at an interface
    Receive {
        /// Interface to listen on
        #[arg(long)]
        interface: String,
        /// Seconds to listen for
        #[arg(long, default_value_t = 5.0)]
        duration: f64,
    },
    /// Send and receive over a veth pair made for it
    Try {
        #[command(flatten)]
        stream: StreamArgs,
    },
}

#[derive(Args)]
struct StreamArgs {
    /// Bytes of a frame, with the 4 of its check sequence
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Flows, distinguished by their source ports
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=60000))]
    flows: u16,
    /// Million frames a second; without it as many as go
    #[arg(long)]
    rate: Option<f64>,
    /// Seconds to send for
    #[arg(long, default_value_t = 5.0)]
    duration: f64,
    /// UDP port frames go to
    #[arg(long, default_value_t = 9)]
    port: u16,
}

pub(crate) fn main(args: &[String]) -> Result<()> {
    match Command::parse_from(args).what {
        What::Send { stream, interface, from_mac, to_mac, from, to } => {
            let mut end = End::open(&interface, FRAMES, 64)?;
            stream.run(&mut end, (from_mac, from), (to_mac, to))
        }
        What::Receive { interface, duration } => {
            let mut end = End::open(&interface, FRAMES, 2048)?;
            let deadline = Instant::now() + seconds(duration)?;
            report(receive(&mut end, || Instant::now() < deadline)?)
        }
        What::Try { stream } => try_out(&stream),
    }
}

const FRAMES: u32 = 8192;

impl StreamArgs {
    fn run(&self, end: &mut End, from: (Mac, String), to: (Mac, String)) -> Result<()> {
        let stream = Stream {
            from,
            to: (to.0, to.1, self.port),
            size: self.size,
            flows: self.flows,
            rate: self.rate.map(|rate| rate * 1e6),
        };
        let sent = stream.run(end, Some(seconds(self.duration)?))?;
        let rate = sent.frames as f64 / sent.seconds / 1e6;
        println!("sent {} frames in {:.2} s: {rate:.3} Mpps", sent.frames, sent.seconds);
        Ok(())
    }
}

fn parse_mac(text: &str) -> std::result::Result<Mac, String> {
    mac(text).map_err(|error| error.to_string())
}

fn seconds(number: f64) -> Result<Duration> {
    Ok(Duration::try_from_secs_f64(number)?)
}

fn receive(end: &mut End, goes_on: impl Fn() -> bool) -> Result<Received> {
    let (mut received, mut frames) = (Received::default(), Vec::new());
    while goes_on() {
        end.receive(&mut frames)?;
        for frame in frames.drain(..) {
            received.count(end.memory.bytes(&frame));
            end.free.put(frame);
        }
    }
    Ok(received)
}

fn report(received: Received) -> Result<()> {
    let Received { frames, lost, reordered } = received;
    println!("received {frames} frames, {lost} lost on the way, {reordered} out of order");
    Ok(())
}

fn try_out(stream: &StreamArgs) -> Result<()> {
    let [left, right] = joined(stream.size.max(1500) as u32);
    let open = |namespace: &Namespace, fill| {
        namespace.enter(|| End::open("eth0", FRAMES, fill).map_err(|error| error.to_string()))
    };
    let (mut sender, mut receiver) = (open(&left, 64)?, open(&right, 2048)?);
    let deadline = Instant::now() + seconds(stream.duration)? + Duration::from_millis(200);
    std::thread::scope(|scope| {
        let counts = scope.spawn(|| {
            receive(&mut receiver, || Instant::now() < deadline).map_err(|error| error.to_string())
        });
        let (from, to) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        stream.run(&mut sender, (from, "10.0.0.1".into()), (to, "10.0.0.2".into()))?;
        let received = counts.join().map_err(|_| "the receiver panicked")??;
        report(received)
    })
}
