//! Reads files and folders, and tells objects from other documents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use control::model::{Key, Protocol};
use control::objects::{self, Read};
use control::{Fault, Kind, PodKey, Position, manifests};
use serde_json::Value;

use super::mirrored::Endpoints;
use super::staged::Staged;
use super::unrendered::Unrendered;
use super::workloads::{self, Workloads};
use super::{Manifests, Reading, is_of_cluster, pairs};

impl Manifests {
    /// Reads all that can be read; returns faults and the files that hold objects as well.
    pub(crate) fn read_staged(
        staged: &Staged,
        reading: &Reading,
    ) -> (Self, Vec<Fault>, BTreeSet<PathBuf>) {
        let mut found = Self::default();
        let parsed = &reading.parsed;
        let mut workloads = Workloads::default();
        let mut endpoints = Endpoints::default();
        let mut files = BTreeSet::new();
        let mut paths = staged.paths.clone();
        let mut replaced = BTreeSet::new();
        if let Some(live) = &staged.live {
            manifests::load_adapted(&paths, parsed, &mut |file, _, value| {
                if !staged.is_rendered(file) {
                    replaced.insert(identity(&value));
                }
                None
            });
            paths.push(live.clone());
        }
        let mut others = BTreeMap::new();
        let mut unrendered = Unrendered::default();
        let is_named = |file: &Path| paths.iter().any(|path| path == file);
        let loaded = manifests::load_adapted(&paths, parsed, &mut |file, document, value| {
            let is_below = staged.live.as_deref() == Some(file);
            if is_below && replaced.contains(&identity(&value)) || staged.is_rendered(file) {
                return None;
            }
            if unrendered.is_kustomization(file, &value)
                || !is_named(file) && unrendered.is_of_chart(file)
            {
                return None;
            }
            if is_foreign(&value) && !is_named(file) {
                others.insert(file.to_path_buf(), NO_OBJECT);
                return None;
            }
            files.insert(file.to_path_buf());
            found.note_service(&value);
            let kind = value["kind"].as_str().unwrap_or_default();
            let is_kept = |it: &Kind| it.closes() || *it == Kind::Namespace;
            if reading.sources && Kind::ALL.iter().any(|it| is_kept(it) && it.name() == kind) {
                found.sources.push(value.clone());
            }
            let value = endpoints.take(file, document, value)?;
            let value = workloads.adapt(value);
            found.note_ports(&value);
            Some(value)
        });
        let mut is_left_out = |fault: &Fault| {
            fault.file.as_deref().is_some_and(|file| {
                staged.is_rendered(file) || !is_named(file) && unrendered.is_of_chart(file)
            })
        };
        let mut faults: Vec<Fault> = Vec::new();
        for fault in loaded.faults.into_iter().filter(|fault| !is_left_out(fault)) {
            let file = fault.file.as_ref().filter(|file| !is_named(file) && fault.object.is_none());
            match file.and_then(|file| Some((file.clone(), no_manifest(file, fault.position)?))) {
                Some((file, what)) => drop(others.insert(file, what)),
                None => faults.push(fault),
            }
        }
        for (file, what) in &others {
            let note = format!("{}: skipped: {what}", file.display());
            found.templates.extend((*what == TEMPLATE).then(|| note.clone()));
            found.skipped.push(note);
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
        found.unrendered = unrendered.folders(&staged.paths);
        let charts = found.unrendered.iter().filter(|it| it.is_chart);
        let charts = charts.map(|it| format!("{}: {}", it.file.display(), it.note));
        found.templates.extend(charts);
        found.objects = loaded.objects;
        faults.extend(endpoints.mirror(&mut found));
        for pod in workloads.take_further() {
            found.note_ports(&pod);
            if let Read::Object(object, _) = objects::read(pod) {
                found.objects.push(object);
            }
        }
        let renamed;
        (found.workloads, renamed) = workloads.finish(&mut found.objects);
        for (before, now) in renamed {
            if let Some(ports) = found.container_ports.remove(&before) {
                found.container_ports.insert(now, ports);
            }
        }
        (found, faults, files)
    }

    fn note_ports(&mut self, value: &Value) {
        let Some(name) = value["metadata"]["name"].as_str().filter(|_| value["kind"] == "Pod")
        else {
            return;
        };
        let namespace = value["metadata"]["namespace"].as_str().unwrap_or("default");
        let containers = ["containers", "initContainers"].map(|it| value["spec"][it].as_array());
        let containers = || containers.into_iter().flatten().flatten();
        let ports = containers().filter_map(|it| it["ports"].as_array());
        let ports = ports.flatten().filter_map(|port| {
            let protocol = match port["protocol"].as_str() {
                Some("UDP") => Protocol::Udp,
                Some("SCTP") => Protocol::Sctp,
                _ => Protocol::Tcp,
            };
            Some((protocol, port["containerPort"].as_u64()?.try_into().ok()?))
        });
        let mut ports: BTreeSet<(Protocol, u16)> = ports.collect();
        if !ports.is_empty() {
            // A container listens where its probes connect.
            ports.extend(containers().flat_map(probed).map(|port| (Protocol::Tcp, port)));
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
        if spec["type"] == "ExternalName"
            && let Some(name) = spec["externalName"].as_str()
        {
            self.external_names.insert(key.clone(), name.trim_end_matches('.').to_lowercase());
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

/// The ports that the probes of a container connect to by number.
fn probed(container: &Value) -> impl Iterator<Item = u16> {
    let probes = ["livenessProbe", "readinessProbe", "startupProbe"].map(|it| &container[it]);
    let ports = probes.into_iter().flat_map(|probe| {
        ["httpGet", "tcpSocket", "grpc"].map(|action| probe[action]["port"].as_u64())
    });
    ports.flatten().filter_map(|port| port.try_into().ok())
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

/// A file of a folder that has no Kubernetes object.
const NO_OBJECT: &str = "no Kubernetes object";

/// A file that a chart makes manifests of.
const TEMPLATE: &str = "a template of a chart; render it first";

/// Returns why a regular file with the name of a manifest, whose text breaks at a position, is not one: it is a chart's
/// template, whose actions are no YAML, or it lacks words that every object has.
fn no_manifest(file: &Path, broken_at: Option<Position>) -> Option<&'static str> {
    let text = control::read_regular(file, manifests::LONGEST).ok()?;
    let has = |word: &str| text.windows(word.len()).any(|found| found == word.as_bytes());
    let action = manifests::template_line(&String::from_utf8_lossy(&text));
    if action.is_some_and(|line| broken_at.is_some_and(|broken| line <= broken.line)) {
        return Some(TEMPLATE);
    }
    (!has("apiVersion") && !has("kind")).then_some(NO_OBJECT)
}

/// Returns whether a YAML document is not a Kubernetes object.
fn is_foreign(value: &Value) -> bool {
    value.get("kind").is_none() && value.get("apiVersion").is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_of_the_cluster_has_no_namespace() {
        let of = |namespace: &str| {
            let metadata = serde_json::json!({"name": "a", "namespace": namespace});
            identity(&serde_json::json!({"kind": "ClusterHostFirewall", "metadata": metadata}))
        };
        assert_eq!(of("x"), of("y"));
    }
}
