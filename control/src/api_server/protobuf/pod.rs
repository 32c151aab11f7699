//! Events about pods, of which a cluster has most: read without the detour over the shape of JSON.

use std::collections::BTreeMap;
use std::ops::Range;

use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::wire::{Damage, Fields, Result, Wire, text};
use super::{json, unwrapped};
use crate::model::Pod;
use crate::objects;

/// An event of a watch about a pod.
pub(in crate::api_server) struct PodEvent {
    /// Whether the pod is there after the event.
    pub(in crate::api_server) exists: bool,
    /// `metadata.resourceVersion`.
    pub(in crate::api_server) version: String,
    pub(in crate::api_server) pod: Pod,
}

/// Reads an event in protobuf; `None` for one that is not about a pod without faults.
pub(in crate::api_server) fn pod_event(bytes: &[u8]) -> Option<PodEvent> {
    let (change, object) = super::parts(bytes).ok()?;
    let exists = match change {
        "ADDED" | "MODIFIED" => true,
        "DELETED" => false,
        _ => return None,
    };
    let unknown = unwrapped(bytes, object).ok()?;
    if (unknown.api_version, unknown.kind) != ("v1", "Pod") {
        return None;
    }
    let mut pod = pod(bytes, unknown.raw).ok()?;
    let version = pod.metadata.resource_version.take()?;
    Some(PodEvent { exists, version, pod: objects::read_pod(pod)? })
}

/// The fields that are read, as in [`super::schema`].
fn pod(bytes: &[u8], place: Range<usize>) -> Result<api::Pod> {
    let mut pod = api::Pod::default();
    each(bytes, place, |number, wire| {
        match (number, wire) {
            (1, Wire::Bytes(place)) => pod.metadata = metadata(bytes, place)?,
            (2, Wire::Bytes(place)) => pod.spec = Some(spec(bytes, place)?),
            (3, Wire::Bytes(place)) => pod.status = Some(status(bytes, place)?),
            (1..=3, _) => return Ok(false),
            _ => {}
        }
        Ok(true)
    })?;
    Ok(pod)
}

fn metadata(bytes: &[u8], place: Range<usize>) -> Result<ObjectMeta> {
    let mut metadata = ObjectMeta::default();
    let (mut labels, mut annotations) = (BTreeMap::new(), BTreeMap::new());
    each(bytes, place, |number, wire| {
        match (number, wire) {
            (1, Wire::Bytes(place)) => metadata.name = given(bytes, place)?,
            (3, Wire::Bytes(place)) => metadata.namespace = given(bytes, place)?,
            (5, Wire::Bytes(place)) => metadata.uid = given(bytes, place)?,
            (6, Wire::Bytes(place)) => metadata.resource_version = given(bytes, place)?,
            (8, Wire::Bytes(place)) => metadata.creation_timestamp = time(bytes, place)?,
            (11, Wire::Bytes(place)) => {
                let (key, value) = super::pair(bytes, place)?;
                labels.insert(key.to_owned(), text(bytes, value)?.to_owned());
            }
            (12, Wire::Bytes(place)) => {
                let (key, value) = super::pair(bytes, place)?;
                if json::is_read(key) {
                    annotations.insert(key.to_owned(), text(bytes, value)?.to_owned());
                }
            }
            (1 | 3 | 5 | 6 | 8 | 11 | 12, _) => return Ok(false),
            _ => {}
        }
        Ok(true)
    })?;
    (metadata.labels, metadata.annotations) = (Some(labels), Some(annotations));
    Ok(metadata)
}

fn spec(bytes: &[u8], place: Range<usize>) -> Result<api::PodSpec> {
    let mut spec = api::PodSpec::default();
    each(bytes, place, |number, wire| {
        match (number, wire) {
            (2, Wire::Bytes(place)) => spec.containers.push(container(bytes, place)?),
            (8, Wire::Bytes(place)) => spec.service_account_name = given(bytes, place)?,
            (10, Wire::Bytes(place)) => spec.node_name = given(bytes, place)?,
            (11, Wire::Varint(flag)) => spec.host_network = Some(flag != 0),
            (20, Wire::Bytes(place)) => {
                spec.init_containers.get_or_insert_default().push(container(bytes, place)?);
            }
            (2 | 8 | 10 | 11 | 20, _) => return Ok(false),
            _ => {}
        }
        Ok(true)
    })?;
    Ok(spec)
}

fn container(bytes: &[u8], place: Range<usize>) -> Result<api::Container> {
    let mut container = api::Container::default();
    each(bytes, place, |number, wire| {
        match (number, wire) {
            (6, Wire::Bytes(place)) => {
                container.ports.get_or_insert_default().push(port(bytes, place)?);
            }
            (24, Wire::Bytes(place)) => container.restart_policy = given(bytes, place)?,
            (6 | 24, _) => return Ok(false),
            _ => {}
        }
        Ok(true)
    })?;
    Ok(container)
}

fn port(bytes: &[u8], place: Range<usize>) -> Result<api::ContainerPort> {
    let mut port = api::ContainerPort::default();
    each(bytes, place, |number, wire| {
        let small = |number: u64| i32::try_from(number as i64);
        match (number, wire) {
            (1, Wire::Bytes(place)) => port.name = given(bytes, place)?,
            (2, Wire::Varint(number)) if let Ok(number) = small(number) => {
                port.host_port = Some(number);
            }
            (3, Wire::Varint(number)) if let Ok(number) = small(number) => {
                port.container_port = number;
            }
            (4, Wire::Bytes(place)) => port.protocol = given(bytes, place)?,
            (5, Wire::Bytes(place)) => port.host_ip = given(bytes, place)?,
            (1..=5, _) => return Ok(false),
            _ => {}
        }
        Ok(true)
    })?;
    Ok(port)
}

fn status(bytes: &[u8], place: Range<usize>) -> Result<api::PodStatus> {
    let mut status = api::PodStatus::default();
    each(bytes, place, |number, wire| {
        match (number, wire) {
            (1, Wire::Bytes(place)) => status.phase = given(bytes, place)?,
            (6, Wire::Bytes(place)) => status.pod_ip = given(bytes, place)?,
            (12, Wire::Bytes(place)) => {
                let mut ip = api::PodIP::default();
                each(bytes, place, |number, wire| {
                    match (number, wire) {
                        (1, Wire::Bytes(place)) => text(bytes, place)?.clone_into(&mut ip.ip),
                        (1, _) => return Ok(false),
                        _ => {}
                    }
                    Ok(true)
                })?;
                status.pod_ips.get_or_insert_default().push(ip);
            }
            (1 | 6 | 12, _) => return Ok(false),
            _ => {}
        }
        Ok(true)
    })?;
    Ok(status)
}

/// Calls `take` for each field of a message; damage where it returns false.
fn each(
    bytes: &[u8],
    place: Range<usize>,
    mut take: impl FnMut(u32, Wire) -> Result<bool>,
) -> Result<()> {
    let mut fields = Fields::new(bytes, place);
    while let Some((number, wire)) = fields.next()? {
        if !take(number, wire)? {
            return Err(Damage { at: fields.began, problem: "a field of another type" });
        }
    }
    Ok(())
}

/// A text that JSON leaves out where it is empty.
fn given(bytes: &[u8], place: Range<usize>) -> Result<Option<String>> {
    text(bytes, place).map(|text| (!text.is_empty()).then(|| text.to_owned()))
}

fn time(bytes: &[u8], place: Range<usize>) -> Result<Option<Time>> {
    Ok(super::timestamp(bytes, place)?.map(Time))
}
