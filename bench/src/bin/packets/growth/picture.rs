//! The rates as a picture: a bar for each number of workers.

use super::Case;

const COLOURS: [&str; 6] = ["#2a6fb0", "#e08a1e", "#3a9a5b", "#8e5bb0", "#999", "#444"];
const BAR: f64 = 13.0;

/// In SVG.
pub(crate) fn draw(cases: &[Case], workers: &[usize]) -> String {
    let rates = |case: &Case| -> Vec<f64> { case.rates.iter().map(|it| it.median()).collect() };
    let most = cases.iter().flat_map(rates).fold(1.0, f64::max);
    let (left, scale) = (290.0, 380.0 / most);
    let step = BAR * workers.len() as f64 + 10.0;
    let height = 44.0 + step * cases.len() as f64;
    let legend: Vec<String> = std::iter::zip(workers, COLOURS)
        .map(|(n, colour)| format!("<tspan fill=\"{colour}\">{n} worker{}</tspan>", plural(*n)))
        .collect();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"740\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"740\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"10\" y=\"20\">Million packets a second: {}</text>\n",
        legend.join(", ")
    );
    for (place, case) in cases.iter().enumerate() {
        let top = 36.0 + step * place as f64;
        svg += &format!("<text x=\"10\" y=\"{:.1}\">{}</text>\n", top + step / 2.0, case.name);
        for (row, (rate, colour)) in std::iter::zip(rates(case), COLOURS).enumerate() {
            let (y, width) = (top + BAR * row as f64, rate * scale);
            svg += &format!(
                "<rect x=\"{left}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"11\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"10\">{rate:.1}</text>\n",
                left + width + 4.0,
                y + 9.5
            );
        }
    }
    svg + "</svg>\n"
}

pub(crate) fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}
