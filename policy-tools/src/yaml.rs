//! Objects as YAML, in the form that people write them in.

use std::fmt::Write as _;

use serde_json::Value;

/// The order of a policy's fields; others come before them, by name.
const ORDER: [&str; 10] = [
    "metadata",
    "spec",
    "namespaceSelector",
    "podSelector",
    "policyTypes",
    "ingress",
    "egress",
    "from",
    "to",
    "ports",
];

/// A value as a document.
pub fn document(value: &Value) -> String {
    let mut text = String::new();
    match is_nested(value) {
        true => block(&mut text, value, 0, false),
        false => text = scalar(value) + "\n",
    }
    text
}

/// Writes the fields of a map or the elements of a list, each on a line of its own. The first line
/// of what stands behind `- ` is not indented.
fn block(text: &mut String, value: &Value, indent: usize, mut behind_dash: bool) {
    let mut lead = |text: &mut String| {
        if !std::mem::take(&mut behind_dash) {
            let _ = write!(text, "{:indent$}", "");
        }
    };
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| ORDER.iter().position(|it| it == name));
            for (name, value) in fields {
                lead(text);
                text.push_str(&scalar(&Value::from(name.as_str())));
                text.push(':');
                inner(text, value, indent);
            }
        }
        Value::Array(list) => {
            for value in list {
                lead(text);
                match is_nested(value) {
                    true => {
                        text.push_str("- ");
                        block(text, value, indent + 2, true);
                    }
                    false => {
                        let _ = writeln!(text, "- {}", scalar(value));
                    }
                }
            }
        }
        other => {
            let _ = writeln!(text, "{}", scalar(other));
        }
    }
}

/// Writes the value of a field behind its colon.
fn inner(text: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Array(list) if list.iter().all(|it| !is_nested(it)) => {
            let list: Vec<String> = list.iter().map(scalar).collect();
            let _ = writeln!(text, " [{}]", list.join(", "));
        }
        value if is_nested(value) => {
            text.push('\n');
            block(text, value, indent + 2, false);
        }
        other => {
            let _ = writeln!(text, " {}", scalar(other));
        }
    }
}

fn is_nested(value: &Value) -> bool {
    match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => false,
    }
}

/// A value on one line. Text that YAML could read as something else is between quotes, as in JSON,
/// which YAML includes.
fn scalar(value: &Value) -> String {
    let Value::String(text) = value else { return value.to_string() };
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '-' | '_');
    let looks_typed = matches!(
        text.to_lowercase().as_str(),
        "true" | "false" | "yes" | "no" | "on" | "off" | "y" | "n" | "null"
    );
    match text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(is_word)
        && !looks_typed
    {
        true => text.clone(),
        false => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_written_is_read_again() {
        let value = json!({
            "spec": {"podSelector": {}, "ingress": [
                {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}],
                 "ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}]},
            ], "policyTypes": ["Ingress"]},
            "labels": {"a": "true", "b": "12", "c": "", "d": "x: y", "e": "- z"},
            "empty": [],
        });
        let text = document(&value);
        let documents = crate::input::located::documents(text.as_bytes()).unwrap();
        assert_eq!(documents[0].value(), value, "{text}");
        assert!(text.contains("    - from:\n        - ipBlock:\n"), "{text}");
    }
}
