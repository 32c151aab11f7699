//! `podgate policy staged`: the connections that staged policies would deny or allow.

use std::process::ExitCode;
use std::time::SystemTime;

use agent::run::Table;
use cli_runtime::{NO, Output, Socket, UNUSABLE, fail, note, write};
use local_api::{Request, Show};
use policy_tools::commands::moment;
use serde_json::Value;

use super::Ended;

/// Arguments of `podgate policy staged`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A policy is staged by the annotation podgate.io/stage=staged, of its own or of its \
Namespace. Connections of this node count since the policies about their ends last changed, those that were \
open then included.

Examples:
  kubectl annotate netpol -n shop db podgate.io/stage=staged
  podgate policy staged
  podgate policy staged shop/db --since 7d -o json

Exit code: 0 if nothing would change; 1 if a connection would be denied or allowed; 2 if there is no answer."
)]
pub struct Args {
    #[command(flatten)]
    wanted: Wanted,

    #[command(flatten)]
    socket: Socket,

    /// Output format; json: one line a row
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// The connections to list.
#[derive(Debug, clap::Args)]
pub struct Wanted {
    /// Only connections that this policy would decide
    #[arg(value_name = "[NS/]NAME")]
    name: Option<String>,

    /// Only connections last seen since this time: a duration such as 7d, or a time such as
    /// 2026-11-21T02:25:35Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
}

impl Wanted {
    /// Checks the arguments.
    ///
    /// # Errors
    /// If one cannot be used.
    pub fn check(&self) -> Result<Option<SystemTime>, String> {
        self.since.as_deref().map(|text| moment("--since", text)).transpose()
    }

    /// Keeps the wanted rows of a switch's table.
    ///
    /// # Errors
    /// If an argument cannot be used, or the table is another one.
    pub fn narrow(&self, table: &mut Table) -> Result<(), String> {
        let since = self.check()?;
        let [by, last_seen] = table.places(["by", "last_seen"])?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let is_recent = |row: &[Value], since: SystemTime| {
            observe::time::moment(&text(&row[last_seen])).is_some_and(|seen| seen >= since)
        };
        table.rows.retain(|row| {
            self.name.as_ref().is_none_or(|name| names(&text(&row[by]), name))
                && since.is_none_or(|since| is_recent(row, since))
        });
        Ok(())
    }
}

/// Whether a cell with origins names the policy `NAME` or `NS/NAME`.
fn names(cell: &str, policy: &str) -> bool {
    let mut words = cell.split([' ', ',']);
    words.any(|word| word == policy || word.split_once('/').is_some_and(|(_, it)| it == policy))
}

/// Lists the connections.
pub(super) fn run(args: &Args) -> Ended {
    args.wanted.check().map_err(|problem| fail(UNUSABLE, problem))?;
    let request = Request::Show(Show { what: "staged".to_owned(), ..Show::default() });
    // 1 says that connections would change.
    let answer: Value = args.socket.call(&request).map_err(|_| ExitCode::from(UNUSABLE))?;
    let unusable = |problem: String| fail(UNUSABLE, problem);
    let table = serde_json::from_value(answer).map_err(|error| unusable(error.to_string()));
    let mut table: Table = table?;
    args.wanted.narrow(&mut table).map_err(unusable)?;
    if table.left_out > 0 {
        note(format_args!("{} more connections are in no row", table.left_out));
    }
    let changes_nothing = table.rows.is_empty() && table.left_out == 0;
    let shown = match args.output {
        Output::Json => table.lines().map(|line| line + "\n").collect(),
        Output::Text if table.rows.is_empty() => "nothing would change\n".to_owned(),
        Output::Text => table.to_string(),
    };
    match write(&shown) {
        Ok(_) => Ok(if changes_nothing { ExitCode::SUCCESS } else { ExitCode::from(NO) }),
        Err(error) => Err(fail(UNUSABLE, format_args!("stdout: {error}"))),
    }
}
