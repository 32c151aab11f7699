//! The AdmissionReview of the API server, and its answer
//! (<https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/>).

use control::objects::{self, Read};
use control::{Kind, ObjectRef};
use serde_json::{Value, json};

use super::{Change, Cluster, Findings, Invariants};

/// Answer to a change with objections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Warn the author
    #[default]
    Warn,
    /// Refuse the change
    Deny,
}

/// Longest warning; API servers shorten them.
const LONGEST: usize = 256;

/// Answers an AdmissionReview. Without a `cluster`, which may not be known yet, only the object is checked. A change
/// that cannot be evaluated is allowed.
///
/// # Errors
/// Fails if the body is no AdmissionReview.
pub fn answer(
    body: &[u8],
    mode: Mode,
    cluster: Option<&Cluster>,
    invariants: &Invariants,
) -> Result<Value, String> {
    let review: Value = serde_json::from_slice(body).map_err(|error| format!("body: {error}"))?;
    let request = &review["request"];
    let uid = request["uid"].as_str().ok_or("request.uid: missing")?;
    let mut findings = Findings::default();
    if let Some(change) = change(request, &mut findings) {
        match cluster {
            Some(cluster) => invariants.judge(cluster, &change, &mut findings),
            None if invariants.count() > 0 => {
                findings.notes.push("invariants: the cluster is not known yet".to_owned());
            }
            None => {}
        }
    }
    Ok(json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": response(uid, mode, &findings),
    }))
}

fn response(uid: &str, mode: Mode, findings: &Findings) -> Value {
    let Findings { faults, refuted, notes } = findings;
    let against = || faults.iter().chain(refuted);
    if mode == Mode::Deny && against().next().is_some() {
        let message: Vec<&str> = against().map(String::as_str).collect();
        let status = json!({"code": 403, "reason": "Forbidden", "message": message.join("; ")});
        return json!({"uid": uid, "allowed": false, "status": status});
    }
    let warnings: Vec<String> = against().chain(notes).map(|it| shortened(it)).collect();
    json!({"uid": uid, "allowed": true, "warnings": warnings})
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The change that a request asks about; `None` if it is about no policy.
fn change(request: &Value, findings: &mut Findings) -> Option<Change> {
    let is_deletion = request["operation"] == "DELETE";
    let object = &request[if is_deletion { "oldObject" } else { "object" }];
    if is_deletion {
        // The deletion of a collection asks about each object.
        return Some(Change { object: reference(request)?, after: None });
    }
    match objects::read(object.clone()) {
        Read::Object(object, faults) => {
            findings.faults.extend(faults.iter().map(ToString::to_string));
            let reference = object.reference();
            reference.kind.closes().then_some(Change { object: reference, after: Some(object) })
        }
        Read::Refused(fault) | Read::Nothing(fault) => {
            findings.faults.push(fault.to_string());
            None
        }
        Read::OtherKind(_) => None,
    }
}

/// The policy that a request names.
fn reference(request: &Value) -> Option<ObjectRef> {
    let kind = request["kind"]["kind"].as_str()?;
    let kind = Kind::ALL.into_iter().find(|it| it.closes() && it.name() == kind)?;
    let namespace = request["namespace"].as_str().filter(|_| kind.is_namespaced());
    let name = request["name"].as_str()?.into();
    Some(ObjectRef { kind, namespace: namespace.map(Into::into), name })
}
