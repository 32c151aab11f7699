//! The AdmissionReview of the API server, and its answer
//! (<https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/>).

use control::objects::{self, Read};
use control::{Kind, ObjectRef};
use serde_json::{Value, json};

use super::{Change, Findings};

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

/// What an API server asks about.
#[derive(Clone, Debug)]
pub struct Question {
    uid: String,
    /// The change; `None` if it is about no policy, or cannot be read.
    pub change: Option<Change>,
    /// Whether the change is not to be stored.
    pub is_dry_run: bool,
    /// Objections to what it says.
    pub findings: Findings,
}

impl Question {
    /// Reads an AdmissionReview.
    ///
    /// # Errors
    /// Fails if the body is none.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let review: Value =
            serde_json::from_slice(body).map_err(|error| format!("body: {error}"))?;
        let request = &review["request"];
        let uid = request["uid"].as_str().ok_or("request.uid: missing")?.to_owned();
        let mut findings = Findings::default();
        let change = change(request, &mut findings);
        Ok(Self { uid, change, is_dry_run: request["dryRun"] == true, findings })
    }

    /// Whether these findings let the change pass. With [`Mode::Deny`] they do only if it is
    /// decided that every statement holds.
    pub fn is_allowed(mode: Mode, findings: &Findings) -> bool {
        let Findings { faults, refuted, undecided, .. } = findings;
        mode == Mode::Warn || faults.is_empty() && refuted.is_empty() && undecided.is_empty()
    }

    /// The answer, by these findings.
    pub fn answer(&self, mode: Mode, findings: &Findings) -> Value {
        json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": response(&self.uid, mode, findings),
        })
    }
}

fn response(uid: &str, mode: Mode, findings: &Findings) -> Value {
    let Findings { faults, refuted, undecided, notes } = findings;
    let against = || faults.iter().chain(refuted).chain(undecided);
    if !Question::is_allowed(mode, findings) {
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
        let deleted = deleted(request, findings)?;
        return Some(Change { object: deleted, after: None });
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

/// The policy that a request deletes; `None` if it is no policy. The deletion of a collection asks
/// about each object, and names it in the object alone.
fn deleted(request: &Value, findings: &mut Findings) -> Option<ObjectRef> {
    let kind = request["kind"]["kind"].as_str();
    let Some(kind) = kind else {
        findings.undecided.push("request.kind: missing".to_owned());
        return None;
    };
    let kind = Kind::ALL.into_iter().find(|it| it.closes() && it.name() == kind)?;
    let old = &request["oldObject"]["metadata"];
    let named = |field: &str| {
        let texts = [&request[field], &old[field]].into_iter().filter_map(Value::as_str);
        texts.into_iter().find(|text| !text.is_empty())
    };
    let namespace = if kind.is_namespaced() { named("namespace") } else { None };
    let Some(name) = named("name").filter(|_| namespace.is_some() || !kind.is_namespaced()) else {
        findings.undecided.push("request.oldObject.metadata: names no object".to_owned());
        return None;
    };
    Some(ObjectRef { kind, namespace: namespace.map(Into::into), name: name.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(request: Value) -> Question {
        let mut review = json!({"request": {"uid": "u", "operation": "DELETE",
            "kind": {"kind": "NetworkPolicy"}}});
        for (key, value) in request.as_object().unwrap() {
            review["request"][key] = value.clone();
        }
        Question::read(review.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn what_a_collection_deletes_is_named_by_the_object() {
        let old = json!({"metadata": {"name": "db", "namespace": "shop"}});
        for request in [
            json!({"namespace": "shop", "oldObject": old}),
            json!({"namespace": "shop", "name": "", "oldObject": old}),
            json!({"namespace": "shop", "name": "db"}),
        ] {
            let Change { object, after } = question(request).change.unwrap();
            assert_eq!(object.to_string(), "NetworkPolicy shop/db");
            assert_eq!(after, None);
        }
        let other = question(json!({"kind": {"kind": "Secret"}}));
        assert!(other.change.is_none() && Question::is_allowed(Mode::Deny, &other.findings));
    }

    #[test]
    fn what_is_not_decided_is_refused_where_changes_are() {
        let unnamed = question(json!({"namespace": "shop"}));
        let answer = |mode| unnamed.answer(mode, &unnamed.findings)["response"].clone();
        assert_eq!(answer(Mode::Deny)["allowed"], false);
        let message = answer(Mode::Deny)["status"]["message"].clone();
        assert_eq!(message, "request.oldObject.metadata: names no object");
        assert_eq!(answer(Mode::Warn)["allowed"], true);
        assert_eq!(answer(Mode::Warn)["warnings"], json!([message]));
        let notes = Findings { notes: vec!["note".to_owned()], ..Findings::default() };
        assert!(Question::is_allowed(Mode::Deny, &notes), "a remark refuses nothing");
    }
}
