//! Cost of the sweep of idle sessions for a worker, by the number of sessions.
//!
//! ```text
//! cargo run --release -p bench --bin packets -- sweep [SESSIONS…]
//! ```
//!
//! A worker looks at so many places in a millisecond, whatever the size of the table: a larger one is swept less often,
//! and only what a place costs can grow. Processor time of this thread counts.

use std::error::Error;
use std::time::Duration;

use bench::{Samples, SessionFile, print_table};
use dataplane::Adjacency;
use dataplane::session::{Opening, Owner, Timeouts, Tuples};
use dataplane::wire::{Flow, protocol, tcp_flags};
use rustix::time::{ClockId, clock_gettime};

const SIZES: [u32; 3] = [131_072, 1_048_576, 8_388_608];
const ROUNDS: usize = 5;
/// As workers sweep (`dataplane/src/worker/mod.rs`): in a millisecond, and at a time.
const IN_MS: u32 = 400;
const AT_A_TIME: u32 = 128;

pub(crate) fn main(args: &[String]) -> Result<(), Box<dyn Error>> {
    let sizes = args.iter().skip(1).map(|size| size.parse()).collect::<Result<Vec<u32>, _>>()?;
    let sizes = if sizes.is_empty() { SIZES.to_vec() } else { sizes };
    let mut lines = Vec::new();
    for size in sizes {
        eprintln!("{size} sessions");
        let (_file, sessions) = SessionFile::sessions(size, 1, Timeouts::default())?;
        for n in 0..size {
            let flow = Flow {
                source: acl::Address::from_v4_bits(0x0a01_0000 + (n >> 15)),
                destination: acl::Address::from_v4_bits(0x0a02_0001),
                source_port: 1024 + (n & 0x7fff) as u16,
                destination_port: 443,
                protocol: protocol::TCP,
            };
            let opening = Opening {
                owner: Owner::NONE,
                adjacency: Adjacency::NONE,
                generation: 1,
                tcp_flags: tcp_flags::SYN,
            };
            sessions.open(&Tuples::plain(flow), &opening, 1).map_err(|it| format!("{it:?}"))?;
        }
        let (mut of_place, mut longest) = (Samples::new(), Samples::new());
        for _ in 0..ROUNDS {
            let (mut all, mut most, mut places) = (Duration::ZERO, Duration::ZERO, 0);
            while places < size {
                let before = spent();
                let count = sessions.sweep(AT_A_TIME, 1);
                let took = spent() - before;
                (all, most, places) = (all + took, most.max(took), places + count.max(1));
            }
            of_place.add(all.as_nanos() as f64 / f64::from(places));
            longest.add(most.as_nanos() as f64 / 1e3);
        }
        if sessions.used() != size {
            return Err(format!("{} of {size} sessions are left", sessions.used()).into());
        }
        let share = of_place.median() * f64::from(IN_MS) / 1e4;
        let seconds = f64::from(size) / f64::from(IN_MS) / 1e3;
        lines.push(vec![
            size.to_string(),
            of_place.to_string(),
            format!("{share:.2}"),
            longest.to_string(),
            format!("{seconds:.1}"),
        ]);
    }
    print_table(
        &["sessions", "a place (ns)", "% of a worker", "longest of 128 places (µs)", "a pass (s)"],
        &lines,
    );
    Ok(())
}

fn spent() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
