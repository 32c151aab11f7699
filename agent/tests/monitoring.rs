//! Alert rules and dashboard are about metrics that the switch has.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{TempDir, has_program, requires};

fn monitoring() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/monitoring")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(monitoring().join(name)).unwrap()
}

/// Names of metrics in a text: words with one of the prefixes.
fn metrics(text: &str) -> BTreeSet<&str> {
    let words = text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
    words.filter(|word| word.starts_with("podgate_") || word.starts_with("process_")).collect()
}

/// The expressions of the dashboard's panels, as Prometheus evaluates them.
fn expressions() -> Vec<String> {
    let dashboard: serde_json::Value = serde_json::from_str(&read("dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let texts = targets.map(|target| target["expr"].as_str().unwrap());
    texts.map(|text| text.replace("$__rate_interval", "5m").replace("$instance", ".*")).collect()
}

#[test]
fn every_metric_of_alerts_and_dashboard_exists() {
    // Families without a sample are not on the page: their names are string literals in these.
    let sources = [
        include_str!("../src/run/http/metrics.rs"),
        include_str!("../src/run/durations.rs"),
        include_str!("../../platform/telemetry/src/process.rs"),
    ];
    let literals: BTreeSet<&str> = sources.iter().flat_map(|it| it.split('"')).collect();
    let rules = read("alerts.yaml");
    let dashboard = expressions().join("\n");
    let used: BTreeSet<&str> = metrics(&rules).union(&metrics(&dashboard)).copied().collect();
    assert!(used.len() >= 20, "{used:?}");
    for name in used {
        let family = name.strip_suffix("_bucket").unwrap_or(name);
        let family = family.strip_prefix("podgate_").unwrap_or(family);
        assert!(literals.contains(family), "{name} is no metric of the switch");
    }
}

#[test]
fn panels_do_not_overlap() {
    let dashboard: serde_json::Value = serde_json::from_str(&read("dashboard.json")).unwrap();
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|it| panel["gridPos"][it].as_u64().unwrap());
        assert!(x + w <= 24, "{panel}");
        for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(place), "{} at {place:?}", panel["title"]);
        }
    }
}

fn promtool(args: &[&str], folder: &Path) {
    let output = Command::new("promtool").args(args).current_dir(folder).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn promtool_accepts_alerts_and_expressions() {
    requires!(has_program("promtool"), "needs promtool");
    promtool(&["check", "rules", "alerts.yaml"], &monitoring());
    promtool(&["test", "rules", "alerts.test.yaml"], &monitoring());
    let folder = TempDir::new("monitoring");
    let rules: Vec<serde_json::Value> = expressions()
        .iter()
        .enumerate()
        .map(|(at, expr)| serde_json::json!({"record": format!("panel:{at}"), "expr": expr}))
        .collect();
    let file = serde_json::json!({"groups": [{"name": "dashboard", "rules": rules}]});
    std::fs::write(folder.path().join("panels.yaml"), file.to_string()).unwrap();
    promtool(&["check", "rules", "panels.yaml"], folder.path());
}
