//! The fields of a flow that a client wants.

use std::collections::BTreeSet;

use crate::messages::FieldMask;
use crate::messages::flow::Flow;

/// Names of wanted fields; a path into a field stands for the whole field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mask(Option<BTreeSet<String>>);

impl Mask {
    /// Reads the mask of a request; without paths all fields are wanted.
    pub(crate) fn new(mask: Option<&FieldMask>) -> Self {
        let paths = mask.map(|mask| &mask.paths).filter(|paths| !paths.is_empty());
        let first = |path: &String| path.split('.').next().unwrap_or_default().to_owned();
        Self(paths.map(|paths| paths.iter().map(first).collect()))
    }

    /// The flow with its wanted fields.
    pub(crate) fn apply(&self, flow: Flow) -> Flow {
        let Some(names) = &self.0 else { return flow };
        macro_rules! keep {
            ($($name:literal $field:ident,)*) => {
                Flow {
                    $($field: if names.contains($name) { flow.$field } else { Default::default() },)*
                }
            };
        }
        // Every field, by its name in the proto file.
        keep! {
            "time" time,
            "verdict" verdict,
            "drop_reason" drop_reason,
            "IP" ip,
            "l4" l4,
            "source" source,
            "destination" destination,
            "Type" r#type,
            "node_name" node_name,
            "source_names" source_names,
            "destination_names" destination_names,
            "event_type" event_type,
            "source_service" source_service,
            "destination_service" destination_service,
            "traffic_direction" traffic_direction,
            "trace_observation_point" trace_observation_point,
            "drop_reason_desc" drop_reason_desc,
            "is_reply" is_reply,
            "trace_reason" trace_reason,
            "emitter" emitter,
            "egress_allowed_by" egress_allowed_by,
            "ingress_allowed_by" ingress_allowed_by,
            "egress_denied_by" egress_denied_by,
            "ingress_denied_by" ingress_denied_by,
            "Summary" summary,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{flow, tests::denied};

    #[test]
    fn unwanted_fields_are_left_out() {
        let whole = flow(&denied());
        assert_eq!(Mask::new(None).apply(whole.clone()), whole);
        assert_eq!(Mask::new(Some(&FieldMask::default())).apply(whole.clone()), whole);
        let paths = ["verdict", "source.pod_name", "l7"].map(str::to_owned).into();
        let masked = Mask::new(Some(&FieldMask { paths })).apply(whole.clone());
        let wanted = Flow { verdict: whole.verdict, source: whole.source, ..Flow::default() };
        assert_eq!(masked, wanted);
    }
}
