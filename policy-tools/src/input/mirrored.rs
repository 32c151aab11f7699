//! v1 Endpoints as the EndpointSlices that a cluster mirrors them into.
//!
//! A cluster mirrors the Endpoints of a service without selector, which people make by hand
//! (<https://kubernetes.io/docs/concepts/services-networking/service/#mirroring>): the slices of a service with
//! selector are its own controller's.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use control::model::Key;
use control::objects::{self, Read};
use control::{Fault, Object};
use serde_json::{Value, json};

use super::Manifests;

/// The Endpoints that were read, each with its file and document.
#[derive(Debug, Default)]
pub(super) struct Endpoints(Vec<(PathBuf, usize, Value)>);

/// Endpoints with this label are not mirrored.
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Endpoints with this annotation are the lock of a leader election.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

impl Endpoints {
    /// Keeps an object back if it is one of the kind.
    pub(super) fn take(&mut self, file: &Path, document: usize, value: Value) -> Option<Value> {
        if value["kind"] != "Endpoints" || value["apiVersion"] != "v1" {
            return Some(value);
        }
        self.0.push((file.to_owned(), document, value));
        None
    }

    /// Adds the slices of those that a cluster would mirror; returns their faults.
    pub(super) fn mirror(self, manifests: &mut Manifests) -> Vec<Fault> {
        let (mut services, mut sliced) = (BTreeSet::new(), BTreeSet::new());
        for object in &manifests.objects {
            match object {
                Object::Service(service) => drop(services.insert(service.key.clone())),
                Object::EndpointSlice(slice) => sliced.extend(slice.service.iter().map(|name| {
                    Key { namespace: Arc::clone(&slice.key.namespace), name: Arc::clone(name) }
                })),
                _ => {}
            }
        }
        let mut faults = Vec::new();
        for (file, document, value) in self.0 {
            let metadata = &value["metadata"];
            let text = |field: &str| metadata[field].as_str();
            let key = Key {
                namespace: text("namespace").unwrap_or("default").into(),
                name: text("name").unwrap_or_default().into(),
            };
            let is_mirrored = services.contains(&key)
                && !sliced.contains(&key)
                && !manifests.selectors.contains_key(&key)
                && metadata["labels"][SKIP] != "true"
                && metadata["annotations"][LEADER].is_null();
            if !is_mirrored {
                continue;
            }
            for slice in slices(&key, &value) {
                let (object, found) = match objects::read(slice) {
                    Read::Object(object, found) => (Some(object), found),
                    Read::Nothing(found) | Read::Refused(found) => (None, vec![found]),
                    Read::OtherKind(_) => (None, Vec::new()),
                };
                let reference = object.as_ref().map(Object::reference);
                faults.extend(found.into_iter().map(|fault| Fault {
                    file: Some(file.clone()),
                    document: Some(document),
                    position: None,
                    object: reference.clone(),
                    fault,
                }));
                manifests.objects.extend(object);
            }
        }
        faults
    }
}

/// A slice for each subset and address family.
fn slices(key: &Key, value: &Value) -> Vec<Value> {
    let subsets = value["subsets"].as_array().into_iter().flatten();
    let of_subset = |(n, subset): (usize, &Value)| {
        ["IPv4", "IPv6"].map(|family| {
            let endpoints = |field: &str, ready: bool| -> Vec<Value> {
                let listed = subset[field].as_array().into_iter().flatten();
                let of_family = listed.filter(|it| {
                    let is_v6 = it["ip"].as_str().is_some_and(|ip| ip.contains(':'));
                    is_v6 == (family == "IPv6")
                });
                let endpoint = |it: &Value| {
                    json!({"addresses": [it["ip"]], "conditions": {"ready": ready},
                        "nodeName": it["nodeName"], "targetRef": it["targetRef"]})
                };
                of_family.map(endpoint).collect()
            };
            let endpoints =
                [endpoints("addresses", true), endpoints("notReadyAddresses", false)].concat();
            let name = format!("{}-{n}-{}", key.name, family.to_lowercase());
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": name, "namespace": &*key.namespace,
                    "labels": {"kubernetes.io/service-name": &*key.name}},
                "addressType": family, "endpoints": endpoints, "ports": subset["ports"]})
        })
    };
    let all = subsets.enumerate().flat_map(of_subset);
    all.filter(|slice| slice["endpoints"].as_array().is_some_and(|it| !it.is_empty())).collect()
}
