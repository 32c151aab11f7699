//! Reads the status of a cluster policy.

use serde_json::Value;

use crate::model::{Condition, Report};

/// The generation of the object, and the condition of ours that it carries.
pub(super) fn read(value: &Value) -> Report {
    let conditions = value["status"]["conditions"].as_array().into_iter().flatten();
    let mut ours = conditions.filter(|condition| condition["type"] == Condition::TYPE);
    let text = |condition: &Value, field: &str| condition[field].as_str().unwrap_or("").to_owned();
    Report {
        generation: value["metadata"]["generation"].as_i64(),
        condition: ours.next_back().map(|condition| Condition {
            accepted: condition["status"] == "True",
            reason: text(condition, "reason"),
            message: text(condition, "message"),
            observed_generation: condition["observedGeneration"].as_i64(),
            last_transition_time: text(condition, "lastTransitionTime"),
        }),
    }
}
