//! What a bundle takes of files: lines of Podgate's log, its own options, and the names in a
//! kubeconfig. Whatever else a file holds may be a secret, in whatever form, and stays out.

use std::sync::LazyLock;

use clap::Args as _;
use regex::Regex;
use serde_json::{Map, Value, json};

use agent::config::Options;

const REMOVED: &str = "[removed]";

/// A line of the log, by itself or as the journal and container runtimes show it.
static LINE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"^(?:.* podgate\[\d+\]: |\S+ std(?:out|err) [FP] )?(?:\d{4}-\d\d-\d\dT[\d:.]+Z +(?:TRACE|DEBUG|INFO|WARN|ERROR) |\{.*\}$)",
    )
    .expect("the pattern is tested")
});

/// Fields of a line in JSON.
const FIELDS: [&str; 8] =
    ["timestamp", "level", "target", "message", "policy", "pod", "node", "generation"];

/// Options as a file sets them; others, and what belongs to no option, without their values.
///
/// # Errors
/// If the file is no mapping.
pub(super) fn options(text: &str) -> Result<String, String> {
    let known = Options::augment_args(clap::Command::new(""));
    let is_known =
        |name: &str| known.get_arguments().any(|argument| argument.get_long() == Some(name));
    let mut shown = String::new();
    for (name, value) in mapping(text)? {
        let value = if is_known(&name) { value } else { REMOVED.into() };
        let name = if is_known(&name) { name } else { REMOVED.to_owned() };
        shown += &format!("{name}: {value}\n");
    }
    Ok(shown)
}

/// Returns the parts of a named file that are known to be harmless.
pub(super) fn file(text: &str) -> String {
    match kubeconfig(text) {
        Some(known) => known,
        None => log(text),
    }
}

fn mapping(text: &str) -> Result<Map<String, Value>, String> {
    if text.lines().all(|line| line.trim().is_empty() || line.trim().starts_with('#')) {
        return Ok(Map::new());
    }
    // An error may quote the text.
    serde_saphyr::from_str(text).map_err(|_| "is no YAML mapping".to_owned())
}

/// The servers and names of a kubeconfig.
fn kubeconfig(text: &str) -> Option<String> {
    let config = Value::Object(mapping(text).ok()?);
    if config["kind"] != "Config" && !config["users"].is_array() {
        return None;
    }
    let all = |list: &str, fields: &[&str]| -> Value {
        let entries = config[list].as_array().into_iter().flatten();
        let entry = |entry: &Value| {
            let of_entry = fields.iter().map(|path| {
                let value = path.split('.').fold(entry, |value, name| &value[name]);
                (path.rsplit('.').next().unwrap_or(path), value)
            });
            let texts = of_entry.filter(|(_, value)| value.is_string());
            texts.map(|(name, value)| (name.to_owned(), value.clone())).collect::<Map<_, _>>()
        };
        entries.map(|it| Value::Object(entry(it))).collect()
    };
    let known = json!({
        "current-context": config["current-context"].as_str(),
        "clusters": all("clusters", &["name", "cluster.server"]),
        "contexts": all("contexts", &["name", "context.cluster", "context.user"]),
        "users": all("users", &["name"]),
    });
    Some(format!("{known:#}\n"))
}

/// The lines of a log, and the number of others between them.
fn log(text: &str) -> String {
    let (mut shown, mut others) = (String::new(), 0_usize);
    let note = |shown: &mut String, others: &mut usize| {
        if *others > 0 {
            *shown += &format!("[{} removed]\n", cli_runtime::counted(*others, "line"));
        }
        *others = 0;
    };
    for line in text.lines() {
        match of_log(line) {
            Some(line) => {
                note(&mut shown, &mut others);
                shown += &(line + "\n");
            }
            None => others += 1,
        }
    }
    note(&mut shown, &mut others);
    shown
}

fn of_log(line: &str) -> Option<String> {
    let found = LINE.find(line)?;
    let Some(begin) = found.as_str().find('{') else { return Some(line.to_owned()) };
    let (front, object) = line.split_at(begin);
    let object: Map<String, Value> = serde_json::from_str(object).ok()?;
    let is_ours = ["timestamp", "level"].iter().all(|field| object.contains_key(*field));
    let harmless = |object: Map<String, Value>| -> Map<String, Value> {
        object.into_iter().filter(|(name, _)| FIELDS.contains(&&**name)).collect()
    };
    let fields = object.get("fields").and_then(Value::as_object).cloned();
    let mut kept = harmless(object);
    if let Some(fields) = fields {
        kept.insert("fields".to_owned(), Value::Object(harmless(fields)));
    }
    is_ours.then(|| format!("{front}{}", Value::Object(kept)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn nothing_stays_of_a_file_but_what_is_known() {
        let secrets = [
            "users:\n- name: a\n  user:\n    client-key-data: |\n      CANARY\n    password: >-\n      CANARY\n\
             \x20   exec: {args: [get, --token, CANARY]}\n    - CANARY\n",
            "users:\n- name: a\n  user: {token: CANARY, client-key-data: |\n      CANARY\n",
            "apiVersion: v1\nkind: Config\nusers: [{name: a, user: {password: CANARY}}]\nCANARY: CANARY\n\
             clusters: [{name: {x: CANARY}, cluster: {server: [CANARY]}}]\n",
            "PresharedKey = CANARY\npassphrase: CANARY\npwd=CANARY\nX-Auth: CANARY\n\"key\": \"CANARY\"\n",
            "CANARY\n",
            r#"{"timestamp":"2026-11-26T07:51:13Z","level":"INFO","x":"CANARY","fields":{"message":"m","key":"CANARY"}}"#,
            r#"{"level":"INFO","message":"CANARY"}"#,
            "apiVersion: v1\nkind: Secret\ndata: {a: CANARY}\n",
        ];
        for text in secrets {
            assert!(!file(text).contains("CANARY"), "{text} -> {}", file(text));
            assert!(!options(text).unwrap_or_default().contains("CANARY"), "{text}");
        }
        assert_eq!(file("a\nb\n"), "[2 lines removed]\n");
    }

    #[test]
    fn what_is_known_stays() {
        let lines = [
            "2026-11-26T07:51:13.366Z  INFO policy NetworkPolicy default/db is in force",
            "Nov 26 07:51:13 node-a podgate[71]: 2026-11-26T07:51:13.366Z  WARN slow",
            "2026-11-26T07:51:13.366123456Z stderr F 2026-11-26T07:51:13.366Z ERROR no",
            r#"{"fields":{"message":"m"},"level":"INFO","timestamp":"2026-11-26T07:51:13Z"}"#,
        ];
        for line in lines {
            assert_eq!(file(&format!("x\n{line}\n")), format!("[1 line removed]\n{line}\n"));
        }
        let known =
            file("kind: Config\nclusters: [{name: c, cluster: {server: 'https://a:6443'}}]\n");
        assert!(known.contains("https://a:6443"), "{known}");
        let shown = options("node-name: a\nuplink: [eth0]\nother: x\n").unwrap();
        let lines: BTreeSet<&str> = shown.lines().collect();
        let expected = ["node-name: \"a\"", "uplink: [\"eth0\"]", "[removed]: \"[removed]\""];
        assert_eq!(lines, expected.into());
    }
}
