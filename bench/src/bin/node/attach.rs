//! Pods that start at once: how long each waits until its tables are in force, and for how long
//! the control loop delays other requests during that time.
//!
//! ```text
//! cargo run --release -p bench --bin node -- attach [PODS]     (as root)
//! ```
//!
//! The switch is `podgate run` with manifests. Interfaces are there already: what the plugin and
//! its IPAM take is not counted.

use bench::attach::{self, Attached};
use bench::rig::needs_root;
use bench::{Samples, print_table};
use std::error::Error;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Names and values of `--flow-offload`.
const MODES: [(&str, &str); 2] = [("flow offload", "on"), ("AF_XDP ports", "off")];
const PODS: usize = 100;
const ROUNDS: usize = 3;
/// Pods that are attached one after the other, before the others.
const ALONE: usize = 10;

pub(crate) fn main(args: &[String]) -> Result<()> {
    let pods = args.get(1).map_or(Ok(PODS), |text| text.parse());
    pods.map_err(|_| "PODS is a number".into()).and_then(compare)
}

/// Figures of one run, in milliseconds.
#[derive(Default)]
struct Figures {
    /// From the first request to the last answer.
    all: Samples,
    /// Single pods.
    single: Samples,
    /// The same one pod after the other.
    alone: Samples,
    /// Others that ask the control loop something while the pods are attached.
    others: Samples,
}

fn compare(pods: usize) -> Result<()> {
    needs_root()?;
    let mut figures = MODES.map(|_| Figures::default());
    for round in 1..=ROUNDS {
        for ((name, mode), all) in MODES.iter().zip(&mut figures) {
            eprintln!("round {round} of {ROUNDS}: {name}");
            let arguments = ["--flow-offload", *mode];
            let measured = attach::measure(pods, ALONE, &arguments)?;
            let Attached { all: time, single, alone, others, .. } = measured;
            all.all.add(time);
            single.into_iter().for_each(|ms| all.single.add(ms));
            alone.into_iter().for_each(|ms| all.alone.add(ms));
            others.into_iter().for_each(|ms| all.others.add(ms));
        }
    }
    let row = |what: &str, samples: &Samples| {
        let figures = [0.5, 0.99].map(|share| samples.quantile(share)).into_iter();
        let figures = figures.chain([samples.most()]).map(|ms| format!("{ms:.1}"));
        [what.to_owned()].into_iter().chain(figures).collect::<Vec<_>>()
    };
    for ((name, _), all) in MODES.iter().zip(&figures) {
        let rows = [
            row(&format!("{pods} pods at once, until all are attached"), &all.all),
            row("each of them", &all.single),
            row("a pod alone", &all.alone),
            row("another request to the control loop meanwhile", &all.others),
        ];
        print_table(&[&format!("{name}: milliseconds"), "median", "p99", "most"], &rows);
        println!();
    }
    Ok(())
}
