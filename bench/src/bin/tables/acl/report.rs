//! The report: tables in Markdown and one picture.

use bench::{Group, Samples, draw, format_table};

use super::lookups::Line;

const MIB: f64 = 1_048_576.0;

/// Lookups and builds.
pub(crate) fn text(lines: &[Line]) -> String {
    let rows: Vec<_> = lines.iter().map(lookups).collect();
    let head = ["set", "rules", "rte_acl", "acl", "acl : rte", "sets", "sets : rte", "table"];
    let mut text = format!(
        "## Lookups, million a second on one core\n\n\
         Median round (slowest–fastest round); rounds of the engines take turns, and ratios are of medians. \
         *sets* is the peer-set form, address map included; *table* the same with identities known.\n\n{}",
        format_table(&head, &rows)
    );
    if lines.iter().any(|line| line.theirs.as_ref().is_ok_and(|theirs| !theirs.built.huge)) {
        text += "\nThe kernel granted rte_acl no huge pages.\n";
    }
    for line in lines {
        if let Err(reason) = &line.theirs {
            text += &format!("\n{}: rte_acl is not measured: {reason}\n", line.name);
        }
    }
    let rows: Vec<_> = lines.iter().flat_map(builds).collect();
    let head = [
        "set",
        "rte_acl ms",
        "acl ms",
        "rte : acl",
        "rte_acl MiB",
        "acl MiB",
        "acl : rte",
        "bytes a rule",
        "found",
    ];
    text + "\n## Build and memory\n\n" + &format_table(&head, &rows)
}

fn lookups(line: &Line) -> Vec<String> {
    let theirs = line.theirs.as_ref().ok();
    let cell = |samples: Option<&Samples>| samples.map_or("–".to_owned(), Samples::to_string);
    let ratio = |ours: Option<&Samples>| match (ours, theirs) {
        (Some(ours), Some(it)) => format!("{:.2}", ours.median() / it.lookup.median()),
        _ => "–".to_owned(),
    };
    let (ours, sets) = (Some(&line.ours), line.sets.as_ref());
    vec![
        line.name.clone(),
        line.report.rules.to_string(),
        theirs.map_or("–".to_owned(), |it| format!("{} {}", it.lookup, it.built.method)),
        cell(ours),
        ratio(ours),
        cell(sets.map(|sets| &sets.both)),
        ratio(sets.map(|sets| &sets.both)),
        cell(sets.map(|sets| &sets.table)),
    ]
}

/// A row for the set, and one for its peer-set form.
fn builds(line: &Line) -> Vec<Vec<String>> {
    let (report, ours) = (&line.report, line.report.bytes as f64);
    let [ms, faster, mib, share] = match &line.theirs {
        Err(_) => ["–"; 4].map(String::from),
        Ok(theirs) => [
            format!("{:.1}", theirs.built.build * 1e3),
            format!("{:.1}", theirs.built.build / line.build),
            format!("{:.2}", theirs.built.bytes / MIB),
            format!("{:.2}", ours / theirs.built.bytes),
        ],
    };
    let row =
        |name: String, [ms, faster, mib, share]: [String; 4], build: f64, report: &acl::Report| {
            let bytes = report.bytes as f64;
            let each = format!("{:.0}", bytes / report.rules.max(1) as f64);
            let (build, own) = (format!("{:.1}", build * 1e3), format!("{:.2}", bytes / MIB));
            vec![name, ms, build, faster, mib, own, share, each, report.to_string()]
        };
    let mut rows = vec![row(line.name.clone(), [ms, faster, mib, share], line.build, report)];
    rows.extend(line.sets.as_ref().map(|sets| {
        let name = format!("{} sets", line.name);
        row(name, [const { String::new() }; 4], sets.build, &sets.report)
    }));
    rows
}

/// Lookups as bars: for each set `rte_acl`, this engine, and its peer-set form.
pub(crate) fn picture(lines: &[Line]) -> String {
    let group = |line: &Line| -> Group {
        let theirs = line.theirs.as_ref().map_or(0.0, |theirs| theirs.lookup.median());
        let sets = line.sets.as_ref().map_or(0.0, |sets| sets.both.median());
        let bars = [("rte_acl", theirs), ("acl", line.ours.median()), ("acl, peer sets", sets)];
        let bars = bars.map(|(name, rate)| (name.to_owned(), rate));
        (format!("{}: million lookups a second", line.name), bars.to_vec())
    };
    draw(&lines.iter().map(group).collect::<Vec<_>>(), true)
}
