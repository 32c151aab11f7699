//! `podgate show`: one of the running switch's tables.

use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use serde_json::{Value, json};

use super::call::{Socket, refused};
use super::view;
use crate::run::{TABLES, Table};
use cli::{NO, UNUSABLE, fail};
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

    /// Only rows with this value in this column; may be repeated
    #[arg(long = "filter", value_name = "COLUMN=VALUE", value_parser = filter)]
    filters: Vec<(String, String)>,

    /// Counters since this view began; a new view begins now
    #[arg(long, value_name = "NAME", value_parser = view::name)]
    view: Option<String>,

    /// Begin the view anew: all of its counters are 0
    #[arg(long, requires = "view")]
    reset: bool,

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
        "What there is:\n{}\n\nExamples:\n  podgate show runtime\n  podgate show session-rules default/db -o json\n  podgate show sessions --filter to=default/db --filter state=established\n  podgate show errors --view mine --reset",
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
            Ok(table) => show(args, table, output),
        },
    }
}

/// Writes the selected rows.
fn show(args: &Args, mut table: Table, output: Output) -> ExitCode {
    if let Some(view) = &args.view
        && let Err(problem) = view::since(view, &args.what, args.reset, &mut table)
    {
        return fail(NO, problem);
    }
    for (column, value) in &args.filters {
        let Some(at) = table.columns.iter().position(|it| it == column) else {
            let known = table.columns.join(", ");
            let problem = format!("--filter {column}: no such column; there are {known}");
            return fail(UNUSABLE, problem);
        };
        table.rows.retain(|row| match &row[at] {
            Value::String(text) => text == value,
            other => serde_json::to_string(other).is_ok_and(|text| text == *value),
        });
    }
    match output {
        Output::Text => print(&table.to_string()),
        Output::Json => print(&table.lines().map(|line| line + "\n").collect::<String>()),
    }
}

fn filter(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(column, _)| !column.is_empty());
    let pair = pair.map(|(column, value)| (column.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "is not COLUMN=VALUE".to_owned())
}
