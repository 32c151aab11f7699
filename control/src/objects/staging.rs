//! Annotations that stage policies. One that cannot be read stages nothing: the policy is enforced.

use std::sync::Arc;

use serde_json::Value;

use super::reader;
use crate::FieldFault;
use crate::model::{Stage, Staging};

/// The annotations of a policy.
pub(super) fn read(value: &Value, faults: &mut Vec<FieldFault>) -> Staging {
    let stage = stage(value, faults);
    match replaces(value, stage) {
        Ok(replaces) => Staging { stage, replaces },
        Err(problem) => {
            faults.extend(problem.map(|problem| fault(Staging::REPLACES, problem)));
            Staging { stage: stage.or(Some(Stage::Enforced)), replaces: None }
        }
    }
}

/// The stage that a policy or Namespace has by its annotation.
pub(super) fn stage(value: &Value, faults: &mut Vec<FieldFault>) -> Option<Stage> {
    let read = annotation(value, Stage::ANNOTATION)?;
    Some(read.and_then(|text| text.parse().map_err(Some)).unwrap_or_else(|problem| {
        faults.extend(problem.map(|problem| fault(Stage::ANNOTATION, problem)));
        Stage::Enforced
    }))
}

/// The policy that this one replaces, or the problem of the annotation if it has one of its own.
fn replaces(value: &Value, stage: Option<Stage>) -> Result<Option<Arc<str>>, Option<String>> {
    let Some(name) = annotation(value, Staging::REPLACES).transpose()? else { return Ok(None) };
    if reader::subdomain(name, Staging::REPLACES).is_err() {
        return Err(Some(format!("'{}' is no name of a policy", name.escape_debug())));
    }
    match stage {
        Some(Stage::Enforced) => Err(Some(format!(
            "only a staged policy replaces another one, and {} is enforced",
            Stage::ANNOTATION
        ))),
        _ => Ok(Some(name.into())),
    }
}

/// The text of an annotation; `None` if there is none. One that is no text is a fault of the object in any
/// case.
fn annotation<'a>(value: &'a Value, name: &str) -> Option<Result<&'a str, Option<String>>> {
    match &value["metadata"]["annotations"][name] {
        Value::Null => None,
        Value::String(text) => Some(Ok(text)),
        _ => Some(Err(None)),
    }
}

fn fault(annotation: &str, problem: String) -> FieldFault {
    FieldFault::new(format!("metadata.annotations[{annotation}]"), problem)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_be_read_stages_nothing() {
        let of = |annotations: Value| {
            let mut faults = Vec::new();
            let staging = read(&json!({"metadata": {"annotations": annotations}}), &mut faults);
            let is_staged = staging.stage(Stage::Enforced) == Stage::Staged;
            (is_staged, faults.into_iter().map(|it| it.to_string()).collect::<String>())
        };
        assert_eq!(of(json!({"podgate.io/stage": "staged"})), (true, String::new()));
        assert_eq!(of(json!({"podgate.io/stages": "db"})), (true, String::new()));
        assert_eq!(of(json!({"podgate.io/stage": "enforced"})), (false, String::new()));
        assert_eq!(of(json!({})), (false, String::new()));
        let (is_staged, fault) = of(json!({"podgate.io/stage": "Staged"}));
        let expected =
            "metadata.annotations[podgate.io/stage]: 'Staged' is neither staged nor enforced";
        assert_eq!((is_staged, fault.as_str()), (false, expected));
        let (is_staged, fault) =
            of(json!({"podgate.io/stage": "enforced", "podgate.io/stages": "db"}));
        assert!(
            !is_staged && fault.starts_with("metadata.annotations[podgate.io/stages]: "),
            "{fault}"
        );
    }

    /// Also where policies without an annotation are staged.
    #[test]
    fn an_annotation_that_is_no_text_or_no_name_enforces() {
        for (annotation, odd, problem) in [
            ("podgate.io/stage", json!(true), ""),
            ("podgate.io/stage", json!(["staged"]), ""),
            ("podgate.io/stage", json!(""), "'' is neither staged nor enforced"),
            (
                "podgate.io/stage",
                json!("staged\u{0}"),
                "'staged\\0' is neither staged nor enforced",
            ),
            ("podgate.io/stages", json!(""), "'' is no name of a policy"),
            ("podgate.io/stages", json!("Not one"), "'Not one' is no name of a policy"),
            ("podgate.io/stages", json!({"a": 1}), ""),
        ] {
            let mut faults = Vec::new();
            let object = json!({"metadata": {"annotations": {annotation: odd}}});
            let staging = read(&object, &mut faults);
            let faults: String = faults.iter().map(ToString::to_string).collect();
            let expected = format!("metadata.annotations[{annotation}]: {problem}");
            assert_eq!(faults, if problem.is_empty() { "" } else { &expected });
            assert_eq!(staging.stage(Stage::Staged), Stage::Enforced, "{annotation}: {odd}");
        }
    }

    #[test]
    fn a_default_holds_for_policies_without_annotation() {
        let enforced = Staging { stage: Some(Stage::Enforced), replaces: None };
        assert_eq!(enforced.stage(Stage::Staged), Stage::Enforced);
        assert_eq!(Staging::default().stage(Stage::Staged), Stage::Staged);
    }
}
