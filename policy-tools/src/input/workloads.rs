//! Workloads become pods: one for each, made of its template.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use control::{Object, PodKey};
use serde_json::{Value, json};

use super::pairs;

/// The workloads and the pods of a workload that were read.
#[derive(Debug, Default)]
pub(super) struct Workloads {
    /// Pods made of templates, by the name they are read with: `NAME.KIND`.
    made: BTreeMap<PodKey, Made>,
    /// Names of the workloads that pods say they belong to.
    owners: BTreeMap<PodKey, String>,
    /// Pods of further templates of a workload.
    further: Vec<Value>,
}

#[derive(Debug)]
struct Made {
    name: String,
    labels: BTreeMap<String, String>,
}

/// The kinds, with their API groups and the path of the pod template.
const KINDS: [(&str, &str, &str); 7] = [
    ("apps/v1", "Deployment", "/spec/template"),
    ("apps/v1", "StatefulSet", "/spec/template"),
    ("apps/v1", "DaemonSet", "/spec/template"),
    ("apps/v1", "ReplicaSet", "/spec/template"),
    ("batch/v1", "Job", "/spec/template"),
    ("batch/v1", "CronJob", "/spec/jobTemplate/spec/template"),
    ("v1", "ReplicationController", "/spec/template"),
];

/// Where objects of operators have pod templates, beside `/spec/template`.
const PATHS: [(&str, &str, &str); 4] = [
    ("PodTemplate", "", "/template"),
    ("LeaderWorkerSet", "leader", "/spec/leaderWorkerTemplate/leaderTemplate"),
    ("LeaderWorkerSet", "worker", "/spec/leaderWorkerTemplate/workerTemplate"),
    ("VirtualMachine", "", "/spec/template"),
];

/// The pod templates of an object, each with its role where there are several: of the kinds above, of virtual machines,
/// and of any kind with containers at `/spec/template/spec`, as operators have them.
fn templates<'a>(value: &'a Value, kind: &str) -> Vec<(String, &'a Value)> {
    let at = |path: &str| value.pointer(path).filter(|it| it.is_object());
    let known =
        KINDS.iter().find(|(version, known, _)| value["apiVersion"] == *version && kind == *known);
    if let Some((_, _, path)) = known {
        return at(path).map(|it| (String::new(), it)).into_iter().collect();
    }
    let of_kind = PATHS.iter().filter(|(of, ..)| *of == kind);
    let of_kind = of_kind.filter_map(|(_, role, path)| Some(((*role).to_owned(), at(path)?)));
    let mut found: Vec<(String, &Value)> = of_kind.collect();
    // JobSet
    for job in value["spec"]["replicatedJobs"].as_array().into_iter().flatten() {
        let role = job["name"].as_str().unwrap_or_default().to_owned();
        found.extend(job.pointer("/template/spec/template").map(|template| (role, template)));
    }
    if found.is_empty()
        && value.pointer("/spec/template/spec/containers").is_some_and(Value::is_array)
    {
        found.extend(at("/spec/template").map(|it| (String::new(), it)));
    }
    found
}

/// Returns whether this is the kind of a workload, in any version.
pub(super) fn is_kind(kind: &str) -> bool {
    KINDS.iter().any(|(_, known, _)| *known == kind)
}

impl Workloads {
    /// Turns a workload into a pod; any other object stays.
    pub(super) fn adapt(&mut self, value: Value) -> Value {
        if value["kind"] == "Pod" {
            self.note_owner(&value);
            return value;
        }
        let (Some(kind), Some(key)) = (value["kind"].as_str(), key(&value)) else { return value };
        let found = templates(&value, kind);
        let Some((first, others)) = found.split_first() else { return value };
        if controller(&value).is_some() {
            // Its controller or its pods stand for it.
            return json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": &*key.name}});
        }
        let pods = others.iter().map(|it| self.pod(&key, kind, it)).collect::<Vec<_>>();
        self.further.extend(pods);
        self.pod(&key, kind, first)
    }

    /// The pods of workloads that have several templates, without the first of each.
    pub(super) fn take_further(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.further)
    }

    /// The pod of a template; `role` tells templates of one workload apart.
    fn pod(&mut self, key: &PodKey, kind: &str, (role, template): &(String, &Value)) -> Value {
        let labels = pairs(&template["metadata"]["labels"]);
        let role = Some(role).filter(|it| !it.is_empty()).map(|it| format!("-{it}"));
        let name = format!("{}{}", key.name, role.unwrap_or_default());
        let read_as = format!("{name}.{}", kind.to_lowercase());
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": read_as,
                "namespace": &*key.namespace,
                "labels": &template["metadata"]["labels"],
            },
            "spec": &template["spec"],
        });
        let key = PodKey { namespace: Arc::clone(&key.namespace), name: read_as.into() };
        self.made.insert(key, Made { name, labels });
        pod
    }

    fn note_owner(&mut self, value: &Value) {
        let (Some(key), Some((kind, name))) = (key(value), controller(value)) else { return };
        let hash = value["metadata"]["labels"]["pod-template-hash"].as_str();
        // A Deployment's pods belong to a ReplicaSet that is named after it and a hash.
        let of_deployment = hash.filter(|_| kind == "ReplicaSet");
        let suffix = of_deployment.map(|hash| format!("-{hash}"));
        let name = suffix.and_then(|suffix| name.strip_suffix(&suffix)).unwrap_or(name);
        self.owners.insert(key, name.to_owned());
    }

    /// Leaves out the pods made for workloads whose own pods are there, and gives the others
    /// their workloads' names where these are free. Returns the workloads of pods, and the names that
    /// were given.
    pub(super) fn finish(
        self,
        objects: &mut Vec<Object>,
    ) -> (BTreeMap<PodKey, String>, Vec<(PodKey, PodKey)>) {
        let Self { made, owners, .. } = self;
        let mut real: BTreeMap<Arc<str>, Vec<_>> = BTreeMap::new();
        let mut taken = BTreeSet::new();
        for object in objects.iter() {
            if let Object::Pod(pod) = object
                && !made.contains_key(&pod.key)
            {
                taken.insert(pod.key.clone());
                real.entry(Arc::clone(&pod.key.namespace))
                    .or_default()
                    .push(Arc::clone(&pod.labels));
            }
        }
        let has_pods = |key: &PodKey, made: &Made| {
            let mut pods = real.get(&key.namespace).into_iter().flatten();
            !made.labels.is_empty()
                && pods.any(|labels| {
                    made.labels.iter().all(|(name, value)| labels.value(name) == Some(value))
                })
        };
        let mut names: BTreeMap<PodKey, usize> = BTreeMap::new();
        for (key, it) in &made {
            *names.entry(named(key, &it.name)).or_default() += 1;
        }
        let mut renamed = Vec::new();
        objects.retain_mut(|object| {
            let Object::Pod(pod) = object else { return true };
            let Some(it) = made.get(&pod.key) else { return true };
            if has_pods(&pod.key, it) {
                return false;
            }
            let own = named(&pod.key, &it.name);
            if names.get(&own) == Some(&1) && !taken.contains(&own) {
                let before = std::mem::replace(&mut Arc::make_mut(pod).key, own.clone());
                renamed.push((before, own));
            }
            true
        });
        (owners, renamed)
    }
}

fn named(key: &PodKey, name: &str) -> PodKey {
    PodKey { namespace: Arc::clone(&key.namespace), name: name.into() }
}

fn key(value: &Value) -> Option<PodKey> {
    let metadata = &value["metadata"];
    let namespace = metadata["namespace"].as_str().unwrap_or("default");
    Some(PodKey { namespace: namespace.into(), name: metadata["name"].as_str()?.into() })
}

/// Kind and name of the object that controls this one.
fn controller(value: &Value) -> Option<(&str, &str)> {
    let owners = value["metadata"]["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    Some((owner["kind"].as_str()?, owner["name"].as_str()?))
}
