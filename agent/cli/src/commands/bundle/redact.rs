//! Removes secrets from text: by the name of a field, and by how they look.

use std::sync::LazyLock;

use regex::Regex;

const REMOVED: &str = "[removed]";

/// Fields whose value is a secret, as YAML, JSON, a flag, a header or a variable have them.
static FIELDS: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r#"(?i)(["']?[\w.-]*(?:token|password|passwd|secret|client-key-data|client-certificate-data|private-?key|certificate-authority-data|authorization|credential|api-?key|cookie)[\w.-]*["']?\s*[:=]\s*)("(?:[^"\\]|\\.)*"|'[^']*'|[^\s,}\]].*)"#,
    )
});
/// The same as two words: `--token abc`, `Bearer abc`.
static WORDS: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?i)(--[\w-]*(?:token|password|secret|key)|bearer|basic)(\s+)\S+"));
/// Signed tokens, wherever they stand.
static SIGNED: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"));
/// Keys and certificates; also where the end is cut off.
static BLOCKS: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?s)-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\z)"));
/// Users and passwords in addresses.
static USERS: LazyLock<Regex> = LazyLock::new(|| pattern(r"://[^/\s@]+@"));
/// Long base64, which is how kubeconfigs hold keys: no name or address is as long.
static ENCODED: LazyLock<Regex> = LazyLock::new(|| pattern(r"[A-Za-z0-9+/]{120,}={0,2}"));

/// The text without secrets.
pub(super) fn redact(text: &str) -> String {
    let text = BLOCKS.replace_all(text, REMOVED);
    let text = FIELDS.replace_all(&text, format!("${{1}}{REMOVED}"));
    let text = WORDS.replace_all(&text, format!("${{1}}${{2}}{REMOVED}"));
    let text = SIGNED.replace_all(&text, REMOVED);
    let text = USERS.replace_all(&text, format!("://{REMOVED}@"));
    ENCODED.replace_all(&text, REMOVED).into_owned()
}

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("the pattern is tested")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_stays() {
        let secret = "s3cr3tvalue";
        for text in [
            format!("token: {secret}"),
            format!("  client-key-data: {secret}=="),
            format!("{{\"password\":\"{secret} with spaces\",\"node\":\"a\"}}"),
            format!("Authorization: Bearer {secret}"),
            format!("podgate run --kubeconfig-token {secret} --node a"),
            format!("DB_PASSWORD={secret}"),
            format!("https://admin:{secret}@api.example.com:6443"),
            format!("eyJhbGciOiJSUzI1NiJ9.{secret}.c2ln"),
            format!("-----BEGIN RSA PRIVATE KEY-----\n{secret}\n-----END RSA PRIVATE KEY-----"),
            format!("-----BEGIN PRIVATE KEY-----\n{secret}"),
            format!("{}{secret}", "QUJD".repeat(40)),
        ] {
            let clean = redact(&text);
            assert!(!clean.contains(secret), "{text} → {clean}");
            assert!(clean.contains(REMOVED), "{text} → {clean}");
        }
    }

    #[test]
    fn what_is_no_secret_stays() {
        for text in [
            "node-name: node-a\numem-frames: 65536\nlisten: 127.0.0.1:9470",
            "kubeconfig: /etc/podgate/kubeconfig",
            "podgate_port_received_packets_total{port=\"default/db\"} 5",
            "drop     policy-denied   2        A new connection that a policy denies.",
        ] {
            assert_eq!(redact(text), text);
        }
    }
}
