//! `podgate policy diff`: what a change of policies opens and closes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use acl::Origin;
use serde_json::json;

use super::input::{Narrowed, Render, Templates, load_by, stdin_once, usual_kubeconfig};
use super::{Ended, print};
use crate::input::{Manifests, Reading};
use crate::policy::diff::{Change, Difference, both, compare};
use cli_runtime::{NO, Networks};

/// Arguments of `podgate policy diff`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  podgate policy diff main/deploy/ deploy/
  podgate policy diff HEAD~1:deploy/ deploy/
  podgate policy diff live live+deploy/ --kubeconfig ~/.kube/config
  podgate policy diff before.yaml after.yaml -o markdown --fail-on any

OLD and NEW are a file or folder; REV:PATH, a file or folder of a git revision; live, the cluster of
--kubeconfig; or live+PATH, a file or folder on top of that cluster.

A workload, namespace or node that only one side has counts on both: the difference is what
the policies say about it. Pods that neither side has are compared too, as \"any pod with LABELS of
NAMESPACE\". Workloads that were there before and have other labels or ports now are
compared as they are.

Exit code: 0; 1 if a connection opens (--fail-on: if anything changes, or never); 2 if the input
cannot be used.")]
pub struct Diff {
    /// The objects before the change: PATH, REV:PATH, live or live+PATH
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// The objects after it
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// Kubeconfig of the cluster that live stands for [default: $KUBECONFIG, or ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of that kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    #[command(flatten)]
    render: Render,
    #[command(flatten)]
    templates: Templates,
    #[command(flatten)]
    narrowed: Narrowed,
    /// Changes for which the exit code is 1
    #[arg(long, value_enum, default_value = "opened")]
    fail_on: FailOn,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FailOn {
    /// A connection that opens
    Opened,
    /// Any connection that opens, closes or is decided by another rule
    Any,
    /// Nothing
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Plain text
    Text,
    /// One object
    Json,
    /// For a review comment
    Markdown,
}

impl Diff {
    /// Runs the command.
    pub(super) fn run(&self) -> Ended {
        stdin_once([&self.old, &self.new])?;
        let (render, context) = (self.render.render, self.context.clone());
        let reading = Reading { render, context, ..Reading::default() };
        let read = |path| self.read(path, &reading);
        let (mut old, mut new) = match both(|| read(&self.old), || read(&self.new)) {
            (Ok(old), Ok(new)) => (old, new),
            (old, new) => {
                return Err([old.err(), new.err()].into_iter().flatten().flatten().collect());
            }
        };
        drop(reading);
        let skipped = [&old.templates[..], &new.templates].concat();
        self.templates.check(&skipped)?;
        [&mut old, &mut new].into_iter().for_each(|it| self.narrowed.apply(it));
        let compared = compare(old, new).map_err(|problem| vec![problem])?;
        let differences = compared.differences;
        let text = match self.output {
            Format::Text => text(&differences, self.narrowed.words()),
            Format::Json => json(&differences, compared.classes),
            Format::Markdown => markdown(&differences),
        };
        let fails = match self.fail_on {
            FailOn::Opened => differences.iter().any(|it| it.change == Change::Opened),
            FailOn::Any => !differences.is_empty(),
            FailOn::Never => false,
        };
        Ok(print(&text, if fails { NO } else { 0 }))
    }

    /// Reads one version.
    fn read(&self, path: &Path, reading: &Reading) -> Result<Manifests, Vec<String>> {
        let words = path.to_str().filter(|_| !path.exists());
        let on_top = match words.map(|words| words.strip_prefix("live")) {
            Some(Some("")) => Some(Vec::new()),
            Some(Some(rest)) => rest.strip_prefix('+').map(|path| vec![PathBuf::from(path)]),
            _ => None,
        };
        let Some(on_top) = on_top else {
            return load_by(&[path.to_owned()], None, &Networks::default(), false, reading);
        };
        let kubeconfig = self.kubeconfig.clone().or_else(usual_kubeconfig);
        let missing = || vec!["--kubeconfig: which cluster is live?".to_owned()];
        let kubeconfig = kubeconfig.ok_or_else(missing)?;
        load_by(&on_top, Some(&kubeconfig), &Networks::default(), false, reading)
    }
}

const CHANGES: [(Change, &str); 3] = [
    (Change::Opened, "Opened"),
    (Change::Closed, "Closed"),
    (Change::OtherRule, "Decided by another rule"),
];

fn of(change: Change, differences: &[Difference]) -> impl Iterator<Item = &Difference> {
    differences.iter().filter(move |it| it.change == change)
}

fn summary(differences: &[Difference]) -> String {
    let count = |change| of(change, differences).map(|it| it.from.len()).sum::<usize>();
    format!(
        "{} opened, {} closed, {} decided by another rule",
        count(Change::Opened),
        count(Change::Closed),
        count(Change::OtherRule)
    )
}

fn names(from: &std::collections::BTreeSet<String>) -> String {
    from.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn port(difference: &Difference) -> String {
    format!("{} {}", difference.protocol, difference.ports_in_words()).trim_end().to_owned()
}

fn text(differences: &[Difference], family: &str) -> String {
    let mut text = String::new();
    for (change, title) in CHANGES {
        if of(change, differences).next().is_none() {
            continue;
        }
        let _ = writeln!(text, "{title}:");
        for it in of(change, differences) {
            let _ = writeln!(text, "  {} {} from {}", it.to, port(it), names(&it.from));
            let _ = writeln!(text, "      before: {}", Origin::list(&it.before));
            let _ = writeln!(text, "      after:  {}", Origin::list(&it.after));
        }
    }
    let _ = writeln!(text, "{}{family}", summary(differences));
    text
}

fn json(differences: &[Difference], classes: usize) -> String {
    let list = |change| of(change, differences).collect::<Vec<_>>();
    let all = json!({
        "opened": list(Change::Opened),
        "closed": list(Change::Closed),
        "other_rule": list(Change::OtherRule),
        "classes": classes,
    });
    format!("{all}\n")
}

fn markdown(differences: &[Difference]) -> String {
    let mut text = format!("**Policies:** {}\n", summary(differences));
    let cell = |text: String| text.replace('|', "\\|").replace('\n', " ");
    for (change, title) in CHANGES {
        if of(change, differences).next().is_none() {
            continue;
        }
        let head = "| To | Port | From | Before | After |\n|---|---|---|---|---|";
        let _ = writeln!(text, "\n### {title}\n\n{head}");
        for it in of(change, differences) {
            let cells = [
                it.to.clone(),
                port(it),
                names(&it.from),
                Origin::list(&it.before),
                Origin::list(&it.after),
            ];
            let _ = writeln!(text, "| {} |", cells.map(cell).join(" | "));
        }
    }
    text
}
