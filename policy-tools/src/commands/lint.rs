//! `podgate policy lint`: mistakes in manifests.

use std::fmt;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;

use super::input::{Render, Templates, read_text};
use super::{Ended, annotation, print};
use serde_json::{Value, json};

use crate::policy::lint::{CHECKS, Finding, Ignored, LintOptions, Linted, lint};
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

Exit code: 0; 1 with --strict if there is any warning; 2 if a file or an object cannot be read, or with
--strict if a template was skipped (unless --allow-templates).")]
pub struct Lint {
    /// File or folder of Kubernetes objects, REV:PATH of a git revision, or - for stdin
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Check selectors against the cluster of this kubeconfig too
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of that kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    context: Option<String>,
    /// Expect pods outside of these files, such as those of operators: a selector without pods is then no mistake
    #[arg(long)]
    workloads_elsewhere: bool,
    #[command(flatten)]
    render: Render,
    #[command(flatten)]
    templates: Templates,
    /// Note workloads that no policy selects; --strict does so too, and does not count them
    #[arg(long)]
    not_selected: bool,
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
    /// SARIF 2.1.0
    Sarif,
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
            context: self.context.clone(),
            workloads_elsewhere: self.workloads_elsewhere,
            render: self.render.render,
            not_selected: self.not_selected || self.strict,
            ignored,
        };
        let Linted { findings, notes, templates } = lint(&self.paths, &options)?;
        if self.strict {
            self.templates.check(&templates)?;
        }
        notes.iter().for_each(note);
        let each = |line: fn(&Finding) -> String| -> String {
            findings.iter().map(|it| line(it) + "\n").collect()
        };
        let count = |severity: &str| findings.iter().filter(|it| it.severity() == severity).count();
        let (warnings, invalid) = (count("warning"), count("error"));
        let lines = match self.output {
            Format::Text => {
                let (warnings, errors) = (counted(warnings, "warning"), counted(invalid, "error"));
                each(text) + &format!("{warnings}, {errors}\n")
            }
            Format::Json => each(json),
            Format::Sarif => sarif(&findings),
            Format::Github => each(github),
        };
        let code = if invalid > 0 {
            UNUSABLE
        } else if self.strict && warnings > 0 {
            NO
        } else {
            0
        };
        Ok(print(&lines, code))
    }
}

fn json(finding: &Finding) -> String {
    let mut value = serde_json::to_value(finding).unwrap_or_default();
    value["severity"] = finding.severity().into();
    value.to_string()
}

/// Static Analysis Results Interchange Format 2.1.0.
fn sarif(findings: &[Finding]) -> String {
    let result = |it: &Finding| {
        let region = json!({"startLine": it.line, "startColumn": it.column});
        let location = json!({"artifactLocation": {"uri": it.file}, "region": region});
        json!({"ruleId": it.code, "level": it.severity(),
            "message": {"text": plain(&format!("{}: {}", it.object, it.message))},
            "locations": [{"physicalLocation": location}]})
    };
    let results: Vec<Value> = findings.iter().map(result).collect();
    let rules: Vec<Value> = CHECKS.iter().map(|id| json!({"id": id})).collect();
    let driver = json!({"name": "podgate policy lint", "rules": rules});
    let log = json!({"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}]});
    format!("{log}\n")
}

fn text(finding: &Finding) -> String {
    let Finding { file, line, column, object, code, message } = finding;
    let severity = finding.severity();
    let object = if object.is_empty() { String::new() } else { format!("{object}: ") };
    plain(&format!("{file}:{line}:{column}: {severity}: {object}{message} [{code}]"))
}

fn github(finding: &Finding) -> String {
    let Finding { file, line, column, object, code, message } = finding;
    let (line, column) = (line.to_string(), column.to_string());
    let properties = [("file", &**file), ("line", &line), ("col", &column), ("title", code)];
    let severity = match finding.severity() {
        "note" => "notice",
        other => other,
    };
    annotation(severity, &properties, &plain(&format!("{object}: {message}")))
}
