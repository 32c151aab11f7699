//! Views of counters: `podgate show TABLE --view NAME` shows what was counted since the view began.
//!
//! The switch counts on; a view is a file of the counters as they were when it began, in the user's
//! state folder. So several readers reset counters without disturbing each other or the metrics.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use agent::run::Table;

/// Columns that count, by table. Ratios among them are worked out anew.
const COUNTERS: [&str; 9] =
    ["packets", "vectors", "clocks", "rx", "tx", "refused", "missed", "received", "sent"];
const RATIOS: [(&str, &str, &str); 2] =
    [("packets_per_vector", "packets", "vectors"), ("clocks_per_packet", "clocks", "packets")];

/// Reads the name of a view.
///
/// # Errors
/// When it could not be the name of a file.
pub(super) fn name(text: &str) -> Result<String, String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    match !text.is_empty() && text.len() <= 64 && text.chars().all(is_part) {
        true => Ok(text.to_owned()),
        false => Err("a view is named by letters, digits, - and _".to_owned()),
    }
}

/// Replaces the counters of a table by what was added since the view began. A view that does not
/// exist, or is `reset`, begins with this table.
///
/// # Errors
/// When the view cannot be read or kept.
pub(super) fn since(view: &str, what: &str, reset: bool, table: &mut Table) -> Result<(), String> {
    since_in(&folder()?, view, what, reset, table)
}

/// The same with views in this folder.
fn since_in(
    folder: &Path,
    view: &str,
    what: &str,
    reset: bool,
    table: &mut Table,
) -> Result<(), String> {
    // A session's counters go on as long as it does.
    let has_counters =
        what != "sessions" && table.columns.iter().any(|it| COUNTERS.contains(&it.as_str()));
    if !has_counters {
        return Err(format!("--view: the table {what} has no counters"));
    }
    let file = folder.join(format!("{view}-{what}.json"));
    let failed = |error: std::io::Error| format!("--view {view}: {}: {error}", file.display());
    let before: Option<Table> = match fs::read(&file) {
        Ok(text) if !reset => serde_json::from_slice(&text).ok(),
        _ => None,
    };
    let before = match before {
        Some(before) if before.columns == table.columns => before,
        _ => {
            fs::create_dir_all(folder).map_err(failed)?;
            let text = serde_json::to_vec(table).map_err(|error| error.to_string())?;
            fs::write(&file, text).map_err(failed)?;
            table.clone()
        }
    };
    subtract(table, &before);
    Ok(())
}

fn folder() -> Result<PathBuf, String> {
    let named = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let usual = || std::env::home_dir().map(|home| home.join(".local/state"));
    let state = named.or_else(usual).ok_or("--view: there is no home folder to keep it in")?;
    Ok(state.join("podgate/views"))
}

fn subtract(table: &mut Table, before: &Table) {
    let columns = table.columns.clone();
    let counts = |n: &usize| COUNTERS.contains(&columns[*n].as_str());
    let is_ratio = |n: &usize| RATIOS.iter().any(|(name, ..)| *name == columns[*n]);
    // Rows are known by their text; numbers that are no counters, such as a worker's, count too.
    let text_of = |n: &usize| columns[*n] == "worker" || columns[*n] == "port";
    let key = |row: &[Value]| -> String {
        let named = (0..row.len())
            .filter(|n| !counts(n) && !is_ratio(n) && (row[*n].is_string() || text_of(n)));
        named.map(|n| row[n].to_string()).collect::<Vec<_>>().join(" ")
    };
    let old: HashMap<String, &Vec<Value>> = before.rows.iter().map(|row| (key(row), row)).collect();
    for row in &mut table.rows {
        let Some(old) = old.get(&key(row)) else { continue };
        for n in (0..row.len()).filter(counts) {
            if let (Some(now), Some(then)) = (row[n].as_u64(), old[n].as_u64()) {
                // A switch that began after the view has counted from 0.
                row[n] = if now >= then { now - then } else { now }.into();
            }
        }
    }
    for (name, above, below) in RATIOS {
        let place = |name: &str| columns.iter().position(|it| it == name);
        let (Some(at), Some(above), Some(below)) = (place(name), place(above), place(below)) else {
            continue;
        };
        for row in &mut table.rows {
            if let (Some(a), Some(b)) = (row[above].as_f64(), row[below].as_f64()) {
                let ratio = if b == 0.0 { 0.0 } else { a / b };
                row[at] = ((ratio * 10.0).round() / 10.0).into();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn table(packets: u64, clocks: u64) -> Table {
        Table {
            columns: ["worker", "node", "packets", "clocks", "clocks_per_packet"]
                .map(str::to_owned)
                .into(),
            rows: vec![
                vec![json!(0), json!("parse"), json!(packets), json!(clocks), json!(9.9)],
                vec![json!(1), json!("parse"), json!(7), json!(7), json!(1.0)],
            ],
            left_out: 0,
        }
    }

    #[test]
    fn counters_are_those_since_the_view_began() {
        let mut now = table(30, 330);
        subtract(&mut now, &table(10, 130));
        assert_eq!(now.rows[0], [json!(0), json!("parse"), json!(20), json!(200), json!(10.0)]);
        assert_eq!(now.rows[1][2], json!(0));
        // A switch that was started anew.
        let mut now = table(5, 50);
        subtract(&mut now, &table(10, 130));
        assert_eq!(now.rows[0][2], json!(5));
    }

    #[test]
    fn a_view_begins_when_it_is_new_and_when_it_is_reset() {
        let folder = testkit::TempDir::new("views");
        let shown = |packets: u64, reset: bool| {
            let mut now = table(packets, 10 * packets);
            since_in(folder.path(), "mine", "runtime", reset, &mut now).unwrap();
            now.rows[0][2].as_u64().unwrap()
        };
        assert_eq!(shown(10, false), 0);
        assert_eq!(shown(25, false), 15);
        assert_eq!(shown(30, true), 0);
        assert_eq!(shown(32, false), 2);
        let mut other = table(40, 400);
        since_in(folder.path(), "others", "runtime", false, &mut other).unwrap();
        assert_eq!(other.rows[0][2], json!(0));
        let mut sessions = table(40, 400);
        let refused = since_in(folder.path(), "mine", "sessions", false, &mut sessions);
        assert_eq!(refused.unwrap_err(), "--view: the table sessions has no counters");
    }

    #[test]
    fn names_of_views_are_names_of_files() {
        assert!(name("mine-1").is_ok());
        for bad in ["", "../x", "a b", "a/b"] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
