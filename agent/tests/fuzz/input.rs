//! Any bytes as what the agent is given: its configuration, the plugin's, requests.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use agent::config::{Config, read_file};
use local_api::Request;

/// The first byte chooses what the rest is.
pub(crate) fn check(bytes: &[u8]) {
    let Some((what, rest)) = bytes.split_first() else { return };
    match what % 3 {
        0 => configuration(rest),
        1 => plugin(rest),
        _ => request(rest),
    }
}

fn configuration(bytes: &[u8]) {
    let path = file();
    fs::write(path, bytes).expect("room for a file");
    let name = path.display().to_string();
    match read_file(path) {
        Err(error) => assert!(error.to_string().contains(&name), "{error}"),
        Ok(options) => {
            let resolved = Config::resolve(options, "host", &BTreeSet::from([0, 1]));
            if let Ok(config) = resolved {
                assert!(!config.describe().is_empty());
            }
        }
    }
}

/// Without a container the plugin does nothing but read.
fn plugin(bytes: &[u8]) {
    let variable = |name: &str| (name == "CNI_COMMAND").then(|| "ADD".to_owned());
    let outcome = cni::run(variable, || {}, bytes);
    assert_eq!(outcome.code, 1);
    let answer: serde_json::Value = serde_json::from_str(&outcome.output).expect("JSON");
    assert!(answer["code"].is_u64() && answer["msg"].is_string(), "{answer}");
}

/// A request that was read reads back the same after it is written.
fn request(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(request) = Request::parse(text) {
        let again = serde_json::to_string(&request).expect("it came as JSON");
        assert_eq!(Request::parse(&again).expect(&again), request);
    }
}

/// In memory where there is such a folder.
fn file() -> &'static PathBuf {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let memory = PathBuf::from("/dev/shm");
        let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
        folder.join(format!("podgate-fuzz-config-{}.yaml", std::process::id()))
    })
}

/// Takes the file away again.
#[allow(dead_code, reason = "a fuzzer ends by being ended")]
pub(crate) fn clean_up() {
    let _ = fs::remove_file(file());
}
