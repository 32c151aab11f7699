//! Answers as lines for scripts and as a table for people.

pub use cli_runtime::plain;

use std::io::{self, Write};

use acl::Origin;
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::case::Fields;
use super::{Answer, Case, Judgement};

/// Fields that an answer adds; what a case has of these names gives way.
const ANSWER: [&str; 3] = ["verdict", "reason", "by"];

/// A case's own fields and the answer, as one JSON object.
pub struct Line<'a> {
    /// The case's fields.
    pub fields: &'a Fields,
    /// The answer.
    pub answer: &'a Answer,
}

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let own = self.fields.iter().filter(|(name, _)| !ANSWER.contains(&name.as_str()));
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in own {
            map.serialize_entry(name, value)?;
        }
        map.serialize_entry("verdict", self.answer.verdict.name())?;
        map.serialize_entry("reason", &self.answer.reason)?;
        map.serialize_entry("by", &self.answer.by)?;
        map.end()
    }
}

impl Line<'_> {
    /// Writes the line.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *out, self)?;
        out.write_all(b"\n")
    }
}

/// Number of answers that differ from the expected ones.
pub fn failed(cases: &[Case], answers: &[Answer]) -> usize {
    cases.iter().zip(answers).filter(|(case, answer)| has_failed(case, answer)).count()
}

/// Cases with an expectation that nothing decided, by number from 1, with the reason.
pub fn undecided<'a>(
    cases: &'a [Case],
    answers: &'a [Answer],
) -> impl Iterator<Item = (usize, &'a str)> {
    let both = cases.iter().zip(answers).zip(1..);
    both.filter(|((case, answer), _)| compared(case, answer) == Some(Judgement::Undecided))
        .map(|((_, answer), number)| (number, &*answer.reason))
}

fn compared(case: &Case, answer: &Answer) -> Option<Judgement> {
    case.expect.map(|expected| answer.compare(expected))
}

fn has_failed(case: &Case, answer: &Answer) -> bool {
    compared(case, answer) == Some(Judgement::Fails)
}

/// Writes cases and answers as a table; the last line counts failed expectations.
///
/// # Errors
/// Fails if it cannot be written.
pub fn table(out: &mut impl Write, cases: &[Case], answers: &[Answer]) -> io::Result<()> {
    const HEAD: [&str; 7] = ["", "FROM", "TO", "PORT", "VERDICT", "REASON", "BY"];
    let rows: Vec<[String; 7]> = cases.iter().zip(answers).map(row).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([HEAD[column].len()]).max().unwrap_or(0)
    };
    let widths: [usize; 7] = std::array::from_fn(width);
    let mut line = |cells: [&str; 7]| {
        let padded: Vec<String> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        // Nothing to mark, no column for marks.
        let first = usize::from(widths[0] == 0);
        writeln!(out, "{}", padded[first..].join("  ").trim_end())
    };
    line(HEAD)?;
    for row in &rows {
        line(std::array::from_fn(|column| row[column].as_str()))?;
    }
    let expected = cases.iter().filter(|case| case.expect.is_some()).count();
    let failed = failed(cases, answers);
    write!(out, "{} asked, {expected} with an expectation, {failed} failed", cases.len())?;
    match undecided(cases, answers).count() {
        0 => writeln!(out),
        count => writeln!(out, ", {count} undecided"),
    }
}

fn row((case, answer): (&Case, &Answer)) -> [String; 7] {
    let mark = match (case.expect, compared(case, answer)) {
        (Some(expected), Some(Judgement::Fails)) => format!("FAILED, expected {expected}"),
        (Some(expected), Some(Judgement::Undecided)) => format!("UNDECIDED, expected {expected}"),
        _ => String::new(),
    };
    let port = match &case.port {
        Some(port) => format!("{}/{}", case.protocol.name(), plain(&port.to_string())),
        None => case.protocol.name().to_owned(),
    };
    [
        mark,
        plain(&case.from.to_string()),
        plain(&case.to.to_string()),
        port,
        answer.verdict.name().to_owned(),
        answer.reason.to_string(),
        Origin::list(&answer.by),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{ProbeVerdict, cases};

    fn answer(verdict: ProbeVerdict) -> Answer {
        Answer { verdict, reason: "policy-denied".into(), by: vec!["P".into()] }
    }

    fn table_of(text: &str) -> String {
        let cases = cases::read(text.as_bytes()).unwrap();
        let answers: Vec<Answer> = cases.iter().map(|_| answer(ProbeVerdict::Deny)).collect();
        let mut out = Vec::new();
        table(&mut out, &cases, &answers).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_line_has_the_cases_fields_and_the_answers() {
        let text = r#"{"x":{"y":[1]},"from":"a/b","to":"a/c","protocol":"ICMP","verdict":"allow"}"#;
        let cases = cases::read(text.as_bytes()).unwrap();
        let mut out = Vec::new();
        let line = Line { fields: &cases[0].fields, answer: &answer(ProbeVerdict::Deny) };
        line.write(&mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "{\"x\":{\"y\":[1]},\"from\":\"a/b\",\"to\":\"a/c\",\"protocol\":\"ICMP\",\
             \"verdict\":\"deny\",\"reason\":\"policy-denied\",\"by\":[\"P\"]}\n"
        );
    }

    #[test]
    fn a_table_marks_and_counts_what_was_not_expected() {
        let text = "- {from: a/b, to: a/c, protocol: TCP, port: 80, expect: allow}\n\
                    - {from: a/b, to: node/n, protocol: UDP, port: dns, expect: deny}\n\
                    - {from: 10.0.0.1, to: service/a/s, protocol: ICMP}\n";
        assert_eq!(
            table_of(text).lines().collect::<Vec<_>>(),
            [
                "                        FROM      TO           PORT     VERDICT  REASON         BY",
                "FAILED, expected allow  a/b       a/c          TCP/80   deny     policy-denied  P",
                "                        a/b       node/n       UDP/dns  deny     policy-denied  P",
                "                        10.0.0.1  service/a/s  ICMP     deny     policy-denied  P",
                "3 asked, 2 with an expectation, 1 failed",
            ]
        );
        let text = "{from: a/b, to: a/c, protocol: ICMP}";
        assert!(table_of(text).starts_with("FROM  TO   PORT  VERDICT"));
    }
}
