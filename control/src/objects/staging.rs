//! Annotations that stage policies. One that cannot be read stages nothing: the policy is enforced.

use serde_json::Value;

use crate::FieldFault;
use crate::model::{Stage, Staging};

/// The annotations of a policy.
pub(super) fn read(value: &Value, faults: &mut Vec<FieldFault>) -> Staging {
    let stage = stage(value, faults);
    let replaces = annotation(value, Staging::REPLACES).map(Into::into);
    if replaces.is_some() && stage == Some(Stage::Enforced) {
        let problem = format!(
            "only a staged policy replaces another one, and {} is enforced",
            Stage::ANNOTATION
        );
        faults.push(fault(Staging::REPLACES, problem));
        return Staging { stage, replaces: None };
    }
    Staging { stage, replaces }
}

/// The stage that a policy or Namespace has by its annotation.
pub(super) fn stage(value: &Value, faults: &mut Vec<FieldFault>) -> Option<Stage> {
    let text = annotation(value, Stage::ANNOTATION)?;
    Some(text.parse().unwrap_or_else(|problem: String| {
        faults.push(fault(Stage::ANNOTATION, problem));
        Stage::Enforced
    }))
}

fn annotation<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value["metadata"]["annotations"][name].as_str()
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

    #[test]
    fn a_default_holds_for_policies_without_annotation() {
        let enforced = Staging { stage: Some(Stage::Enforced), replaces: None };
        assert_eq!(enforced.stage(Stage::Staged), Stage::Enforced);
        assert_eq!(Staging::default().stage(Stage::Staged), Stage::Staged);
    }
}
