//! `podgate show`: one of the running switch's tables.

use clap::builder::PossibleValuesParser;
use serde_json::{Value, json};

use super::{Ended, view};
use agent::run::{Condition, Selection, TABLES, Table, all_errors};
use cli_runtime::{NO, Output, Socket, UNUSABLE, fail, no_answer, note, print};
use local_api::{Request, Show};

/// Arguments of `podgate show`.
#[derive(Debug, clap::Args)]
#[command(after_help = after_help())]
pub struct Args {
    /// Table to show
    #[arg(value_parser = PossibleValuesParser::new(TABLES.map(|(name, _)| name)))]
    what: String,

    /// Pod of session-rules, NS/POD or POD in namespace default; address of addresses and peer-sets
    #[arg(value_name = "POD|ADDRESS")]
    pod: Option<String>,

    /// Only rows that meet this condition: COLUMN=VALUE, also with !=, >, <, >= and <=; VALUE may end in
    /// *, or be a network; may be repeated
    #[arg(long = "filter", value_name = "COLUMN=VALUE", value_parser = condition)]
    filters: Vec<String>,

    /// Sort by this column: numbers from the largest on, text in its order
    #[arg(long, value_name = "COLUMN")]
    sort: Option<String>,

    /// Maximum number of rows [default: 10000]
    #[arg(long, value_name = "N")]
    limit: Option<u32>,

    /// With errors: every reason, with its meaning and what to do
    #[arg(long, conflicts_with = "view")]
    all: bool,

    /// Show counters since the view NAME was created; a new name creates a view
    #[arg(long, value_name = "NAME", value_parser = view::name)]
    view: Option<String>,

    /// Reset the view's counters to 0
    #[arg(long, requires = "view")]
    reset: bool,

    #[command(flatten)]
    socket: Socket,

    /// Output format; json: one line a row
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

fn after_help() -> String {
    let tables: Vec<String> =
        TABLES.iter().map(|(name, meaning)| format!("  {name:15}{meaning}")).collect();
    format!(
        "Tables:\n{}\n\nExamples:\n  podgate show runtime\n  podgate show session-rules default/db -o json\n  podgate show addresses 10.1.2.3\n  podgate show sessions --filter to=default/db --filter state=established\n  podgate show sessions --filter 'from=shop/*' --sort bytes --limit 20\n  podgate show errors --view mine --reset\n  podgate show errors --all",
        tables.join("\n")
    )
}

/// Requests the table and writes it to stdout.
pub(super) fn run(args: &Args) -> Ended {
    // A view compares whole tables, so its rows are chosen afterwards.
    let request = match args.view {
        Some(_) => Show { what: args.what.clone(), pod: args.pod.clone(), ..Show::default() },
        None => Show {
            what: args.what.clone(),
            pod: args.pod.clone(),
            filters: args.filters.clone(),
            sort: args.sort.clone(),
            limit: args.limit,
            all: args.all,
        },
    };
    if args.all && args.what == "errors" && args.socket.connect().is_err() {
        // The reasons are known without a switch; their packets are not.
        return show(args, all_errors(), args.output);
    }
    let value: Value = args.socket.call(&Request::Show(request))?;
    match (value, args.output) {
        (Value::String(text), Output::Text) => Ok(print(&text)),
        (Value::String(text), Output::Json) => {
            let name = args.what.as_str();
            Ok(print(&format!("{}\n", json!({ name: text }))))
        }
        (value, output) => show(args, serde_json::from_value(value).map_err(no_answer)?, output),
    }
}

/// Writes the selected rows.
fn show(args: &Args, mut table: Table, output: Output) -> Ended {
    if let Some(view) = &args.view {
        view::since(view, &args.what, args.reset, &mut table).map_err(|it| fail(NO, it))?;
        let limit = args.limit.map_or(usize::MAX, |limit| limit as usize);
        let selection = Selection::new(&args.filters, args.sort.as_deref(), limit);
        let selected = selection.and_then(|selection| table.select(&selection));
        table = selected.map_err(|problem| fail(UNUSABLE, problem))?;
    }
    if table.left_out > 0 {
        let shown = table.rows.len();
        note(format_args!("{} more rows; --limit {shown} is in force", table.left_out));
    }
    Ok(match output {
        Output::Text => print(&table.to_string()),
        Output::Json => print(&table.lines().map(|line| line + "\n").collect::<String>()),
    })
}

fn condition(text: &str) -> Result<String, String> {
    Condition::parse(text).map(|_| text.to_owned())
}
