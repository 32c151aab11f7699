//! Every pod to every pod, as a grid: `.` where a connection may be opened, `X` where not. Pods of one
//! workload that differ in no answer share a row and a column.

use std::collections::HashMap;
use std::io::{self, Write};

use control::PodKey;
use serde_json::json;

use super::plan::Question;
use super::report::Line;
use super::{Answer, Endpoint, Port, ProbeVerdict, Prober, Protocol, Unended};

/// Why a grid was not written to its end.
#[derive(Debug, thiserror::Error)]
pub enum GridError {
    /// It cannot be written.
    #[error("stdout: {0}")]
    Output(#[from] io::Error),
    /// A question has no answer.
    #[error(transparent)]
    Unended(#[from] Unended),
}

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

/// Answers about every pair of pods, by classes of pods that all tables treat alike.
struct Answers {
    /// The class of each pod.
    classes: Vec<usize>,
    /// The answers for two different pods of two classes; `None` where a class has no second pod.
    between: Vec<Vec<Option<Answer>>>,
    /// The answer for a pod and itself.
    itself: Option<Answer>,
}

impl Answers {
    fn ask(grid: &Grid, prober: &mut Prober) -> Result<Self, Unended> {
        let mut known = HashMap::new();
        let mut members: Vec<Vec<usize>> = Vec::new();
        let mut classes = Vec::with_capacity(grid.pods.len());
        for (n, pod) in grid.pods.iter().enumerate() {
            let class = *known
                .entry(prober.class(pod, grid.protocol, grid.port.as_ref()))
                .or_insert_with(|| {
                    members.push(Vec::new());
                    members.len() - 1
                });
            if members[class].len() < 2 {
                members[class].push(n);
            }
            classes.push(class);
        }
        let ends: Vec<Endpoint> = grid.pods.iter().cloned().map(Endpoint::Pod).collect();
        let count = members.len();
        let mut between = vec![vec![None; count]; count];
        let pair = |from: usize, to: usize| {
            let target = if from == to { members[to].get(1) } else { members[to].first() };
            Some((from, to, members[from][0], *target?))
        };
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let pairs: Vec<_> = pairs.filter_map(|(from, to)| pair(from, to)).collect();
        let question = |from: usize, to: usize| Question {
            from: &ends[from],
            to: &ends[to],
            protocol: grid.protocol,
            port: grid.port.as_ref(),
        };
        let questions = pairs.iter().map(|(_, _, from, to)| question(*from, *to));
        for ((from, to, ..), answer) in pairs.iter().zip(prober.answer(questions)?) {
            between[*from][*to] = Some(answer);
        }
        let first = (!ends.is_empty()).then(|| question(0, 0));
        let itself = prober.answer(first)?.pop();
        Ok(Self { classes, between, itself })
    }

    fn of(&self, from: usize, to: usize) -> Option<&Answer> {
        match self.between[self.classes[from]][self.classes[to]].as_ref() {
            answer if from != to => answer,
            _ => self.itself.as_ref(),
        }
    }

    fn allows(&self, from: usize, to: usize) -> bool {
        self.of(from, to).is_some_and(|answer| answer.verdict == ProbeVerdict::Allow)
    }

    /// Returns whether pods of two classes differ in no answer.
    fn are_alike(&self, one: usize, other: usize) -> bool {
        let allows = |from: usize, to: usize| {
            let answer = self.between[from][to].as_ref();
            answer.map(|it| it.verdict == ProbeVerdict::Allow)
        };
        let both = allows(one, other);
        let is_same = |it: Option<bool>| it.is_none() || it == both;
        one == other
            || both == allows(other, one)
                && is_same(allows(one, one))
                && is_same(allows(other, other))
                && (0..self.between.len()).filter(|n| *n != one && *n != other).all(|n| {
                    allows(one, n) == allows(other, n) && allows(n, one) == allows(n, other)
                })
    }
}

impl Grid {
    /// Writes the grid. Columns have the numbers of rows, read from top to bottom.
    ///
    /// # Errors
    /// Fails if it cannot be written, or a question has no answer.
    pub fn draw(&self, prober: &mut Prober, out: &mut impl Write) -> Result<(), GridError> {
        let port = match &self.port {
            Some(Port::Number(number)) => format!(" {number}"),
            Some(Port::Name(name)) => format!(" {name:?}"),
            None => String::new(),
        };
        let title = "may the pod of a row open a connection to the pod of a column?";
        writeln!(out, "{}{port}: {title} (. yes, X no)", self.protocol.name())?;
        let answers = Answers::ask(self, prober)?;
        let groups = self.groups(prober, &answers);
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
                if answers.allows(groups[row][0], to) { '.' } else { 'X' }
            });
            writeln!(out, "{:digits$}  {name:width$}  {}", row + 1, spaced(cells))?;
        }
        Ok(())
    }

    /// Pods of one workload whose answers are the same, in the order of the first of each group.
    fn groups(&self, prober: &Prober, answers: &Answers) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        // The groups of each workload, each with its classes.
        let mut known: HashMap<String, Vec<(usize, Vec<usize>)>> = HashMap::new();
        for (pod, key) in self.pods.iter().enumerate() {
            let class = answers.classes[pod];
            let of_workload = known.entry(prober.manifests().workload(key)).or_default();
            let alike = of_workload
                .iter_mut()
                .find(|(_, classes)| classes.iter().all(|it| answers.are_alike(*it, class)));
            match alike {
                Some((group, classes)) => {
                    groups[*group].push(pod);
                    if !classes.contains(&class) {
                        classes.push(class);
                    }
                }
                None => {
                    of_workload.push((groups.len(), vec![class]));
                    groups.push(vec![pod]);
                }
            }
        }
        groups
    }

    /// Writes one JSON object for each pair.
    ///
    /// # Errors
    /// Fails if it cannot be written, or a question has no answer.
    pub fn lines(&self, prober: &mut Prober, out: &mut impl Write) -> Result<(), GridError> {
        let answers = Answers::ask(self, prober)?;
        for (row, from) in self.pods.iter().enumerate() {
            for (column, to) in self.pods.iter().enumerate() {
                let Some(answer) = answers.of(row, column) else { continue };
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
                Line { fields: &fields, answer }.write(out)?;
            }
        }
        Ok(())
    }
}

fn spaced(cells: impl Iterator<Item = char>) -> String {
    cells.flat_map(|cell| [cell, ' ']).collect::<String>().trim_end_matches(' ').to_owned()
}
