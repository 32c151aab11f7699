//! Every pod to every pod, as a grid: `.` where a connection may be opened, `X` where not. Pods of one
//! workload that differ in no answer share a row and a column.

use std::io::{self, Write};

use control::PodKey;
use serde_json::json;

use super::plan::Question;
use super::report::Line;
use super::{Answer, Endpoint, Port, ProbeVerdict, Prober, Protocol};

/// The question of a grid, for every pair of pods.
#[derive(Clone, Debug)]
pub struct Grid {
    /// The pods, in the order of rows and columns.
    pub pods: Vec<PodKey>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port; `None` for ICMP.
    pub port: Option<Port>,
}

impl Grid {
    /// The answers for connections that pod number `row` opens, in the order of pods.
    fn answers(&self, prober: &mut Prober, row: usize) -> Vec<Answer> {
        let from = Endpoint::Pod(self.pods[row].clone());
        let targets: Vec<Endpoint> = self.pods.iter().cloned().map(Endpoint::Pod).collect();
        prober.answer(targets.iter().map(|to| Question {
            from: &from,
            to,
            protocol: self.protocol,
            port: self.port.as_ref(),
        }))
    }

    /// Writes the grid. Columns have the numbers of rows, read from top to bottom.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn draw(&self, prober: &mut Prober, out: &mut impl Write) -> io::Result<()> {
        let port = match &self.port {
            Some(Port::Number(number)) => format!(" {number}"),
            Some(Port::Name(name)) => format!(" {name:?}"),
            None => String::new(),
        };
        let title = "may the pod of a row open a connection to the pod of a column?";
        writeln!(out, "{}{port}: {title} (. yes, X no)", self.protocol.name())?;
        let allowed: Vec<Vec<bool>> = (0..self.pods.len())
            .map(|row| {
                let answers = self.answers(prober, row);
                answers.iter().map(|answer| answer.verdict == ProbeVerdict::Allow).collect()
            })
            .collect();
        let groups = self.groups(prober, &allowed);
        let name = |group: &Vec<usize>| match group[..] {
            [one] => self.pods[one].to_string(),
            [first, ..] => {
                let workload = prober.manifests().workload(&self.pods[first]);
                format!("{workload} ({} pods)", group.len())
            }
            [] => String::new(),
        };
        let names: Vec<String> = groups.iter().map(name).collect();
        let digits = names.len().to_string().len();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        for place in (0..digits as u32).rev() {
            let unit = 10_usize.pow(place);
            let head = (1..=names.len()).map(|number| match number / unit {
                0 => ' ',
                digit => char::from_digit((digit % 10) as u32, 10).unwrap_or(' '),
            });
            writeln!(out, "{:digits$}  {:width$}  {}", "", "", spaced(head).trim_end())?;
        }
        for (row, name) in names.iter().enumerate() {
            let cells = groups.iter().enumerate().map(|(column, group)| {
                // Within a group, the connection between two of its pods counts.
                let to = if column == row { group[group.len() - 1] } else { group[0] };
                if allowed[groups[row][0]][to] { '.' } else { 'X' }
            });
            writeln!(out, "{:digits$}  {name:width$}  {}", row + 1, spaced(cells))?;
        }
        Ok(())
    }

    /// Pods of one workload whose answers are the same, in the order of the first of each group.
    fn groups(&self, prober: &Prober, allowed: &[Vec<bool>]) -> Vec<Vec<usize>> {
        let workloads: Vec<String> =
            self.pods.iter().map(|pod| prober.manifests().workload(pod)).collect();
        let alike = |a: usize, b: usize| {
            workloads[a] == workloads[b]
                && allowed[a][b] == allowed[b][a]
                && (0..self.pods.len())
                    .filter(|n| *n != a && *n != b)
                    .all(|n| allowed[a][n] == allowed[b][n] && allowed[n][a] == allowed[n][b])
        };
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for pod in 0..self.pods.len() {
            match groups.iter_mut().find(|group| group.iter().all(|other| alike(*other, pod))) {
                Some(group) => group.push(pod),
                None => groups.push(vec![pod]),
            }
        }
        groups
    }

    /// Writes one JSON object for each pair.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn lines(&self, prober: &mut Prober, out: &mut impl Write) -> io::Result<()> {
        for (row, from) in self.pods.iter().enumerate() {
            for (to, answer) in self.pods.iter().zip(self.answers(prober, row)) {
                let mut fields = vec![
                    ("from".to_owned(), json!(from.to_string())),
                    ("to".to_owned(), json!(to.to_string())),
                    ("protocol".to_owned(), json!(self.protocol.name())),
                ];
                fields.extend(self.port.as_ref().map(|port| {
                    let value = match port {
                        Port::Number(number) => json!(number),
                        Port::Name(name) => json!(**name),
                    };
                    ("port".to_owned(), value)
                }));
                Line { fields: &fields, answer: &answer }.write(out)?;
            }
        }
        Ok(())
    }
}

fn spaced(cells: impl Iterator<Item = char>) -> String {
    cells.flat_map(|cell| [cell, ' ']).collect::<String>().trim_end_matches(' ').to_owned()
}
