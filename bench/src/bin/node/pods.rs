//! Costs of idle pods: on one core one pair of pods talks, others are attached and silent.
//!
//! ```text
//! cargo run --release -p bench --bin node -- pods     (as root; Debian: ethtool)
//! ```

use std::error::Error;
use std::time::Duration;

use bench::forwarder::{Forwarder, own_path};
use bench::rig::{PATIENCE, Rig, needs_root, rate};
use bench::{Samples, print_table};
use dataplane::port::af_xdp::Umem;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROUNDS: usize = 7;
const MEASURED: Duration = Duration::from_secs(2);
const WARM_UP: Duration = Duration::from_millis(700);
/// Pods attached beyond the two that talk.
const IDLE: [usize; 4] = [0, 10, 100, 250];

pub(crate) fn main(args: &[String]) -> Result<()> {
    match args {
        [_] => compare(),
        _ => Err("pods takes no arguments".into()),
    }
}

fn compare() -> Result<()> {
    needs_root()?;
    let rig = Rig::new(1500, IDLE[IDLE.len() - 1]);
    let mut rates = vec![Samples::default(); IDLE.len()];
    for round in 1..=ROUNDS {
        for (idle, rates) in IDLE.into_iter().zip(&mut rates) {
            eprintln!("round {round} of {ROUNDS}: {idle} idle pods");
            rates.add(measure(&rig, idle)?);
        }
    }
    println!();
    let one = rates[0].median();
    let rows = IDLE.iter().zip(&rates).map(|(idle, rates)| {
        let share = format!("{:.2}", rates.median() / one);
        vec![idle.to_string(), rates.to_string(), share]
    });
    let rows: Vec<_> = rows.collect();
    print_table(&["idle pods beside the two that talk", "64-byte UDP (Mpps)", "of none"], &rows);
    Ok(())
}

fn measure(rig: &Rig, idle: usize) -> Result<f64> {
    let running = Forwarder::Podgate.start(rig, idle)?;
    rig.b.enter(|| Umem::close("eth0"))?;
    let own = own_path()?;
    let mut generator = rig.a.spawn([own.as_str(), "generate", "64", &rig.mac_a, &rig.mac_b]);
    generator.wait_for_line("sending", PATIENCE);
    std::thread::sleep(WARM_UP);
    let rate = rate(MEASURED, || rig.arrived())?;
    generator.kill();
    drop(running);
    rig.clear();
    Ok(rate)
}
