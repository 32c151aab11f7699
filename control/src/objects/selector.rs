//! Label selectors, read requirement by requirement.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde_json::Value;

use super::reader;
use crate::FieldFault;
use crate::model::{Requirement, Selector, Test};

type Faults = Vec<FieldFault>;

/// The selector as far as it could be read: without the requirements that could not be, so
/// it selects no fewer objects than were meant. Missing is empty: everything.
pub(super) fn selector(value: &Value, field: &str, faults: &mut Faults) -> Selector {
    let fields = match value {
        Value::Null => return Selector::default(),
        Value::Object(fields) => fields,
        other => {
            faults.push(FieldFault::new(field, format!("{other} is no label selector")));
            return Selector::default();
        }
    };
    let mut requirements = Vec::new();
    for (name, value) in fields {
        let field = format!("{field}.{name}");
        match (name.as_str(), value) {
            (_, Value::Null) => {}
            ("matchLabels", Value::Object(labels)) => {
                for (key, value) in labels {
                    match value.as_str() {
                        Some(value) => requirements.push(Requirement {
                            key: key.as_str().into(),
                            test: Test::In(BTreeSet::from([value.into()])),
                        }),
                        None => faults.push(FieldFault::new(
                            format!("{field}.{key}"),
                            format!("{value} is not text"),
                        )),
                    }
                }
            }
            ("matchExpressions", Value::Array(expressions)) => {
                for (index, value) in expressions.iter().enumerate() {
                    match expression(value.clone(), &reader::at(&field, index)) {
                        Ok(requirement) => requirements.push(requirement),
                        Err(fault) => faults.push(fault),
                    }
                }
            }
            ("matchLabels" | "matchExpressions", other) => {
                faults.push(FieldFault::new(field, format!("{other} is of the wrong type")));
            }
            _ => faults.push(FieldFault::new(field, "unknown field of a label selector")),
        }
    }
    requirements.into_iter().collect()
}

fn expression(value: Value, field: &str) -> Result<Requirement, FieldFault> {
    let expression: meta::LabelSelectorRequirement = reader::typed(&value, field)?;
    let values: BTreeSet<Arc<str>> =
        expression.values.into_iter().flatten().map(Arc::from).collect();
    let values_field = || format!("{field}.values");
    let test = match (expression.operator.as_str(), values.is_empty()) {
        ("In", false) => Test::In(values),
        ("NotIn", false) => Test::NotIn(values),
        ("In" | "NotIn", true) => {
            return Err(FieldFault::new(values_field(), "is empty but the operator needs values"));
        }
        ("Exists", true) => Test::Exists,
        ("DoesNotExist", true) => Test::DoesNotExist,
        ("Exists" | "DoesNotExist", false) => {
            return Err(FieldFault::new(values_field(), "must be empty for this operator"));
        }
        (other, _) => {
            return Err(FieldFault::new(
                format!("{field}.operator"),
                format!("{other:?} is not In, NotIn, Exists or DoesNotExist"),
            ));
        }
    };
    if expression.key.is_empty() {
        return Err(FieldFault::new(format!("{field}.key"), "is empty"));
    }
    Ok(Requirement { key: expression.key.into(), test })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn operators_need_the_values_they_need() {
        let expression = |operator: &str, values: Value| {
            let mut faults = Vec::new();
            let value = json!({"matchExpressions":
                [{"key": "k", "operator": operator, "values": values}]});
            selector(&value, "s", &mut faults);
            faults.is_empty()
        };
        assert!(expression("In", json!(["a"])) && !expression("In", json!([])));
        assert!(expression("NotIn", json!(["a"])) && !expression("NotIn", json!(null)));
        assert!(expression("Exists", json!(null)) && !expression("Exists", json!(["a"])));
        assert!(expression("DoesNotExist", json!([])) && !expression("DoesNotExist", json!(["a"])));
    }
}
