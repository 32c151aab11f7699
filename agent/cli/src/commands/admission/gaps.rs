//! Changes that the API server takes without the webhook's answer, by the webhook's configuration there.

use std::fmt::Write as _;
use std::time::Duration;

use api_client::call;
use control::api_server::Client;
use serde_json::Value;

/// A way past the webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gap {
    reason: &'static str,
    /// The finding, in words.
    pub(super) what: String,
}

/// Interval of reading the configuration.
pub(super) const INTERVAL: Duration = Duration::from_secs(60);
/// Timeout of the request.
const TIMEOUT: Duration = Duration::from_secs(10);
const PATH: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/podgate-admission";
/// The labels of the metric.
const REASONS: [&str; 3] = ["webhook-missing", "webhook-fail-open", "webhook-exempt"];

/// Reads the configuration.
///
/// # Errors
/// If the API server does not answer, or refuses.
pub(super) async fn read(client: &Client) -> Result<Vec<Gap>, String> {
    match call(client, "GET", PATH, None, TIMEOUT).await {
        Ok(configuration) => Ok(of(&configuration)),
        Err(error) if error.code() == Some(404) => Ok(of(&Value::Null)),
        Err(error) => Err(error.to_string()),
    }
}

fn of(configuration: &Value) -> Vec<Gap> {
    let hooks = configuration["webhooks"].as_array().map_or(&[][..], Vec::as_slice);
    if hooks.is_empty() {
        let what = "ValidatingWebhookConfiguration podgate-admission is missing: nothing is asked";
        return vec![Gap { reason: REASONS[0], what: what.to_owned() }];
    }
    let mut gaps = Vec::new();
    for hook in hooks {
        let name = hook["name"].as_str().unwrap_or_default();
        if hook["failurePolicy"] == "Ignore" {
            let what = format!("{name}: failurePolicy Ignore: without an answer a change is taken");
            gaps.push(Gap { reason: REASONS[1], what });
        }
        for field in ["namespaceSelector", "objectSelector", "matchConditions"] {
            let value = &hook[field];
            let is_empty = match value {
                Value::Object(parts) => parts.values().all(is_empty),
                other => is_empty(other),
            };
            if !is_empty {
                let what = format!("{name}: is not asked about every object: {field} {value}");
                gaps.push(Gap { reason: REASONS[2], what });
            }
        }
    }
    gaps
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// The gaps as metrics.
pub(super) fn metrics(gaps: &[Gap]) -> String {
    let mut text = "# HELP podgate_not_enforced Ways past the webhook, by reason.\n\
                    # TYPE podgate_not_enforced gauge\n"
        .to_owned();
    for reason in REASONS {
        let count = gaps.iter().filter(|gap| gap.reason == reason).count();
        // Writing to a string does not fail.
        let _ = writeln!(text, "podgate_not_enforced{{reason=\"{reason}\"}} {count}");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_way_past_the_webhook_is_named() {
        let reasons = |hook: Value| -> Vec<&str> {
            of(&json!({"webhooks": [hook]})).into_iter().map(|gap| gap.reason).collect()
        };
        let strict = json!({"name": "p", "failurePolicy": "Fail", "namespaceSelector": {},
            "objectSelector": {"matchLabels": {}}});
        assert_eq!(reasons(strict), [""; 0]);
        assert_eq!(reasons(json!({"failurePolicy": "Ignore"})), ["webhook-fail-open"]);
        let exempt = json!({"failurePolicy": "Fail", "namespaceSelector": {"matchExpressions":
            [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["x"]}]}});
        assert_eq!(reasons(exempt), ["webhook-exempt"]);
        assert_eq!(reasons(json!({"matchConditions": [{"name": "n"}]})), ["webhook-exempt"]);
        let missing = of(&Value::Null);
        assert_eq!(missing[0].reason, "webhook-missing");
        assert!(metrics(&missing).contains("{reason=\"webhook-missing\"} 1\n"));
    }
}
