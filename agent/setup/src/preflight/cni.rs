//! CNI configurations: which one the runtime takes, and whose it is.

use std::path::Path;

use serde_json::Value;

use crate::preflight::finding::{Finding, Level};

/// Runtimes take the first file by name with one of these endings.
const ENDINGS: [&str; 3] = ["conf", "conflist", "json"];
/// Maximum size of a configuration; larger files are skipped.
const LARGEST: u64 = 1 << 20;

pub(crate) fn look(folder: &Path, pod_mtu: Option<u32>) -> Finding {
    let finding = |level, detail: String| Finding::new("cni", level, detail);
    let files = match files(folder) {
        Ok(files) => files,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let detail = format!("{} is not there yet", folder.display());
            return finding(Level::Note, detail)
                .hint("podgate install-cni writes the configuration");
        }
        Err(error) => return finding(Level::Warning, format!("{}: {error}", folder.display())),
    };
    let Some(first) = files.first() else {
        return finding(Level::Note, format!("{} has no configuration yet", folder.display()))
            .hint("podgate install-cni writes it");
    };
    let types = plugins(&folder.join(first));
    let ours = types.iter().find(|(kind, _)| kind == "podgate-cni");
    let (has_ours, others) = (ours.is_some(), files.len() - 1);
    if !has_ours {
        let kinds: Vec<&str> = types.iter().map(|(kind, _)| kind.as_str()).collect();
        let kinds = if kinds.is_empty() { "no plugin".to_owned() } else { kinds.join(", ") };
        let detail = format!("the runtime takes {first}, which calls {kinds}");
        return finding(Level::Warning, detail)
            .hint("remove that plugin, or move its file away: the first by name counts");
    }
    let mtu = ours.and_then(|(_, mtu)| *mtu);
    if let (Some(mtu), Some(largest)) = (mtu, pod_mtu)
        && mtu > u64::from(largest)
    {
        let detail = format!("{first} gives pods an MTU of {mtu}; the uplink takes {largest}");
        return finding(Level::Warning, detail).hint(format!("\"mtu\": {largest}"));
    }
    let also = if others == 0 { String::new() } else { format!("; {others} more do not count") };
    finding(Level::Good, format!("the runtime takes {first}, which calls podgate-cni{also}"))
}

fn files(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if ENDINGS.contains(&ending)
            && let Some(name) = path.file_name().and_then(|name| name.to_str())
        {
            files.push(name.to_owned());
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// The plugins that a file calls, each with its MTU if the file gives one.
fn plugins(file: &Path) -> Vec<(String, Option<u64>)> {
    if std::fs::metadata(file).is_ok_and(|file| !file.is_file() || file.len() > LARGEST) {
        return Vec::new();
    }
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    let all = match value.get("plugins").and_then(Value::as_array) {
        Some(plugins) => plugins.clone(),
        None => vec![value],
    };
    let plugin = |plugin: &Value| {
        let kind = plugin.get("type")?.as_str()?.to_owned();
        Some((kind, plugin.get("mtu").and_then(Value::as_u64)))
    };
    all.iter().filter_map(plugin).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = r#"{"cniVersion":"1.0.0","name":"pods","plugins":[
        {"type":"podgate-cni","mtu":1500},{"type":"portmap"}]}"#;

    fn folder(files: &[(&str, &str)]) -> testkit::TempDir {
        let folder = testkit::TempDir::new("cni");
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn level(files: &[(&str, &str)], pod_mtu: Option<u32>) -> (Level, String) {
        let found = look(folder(files).path(), pod_mtu);
        (found.level, found.detail)
    }

    #[test]
    fn the_first_file_by_name_counts() {
        let bridge = r#"{"name":"b","type":"bridge"}"#;
        assert_eq!(level(&[("10-podgate.conflist", OURS)], None).0, Level::Good);
        let (found, detail) = level(&[("10-podgate.conflist", OURS), ("20-b.conf", bridge)], None);
        assert_eq!(found, Level::Good);
        assert!(detail.contains("1 more"), "{detail}");
        let (found, detail) = level(&[("10-podgate.conflist", OURS), ("05-b.conf", bridge)], None);
        assert_eq!(found, Level::Warning);
        assert!(detail.contains("05-b.conf") && detail.contains("bridge"), "{detail}");
        assert_eq!(level(&[("README", "text")], None).0, Level::Note);
    }

    #[test]
    fn an_mtu_that_the_uplink_does_not_take_is_seen() {
        let files = [("10-podgate.conflist", OURS)];
        assert_eq!(level(&files, Some(1450)).0, Level::Warning);
        assert_eq!(level(&files, Some(1500)).0, Level::Good);
    }

    #[test]
    fn what_is_no_configuration_is_a_conflict() {
        let (found, detail) = level(&[("00.conf", "{")], None);
        assert_eq!(found, Level::Warning);
        assert!(detail.contains("no plugin"), "{detail}");
        assert_eq!(look(Path::new("/nowhere/at/all"), None).level, Level::Note);
    }
}
