//! Reads the status of a cluster policy.

use serde_json::Value;

use crate::model::{Condition, ConditionKind, Report};

/// The generation of the object, and the conditions of ours that it carries.
pub(super) fn read(value: &Value) -> Report {
    let conditions = value["status"]["conditions"].as_array().into_iter().flatten();
    let text = |condition: &Value, field: &str| condition[field].as_str().unwrap_or("").to_owned();
    let ours = conditions.filter_map(|condition| {
        let kind = ConditionKind::ALL.into_iter().find(|kind| condition["type"] == kind.name())?;
        Some(Condition {
            kind,
            holds: condition["status"] == "True",
            reason: text(condition, "reason"),
            message: text(condition, "message"),
            observed_generation: condition["observedGeneration"].as_i64(),
            last_transition_time: text(condition, "lastTransitionTime"),
        })
    });
    Report { generation: value["metadata"]["generation"].as_i64(), conditions: ours.collect() }
}
