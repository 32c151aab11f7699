//! Tables for a report.

/// Prints rows under a head, columns aligned.
pub fn print_table(head: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells
            .enumerate()
            .map(|(column, cell)| format!("{cell:<width$}", width = width(column)))
            .collect();
        println!("| {} |", padded.join(" | "));
    };
    line(&mut head.iter().copied());
    let rules: Vec<String> = (0..head.len()).map(|column| "-".repeat(width(column))).collect();
    line(&mut rules.iter().map(String::as_str));
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
}
