//! Tables: what `podgate show` answers, which of their rows are wanted, and their forms.

use std::cmp::Ordering;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A table of names and values, the answer to `show`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Names of the columns, as fields of JSON spell them.
    pub columns: Vec<String>,
    /// Rows with a value for each column.
    pub rows: Vec<Vec<Value>>,
    /// Rows beyond the limit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A condition on one column, such as `to=shop/db`, `bytes>1000` or `from_address=10.0.0.0/8`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    column: String,
    operator: Operator,
    value: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Is,
    IsNot,
    AtLeast,
    AtMost,
    Above,
    Below,
}

/// The longer spellings come before those that they begin with.
const OPERATORS: [(&str, Operator); 6] = [
    ("!=", Operator::IsNot),
    (">=", Operator::AtLeast),
    ("<=", Operator::AtMost),
    (">", Operator::Above),
    ("<", Operator::Below),
    ("=", Operator::Is),
];

impl Condition {
    /// Reads `COLUMN=VALUE`, or the same with `!=`, `>`, `<`, `>=` or `<=`.
    ///
    /// # Errors
    /// When it has another form, or compares what is no number.
    pub fn parse(text: &str) -> Result<Self, String> {
        let at = text.find(['=', '!', '<', '>']).unwrap_or(0);
        let (column, rest) = text.split_at(at);
        let found = OPERATORS.iter().find_map(|(sign, it)| Some((rest.strip_prefix(sign)?, it)));
        let Some((value, operator)) = found.filter(|_| !column.is_empty()) else {
            return Err("is no COLUMN=VALUE; also !=, >, <, >= and <= compare".to_owned());
        };
        let is_order = !matches!(operator, Operator::Is | Operator::IsNot);
        if is_order && value.parse::<f64>().is_err() {
            return Err(format!("'{}' is no number", value.escape_debug()));
        }
        Ok(Self { column: spelling(column), operator: *operator, value: value.to_owned() })
    }

    /// Whether a cell meets it; one without a value meets `!=` alone.
    fn is_met_by(&self, cell: &Value) -> bool {
        let compared = || cell.as_f64()?.partial_cmp(&self.value.parse::<f64>().ok()?);
        match self.operator {
            Operator::Is => self.is(cell),
            Operator::IsNot => !self.is(cell),
            Operator::AtLeast => compared().is_some_and(Ordering::is_ge),
            Operator::AtMost => compared().is_some_and(Ordering::is_le),
            Operator::Above => compared().is_some_and(Ordering::is_gt),
            Operator::Below => compared().is_some_and(Ordering::is_lt),
        }
    }

    fn is(&self, cell: &Value) -> bool {
        match cell {
            Value::Null => false,
            Value::String(text) => is_text(text, &self.value),
            other => serde_json::to_string(other).is_ok_and(|text| text == self.value),
        }
    }
}

/// Whether a text is a value: the same, begins as a value with `*` at its end does, or is an address
/// of a network.
fn is_text(text: &str, value: &str) -> bool {
    if text == value || value.strip_suffix('*').is_some_and(|begin| text.starts_with(begin)) {
        return true;
    }
    match (text.parse::<IpAddr>(), value.parse::<IpNet>()) {
        (Ok(address), Ok(net)) => net.contains(&address),
        _ => false,
    }
}

/// A name as columns are spelt: people may write `-` for `_`.
fn spelling(name: &str) -> String {
    name.replace('-', "_")
}

/// A selection of a table's rows.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    conditions: Vec<Condition>,
    sort: Option<String>,
    limit: usize,
}

impl Selection {
    /// Rows that meet all conditions, the first `limit` of them by the column `sort`: numbers from the
    /// largest on, text in its order.
    ///
    /// # Errors
    /// Names the condition that cannot be read.
    pub fn new(filters: &[String], sort: Option<&str>, limit: usize) -> Result<Self, String> {
        let read = |text: &String| {
            Condition::parse(text).map_err(|problem| format!("filter {text}: {problem}"))
        };
        let conditions = filters.iter().map(read).collect::<Result<_, _>>()?;
        Ok(Self { conditions, sort: sort.map(spelling), limit })
    }

    /// The wanted rows out of any number of them.
    ///
    /// # Errors
    /// Names a column that is not there, with those that are.
    pub fn of(
        &self,
        columns: &[&str],
        rows: impl Iterator<Item = Vec<Value>>,
    ) -> Result<Table, String> {
        let mut table = Table::new(columns);
        let place = |name: &str| {
            table.column(name).ok_or_else(|| {
                format!("{name}: no such column; there are {}", table.columns.join(", "))
            })
        };
        let conditions: Vec<(usize, &Condition)> = self
            .conditions
            .iter()
            .map(|it| Ok((place(&it.column)?, it)))
            .collect::<Result<_, String>>()?;
        let sort = self.sort.as_deref().map(place).transpose()?;
        let mut found = 0;
        for row in rows.filter(|row| conditions.iter().all(|(n, it)| it.is_met_by(&row[*n]))) {
            found += 1;
            if sort.is_none() && table.rows.len() >= self.limit {
                continue;
            }
            table.rows.push(row);
            // The rows in hand are bounded, whatever there is.
            if table.rows.len() >= 2 * self.limit.max(1_000) {
                table.keep_first(sort, self.limit);
            }
        }
        table.keep_first(sort, self.limit);
        table.left_out = found - table.rows.len();
        Ok(table)
    }
}

impl Table {
    /// An empty table with these columns.
    pub fn new(columns: &[&str]) -> Self {
        let columns = columns.iter().map(|name| (*name).to_owned()).collect();
        Self { columns, ..Self::default() }
    }

    pub(super) fn add(&mut self, row: Vec<Value>) {
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }

    /// The place of a column; `-` and `_` are alike in its name.
    pub fn column(&self, name: &str) -> Option<usize> {
        let name = spelling(name);
        self.columns.iter().position(|it| spelling(it) == name)
    }

    /// The places of these columns in a switch's answer.
    ///
    /// # Errors
    /// Names a column that is missing.
    pub fn places<const N: usize>(&self, names: [&str; N]) -> Result<[usize; N], String> {
        let mut places = [0; N];
        for (place, name) in places.iter_mut().zip(names) {
            let missing = || format!("podgate's answer has no column {name}");
            *place = self.column(name).ok_or_else(missing)?;
        }
        Ok(places)
    }

    /// The wanted rows.
    ///
    /// # Errors
    /// As [`Selection::of`].
    pub fn select(self, selection: &Selection) -> Result<Self, String> {
        let columns: Vec<&str> = self.columns.iter().map(String::as_str).collect();
        let mut selected = selection.of(&columns, self.rows.into_iter())?;
        selected.left_out += self.left_out;
        Ok(selected)
    }

    fn keep_first(&mut self, sort: Option<usize>, limit: usize) {
        if let Some(column) = sort {
            self.rows.sort_by(|a, b| order(&a[column], &b[column]));
        }
        self.rows.truncate(limit);
    }

    /// The rows as objects, one a line.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.rows.iter().map(|row| {
            let fields: Vec<String> = self
                .columns
                .iter()
                .zip(row)
                .map(|(name, value)| format!("{}:{value}", Value::String(name.clone())))
                .collect();
            format!("{{{}}}", fields.join(","))
        })
    }
}

/// Larger numbers first, texts in their order, cells without a value last.
fn order(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            b.as_f64().unwrap_or(0.0).total_cmp(&a.as_f64().unwrap_or(0.0))
        }
        (Value::Null, _) | (_, Value::Null) => a.is_null().cmp(&b.is_null()),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (a, b) => a.to_string().cmp(&b.to_string()),
    }
}

impl fmt::Display for Table {
    /// Aligned columns, their names in capitals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Value| match value {
            Value::Null => "-".to_owned(),
            Value::String(text) if text.is_empty() => "-".to_owned(),
            Value::String(text) => cli_runtime::plain(text),
            other => other.to_string(),
        };
        let title = |name: &String| {
            cli_runtime::plain(&name.replace("_per_", "/").replace('_', "-").to_uppercase())
        };
        let head: Vec<String> = self.columns.iter().map(title).collect();
        let rows: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().map(text).collect()).collect();
        let lines = || std::iter::once(&head).chain(&rows);
        let mut widths = vec![0; head.len()];
        for line in lines() {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for line in lines() {
            let cells: Vec<String> =
                line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(f, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tables_for_people_and_for_scripts() {
        let mut table = Table::new(&["name", "n_per_s"]);
        table.add(vec!["a \"b\"".into(), 1.into()]);
        table.add(vec![Value::Null, 10.into()]);
        assert_eq!(table.to_string(), "NAME   N/S\na \"b\"  1\n-      10\n");
        let mut forged = Table::new(&["name\u{1b}[2J"]);
        forged.add(vec!["a\nb\u{1b}]0;x".into()]);
        assert_eq!(forged.to_string(), "NAME\u{fffd}[2J\na\u{fffd}b\u{fffd}]0;x\n");
        let lines: Vec<String> = table.lines().collect();
        assert_eq!(lines, [r#"{"name":"a \"b\"","n_per_s":1}"#, r#"{"name":null,"n_per_s":10}"#]);
    }

    const COLUMNS: [&str; 3] = ["to", "to_address", "bytes"];

    fn select(filters: &[&str], sort: Option<&str>, limit: usize) -> Result<Vec<String>, String> {
        let rows = [
            json!(["shop/db", "10.1.0.2", 30]),
            json!(["shop/web", "10.1.0.3", 500]),
            json!(["", "203.0.113.7", null]),
            json!(["forum/db", "10.2.0.2", 70]),
        ];
        let rows = rows.into_iter().map(|row| row.as_array().unwrap().clone());
        let filters: Vec<String> = filters.iter().map(|it| (*it).to_owned()).collect();
        let table = Selection::new(&filters, sort, limit)?.of(&COLUMNS, rows)?;
        let names = table.rows.iter().map(|row| row[1].as_str().unwrap().to_owned());
        let rest = (table.left_out > 0).then(|| format!("and {}", table.left_out));
        Ok(names.chain(rest).collect())
    }

    #[test]
    fn rows_are_chosen_by_conditions_on_columns() {
        let chosen = |filters: &[&str]| select(filters, None, 10).unwrap();
        assert_eq!(chosen(&["to=shop/db"]), ["10.1.0.2"]);
        assert_eq!(chosen(&["to=shop/*", "bytes>30"]), ["10.1.0.3"]);
        assert_eq!(chosen(&["to-address=10.0.0.0/8", "to!=shop/db"]), ["10.1.0.3", "10.2.0.2"]);
        assert_eq!(chosen(&["bytes<=70", "bytes>=30"]), ["10.1.0.2", "10.2.0.2"]);
        assert_eq!(chosen(&["bytes=500"]), ["10.1.0.3"]);
        assert_eq!(chosen(&["bytes<1"]), [""; 0], "what is not counted is not little");
        for (bad, part) in [
            ("to", "COLUMN=VALUE"),
            ("=x", "COLUMN=VALUE"),
            ("bytes>many", "'many' is no number"),
            ("colour=red", "there are to, to_address, bytes"),
        ] {
            let problem = select(&[bad], None, 10).unwrap_err();
            assert!(problem.contains(part), "{bad}: {problem}");
        }
    }

    #[test]
    fn the_first_rows_in_an_order_are_kept_and_the_others_counted() {
        let sorted = |sort, limit| select(&[], Some(sort), limit).unwrap();
        assert_eq!(sorted("bytes", 2), ["10.1.0.3", "10.2.0.2", "and 2"]);
        assert_eq!(sorted("to", 10), ["203.0.113.7", "10.2.0.2", "10.1.0.2", "10.1.0.3"]);
        assert_eq!(select(&[], None, 1).unwrap(), ["10.1.0.2", "and 3"]);
        // More rows than are held at a time.
        let rows = (0..10_000_u64).map(|n| vec![json!(n % 5_000)]);
        let table = Selection::new(&[], Some("n"), 2).unwrap().of(&["n"], rows).unwrap();
        assert_eq!((table.rows, table.left_out), (vec![vec![json!(4999)]; 2], 9_998));
    }
}
