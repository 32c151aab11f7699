//! The attached pods: admission checks, and the addresses in force.
//!
//! Policies know a pod by its name, the runtime by its sandbox. When a pod is created again under
//! the same name, the new sandbox may be attached before the old one is detached: the newest
//! counts, older ones are closed until they are detached.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Instant;

use control::PodKey;
use local_api::{ApiError, AttachPod, Attachment, ErrorKind};

use super::port::ManagedPort;
use super::waiting::Waiting;

/// The attached pods by attachment.
#[derive(Default)]
pub(super) struct Pods {
    pods: BTreeMap<(String, String), Attached>,
    attached_so_far: u64,
    revision: u64,
}

/// One attached pod.
pub(super) struct Attached {
    pub(super) pod: AttachPod,
    pub(super) key: PodKey,
    /// The key as text.
    pub(super) name: std::sync::Arc<str>,
    pub(super) port: ManagedPort,
    /// Pending `attach-pod` requests.
    pub(super) waiting: Option<Waiting>,
    order: u64,
}

/// The name by which policies know a pod.
pub(super) fn key_of(pod: &AttachPod) -> PodKey {
    PodKey { namespace: pod.namespace.as_str().into(), name: pod.name.as_str().into() }
}

impl Pods {
    /// Checks that `pod` conflicts with no other one, nor with the node's own addresses.
    ///
    /// # Errors
    /// A `conflict` that names the owner of the interface or address.
    pub(super) fn admit(&self, pod: &AttachPod, node: &[IpAddr]) -> Result<(), ApiError> {
        let conflict = |text: String| Err(ApiError::new(ErrorKind::Conflict, text));
        let key = key_of(pod);
        if let Some(own) = pod.addresses.iter().find(|address| node.contains(address)) {
            return conflict(format!("address {own} of pod {key} is the node's own"));
        }
        for other in self.pods.values() {
            if other.pod.host_interface == pod.host_interface {
                let interface = &pod.host_interface;
                return conflict(format!("interface {interface} is the port of pod {}", other.key));
            }
            let taken = pod.addresses.iter().find(|address| other.pod.addresses.contains(address));
            if let Some(address) = taken
                && other.key != key
            {
                return conflict(format!("address {address} is that of pod {}", other.key));
            }
        }
        Ok(())
    }

    /// Adds a pod; it is the newest of its name.
    pub(super) fn insert(&mut self, pod: AttachPod, port: ManagedPort, waiting: Option<Waiting>) {
        self.attached_so_far += 1;
        self.revision += 1;
        let (key, name) = (key_of(&pod), name_of(&pod.attachment()));
        let attached = Attached {
            pod,
            name: key.to_string().into(),
            key,
            port,
            waiting,
            order: self.attached_so_far,
        };
        self.pods.insert(name, attached);
    }

    pub(super) fn remove(&mut self, attachment: &Attachment) -> Option<Attached> {
        self.revision += 1;
        self.pods.remove(&name_of(attachment))
    }

    pub(super) fn find(&self, attachment: &Attachment) -> Option<&Attached> {
        self.pods.get(&name_of(attachment))
    }

    pub(super) fn find_mut(&mut self, attachment: &Attachment) -> Option<&mut Attached> {
        self.pods.get_mut(&name_of(attachment))
    }

    /// Makes the retry of a failed port due at once.
    pub(super) fn hurry(&mut self, attachment: &Attachment) {
        if let Some(attached) = self.find_mut(attachment) {
            attached.port.retry.hurry(Instant::now());
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Attached> {
        self.pods.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Attached> {
        self.pods.values_mut()
    }

    /// Changes whenever a pod is added or removed.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns whether it belongs to the newest sandbox of its pod's name.
    pub(super) fn counts(&self, attached: &Attached) -> bool {
        let newest = self.iter().filter(|it| it.key == attached.key).max_by_key(|it| it.order);
        newest.is_some_and(|newest| newest.pod.container_id == attached.pod.container_id)
    }

    /// The uid that the runtime gives for the pod of this name.
    pub(super) fn uid(&self, key: &PodKey) -> Option<&str> {
        let named = self.iter().filter(|attached| attached.key == *key);
        named.max_by_key(|it| it.order).and_then(|newest| newest.pod.uid.as_deref())
    }

    /// Iterates over the attachments of the newest sandbox of each pod's name.
    pub(super) fn counting(&self) -> impl Iterator<Item = &Attached> {
        let mut newest: HashMap<&PodKey, &Attached> = HashMap::new();
        for attached in self.iter() {
            let known = newest.entry(&attached.key).or_insert(attached);
            if known.order < attached.order {
                *known = attached;
            }
        }
        self.iter().filter(move |attached| {
            let newest = newest.get(&attached.key);
            newest.is_some_and(|it| it.pod.container_id == attached.pod.container_id)
        })
    }

    /// The addresses of the pod of this name: those of all interfaces of its newest sandbox.
    pub(super) fn addresses(&self, key: &PodKey) -> Vec<IpAddr> {
        let named = self.iter().filter(|attached| attached.key == *key);
        let mut addresses: Vec<IpAddr> = named
            .filter(|attached| self.counts(attached))
            .flat_map(|attached| attached.pod.addresses.iter().copied())
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }
}

fn name_of(attachment: &Attachment) -> (String, String) {
    (attachment.container_id.clone(), attachment.interface.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, container: &str, interface: &str, address: &str) -> AttachPod {
        AttachPod {
            namespace: "default".into(),
            name: name.into(),
            uid: None,
            container_id: container.into(),
            interface: interface.into(),
            netns: "/run/netns/x".into(),
            host_interface: format!("pg{container}{interface}"),
            mac: "02:00:00:00:00:01".parse().unwrap(),
            addresses: vec![address.parse().unwrap()],
        }
    }

    fn port() -> ManagedPort {
        ManagedPort::new("pg0".to_owned())
    }

    #[test]
    fn the_newest_sandbox_of_a_name_counts() {
        let mut pods = Pods::default();
        let (old, new) = (pod("db", "c1", "eth0", "10.1.0.2"), pod("db", "c2", "eth0", "10.1.0.3"));
        let second = pod("db", "c2", "net1", "10.2.0.3");
        pods.insert(old.clone(), port(), None);
        pods.insert(new.clone(), port(), None);
        pods.insert(second, port(), None);
        let key = key_of(&old);
        let texts = |pods: &Pods| -> Vec<String> {
            pods.addresses(&key).iter().map(IpAddr::to_string).collect()
        };
        assert_eq!(texts(&pods), ["10.1.0.3", "10.2.0.3"]);
        let counting: Vec<_> = pods.iter().map(|it| pods.counts(it)).collect();
        assert_eq!(counting, [false, true, true]);
        let listed: Vec<_> = pods.counting().map(|it| it.pod.interface.as_str()).collect();
        assert_eq!(listed, ["eth0", "net1"]);
        pods.remove(&new.attachment());
        assert_eq!(texts(&pods), ["10.2.0.3"]);
        pods.remove(&Attachment { interface: "net1".into(), ..new.attachment() });
        assert_eq!(texts(&pods), ["10.1.0.2"]);
    }

    #[test]
    fn nobody_takes_what_another_has() {
        let mut pods = Pods::default();
        pods.insert(pod("db", "c1", "eth0", "10.1.0.2"), port(), None);
        let node = ["10.1.0.1".parse().unwrap()];
        let refused = |pod: &AttachPod| pods.admit(pod, &node).unwrap_err().message;
        let thief = pod("web", "c2", "eth0", "10.1.0.2");
        assert_eq!(refused(&thief), "address 10.1.0.2 is that of pod default/db");
        let node_thief = pod("web", "c2", "eth0", "10.1.0.1");
        assert!(refused(&node_thief).contains("node's own"));
        let same_interface =
            AttachPod { host_interface: "pgc1eth0".into(), ..pod("web", "c2", "eth0", "10.1.0.3") };
        assert!(refused(&same_interface).contains("interface pgc1eth0"));
        assert_eq!(pods.admit(&pod("db", "c2", "eth0", "10.1.0.2"), &node), Ok(()));
    }
}
