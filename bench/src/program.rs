//! A program of several benchmarks, each named by the first argument.

use std::error::Error;
use std::process::ExitCode;

use crate::attach;
use crate::forwarder::is_switch;
use crate::generator::generate;
use crate::nodes::is_node;

/// A benchmark's name and its entry. The first argument is what help texts call the command.
pub type Benchmark = (&'static str, fn(&[String]) -> Result<(), Box<dyn Error>>);

/// Runs the benchmark that the first argument names, or what a benchmark has started this program as: a
/// switch, a node, a generator, `podgate run`.
pub fn run_program(name: &str, benchmarks: &[Benchmark]) -> ExitCode {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|word| word == "run") {
        attach::run();
    }
    let child = is_switch(&args).or_else(|| is_node(&args)).or_else(|| is_generator(&args));
    let done = child.unwrap_or_else(|| {
        let chosen =
            benchmarks.iter().find(|(word, _)| Some(*word) == args.first().map(String::as_str));
        let Some((word, benchmark)) = chosen else {
            let names: Vec<&str> = benchmarks.iter().map(|(word, _)| *word).collect();
            return Err(format!("usage: {name} {} [ARGUMENTS]", names.join("|")).into());
        };
        args[0] = format!("{name} {word}");
        benchmark(&args)
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error:#}", args.first().map_or(name, String::as_str));
            ExitCode::FAILURE
        }
    }
}

fn is_generator(args: &[String]) -> Option<Result<(), Box<dyn Error>>> {
    match args {
        [word, size, mac_a, mac_b] if word == "generate" => {
            let size: Result<usize, Box<dyn Error>> = size.parse().map_err(Into::into);
            Some(size.and_then(|size| generate(size, mac_a, mac_b)))
        }
        _ => None,
    }
}
