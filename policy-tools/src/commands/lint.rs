//! `podgate policy lint`: mistakes in manifests.

use std::fmt::{self, Write as _};
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;

use super::input::{Render, read_text};
use super::{Ended, annotation, print};
use crate::policy::lint::{CHECKS, Finding, INVALID, Ignored, LintOptions, Linted, lint};
use crate::probe::report::plain;
use cli_runtime::{NO, UNUSABLE, counted, note};

/// Arguments of `podgate policy lint`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  podgate policy lint deploy/ --strict
  helm template shop chart/ | podgate policy lint - -o github

A comment `# podgate-lint: ignore CHECK` leaves a finding out: at the end of its line, alone above it, or
alone and not indented for the whole document.

Exit code: 0; 1 with --strict if there is any warning; 2 if a file or an object cannot be read.")]
pub struct Lint {
    /// File or folder of Kubernetes objects, REV:PATH of a git revision, or - for stdin
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Check selectors against the cluster of this kubeconfig too
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Expect pods outside of these files, such as those of operators: a selector without pods is then no mistake
    #[arg(long)]
    workloads_elsewhere: bool,
    #[command(flatten)]
    render: Render,
    /// Leave out findings of a check; may be repeated
    #[arg(long, value_name = "CHECK", value_parser = PossibleValuesParser::new(CHECKS))]
    ignore: Vec<String>,
    /// File of lines CHECK, CHECK OBJECT or CHECK FILE to leave out [default: .podgate-lint, if it is there]
    #[arg(long, value_name = "FILE")]
    ignore_file: Option<PathBuf>,
    /// End with 1 if there is any warning
    #[arg(long)]
    strict: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Plain text
    Text,
    /// One object a line
    Json,
    /// Annotations of GitHub Actions
    Github,
}

impl Lint {
    /// Runs the command.
    pub(super) fn run(&self) -> Ended {
        let mut ignored = Ignored::read(&self.ignore.join("\n"))?;
        let usual = PathBuf::from(".podgate-lint");
        let file = self.ignore_file.as_ref().or(Some(&usual).filter(|it| it.is_file()));
        if let Some(file) = file {
            let fault = |problem: &dyn fmt::Display| format!("{}: {problem}", file.display());
            let text = read_text(file).map_err(|error| vec![fault(&error)])?;
            ignored
                .extend(Ignored::read(&text).map_err(|faults| {
                    faults.iter().map(|it| fault(it)).collect::<Vec<String>>()
                })?);
        }
        let options = LintOptions {
            cluster: self.kubeconfig.as_deref(),
            workloads_elsewhere: self.workloads_elsewhere,
            render: self.render.render,
            ignored,
        };
        let Linted { findings, notes } = lint(&self.paths, &options)?;
        notes.iter().for_each(note);
        let line = |finding: &Finding| match self.output {
            Format::Text => text(finding),
            Format::Json => serde_json::to_string(finding).unwrap_or_default(),
            Format::Github => github(finding),
        };
        let mut lines: String = findings.iter().map(|it| line(it) + "\n").collect();
        let invalid = findings.iter().filter(|it| it.code == INVALID).count();
        if self.output == Format::Text {
            let (warnings, errors) = (findings.len() - invalid, invalid);
            let (warnings, errors) = (counted(warnings, "warning"), counted(errors, "error"));
            let _ = writeln!(lines, "{warnings}, {errors}");
        }
        let code = if invalid > 0 {
            UNUSABLE
        } else if self.strict && !findings.is_empty() {
            NO
        } else {
            0
        };
        Ok(print(&lines, code))
    }
}

fn severity(finding: &Finding) -> &'static str {
    if finding.code == INVALID { "error" } else { "warning" }
}

fn text(finding: &Finding) -> String {
    let Finding { file, line, column, object, code, message } = finding;
    let severity = severity(finding);
    let object = if object.is_empty() { String::new() } else { format!("{object}: ") };
    plain(&format!("{file}:{line}:{column}: {severity}: {object}{message} [{code}]"))
}

fn github(finding: &Finding) -> String {
    let Finding { file, line, column, object, code, message } = finding;
    let (line, column) = (line.to_string(), column.to_string());
    let properties = [("file", &**file), ("line", &line), ("col", &column), ("title", code)];
    annotation(severity(finding), &properties, &plain(&format!("{object}: {message}")))
}
