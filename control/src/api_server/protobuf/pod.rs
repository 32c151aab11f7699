//! Events about pods, of which a cluster has most: read without the detour over the shape of JSON.

use std::ops::Range;

use super::unwrapped;
use super::wire::{Damage, Fields, Result, Wire, text};
use crate::model::Pod;
use crate::objects::{self, CONFIG_HASH, CONFIG_MIRROR, ContainerFields, PodFields, PortFields};

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
    let (pod, version) = pod(bytes, unknown.raw).ok()?;
    Some(PodEvent { exists, version: version?.to_owned(), pod: objects::read_pod(pod)? })
}

/// The fields that are read, as in [`super::schema`], and the resource version.
fn pod(bytes: &[u8], place: Range<usize>) -> Result<(PodFields<'_>, Option<&str>)> {
    let (mut pod, mut version) = (PodFields::default(), None);
    each(bytes, place, |number, wire| {
        match (number, wire) {
            (1, Wire::Bytes(place)) => metadata(bytes, place, &mut pod, &mut version)?,
            (2, Wire::Bytes(place)) => spec(bytes, place, &mut pod)?,
            (3, Wire::Bytes(place)) => status(bytes, place, &mut pod)?,
            (1..=3, _) => return Ok(false),
            _ => {}
        }
        Ok(true)
    })?;
    Ok((pod, version))
}

fn metadata<'b>(
    bytes: &'b [u8],
    place: Range<usize>,
    pod: &mut PodFields<'b>,
    version: &mut Option<&'b str>,
) -> Result<()> {
    each(bytes, place, |number, wire| {
        match (number, wire) {
            (1, Wire::Bytes(place)) => pod.name = given(bytes, place)?,
            (3, Wire::Bytes(place)) => pod.namespace = given(bytes, place)?,
            (5, Wire::Bytes(place)) => pod.uid = given(bytes, place)?,
            (6, Wire::Bytes(place)) => *version = given(bytes, place)?,
            (8, Wire::Bytes(place)) => {
                pod.created = super::timestamp(bytes, place)?.map(|time| time.as_second());
            }
            (9, Wire::Bytes(place)) => {
                pod.is_terminating = super::timestamp(bytes, place)?.is_some()
            }
            (11, Wire::Bytes(place)) => {
                let (key, value) = super::pair(bytes, place)?;
                pod.labels.push((key, text(bytes, value)?));
            }
            (12, Wire::Bytes(place)) => {
                let (key, value) = super::pair(bytes, place)?;
                match key {
                    CONFIG_HASH => pod.config_hash = Some(text(bytes, value)?),
                    CONFIG_MIRROR => pod.is_mirror = true,
                    _ => {}
                }
            }
            (1 | 3 | 5 | 6 | 8 | 9 | 11 | 12, _) => return Ok(false),
            _ => {}
        }
        Ok(true)
    })
}

fn spec<'b>(bytes: &'b [u8], place: Range<usize>, pod: &mut PodFields<'b>) -> Result<()> {
    each(bytes, place, |number, wire| {
        match (number, wire) {
            (2, Wire::Bytes(place)) => pod.containers.push(container(bytes, place)?),
            (8, Wire::Bytes(place)) => pod.service_account = given(bytes, place)?,
            (10, Wire::Bytes(place)) => pod.node = given(bytes, place)?,
            (11, Wire::Varint(flag)) => pod.host_network = flag != 0,
            (20, Wire::Bytes(place)) => pod.init_containers.push(container(bytes, place)?),
            (2 | 8 | 10 | 11 | 20, _) => return Ok(false),
            _ => {}
        }
        Ok(true)
    })
}

fn container(bytes: &[u8], place: Range<usize>) -> Result<ContainerFields<'_>> {
    let mut container = ContainerFields::default();
    each(bytes, place, |number, wire| {
        match (number, wire) {
            (6, Wire::Bytes(place)) => container.ports.push(port(bytes, place)?),
            (24, Wire::Bytes(place)) => container.restart_policy = given(bytes, place)?,
            (6 | 24, _) => return Ok(false),
            _ => {}
        }
        Ok(true)
    })?;
    Ok(container)
}

fn port(bytes: &[u8], place: Range<usize>) -> Result<PortFields<'_>> {
    let mut port = PortFields::default();
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

fn status<'b>(bytes: &'b [u8], place: Range<usize>, pod: &mut PodFields<'b>) -> Result<()> {
    each(bytes, place, |number, wire| {
        match (number, wire) {
            (1, Wire::Bytes(place)) => pod.phase = given(bytes, place)?,
            (6, Wire::Bytes(place)) => pod.ip = given(bytes, place)?,
            (12, Wire::Bytes(place)) => {
                let mut ip = "";
                each(bytes, place, |number, wire| {
                    match (number, wire) {
                        (1, Wire::Bytes(place)) => ip = text(bytes, place)?,
                        (1, _) => return Ok(false),
                        _ => {}
                    }
                    Ok(true)
                })?;
                pod.ips.push(ip);
            }
            (1 | 6 | 12, _) => return Ok(false),
            _ => {}
        }
        Ok(true)
    })
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
fn given(bytes: &[u8], place: Range<usize>) -> Result<Option<&str>> {
    text(bytes, place).map(|text| Some(text).filter(|text| !text.is_empty()))
}
