//! Pods that start at once: how long each waits until its tables are in force, for how long
//! the control loop delays other requests during that time, and the memory that they take.
//!
//! ```text
//! cargo run --release -p bench --bin node -- attach [PODS]     (as root)
//! ```
//!
//! The switch is `podgate run` with manifests. Interfaces are there already: what the plugin and
//! its IPAM take is not counted.

use std::error::Error;

use bench::attach::Attached;
use bench::rig::needs_root;
use bench::{argument, print_table};

/// Names and values of `--flow-offload`.
const MODES: [(&str, &str); 2] = [("flow offload", "on"), ("AF_XDP ports", "off")];
const ROUNDS: usize = 3;
/// Pods that are attached one after the other, before the others.
const ALONE: usize = 10;

pub(crate) fn main(args: &[String]) -> Result<(), Box<dyn Error>> {
    needs_root()?;
    let pods = argument(args, 1, 100)?;
    let mut figures = MODES.map(|_| Attached::default());
    for round in 1..=ROUNDS {
        for ((name, mode), figures) in MODES.iter().zip(&mut figures) {
            eprintln!("round {round} of {ROUNDS}: {name}");
            figures.measure(pods, ALONE, &["--flow-offload", mode])?;
        }
    }
    for ((name, _), figures) in MODES.iter().zip(&figures) {
        let rows = [
            figures.all.tail(format!("{pods} pods at once, until all are attached"), 1),
            figures.single.tail("each of them", 1),
            figures.alone.tail("a pod alone", 1),
            figures.others.tail("another request to the control loop meanwhile", 1),
            figures.memory.tail("memory of the machine for the switch and its pods, MB", 1),
        ];
        print_table(&[&format!("{name}: milliseconds"), "median", "p99", "most"], &rows);
        println!();
    }
    Ok(())
}
