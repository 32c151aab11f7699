//! A program of several benchmarks, each named by the first argument.

use std::error::Error;
use std::process::ExitCode;
use std::str::FromStr;

use crate::attach;
use crate::forwarder::is_switch;
use crate::nodes::is_node;

/// A benchmark's name and its entry. The first argument is what help texts call the command.
pub type Benchmark = (&'static str, fn(&[String]) -> Result<(), Box<dyn Error>>);

/// Runs the benchmark that the first argument names, or what a benchmark has started this program as: a
/// switch, a node, a command of `podgate`.
pub fn run_program(name: &str, benchmarks: &[Benchmark]) -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let first = args.first().cloned().unwrap_or_default();
    if first == "run" {
        return attach::run();
    }
    let done = is_switch(&args).or_else(|| is_node(&args)).unwrap_or_else(|| {
        let Some((_, benchmark)) = benchmarks.iter().find(|(word, _)| *word == first) else {
            let names: Vec<&str> = benchmarks.iter().map(|(word, _)| *word).collect();
            return Err(format!("usage: {name} {} [ARGUMENTS]", names.join("|")).into());
        };
        args[0] = format!("{name} {first}");
        benchmark(&args)
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name} {first}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The argument at this place behind the command, or `default` without it.
///
/// # Errors
/// If it is none of that type.
pub fn argument<T: FromStr>(args: &[String], place: usize, default: T) -> Result<T, String> {
    let Some(text) = args.get(place) else { return Ok(default) };
    text.parse().map_err(|_| format!("{text} is no {}", std::any::type_name::<T>()))
}
