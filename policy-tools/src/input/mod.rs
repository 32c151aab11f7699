//! Manifests as repositories and clusters have them.
//!
//! Beside the objects that the switch itself reads, workloads count: each becomes one pod with
//! the labels and ports of its template. What the model of a service leaves out is kept beside
//! the objects: its selector, and whether the API server would give it an address.

pub mod located;
mod mirrored;
mod read;
pub(crate) mod staged;
mod unrendered;
mod workloads;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use control::manifests::Parsed;
use control::model::{Key, Labels, Namespace, Pod, Protocol};
use control::{Control, Kind, Object, PodKey, Scope};
use ipnet::{IpNet, Ipv6Net};
use serde_json::Value;
use strsim::osa_distance;

use staged::Staged;
use unrendered::Folder;

/// Objects, with facts about them that the model does not have.
#[derive(Clone, Debug, Default)]
pub struct Manifests {
    /// The objects, each once.
    pub objects: Vec<Object>,
    /// Selectors of services that have one.
    pub selectors: BTreeMap<Key, BTreeMap<String, String>>,
    /// Services that the API server would give a cluster address.
    pub without_address: BTreeSet<Key>,
    /// Services of type ExternalName, with the names that they lead to.
    pub external_names: BTreeMap<Key, String>,
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
    /// Which address families ends have whose addresses the files leave out.
    pub families: Families,
    /// Addresses that pods and nodes were given of a family that they need not have: such a connection counts where
    /// the ends have no other family in common.
    pub could_have: BTreeSet<IpAddr>,
    /// Policies and namespaces as the files have them, the later of the same name last; see [`Reading::sources`].
    pub sources: Vec<Value>,
    /// Input that was left out, in words.
    pub skipped: Vec<String>,
    /// Templates and charts among it: objects that nobody asked about.
    pub templates: Vec<String>,
    /// The objects of kinds that no policy depends on, in words.
    pub other_kinds: Option<String>,
    /// Folders that another program has to render.
    pub(crate) unrendered: Vec<Folder>,
}

/// The address families of pods and nodes, as far as files leave them out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Families {
    /// Both, of ends without any address.
    #[default]
    OfUnknown,
    /// Both, of every end.
    OfAll,
    /// This one alone; true is IPv4.
    Only(bool),
}

impl Families {
    /// The only family; true is IPv4.
    pub(crate) const fn only(self) -> Option<bool> {
        match self {
            Self::Only(v4) => Some(v4),
            Self::OfUnknown | Self::OfAll => None,
        }
    }

    /// Both of every end, unless one alone is asked for.
    pub(crate) const fn widened(self) -> Self {
        match self {
            Self::Only(_) => self,
            Self::OfUnknown | Self::OfAll => Self::OfAll,
        }
    }

    /// Returns whether ends may have addresses of this family.
    pub(crate) fn has(self, v4: bool) -> bool {
        self.only().is_none_or(|only| only == v4)
    }
}

/// Settings with which manifests are read.
#[derive(Debug, Default)]
pub struct Reading {
    /// Documents that are parsed once, by readers that share them.
    pub parsed: Parsed,
    /// True if policies and namespaces are kept as the files have them, too.
    pub sources: bool,
    /// True if charts and kustomizations are rendered, by the user's programs.
    pub render: bool,
    /// The context of the kubeconfig of a live cluster; `None`: its current one.
    pub context: Option<String>,
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
    /// All faults; incompletely read policies give no verdicts.
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
        // Below a cluster, and to find what to render, files are read twice.
        let staged = Staged::new(paths, cluster, cluster.is_some(), reading)?;
        let (mut found, faults, _) = Self::read_staged(&staged, reading);
        let unrendered = found.unrendered.iter();
        let unrendered =
            unrendered.map(|Folder { file, note, .. }| format!("{}: {note}", file.display()));
        if !faults.is_empty() {
            let faults = faults.iter().map(ToString::to_string).chain(unrendered);
            return Err(faults.map(|fault| staged.named(&fault)).collect());
        }
        found.skipped.splice(..0, unrendered.collect::<Vec<_>>());
        for note in found.skipped.iter_mut().chain(&mut found.templates) {
            *note = staged.named(note);
        }
        if found.objects.is_empty() {
            let nothing = |path: &PathBuf| format!("{}: holds no objects", name(path));
            let notes = found.skipped.drain(..found.unrendered.len());
            return Err(paths.iter().map(nothing).chain(notes).collect());
        }
        Ok(found)
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
        self.skipped.extend(control.service_faults());
        let view = control.view();
        for object in &mut self.objects {
            if let Object::Service(service) = object
                && let Some(served) = view.services.get(&service.key)
            {
                let external_ips = &served.service.external_ips;
                Arc::make_mut(service).external_ips.clone_from(external_ips);
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
}

/// The pods among objects.
pub(crate) fn pods(objects: &[Object]) -> impl Iterator<Item = &Pod> + Clone {
    objects.iter().filter_map(|object| match object {
        Object::Pod(pod) => Some(&**pod),
        _ => None,
    })
}

/// The namespaces among objects, those that pods are in, and others that are only mentioned.
pub(crate) fn namespaces<'a>(
    objects: &'a [Object],
    mentioned: impl Iterator<Item = &'a Arc<str>>,
) -> BTreeMap<Arc<str>, Namespace> {
    let mut found = BTreeMap::new();
    for name in pods(objects).map(|pod| &pod.key.namespace).chain(mentioned) {
        let made = || Namespace::new(Arc::clone(name), &Labels::default());
        found.entry(Arc::clone(name)).or_insert_with(made);
    }
    for object in objects {
        if let Object::Namespace(namespace) = object {
            found.insert(Arc::clone(&namespace.name), Namespace::clone(namespace));
        }
    }
    found
}

/// A path as messages name it.
pub fn name(path: &Path) -> String {
    if path.as_os_str() == "-" { "stdin".into() } else { path.display().to_string() }
}

/// The policy kind that a kind of the same API group is most likely meant to be.
pub(crate) fn misspelt_kind(version: &str, kind: &str) -> Option<&'static str> {
    let group = |version: &str| version.split_once('/').map(|(group, _)| group.to_owned());
    let mut policies = Kind::ALL.into_iter().filter(|kind| kind.closes());
    // Lists of a kind, and other kinds of the same group.
    if policies.clone().any(|known| known.name() == kind) || kind.ends_with("List") {
        return None;
    }
    let near = policies.find(|known| {
        group(known.api_version()) == group(version) && osa_distance(known.name(), kind) <= 3
    });
    near.map(Kind::name)
}

/// Returns whether objects of a kind that the switch reads are in no namespace.
pub(crate) fn is_of_cluster(kind: &str) -> bool {
    Kind::ALL.into_iter().any(|known| known.name() == kind && !known.is_namespaced())
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
        // A policy without its kind is a fault, unlike other YAML.
        let broken = "apiVersion: networking.k8s.io/v1\nmetadata: {name: x}\n";
        assert!(load(&[("all.yaml", REPOSITORY), ("policy.yaml", broken)]).is_err());
    }
}
