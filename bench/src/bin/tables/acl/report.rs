//! The report: tables in Markdown and one picture.

use std::fmt::{Result, Write};

use super::address_map::MapCosts;
use super::generated::V6;
use super::lookups::{Line, Rounds, Theirs};

/// Millions a second of what takes so many nanoseconds.
fn rate(nanoseconds: f64) -> f64 {
    1e3 / nanoseconds
}

const MIB: f64 = 1_048_576.0;

/// Lookups and builds. Rates are of the median round, those of the slowest and the fastest in brackets.
pub(crate) fn lookups(text: &mut String, lines: &[Line]) -> Result {
    writeln!(text, "## Lookups, million a second on one core\n")?;
    writeln!(
        text,
        "Median round (slowest–fastest round); rounds of the engines take turns, and ratios are of medians. *sets* is the peer-set form, address map included; *table* the same with identities known; *probe* one hash probe of the 5-tuple at as many entries.\n"
    )?;
    writeln!(
        text,
        "| set | rules | rte_acl | acl | acl : rte | sets | sets : rte | table | probe | linear |"
    )?;
    writeln!(text, "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")?;
    let cell = |rounds: Rounds| {
        let [median, most, least] = [rounds.median, rounds.most, rounds.least].map(rate);
        format!("{median:.1} ({most:.1}–{least:.1})")
    };
    for line in lines {
        let theirs = line.theirs.as_ref().ok();
        let ratio = |ours: Rounds| {
            let ratio = |theirs: &Theirs| format!("{:.2}", theirs.lookup.median / ours.median);
            theirs.map_or_else(|| "–".into(), ratio)
        };
        let sets = line.sets.as_ref();
        let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "–".into());
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {:.1} | {:.4} |",
            line.name,
            line.report.rules,
            or_dash(theirs.map(|theirs| format!("{} {}", cell(theirs.lookup), theirs.method))),
            cell(line.ours),
            ratio(line.ours),
            or_dash(sets.map(|sets| cell(sets.both))),
            or_dash(sets.map(|sets| ratio(sets.both))),
            or_dash(sets.map(|sets| cell(sets.table))),
            rate(line.probe),
            rate(line.linear),
        )?;
    }
    if lines.iter().any(|line| line.theirs.as_ref().is_ok_and(|theirs| !theirs.huge)) {
        writeln!(text, "\nThe kernel granted rte_acl no huge pages.")?;
    }
    for line in lines {
        if let Err(reason) = &line.theirs {
            writeln!(text, "\n{}: rte_acl is not measured: {reason}", line.name)?;
        }
    }
    writeln!(text, "\n## Build and memory\n")?;
    writeln!(
        text,
        "| set | rte_acl ms | acl ms | rte : acl | rte_acl MiB | acl MiB | acl : rte | bytes a rule | found |"
    )?;
    writeln!(text, "|---|--:|--:|--:|--:|--:|--:|--:|---|")?;
    for line in lines {
        let report = &line.report;
        let ours = report.bytes as f64;
        let [ms, faster, mib, share] = match &line.theirs {
            Err(_) => ["–"; 4].map(String::from),
            Ok(theirs) => [
                format!("{:.1}", theirs.build * 1e3),
                format!("{:.1}", theirs.build / line.build),
                format!("{:.2}", theirs.bytes / MIB),
                format!("{:.2}", ours / theirs.bytes),
            ],
        };
        let (own, own_mib) = (line.build * 1e3, ours / MIB);
        let each = ours / report.rules.max(1) as f64;
        writeln!(
            text,
            "| {} | {ms} | {own:.1} | {faster} | {mib} | {own_mib:.2} | {share} | {each:.0} | {report} |",
            line.name
        )?;
        if let Some(sets) = &line.sets {
            writeln!(
                text,
                "| {} sets | | {:.1} | | | {:.2} | | | {} |",
                line.name,
                sets.build * 1e3,
                sets.report.bytes as f64 / MIB,
                sets.report
            )?;
        }
    }
    writeln!(text)
}

/// IPv6 sets.
pub(crate) fn v6(text: &mut String, sets: &[V6]) -> Result {
    writeln!(text, "## IPv6\n")?;
    writeln!(text, "| set | M lookups/s | build ms | MiB | found |")?;
    writeln!(text, "|---|--:|--:|--:|---|")?;
    for set in sets {
        writeln!(
            text,
            "| {} | {:.1} | {:.1} | {:.2} | {} |",
            set.name,
            rate(set.lookup.median),
            set.build * 1e3,
            set.report.bytes as f64 / MIB,
            set.report
        )?;
    }
    writeln!(text)
}

/// The address map.
pub(crate) fn address_map(text: &mut String, maps: &[MapCosts]) -> Result {
    writeln!(text, "## Address map\n")?;
    writeln!(
        text,
        "| family | networks | M lookups/s | build ms | MiB | update µs: average | median | worst |"
    )?;
    writeln!(text, "|---|--:|--:|--:|--:|--:|--:|--:|")?;
    for map in maps {
        writeln!(
            text,
            "| {} | {} | {:.1} | {:.0} | {:.1} | {:.2} | {:.2} | {:.0} |",
            map.name,
            map.networks,
            rate(map.lookup.median),
            map.build,
            map.bytes as f64 / MIB,
            map.average,
            map.median,
            map.worst
        )?;
    }
    writeln!(text)
}

/// Lookups as bars: for each set `rte_acl`, this engine, and its peer-set form.
pub(crate) fn picture(lines: &[Line]) -> String {
    let bars = |line: &Line| {
        let theirs = line.theirs.as_ref().ok().map(|theirs| theirs.lookup.median);
        let sets = line.sets.as_ref().map(|sets| sets.both.median);
        [("#999", theirs), ("#2a6fb0", Some(line.ours.median)), ("#e08a1e", sets)]
    };
    let most = lines
        .iter()
        .flat_map(bars)
        .filter_map(|(_, nanoseconds)| nanoseconds.map(rate))
        .fold(1.0, f64::max);
    let (left, scale, step) = (90.0, 520.0 / most, 46.0);
    let height = 50.0 + step * lines.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"700\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"700\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"10\" y=\"20\">Million lookups a second: \
         <tspan fill=\"#777\">rte_acl</tspan>, <tspan fill=\"#2a6fb0\">acl</tspan>, \
         <tspan fill=\"#e08a1e\">acl, peer sets</tspan></text>\n"
    );
    for (place, line) in lines.iter().enumerate() {
        let top = 36.0 + step * place as f64;
        svg += &format!("<text x=\"10\" y=\"{}\">{}</text>\n", top + 20.0, line.name);
        for (row, (colour, nanoseconds)) in bars(line).into_iter().enumerate() {
            let Some(rate) = nanoseconds.map(rate) else { continue };
            let (y, width) = (top + 13.0 * row as f64, rate * scale);
            svg += &format!(
                "<rect x=\"{left}\" y=\"{y}\" width=\"{width:.1}\" height=\"11\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{}\" font-size=\"10\">{rate:.0}</text>\n",
                left + width + 4.0,
                y + 9.5
            );
        }
    }
    svg + "</svg>\n"
}
