//! The report: tables in Markdown and one picture.

use bench::{Group, Samples, draw, format_table};

use super::lookups::{Figures, Line};

const MIB: f64 = 1_048_576.0;
const NONE: &str = "–";

/// Lookups and builds.
pub(crate) fn text(lines: &[Line]) -> String {
    let rows: Vec<_> = lines.iter().map(lookups).collect();
    let head = ["set", "rules", "rte_acl", "acl", "acl : rte", "sets", "sets : rte", "table"];
    let mut text = format!(
        "## Lookups, million a second on one core\n\n\
         Median round (slowest–fastest round); rounds of the engines take turns, and ratios are of medians. \
         *sets* is the peer-set form, address map included; *table* the same, or the set as it is, with identities known.\n\n{}",
        format_table(&head, &rows)
    );
    if lines.iter().any(|line| line.theirs.as_ref().is_ok_and(|(built, _)| !built.huge)) {
        text += "\nThe kernel granted rte_acl no huge pages.\n";
    }
    for line in lines {
        if let Err(reason) = &line.theirs {
            text += &format!("\n{}: rte_acl is not measured: {reason}\n", line.name);
        }
    }
    let rows: Vec<_> = lines.iter().flat_map(builds).collect();
    let [ours, theirs] = [["acl ms", "rte : acl"], ["acl MiB", "acl : rte"]];
    let head = [&["set", "rte_acl ms"], &ours[..], &["rte_acl MiB"], &theirs[..]].concat();
    let head = [&head[..], &["bytes a rule", "found"]].concat();
    text + "\n## Build and memory\n\n" + &format_table(&head, &rows)
}

fn lookups(line: &Line) -> Vec<String> {
    let theirs = line.theirs.as_ref().ok();
    let text = |samples: Option<&Samples>| samples.map_or(NONE.to_owned(), Samples::to_string);
    let ratio = |ours: Option<&Samples>| match (ours, theirs) {
        (Some(ours), Some((_, it))) => format!("{:.2}", ours.median() / it.median()),
        _ => NONE.to_owned(),
    };
    let (ours, sets) = (Some(&line.ours.both), line.sets.as_ref());
    vec![
        line.name.clone(),
        line.ours.report.rules.to_string(),
        theirs.map_or(NONE.to_owned(), |(built, it)| format!("{it} {}", built.method)),
        text(ours),
        ratio(ours),
        text(sets.map(|sets| &sets.both)),
        ratio(sets.map(|sets| &sets.both)),
        sets.unwrap_or(&line.ours).table.to_string(),
    ]
}

/// A row for the set, and one for its peer-set form.
fn builds(line: &Line) -> Vec<Vec<String>> {
    let row = |name: String, figures: &Figures, theirs: Option<(f64, f64)>| {
        let (build, bytes) = (figures.build * 1e3, figures.report.bytes as f64 / MIB);
        let text = |value: Option<f64>, digits: usize| {
            value.map_or(NONE.to_owned(), |value| format!("{value:.digits$}"))
        };
        let each = figures.report.bytes as f64 / figures.report.rules.max(1) as f64;
        vec![
            name,
            text(theirs.map(|it| it.0), 1),
            text(Some(build), 1),
            text(theirs.map(|it| it.0 / build), 1),
            text(theirs.map(|it| it.1), 2),
            text(Some(bytes), 2),
            text(theirs.map(|it| bytes / it.1), 2),
            text(Some(each), 0),
            figures.report.to_string(),
        ]
    };
    let theirs = line.theirs.as_ref().ok().map(|(it, _)| (it.build * 1e3, it.bytes / MIB));
    let sets = line.sets.as_ref().map(|sets| row(format!("{} sets", line.name), sets, None));
    [row(line.name.clone(), &line.ours, theirs)].into_iter().chain(sets).collect()
}

/// Lookups as bars: for each set `rte_acl`, this engine, and its peer-set form.
pub(crate) fn picture(lines: &[Line]) -> String {
    let group = |line: &Line| -> Group {
        let theirs = line.theirs.as_ref().map_or(0.0, |(_, lookups)| lookups.median());
        let sets = line.sets.as_ref().map_or(0.0, |sets| sets.both.median());
        let bars =
            [("rte_acl", theirs), ("acl", line.ours.both.median()), ("acl, peer sets", sets)];
        let bars = bars.map(|(name, rate)| (name.to_owned(), rate));
        (format!("{}: million lookups a second", line.name), bars.to_vec())
    };
    draw(&lines.iter().map(group).collect::<Vec<_>>(), true)
}
