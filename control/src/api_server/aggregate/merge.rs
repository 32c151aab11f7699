//! The pods of the aggregate, and those of the own node, which are watched directly.
//!
//! Of the own node the direct watch decides. One watch may be ahead of the other: a pod that moved to another node
//! counts there once the direct watch says that it is gone here.

use std::collections::{BTreeMap, HashMap};

use ahash::RandomState;

use super::super::Event;
use super::view::Change;
use crate::model::Pod;
use crate::{Fault, FieldFault, Kind, Object, ObjectRef, PodKey};

#[derive(Debug, Default)]
pub(super) struct Merge {
    node: String,
    /// Pods of the own node, and what is wrong with them.
    own: BTreeMap<PodKey, (Pod, Vec<FieldFault>)>,
    /// Pods of other nodes that have the names of own ones.
    elsewhere: HashMap<PodKey, Pod, RandomState>,
}

impl Merge {
    pub(super) fn new(node: &str) -> Self {
        Self { node: node.to_owned(), ..Self::default() }
    }

    /// All pods, when the aggregate has these.
    pub(super) fn all(&mut self, pods: Vec<Pod>) -> Event {
        self.elsewhere.clear();
        let mut objects: Vec<Object> = Vec::with_capacity(pods.len() + self.own.len());
        for pod in pods {
            match self.own.contains_key(&pod.key) {
                _ if self.is_own(&pod) => {}
                true => drop(self.elsewhere.insert(pod.key.clone(), pod)),
                false => objects.push(Object::Pod(pod)),
            }
        }
        let mut wrong = Vec::new();
        for (pod, faults) in self.own.values() {
            let object = Object::Pod(pod.clone());
            wrong.extend(faults.iter().map(|fault| fault.clone().of(object.reference())));
            objects.push(object);
        }
        Event::Resync(Kind::Pod, objects, wrong)
    }

    /// A change of the aggregate.
    pub(super) fn elsewhere(&mut self, (key, pod): Change) -> Option<Event> {
        let pod = pod.filter(|pod| !self.is_own(pod));
        match (self.own.contains_key(&key), pod) {
            (true, Some(pod)) => drop(self.elsewhere.insert(key, pod)),
            (true, None) => drop(self.elsewhere.remove(&key)),
            (false, Some(pod)) => return Some(Event::Apply(Object::Pod(pod), Vec::new())),
            (false, None) => return Some(Event::Delete(reference(&key))),
        }
        None
    }

    /// An event of the direct watch, in terms of all pods.
    pub(super) fn here(&mut self, event: Event) -> Vec<Event> {
        match event {
            Event::Apply(Object::Pod(pod), faults) => self.appears(pod, faults),
            Event::Delete(reference) => {
                let namespace = reference.namespace.clone().unwrap_or_else(|| "default".into());
                self.goes(&PodKey { namespace, name: reference.name })
            }
            Event::Resync(_, objects, faults) => self.listed(objects, &faults),
            other => vec![other],
        }
    }

    fn listed(&mut self, objects: Vec<Object>, faults: &[Fault]) -> Vec<Event> {
        let mut stale: Vec<PodKey> = self.own.keys().cloned().collect();
        let mut events = Vec::new();
        for object in objects {
            let reference = object.reference();
            let Object::Pod(pod) = object else { continue };
            let own = faults.iter().filter(|it| it.object.as_ref() == Some(&reference));
            let own = own.map(|it| it.fault.clone()).collect();
            stale.retain(|key| *key != pod.key);
            events.extend(self.appears(pod, own));
        }
        events.extend(stale.iter().flat_map(|key| self.goes(key)));
        events
    }

    fn appears(&mut self, pod: Pod, faults: Vec<FieldFault>) -> Vec<Event> {
        self.own.insert(pod.key.clone(), (pod.clone(), faults.clone()));
        vec![Event::Apply(Object::Pod(pod), faults)]
    }

    fn goes(&mut self, key: &PodKey) -> Vec<Event> {
        if self.own.remove(key).is_none() {
            return Vec::new();
        }
        vec![match self.elsewhere.remove(key) {
            Some(pod) => Event::Apply(Object::Pod(pod), Vec::new()),
            None => Event::Delete(reference(key)),
        }]
    }

    fn is_own(&self, pod: &Pod) -> bool {
        pod.node.as_deref() == Some(&self.node)
    }
}

fn reference(key: &PodKey) -> ObjectRef {
    let PodKey { namespace, name } = key.clone();
    ObjectRef { kind: Kind::Pod, namespace: Some(namespace), name }
}
