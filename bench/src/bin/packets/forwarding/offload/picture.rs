//! The rows as a picture: a group of bars for each, a bar for each forwarder.

use bench::forwarder::Forwarder;

use super::{DIRECT, Row};

const COLOURS: [&str; 8] =
    ["#2a6fb0", "#e08a1e", "#c9a227", "#3a9a5b", "#8e5bb0", "#5bb0a8", "#999", "#444"];
const BAR: f64 = 15.0;
const LEFT: f64 = 170.0;
const WIDTH: f64 = 460.0;

/// In SVG.
pub(super) fn draw(forwarders: &[Forwarder], rows: &[Row]) -> String {
    let name = |place: usize| match place {
        DIRECT => "a veth pair alone",
        other => forwarders[other].name(),
    };
    let mut y = 14.0;
    let mut body = String::new();
    for row in rows {
        let bars: Vec<(usize, f64)> = row
            .figures
            .iter()
            .enumerate()
            .map(|(place, samples)| (place, samples.median()))
            .filter(|(_, median)| *median > 0.0)
            .collect();
        let most = bars.iter().map(|(_, median)| *median).fold(f64::MIN_POSITIVE, f64::max);
        y += 18.0;
        body += &format!("<text x=\"10\" y=\"{y:.1}\" font-weight=\"bold\">{}</text>\n", row.name);
        y += 6.0;
        for (place, median) in bars {
            let (width, text) = (median / most * WIDTH, y + 11.0);
            let figure =
                if median >= 10.0 { format!("{median:.1}") } else { format!("{median:.2}") };
            body += &format!(
                "<text x=\"{:.1}\" y=\"{text:.1}\" text-anchor=\"end\">{}</text>\
                 <rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"12\" fill=\"{}\"/>\
                 <text x=\"{:.1}\" y=\"{text:.1}\">{figure}</text>\n",
                LEFT - 6.0,
                name(place),
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
    use bench::Samples;

    use super::*;

    #[test]
    fn every_figure_is_a_bar() {
        let mut figures = vec![Samples::default(); DIRECT + 1];
        for (place, value) in [(0, 20.0), (1, 10.0), (DIRECT, 5.0)] {
            figures[place].add(value);
        }
        let row = Row { name: "a row", goal: "", figures, against: 1 };
        let svg = draw(&[Forwarder::Offload, Forwarder::BridgeUncut], &[row]);
        assert_eq!(svg.matches("<rect x=").count(), 3, "{svg}");
        for part in ["a row", "podgate, flow offload", "a veth pair alone", "width=\"460.0\""] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
        assert!(svg.contains(">20.0</text>") && svg.contains(">5.00</text>"), "{svg}");
    }
}
