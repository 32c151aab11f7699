//! The double's objects and their history.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};

/// Plural, namespace (empty where there is none) and name.
type Key = (String, String, String);

/// Everything the double knows.
#[derive(Default)]
pub(super) struct Store {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<Key, Value>,
    history: VecDeque<Change>,
    /// When each resource changed last.
    changed: HashMap<String, u64>,
    /// Versions up to this one are forgotten.
    forgotten: u64,
    gone: HashSet<String>,
    /// Versions in which resources are served, where it is not their usual one.
    versions: HashMap<String, String>,
    /// Resources whose definition is being deleted: objects go, none may be created.
    terminating: HashSet<String>,
    /// Watches from forgotten versions get 410 as the status of the answer.
    expires_by_status: bool,
    forbidden: HashSet<String>,
    withholds_identity: bool,
    asked: Vec<(String, String)>,
}

/// Resources that come with a definition, their groups and usual versions.
const DEFINED: [(&str, &str, &str); 8] = [
    ("clusternetworkpolicies", "policy.networking.k8s.io", "v1alpha2"),
    ("adminnetworkpolicies", "policy.networking.k8s.io", "v1alpha1"),
    ("baselineadminnetworkpolicies", "policy.networking.k8s.io", "v1alpha1"),
    ("clusteregressfirewalls", "podgate.io", "v1alpha1"),
    ("clusterhostfirewalls", "podgate.io", "v1alpha1"),
    ("nodeaddresses", "podgate.io", "v1alpha1"),
    ("nodepolicies", "podgate.io", "v1alpha1"),
    ("podgateaddresses", "podgate.io", "v1alpha1"),
];

/// Something that happened.
#[derive(Clone)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) kind: &'static str,
    pub(super) plural: String,
    pub(super) object: Value,
}

/// Why a resource is refused.
pub(super) enum Refusal {
    NotFound,
    Forbidden,
    Expired,
    Unavailable,
    Conflict,
}

/// Changes remembered; a watch further behind gets 410 and lists again.
const HISTORY: usize = 1 << 16;

impl State {
    fn version_of(&self, plural: &str) -> Option<&str> {
        self.versions.get(plural).map(String::as_str)
    }

    fn remember(&mut self, change: Change) {
        if self.history.len() == HISTORY {
            self.forgotten = self.history.pop_front().map_or(0, |oldest| oldest.version);
        }
        self.changed.insert(change.plural.clone(), change.version);
        self.history.push_back(change);
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn apply(&self, mut object: Value) {
        let mut state = self.lock();
        let plural = plural(object["kind"].as_str().expect("a kind"));
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or("").to_owned();
        let key = (plural.clone(), text("namespace"), text("name"));
        assert!(!key.2.is_empty() && object["apiVersion"].is_string(), "no object: {object}");
        state.version += 1;
        object["metadata"]["resourceVersion"] = state.version.to_string().into();
        let known = state.objects.insert(key, object.clone());
        let kind = if known.is_some() { "MODIFIED" } else { "ADDED" };
        let version = state.version;
        state.remember(Change { version, kind, plural, object });
        self.changed.notify_all();
    }

    pub(super) fn delete(&self, plural: &str, namespace: Option<&str>, name: &str) {
        let mut state = self.lock();
        let Some(mut object) = state.objects.remove(&key(plural, namespace, name)) else { return };
        state.version += 1;
        object["metadata"]["resourceVersion"] = state.version.to_string().into();
        let (version, plural) = (state.version, plural.to_owned());
        state.remember(Change { version, kind: "DELETED", plural, object });
        self.changed.notify_all();
    }

    /// Creates an object, or replaces the version it carries; `None` on a conflict.
    pub(super) fn write(
        &self,
        plural: &str,
        namespace: Option<&str>,
        mut object: Value,
        create: bool,
    ) -> Option<Value> {
        // One empty record asks for none.
        if let Some(metadata) = object["metadata"].as_object_mut()
            && metadata.get("managedFields").is_some_and(|it| *it == json!([{}]))
        {
            metadata.remove("managedFields");
        }
        let name = object["metadata"]["name"].as_str()?.to_owned();
        let known = self.object(plural, namespace, &name);
        let version = |of: &Value| of["metadata"]["resourceVersion"].clone();
        match (&known, create) {
            (None, true) => {}
            (Some(known), false) if version(known) == version(&object) => {}
            _ => return None,
        }
        self.apply(object);
        self.object(plural, namespace, &name)
    }

    /// Merges into an object (RFC 7396, and conditions by their type unless this is a merge patch); what it
    /// became. With `applies`, one that is not there is made.
    pub(super) fn patch(
        &self,
        plural: &str,
        namespace: Option<&str>,
        name: &str,
        patch: &Value,
        applies: bool,
        merges_conditions: bool,
    ) -> Result<Value, Refusal> {
        let known = self.object(plural, namespace, name);
        let version = &patch["metadata"]["resourceVersion"];
        let is_of =
            |known: &Value| version.is_null() || known["metadata"]["resourceVersion"] == *version;
        if !known.as_ref().is_none_or(is_of) {
            return Err(Refusal::Conflict);
        }
        let made = || applies.then(|| patch.clone());
        let mut object = known.or_else(made).ok_or(Refusal::NotFound)?;
        let mut patch = patch.clone();
        // Fields that its manager does not apply any more are gone; it has all of the spec.
        if applies && patch.get("spec").is_some() {
            object["spec"].take();
        }
        if merges_conditions
            && let Some(Value::Array(new)) = patch.pointer_mut("/status/conditions")
        {
            let known = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let is_other = |it: &Value| new.iter().all(|new| new["type"] != it["type"]);
            let others: Vec<Value> = known.into_iter().filter(is_other).collect();
            new.splice(0..0, others);
        }
        merge(&mut object, &patch);
        self.apply(object);
        self.object(plural, namespace, name).ok_or(Refusal::NotFound)
    }

    pub(super) fn object(
        &self,
        plural: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<Value> {
        self.lock().objects.get(&key(plural, namespace, name)).cloned()
    }

    /// All objects of a resource, and the version they are of.
    pub(super) fn list(&self, plural: &str) -> (Vec<Value>, u64) {
        let state = self.lock();
        let objects = state.objects.iter().filter(|((of, ..), _)| of == plural);
        (objects.map(|(_, object)| object.clone()).collect(), state.version)
    }

    /// Changes of a resource after a version, and the version they lead to; waits a moment for
    /// some. `None` if the version is forgotten.
    pub(super) fn since(&self, plural: &str, version: u64) -> Option<(Vec<Change>, u64)> {
        let state = self.lock();
        let wait = Duration::from_millis(100);
        let is_quiet = |state: &mut State| {
            let changed = state.changed.get(plural).copied().unwrap_or_default();
            changed <= version && state.forgotten <= version
        };
        let (state, _) = self
            .changed
            .wait_timeout_while(state, wait, is_quiet)
            .unwrap_or_else(PoisonError::into_inner);
        if version < state.forgotten {
            return None;
        }
        let known = state.history.partition_point(|it| it.version <= version);
        let later = state.history.range(known..).filter(|it| it.plural == plural);
        Some((later.cloned().collect(), state.version))
    }

    pub(super) fn forget_history(&self) {
        let mut state = self.lock();
        state.version += 1;
        state.forgotten = state.version;
        state.history.clear();
        self.changed.notify_all();
    }

    pub(super) fn uninstall(&self, plural: &str, gone: bool) {
        let mut state = self.lock();
        match gone {
            true => drop(state.gone.insert(plural.to_owned())),
            false => {
                state.gone.remove(plural);
                state.terminating.remove(plural);
            }
        }
    }

    /// Deletes every object of a resource, as its definition goes.
    pub(super) fn terminate(&self, plural: &str) {
        let mut state = self.lock();
        state.terminating.insert(plural.to_owned());
        let names = state.objects.keys().filter(|(of, ..)| of == plural);
        let names: Vec<String> = names.map(|(.., name)| name.clone()).collect();
        drop(state);
        names.iter().for_each(|name| self.delete(plural, None, name));
    }

    /// Serves a resource in this version of its group alone.
    pub(super) fn serve_in(&self, plural: &str, version: &str) {
        self.lock().versions.insert(plural.to_owned(), version.to_owned());
        self.changed.notify_all();
    }

    /// The versions of a group, for discovery.
    pub(super) fn versions(&self, group: &str) -> BTreeSet<String> {
        let state = self.lock();
        let installed = DEFINED
            .into_iter()
            .filter(|(plural, of, _)| *of == group && !state.gone.contains(*plural));
        installed
            .map(|(plural, _, usual)| state.version_of(plural).unwrap_or(usual).to_owned())
            .collect()
    }

    /// Discovery's entries for the resources of a version that come with a definition.
    pub(super) fn discovery(&self, group: &str, version: &str) -> Vec<Value> {
        let state = self.lock();
        let installed = DEFINED.into_iter().filter(|(plural, of, usual)| {
            let is_served = state.version_of(plural).unwrap_or(usual) == version;
            *of == group && is_served && !state.gone.contains(*plural)
        });
        let resource = |(plural, ..): (&str, &str, &str)| {
            let mut verbs = vec!["delete", "get", "list", "watch"];
            if !state.terminating.contains(plural) {
                verbs.push("create");
            }
            serde_json::json!({"name": plural, "verbs": verbs})
        };
        installed.map(resource).collect()
    }

    /// Returns whether a resource is served in this version.
    pub(super) fn is_served(&self, plural: &str, version: &str) -> bool {
        let state = self.lock();
        let is_it = state.version_of(plural).is_none_or(|it| it == version);
        is_it && !state.gone.contains(plural)
    }

    pub(super) fn expire_by_status(&self, by_status: bool) {
        self.lock().expires_by_status = by_status;
    }

    pub(super) fn forbid(&self, plural: &str, forbidden: bool) {
        let mut state = self.lock();
        match forbidden {
            true => drop(state.forbidden.insert(plural.to_owned())),
            false => drop(state.forbidden.remove(plural)),
        }
    }

    pub(super) fn withhold_identity(&self, withheld: bool) {
        self.lock().withholds_identity = withheld;
    }

    /// Notes a request; whether it is refused.
    pub(super) fn asks(
        &self,
        plural: &str,
        request: &str,
        version: Option<u64>,
    ) -> Option<Refusal> {
        let mut state = self.lock();
        let is_expired = version.is_some_and(|version| version < state.forgotten);
        state.asked.push((plural.to_owned(), request.to_owned()));
        if state.withholds_identity && request.contains("fieldSelector=metadata.name%3Dkube-system")
        {
            return Some(Refusal::Unavailable);
        }
        match (state.gone.contains(plural), state.forbidden.contains(plural)) {
            (true, _) => Some(Refusal::NotFound),
            (_, true) => Some(Refusal::Forbidden),
            _ if is_expired && state.expires_by_status => Some(Refusal::Expired),
            _ => None,
        }
    }

    pub(super) fn asked(&self, plural: &str) -> Vec<String> {
        let state = self.lock();
        let of = state.asked.iter().filter(|(resource, _)| resource == plural);
        of.map(|(_, request)| request.clone()).collect()
    }

    pub(super) fn wake(&self) {
        self.changed.notify_all();
    }
}

fn key(plural: &str, namespace: Option<&str>, name: &str) -> Key {
    (plural.to_owned(), namespace.unwrap_or("").to_owned(), name.to_owned())
}

fn plural(kind: &str) -> String {
    let lower = kind.to_ascii_lowercase();
    match lower.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if lower.ends_with('s') => lower,
        None => format!("{lower}s"),
    }
}

fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    for (name, value) in patch {
        match value {
            Value::Null => drop(into.as_object_mut().and_then(|fields| fields.remove(name))),
            value => merge(&mut into[name.as_str()], value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn plurals_and_patches() {
        assert_eq!(plural("NetworkPolicy"), "networkpolicies");
        assert_eq!(plural("EndpointSlice"), "endpointslices");
        let mut object = json!({"a": {"b": 1, "c": 2}});
        merge(&mut object, &json!({"a": {"b": null, "d": [3]}}));
        assert_eq!(object, json!({"a": {"c": 2, "d": [3]}}));
    }

    #[test]
    fn changes_come_in_order_until_they_are_forgotten() {
        let store = Store::default();
        let node = |label: &str| {
            json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n", "labels": {"l": label}}})
        };
        store.apply(node("1"));
        store.apply(node("2"));
        store.delete("nodes", None, "n");
        let (changes, version) = store.since("nodes", 0).unwrap();
        let kinds: Vec<_> = changes.iter().map(|change| change.kind).collect();
        assert_eq!((kinds, version), (vec!["ADDED", "MODIFIED", "DELETED"], 3));
        assert!(store.since("pods", 0).unwrap().0.is_empty());
        store.forget_history();
        assert!(store.since("nodes", 3).is_none());
        assert!(store.since("nodes", 4).unwrap().0.is_empty());
    }
}
