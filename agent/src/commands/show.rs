//! `podgate show`: one of the running switch's tables.

use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use serde_json::{Value, json};

use super::call::{Socket, refused};
use crate::run::{TABLES, Table};
use cli::{NO, fail};
use cli::{Output, print};
use local_api::{Request, Show};

/// Arguments of `podgate show`.
#[derive(Debug, clap::Args)]
#[command(after_help = after_help())]
pub struct Args {
    /// What to show
    #[arg(value_parser = PossibleValuesParser::new(TABLES.map(|(name, _)| name)))]
    what: String,

    /// The pod whose session rules are wanted: ns/pod, or pod in namespace default
    #[arg(value_name = "POD")]
    pod: Option<String>,

    #[command(flatten)]
    socket: Socket,

    /// How the answer is written; json: one line a row
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

fn after_help() -> String {
    let tables: Vec<String> =
        TABLES.iter().map(|(name, meaning)| format!("  {name:15}{meaning}")).collect();
    format!(
        "What there is:\n{}\n\nExample:\n  podgate show runtime\n  podgate show session-rules default/db -o json",
        tables.join("\n")
    )
}

/// Requests the table and writes it to stdout.
pub fn run(args: &Args) -> ExitCode {
    let request = Request::Show(Show { what: args.what.clone(), pod: args.pod.clone() });
    let value = match args.socket.connect().and_then(|mut podgate| podgate.call(&request)) {
        Ok(value) => value,
        Err(error) => return refused(&error),
    };
    match (value, args.output) {
        (Value::String(text), Output::Text) => print(&text),
        (Value::String(text), Output::Json) => {
            let name = args.what.as_str();
            print(&format!("{}\n", json!({ name: text })))
        }
        (value, output) => match serde_json::from_value::<Table>(value) {
            Err(error) => fail(NO, format_args!("podgate's answer: {error}")),
            Ok(table) if output == Output::Text => print(&table.to_string()),
            Ok(table) => print(&table.lines().map(|line| line + "\n").collect::<String>()),
        },
    }
}
