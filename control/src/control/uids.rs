//! The UIDs by which the runtime of a node knows its pods.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::Control;
use crate::model::Uid;
use crate::{Fault, FieldFault, Kind, ObjectRef, PodKey};

/// The UIDs of the pods of a node; each is one pod's.
#[derive(Debug, Default)]
pub struct Uids {
    uids: BTreeMap<PodKey, Uid>,
    /// The pods that claim the UID of another one, with that UID and its holder.
    refused: BTreeMap<PodKey, (Uid, PodKey)>,
}

impl Control {
    /// Finds the UIDs of these pods; `of_runtime` gives the one that the runtime named.
    ///
    /// What the runtime names comes before `metadata.uid`, and that before the annotation of a
    /// mirror pod, which is its author's word. Of two mirror pods with one UID the earlier created
    /// one has it.
    pub fn uids<'p>(
        &self,
        pods: impl Iterator<Item = &'p PodKey>,
        of_runtime: impl Fn(&PodKey) -> Option<Uid>,
    ) -> Uids {
        let mut claims: Vec<_> = pods
            .filter_map(|key| {
                let pod = self.pod(key);
                let of_object = || pod.and_then(|pod| pod.uid.clone());
                let named = of_runtime(key);
                let is_named = named.is_some();
                let rank = pod.map(|pod| (pod.is_static, pod.created));
                Some(((!is_named, rank), key, named.or_else(of_object)?))
            })
            .collect();
        claims.sort_unstable();
        let mut holders: HashMap<Uid, PodKey> = HashMap::new();
        let mut found = Uids::default();
        for (_, key, uid) in claims {
            match holders.get(&uid) {
                None => {
                    holders.insert(uid.clone(), key.clone());
                    found.uids.insert(key.clone(), uid);
                }
                Some(holder) if holder != key => {
                    found.refused.insert(key.clone(), (uid, holder.clone()));
                }
                Some(_) => {}
            }
        }
        found
    }
}

impl Uids {
    /// The UID of a pod.
    ///
    /// # Errors
    /// If there is none, in words.
    pub fn of(&self, pod: &PodKey) -> Result<Arc<str>, Arc<str>> {
        match (self.uids.get(pod), self.refused.get(pod)) {
            (Some(uid), _) => Ok(uid.to_string().into()),
            (None, Some((uid, holder))) => Err(refusal(uid, holder).into()),
            (None, None) => Err("its UID is not known".into()),
        }
    }

    /// The pods that claim another one's UID, as faults of their objects.
    pub fn faults(&self) -> impl Iterator<Item = Fault> {
        self.refused.iter().map(|(pod, (uid, holder))| {
            let object = ObjectRef {
                kind: Kind::Pod,
                namespace: Some(Arc::clone(&pod.namespace)),
                name: Arc::clone(&pod.name),
            };
            FieldFault::new("metadata.annotations[kubernetes.io/config.hash]", refusal(uid, holder))
                .of(object)
        })
    }
}

fn refusal(uid: &Uid, holder: &PodKey) -> String {
    format!("{uid} is the UID of Pod {holder}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::objects::{Read, read};
    use crate::{Control, PodKey, Scope};

    #[test]
    fn a_uid_is_one_pods_and_an_annotation_takes_nobodys() {
        let mut control = Control::new(Scope::Node("n1".into()));
        let mirror = |hash: &str| json!({"kubernetes.io/config.hash": hash, "kubernetes.io/config.mirror": hash});
        let mut add = |name: &str, uid: &str, created: u32, annotations: Value| {
            let pod = json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "uid": uid, "annotations": annotations,
                    "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z")},
                "spec": {"nodeName": "n1", "hostNetwork": true, "containers": []}});
            let Read::Object(pod, _) = read(pod) else { panic!() };
            control.apply(pod);
        };
        add("db", "u-db", 9, json!({}));
        add("web", "u-web", 9, json!({}));
        add("proxy", "u-1", 5, mirror("h-proxy"));
        add("evil-a", "u-2", 1, mirror("u-db"));
        add("evil-b", "u-3", 6, mirror("h-proxy"));
        add("evil-c", "u-4", 1, json!({"kubernetes.io/config.hash": "u-web"}));
        add("evil-d", "u-5", 1, mirror("u-runtime"));
        add("pod", "u-other", 9, json!({}));
        let keys: Vec<PodKey> = control.known_pods().map(|pod| pod.key.clone()).collect();
        let named = |key: &PodKey| (&*key.name == "pod").then(|| "u-runtime".into());
        let uids = control.uids(keys.iter().chain(&keys), named);
        let found = keys.iter().filter_map(|key| Some((&*key.name, uids.of(key).ok()?)));
        let found: Vec<String> = found.map(|(name, uid)| format!("{name} {uid}")).collect();
        let expected = ["db u-db", "evil-c u-4", "pod u-runtime", "proxy h-proxy", "web u-web"];
        assert_eq!(found, expected);
        let faults: Vec<String> = uids.faults().map(|fault| fault.to_string()).collect();
        let field = "metadata.annotations[kubernetes.io/config.hash]";
        let fault = |name, uid, holder| {
            format!("Pod default/{name}: {field}: {uid} is the UID of Pod default/{holder}")
        };
        let expected = [
            fault("evil-a", "u-db", "db"),
            fault("evil-b", "h-proxy", "proxy"),
            fault("evil-d", "u-runtime", "pod"),
        ];
        assert_eq!(faults, expected);
        assert_eq!(uids.of(&keys[1]).unwrap_err().as_ref(), "u-db is the UID of Pod default/db");
    }
}
