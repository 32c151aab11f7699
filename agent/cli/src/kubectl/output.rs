//! Output as kubectl has it: tables, wide ones, JSON, YAML.

use clap::ValueEnum;
use policy_tools::yaml;
use serde_json::{Map, Value};

use agent::run::Table;

/// Format of the output (`-o`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A table
    Text,
    /// A table with more columns
    Wide,
    /// One JSON document
    Json,
    /// The same in YAML
    Yaml,
}

/// Rows of a table, the last columns of which are for `wide` alone.
pub(super) fn rows(columns: &[&str], narrow: usize, rows: Vec<Vec<Value>>, of: Format) -> String {
    let width = if of == Format::Text { narrow } else { columns.len() };
    let cut = |row: Vec<Value>| row.into_iter().take(width).collect();
    let columns = columns[..width].iter().map(|it| (*it).to_owned()).collect();
    match of {
        Format::Text | Format::Wide => {
            let rows = rows.into_iter().map(cut).collect();
            Table { columns, rows, left_out: 0 }.to_string()
        }
        Format::Json | Format::Yaml => {
            let key = |name: &String| name.replace(['/', '-'], "_");
            let object = |row: Vec<Value>| -> Value {
                let fields = columns.iter().map(key).zip(row);
                Value::Object(fields.collect::<Map<_, _>>())
            };
            document(&rows.into_iter().map(object).collect(), of)
        }
    }
}

/// A value as a document.
pub(super) fn document(value: &Value, of: Format) -> String {
    match of {
        Format::Yaml => yaml::document(value),
        _ => format!("{value:#}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn yaml_reads_back_as_it_was() {
        for value in [
            json!([]),
            json!({}),
            json!("a: b"),
            json!([{"a": 1, "b": [], "c": {"d": [true, null, "x\n\"y\""]}}, {"a b": {}}, [[1], 2]]),
        ] {
            let text = document(&value, Format::Yaml);
            assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), value, "{text}");
        }
    }

    #[test]
    fn wide_tables_have_more_columns() {
        let table = |of| rows(&["node", "rx/s"], 1, vec![vec![json!("a"), json!(5)]], of);
        assert_eq!(table(Format::Text), "NODE\na\n");
        assert_eq!(table(Format::Wide), "NODE  RX/S\na     5\n");
        assert_eq!(
            table(Format::Json).split_whitespace().collect::<String>(),
            r#"[{"node":"a","rx_s":5}]"#
        );
    }
}
