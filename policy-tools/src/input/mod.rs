//! Manifests as repositories and clusters have them.
//!
//! Beside the objects that the switch itself reads, workloads count: each becomes one pod with
//! the labels and ports of its template. What the model of a service leaves out is kept beside
//! the objects: its selector, and whether the API server would give it an address.

pub mod located;
pub(crate) mod staged;
mod unrendered;
mod workloads;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use control::manifests::Parsed;
use control::model::{Key, Pod, Protocol};
use control::{Control, Fault, Kind, Object, PodKey, Scope, manifests};
use ipnet::{IpNet, Ipv6Net};
use serde_json::Value;
use strsim::osa_distance;

use staged::Staged;
use unrendered::Unrendered;
use workloads::Workloads;

/// Objects, and what is known about them beyond the model.
#[derive(Clone, Debug, Default)]
pub struct Manifests {
    /// The objects, each once.
    pub objects: Vec<Object>,
    /// Selectors of services that have one.
    pub selectors: BTreeMap<Key, BTreeMap<String, String>>,
    /// Services that the API server would give a cluster address.
    pub without_address: BTreeSet<Key>,
    /// Names of the workloads that pods belong to.
    pub workloads: BTreeMap<PodKey, String>,
    /// The ports that containers of pods declare, of pods with any.
    pub container_ports: BTreeMap<PodKey, BTreeSet<(Protocol, u16)>>,
    /// Pods that stand for those that could exist, in words.
    pub representatives: BTreeMap<PodKey, String>,
    /// Namespaces that stand for those that could exist.
    pub representative_namespaces: BTreeSet<Arc<str>>,
    /// Nodes that stand for those that could exist, in words.
    pub representative_nodes: BTreeMap<Arc<str>, String>,
    /// Policies and namespaces as the files have them, the later of the same name last; see [`Reading::sources`].
    pub sources: Vec<Value>,
    /// Input that was left out, in words.
    pub skipped: Vec<String>,
    /// The objects of kinds that no policy depends on, in words.
    pub other_kinds: Option<String>,
    /// Folders that another program has to render: a file of each, and what to run.
    pub(crate) unrendered: Vec<(PathBuf, String)>,
}

/// Settings with which manifests are read.
#[derive(Debug, Default)]
pub struct Reading {
    /// Documents that are parsed once, by readers that share them.
    pub parsed: Parsed,
    /// Whether policies and namespaces are kept as the files have them, too.
    pub sources: bool,
}

/// The text without a leading byte order mark.
pub(crate) fn without_byte_order_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

impl From<Vec<Object>> for Manifests {
    fn from(objects: Vec<Object>) -> Self {
        Self { objects, ..Self::default() }
    }
}

impl Manifests {
    /// Reads files and folders; `-` is standard input, and `REV:PATH` a file or folder of a revision
    /// of git.
    ///
    /// # Errors
    /// All faults; half-read policies give no verdicts.
    pub fn load(paths: &[PathBuf]) -> Result<Self, Vec<String>> {
        Self::load_over(paths, None, &Reading { sources: true, ..Reading::default() })
    }

    /// Reads files and folders on top of the live cluster that a kubeconfig leads to: an object of
    /// the files replaces the cluster's.
    ///
    /// # Errors
    /// As [`load`](Self::load), and why the cluster cannot be read.
    pub fn load_over(
        paths: &[PathBuf],
        cluster: Option<&Path>,
        reading: &Reading,
    ) -> Result<Self, Vec<String>> {
        // Below a cluster, files are read twice.
        let staged = Staged::new(paths, cluster, cluster.is_some())?;
        let (mut found, faults, _) = Self::read_staged(&staged, reading);
        let unrendered = found.unrendered.iter();
        let unrendered = unrendered.map(|(file, note)| format!("{}: {note}", file.display()));
        if !faults.is_empty() {
            let faults = faults.iter().map(ToString::to_string).chain(unrendered);
            return Err(faults.map(|fault| staged.named(&fault)).collect());
        }
        found.skipped.splice(..0, unrendered.collect::<Vec<_>>());
        for note in &mut found.skipped {
            *note = staged.named(note);
        }
        if found.objects.is_empty() {
            let nothing = |path: &PathBuf| format!("{}: holds no objects", name(path));
            let notes = found.skipped.drain(..found.unrendered.len());
            return Err(paths.iter().map(nothing).chain(notes).collect());
        }
        Ok(found)
    }

    /// Reads what was fetched as far as it can, with what is wrong and the files that hold objects.
    pub(crate) fn read_staged(
        staged: &Staged,
        reading: &Reading,
    ) -> (Self, Vec<Fault>, BTreeSet<PathBuf>) {
        let mut found = Self::default();
        let parsed = &reading.parsed;
        let mut workloads = Workloads::default();
        let mut files = BTreeSet::new();
        let mut paths = staged.paths.clone();
        let mut replaced = BTreeSet::new();
        if let Some(live) = &staged.live {
            manifests::load_adapted(&paths, parsed, &mut |_, _, value| {
                replaced.insert(identity(&value));
                None
            });
            paths.push(live.clone());
        }
        let mut foreign = BTreeMap::new();
        let mut unrendered = Unrendered::default();
        let is_named = |file: &Path| paths.iter().any(|path| path == file);
        let loaded = manifests::load_adapted(&paths, parsed, &mut |file, document, value| {
            if staged.live.as_deref() == Some(file) && replaced.contains(&identity(&value)) {
                return None;
            }
            if unrendered.is_kustomization(file, &value)
                || !is_named(file) && unrendered.is_of_chart(file)
            {
                return None;
            }
            if is_foreign(&value) && !is_named(file) {
                foreign.insert(file.to_path_buf(), document);
                return None;
            }
            files.insert(file.to_path_buf());
            found.note_service(&value);
            let kind = value["kind"].as_str().unwrap_or_default();
            let is_kept = |it: &Kind| it.closes() || *it == Kind::Namespace;
            if reading.sources && Kind::ALL.iter().any(|it| is_kept(it) && it.name() == kind) {
                found.sources.push(value.clone());
            }
            let value = workloads.adapt(value);
            found.note_ports(&value);
            Some(value)
        });
        for file in foreign.keys() {
            found.skipped.push(format!("{}: skipped: no Kubernetes object", file.display()));
        }
        // A template of a chart is no YAML until it is rendered.
        let mut is_template = |fault: &Fault| {
            fault.file.as_deref().is_some_and(|file| {
                !is_named(file) && fault.object.is_none() && holds_template(file)
            })
        };
        let mut is_of_chart = |fault: &Fault| {
            fault
                .file
                .as_deref()
                .is_some_and(|file| !is_named(file) && unrendered.is_of_chart(file))
        };
        let faults = loaded.faults.into_iter().filter(|fault| !is_of_chart(fault));
        let (templates, faults): (Vec<Fault>, Vec<Fault>) = faults.partition(&mut is_template);
        let templates: BTreeSet<PathBuf> =
            templates.into_iter().filter_map(|fault| fault.file).collect();
        for file in templates {
            let file = file.display();
            found.skipped.push(format!("{file}: skipped: a template of a chart; render it first"));
        }
        let is_expected = |kind: &str| workloads::is_kind(kind) || kind.contains("Policy");
        let (expected, others): (Vec<_>, Vec<_>) =
            loaded.skipped.iter().partition(|(kind, _)| is_expected(kind));
        let note = |kinds: Vec<(&String, &usize)>| {
            let kinds: Vec<String> = kinds.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
            (!kinds.is_empty())
                .then(|| format!("skipped objects of other kinds: {}", kinds.join(", ")))
        };
        found.skipped.extend(note(expected));
        found.other_kinds = note(others);
        found.unrendered = unrendered.notes(&staged.paths);
        found.objects = loaded.objects;
        let renamed;
        (found.workloads, renamed) = workloads.finish(&mut found.objects);
        for (before, now) in renamed {
            if let Some(ports) = found.container_ports.remove(&before) {
                found.container_ports.insert(now, ports);
            }
        }
        (found, faults, files)
    }

    /// The pods.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> + Clone {
        pods(&self.objects)
    }

    /// Leaves external IPs of services that a switch with these `--external-ips` would not let them
    /// take out of the objects, and says so.
    pub fn permit_external_ips(&mut self, permitted: &[IpNet]) {
        let has = |object: &Object| match object {
            Object::Service(service) => !service.external_ips.is_empty(),
            _ => false,
        };
        if !self.objects.iter().any(has) {
            return;
        }
        let control = committed(Scope::All, self.objects.clone(), permitted.to_vec());
        self.skipped.extend(control.external_ip_faults());
        let view = control.view();
        for object in &mut self.objects {
            if let Object::Service(service) = object
                && let Some(served) = view.services.get(&service.key)
            {
                service.external_ips.clone_from(&served.service.external_ips);
            }
        }
    }

    /// Evaluates the policies.
    pub(crate) fn control(&self) -> Control {
        control(Scope::All, self.objects.clone())
    }

    /// The name of the workload that a pod belongs to, or the pod's own, or the words of a
    /// representative.
    pub fn workload(&self, pod: &PodKey) -> String {
        if let Some(words) = self.representatives.get(pod) {
            return words.clone();
        }
        let name = self.workloads.get(pod).map_or(&*pod.name, String::as_str);
        format!("{}/{name}", pod.namespace)
    }

    /// A node in words: its name, or the words of a representative.
    pub fn node(&self, name: &Arc<str>) -> String {
        let words = self.representative_nodes.get(name).cloned();
        words.unwrap_or_else(|| format!("node/{name}"))
    }

    fn note_ports(&mut self, value: &Value) {
        let Some(name) = value["metadata"]["name"].as_str().filter(|_| value["kind"] == "Pod")
        else {
            return;
        };
        let namespace = value["metadata"]["namespace"].as_str().unwrap_or("default");
        let containers = ["containers", "initContainers"].map(|it| value["spec"][it].as_array());
        let ports = containers.into_iter().flatten().flatten();
        let ports = ports.filter_map(|it| it["ports"].as_array()).flatten().filter_map(|port| {
            let protocol = match port["protocol"].as_str() {
                Some("UDP") => Protocol::Udp,
                Some("SCTP") => Protocol::Sctp,
                _ => Protocol::Tcp,
            };
            Some((protocol, port["containerPort"].as_u64()?.try_into().ok()?))
        });
        let ports: BTreeSet<(Protocol, u16)> = ports.collect();
        if !ports.is_empty() {
            let key = PodKey { namespace: namespace.into(), name: name.into() };
            self.container_ports.insert(key, ports);
        }
    }

    fn note_service(&mut self, value: &Value) {
        if value["kind"] != "Service" || value["apiVersion"] != "v1" {
            return;
        }
        let Some(name) = value["metadata"]["name"].as_str() else { return };
        let namespace = value["metadata"]["namespace"].as_str().unwrap_or("default");
        let key = Key { namespace: namespace.into(), name: name.into() };
        let spec = &value["spec"];
        let selector: BTreeMap<String, String> = pairs(&spec["selector"]);
        if !selector.is_empty() {
            self.selectors.insert(key.clone(), selector);
        }
        let is_absent = |field: &str| match &spec[field] {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.is_empty(),
            _ => false,
        };
        let waits =
            spec["type"] != "ExternalName" && is_absent("clusterIP") && is_absent("clusterIPs");
        if waits {
            self.without_address.insert(key);
        }
    }
}

/// The pods among objects.
pub(crate) fn pods(objects: &[Object]) -> impl Iterator<Item = &Pod> + Clone {
    objects.iter().filter_map(|object| match object {
        Object::Pod(pod) => Some(pod),
        _ => None,
    })
}

/// A path as messages name it.
pub fn name(path: &Path) -> String {
    if path.as_os_str() == "-" { "stdin".into() } else { path.display().to_string() }
}

/// The policy kind that a kind of the same API group is most likely meant to be.
pub fn misspelt_kind(version: &str, kind: &str) -> Option<&'static str> {
    let group = |version: &str| version.split_once('/').map(|(group, _)| group.to_owned());
    let mut policies = Kind::ALL.into_iter().filter(|kind| kind.closes());
    // Lists of a kind, and kinds of the same group that are no policies.
    if policies.clone().any(|known| known.name() == kind) || kind.ends_with("List") {
        return None;
    }
    let near = policies.find(|known| {
        group(known.api_version()) == group(version) && osa_distance(known.name(), kind) <= 3
    });
    near.map(Kind::name)
}

/// The identity of an object: kind, namespace and name.
fn identity(value: &Value) -> (String, String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &value["metadata"];
    let kind = text(&value["kind"]);
    let namespace = match metadata["namespace"].as_str() {
        _ if is_of_cluster(&kind) => String::new(),
        namespace => namespace.unwrap_or("default").to_owned(),
    };
    (kind, namespace, text(&metadata["name"]))
}

/// Whether objects of a kind that the switch reads are in no namespace.
pub(crate) fn is_of_cluster(kind: &str) -> bool {
    Kind::ALL.into_iter().any(|known| known.name() == kind && !known.is_namespaced())
}

/// A template longer than this is not recognized as one.
const LONGEST_TEMPLATE: u64 = 16 << 20;

/// Whether a regular file has actions of a template language, as charts have.
fn holds_template(file: &Path) -> bool {
    control::read_regular(file, LONGEST_TEMPLATE)
        .is_ok_and(|text| text.windows(2).any(|pair| pair == b"{{"))
}

/// Whether a document of YAML is something else than a Kubernetes object.
fn is_foreign(value: &Value) -> bool {
    value.get("kind").is_none() && value.get("apiVersion").is_none()
}

/// The fields of an object that are text.
fn pairs(value: &Value) -> BTreeMap<String, String> {
    let fields = value.as_object().into_iter().flatten();
    fields.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// The control side of these objects, whose services have the external IPs that they are to have.
pub(crate) fn control(scope: Scope, objects: Vec<Object>) -> Control {
    committed(scope, objects, vec![IpNet::default(), IpNet::V6(Ipv6Net::default())])
}

fn committed(scope: Scope, objects: Vec<Object>, external_ips: Vec<IpNet>) -> Control {
    let mut control = Control::new(scope);
    control.permit_external_ips(external_ips, Vec::new());
    control.resync(objects);
    control.commit();
    control
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPOSITORY: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: report, namespace: shop}
spec: {schedule: '@daily', jobTemplate: {spec: {template: {metadata: {labels: {app: report}}}}}}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web-5d4f, namespace: shop, ownerReferences: [{controller: true, name: web, kind: Deployment}]}
spec: {template: {metadata: {labels: {app: web}}}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}
";

    fn load(files: &[(&str, &str)]) -> Result<Manifests, Vec<String>> {
        let folder = testkit::TempDir::new("input");
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        Manifests::load(&[folder.path().to_path_buf()])
    }

    fn pods(manifests: &Manifests) -> Vec<String> {
        let names = manifests.objects.iter().filter_map(|object| match object {
            Object::Pod(pod) => Some(format!("{} of {}", pod.key, manifests.workload(&pod.key))),
            _ => None,
        });
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn an_object_of_the_cluster_has_no_namespace() {
        let of = |namespace: &str| {
            let metadata = serde_json::json!({"name": "a", "namespace": namespace});
            identity(&serde_json::json!({"kind": "ClusterHostFirewall", "metadata": metadata}))
        };
        assert_eq!(of("x"), of("y"));
    }

    #[test]
    fn a_misspelt_kind_is_a_fault() {
        let policy =
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicies\nmetadata: {name: x}\n";
        let faults = load(&[("all.yaml", REPOSITORY), ("policy.yaml", policy)]).unwrap_err();
        assert!(
            faults[0].contains("policy.yaml") && faults[0].contains("NetworkPolicies"),
            "{faults:?}"
        );
        for (version, kind) in [
            ("networking.k8s.io/v1", "Ingress"),
            ("networking.k8s.io/v1", "NetworkPolicyList"),
            ("apps/v1", "NetworkPolice"),
        ] {
            assert_eq!(misspelt_kind(version, kind), None);
        }
    }

    #[test]
    fn a_workload_is_one_pod() {
        let found = load(&[("all.yaml", REPOSITORY)]).unwrap();
        assert_eq!(pods(&found), ["shop/report of shop/report", "shop/web of shop/web"]);
        let key = Key { namespace: "shop".into(), name: "web".into() };
        assert_eq!(found.selectors[&key]["app"], "web");
        assert!(found.without_address.contains(&key));
    }

    #[test]
    fn a_workload_with_pods_of_its_own_is_those_pods() {
        let pod = "{apiVersion: v1, kind: Pod, metadata: {name: web-5d4f-x, namespace: shop, labels: \
                   {app: web, pod-template-hash: 5d4f}, ownerReferences: [{controller: true, kind: \
                   ReplicaSet, name: web-5d4f}]}}";
        let found = load(&[("all.yaml", REPOSITORY), ("pod.yaml", pod)]).unwrap();
        assert_eq!(pods(&found), ["shop/report of shop/report", "shop/web-5d4f-x of shop/web"]);
    }

    #[test]
    fn two_workloads_of_one_name_are_told_apart_by_kind() {
        let job = "{apiVersion: batch/v1, kind: Job, metadata: {name: web, namespace: shop}, \
                   spec: {template: {metadata: {labels: {app: job}}}}}";
        let found = load(&[("all.yaml", REPOSITORY), ("job.yaml", job)]).unwrap();
        assert_eq!(
            pods(&found),
            [
                "shop/report of shop/report",
                "shop/web.deployment of shop/web.deployment",
                "shop/web.job of shop/web.job"
            ]
        );
    }

    #[test]
    fn other_yaml_in_a_folder_is_skipped_with_a_warning() {
        let other = [
            ("all.yaml", REPOSITORY),
            ("values.yaml", "replicas: 3\n"),
            ("play.yml", "- hosts: all\n"),
        ];
        let found = load(&other).unwrap();
        let foreign =
            found.skipped.iter().filter(|it| it.contains("skipped: no Kubernetes object"));
        assert_eq!(foreign.count(), 2, "{:?}", found.skipped);
        // A policy that lost its kind is no other YAML.
        let broken = "apiVersion: networking.k8s.io/v1\nmetadata: {name: x}\n";
        assert!(load(&[("all.yaml", REPOSITORY), ("policy.yaml", broken)]).is_err());
    }
}
