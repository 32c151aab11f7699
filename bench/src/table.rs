//! Tables and pictures for a report.

/// Prints rows under a head, columns aligned.
pub fn print_table(head: &[&str], rows: &[Vec<String>]) {
    print!("{}", format_table(head, rows));
}

/// Rows under a head as a table in Markdown, columns aligned.
pub fn format_table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells
            .enumerate()
            .map(|(column, cell)| format!("{cell:<width$}", width = width(column)))
            .collect();
        format!("| {} |\n", padded.join(" | "))
    };
    let rules: Vec<String> = (0..head.len()).map(|column| "-".repeat(width(column))).collect();
    let mut text = line(&mut head.iter().copied()) + &line(&mut rules.iter().map(String::as_str));
    text.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    text
}

const COLOURS: [&str; 8] =
    ["#2a6fb0", "#e08a1e", "#c9a227", "#3a9a5b", "#8e5bb0", "#5bb0a8", "#999", "#444"];
/// Pixels from one bar to the next.
const BAR: f64 = 15.0;
const LEFT: f64 = 170.0;
const WIDTH: f64 = 460.0;

/// A group of bars: its name, and the name and figure of each bar.
pub type Group = (String, Vec<(String, f64)>);

/// Groups of bars in SVG; the longest bar of each is as wide as there is room, or with `is_one_scale` that of all.
/// Figures of 0 and those that are no number have none.
pub fn draw(groups: &[Group], is_one_scale: bool) -> String {
    let longest = |groups: &[Group]| {
        let figures = groups.iter().flat_map(|(_, bars)| bars.iter().map(|(_, figure)| *figure));
        figures.fold(f64::MIN_POSITIVE, f64::max)
    };
    let (mut y, mut body) = (14.0, String::new());
    for group in groups {
        let (name, bars) = group;
        let most = longest(if is_one_scale { groups } else { std::slice::from_ref(group) });
        y += 18.0;
        body += &format!("<text x=\"10\" y=\"{y:.1}\" font-weight=\"bold\">{name}</text>\n");
        y += 6.0;
        for (place, (name, figure)) in bars.iter().enumerate().filter(|(_, bar)| bar.1 > 0.0) {
            let (width, text) = (figure / most * WIDTH, y + 11.0);
            let digits = if *figure >= 10.0 { 1 } else { 2 };
            body += &format!(
                "<text x=\"{:.1}\" y=\"{text:.1}\" text-anchor=\"end\">{name}</text>\
                 <rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"12\" fill=\"{}\"/>\
                 <text x=\"{:.1}\" y=\"{text:.1}\">{figure:.digits$}</text>\n",
                LEFT - 6.0,
                COLOURS[place % COLOURS.len()],
                LEFT + width + 5.0,
            );
            y += BAR;
        }
        y += 6.0;
    }
    let height = y + 10.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"700\" height=\"{height:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"700\" height=\"{height:.0}\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_a_bar() {
        let bars = [("one", 20.0), ("other", 5.0), ("neither", 0.0), ("failed", f64::NAN)];
        let bars = bars.map(|(name, figure)| (name.to_owned(), figure)).to_vec();
        let svg = draw(&[("a row".to_owned(), bars)], false);
        assert_eq!(svg.matches("<rect x=").count(), 2, "{svg}");
        for part in ["a row", "other", "width=\"460.0\"", ">20.0</text>", ">5.00</text>"] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
    }
}
