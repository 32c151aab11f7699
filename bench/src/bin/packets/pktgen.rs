//! A packet generator: UDP frames over AF_XDP, at a rate, for a while. `scripts/pktgen` runs it.

use std::error::Error;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use clap::Parser;
use dataplane::FreeList;
use dataplane::port::af_xdp::{PortOptions, Umem, UmemConfig};
use dataplane::port::{Buffers, Port};
use linux_net::MacAddress;

/// Sends UDP frames over an AF_XDP socket.
#[derive(Parser)]
#[command(after_help = "Example: pktgen --interface eth0 --from-mac 02:00:00:00:00:01 \
                  --to-mac 02:00:00:00:00:02 --from 10.0.0.1 --to 10.0.0.2 --rate 0.5\n\n\
                  The kernel does not see the interface while this runs: use one that nothing else \
                  needs.")]
struct Args {
    /// Interface to send from
    #[arg(long)]
    interface: String,
    /// MAC address frames come from
    #[arg(long)]
    from_mac: MacAddress,
    /// MAC address frames go to
    #[arg(long)]
    to_mac: MacAddress,
    /// IP address frames come from
    #[arg(long)]
    from: IpAddr,
    /// IP address frames go to
    #[arg(long)]
    to: IpAddr,
    /// UDP port frames go to
    #[arg(long, default_value_t = 9)]
    port: u16,
    /// Bytes of a frame, with the 4 of its check sequence
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Flows, distinguished by their source ports
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=60000))]
    flows: u16,
    /// Million frames a second [default: as many as go]
    #[arg(long)]
    rate: Option<f64>,
    /// Seconds to send for
    #[arg(long, default_value_t = 5.0)]
    duration: f64,
}

/// Frames of the socket, and those handed over at a time.
const FRAMES: u32 = 8192;
const BURST: usize = 64;
/// The first source port.
const FIRST_PORT: u16 = 1024;

pub(crate) fn main(args: &[String]) -> Result<(), Box<dyn Error>> {
    let args = Args::parse_from(args);
    let duration = Duration::try_from_secs_f64(args.duration)?;
    let (umem, memory, frames) = Umem::create(&UmemConfig { frames: FRAMES, hugepages: false })?;
    let options = PortOptions { fill: 64, ..PortOptions::default() };
    let mut port = umem.open(&args.interface, &options)?;
    let mut free = FreeList::new(&memory, frames);
    let mut buffers = Buffers { memory: &memory, free: &mut free };
    let mut frame = frame(&args);
    let l4 = if args.to.is_ipv6() { 54 } else { 34 };
    let (mut count, mut batch) = (0_u64, Vec::with_capacity(BURST));
    println!("sending");
    let (started, mut passed) = (Instant::now(), Duration::ZERO);
    while passed < duration {
        let due = args.rate.map_or(u64::MAX, |rate| (passed.as_secs_f64() * rate * 1e6) as u64);
        while batch.len() < BURST && count < due {
            let source = FIRST_PORT + (count % u64::from(args.flows)) as u16;
            frame[l4..l4 + 2].copy_from_slice(&source.to_be_bytes());
            let Some(filled) = buffers.filled(&frame) else { break };
            batch.push(filled);
            count += 1;
        }
        port.send(&mut buffers, &mut batch)?;
        passed = started.elapsed();
    }
    let (sent, seconds) = (count - batch.len() as u64, passed.as_secs_f64());
    println!("sent {sent} frames in {seconds:.2} s: {:.3} Mpps", sent as f64 / seconds / 1e6);
    batch.into_iter().for_each(|frame| buffers.free.put(frame));
    Box::new(port).close(&mut buffers);
    Ok(())
}

/// A frame. Its checksum is left out where that is allowed (IPv4), and wrong elsewhere: no hop of the path
/// reads it.
fn frame(args: &Args) -> Vec<u8> {
    let headers = if args.to.is_ipv6() { 62 } else { 42 };
    let from = std::net::SocketAddr::new(args.from, FIRST_PORT).to_string();
    let to = std::net::SocketAddr::new(args.to, args.port).to_string();
    let mut frame = testkit::packet::udp(&from, &to)
        .from_mac(args.from_mac.0)
        .to_mac(args.to_mac.0)
        .payload(&vec![0; args.size.saturating_sub(4 + headers)])
        .build();
    if args.to.is_ipv4() {
        frame[40..42].fill(0);
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_the_size_asked_for() {
        let length = |from: &str, to: &str, size: &str| {
            let macs = ["--from-mac", "02:00:00:00:00:01", "--to-mac", "02:00:00:00:00:02"];
            let ends = ["pktgen", "--interface", "x", "--from", from, "--to", to, "--size", size];
            let frame = frame(&Args::parse_from(ends.into_iter().chain(macs)));
            dataplane::wire::parse(&frame).unwrap();
            frame.len()
        };
        assert_eq!(length("10.0.0.1", "10.0.0.2", "64"), 60);
        assert_eq!(length("10.0.0.1", "10.0.0.2", "1518"), 1514);
        assert_eq!(length("fd00::1", "fd00::2", "64"), 62, "its headers alone");
    }
}
