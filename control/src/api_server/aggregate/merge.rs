//! The pods of the aggregate, and those of the own node, which are watched directly.
//!
//! The direct watch decides about pods of the own node. One watch may be ahead of the other: a pod that moved to another node
//! counts there once the direct watch says that it is gone here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ahash::RandomState;

use super::super::Event;
use super::view::Change;
use crate::model::Pod;
use crate::{Fault, FieldFault, Kind, Object, ObjectRef, PodKey};

#[derive(Debug, Default)]
pub(super) struct Merge {
    node: String,
    /// Pods of the own node, and what is wrong with them.
    own: BTreeMap<PodKey, (Arc<Pod>, Vec<FieldFault>)>,
    /// Pods of other nodes that have the names of own ones.
    elsewhere: HashMap<PodKey, Arc<Pod>, RandomState>,
}

impl Merge {
    pub(super) fn new(node: &str) -> Self {
        Self { node: node.to_owned(), ..Self::default() }
    }

    /// All pods, when the aggregate has these.
    pub(super) fn all(&mut self, pods: Vec<Arc<Pod>>) -> Event {
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
            let object = Object::Pod(Arc::clone(pod));
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

    fn appears(&mut self, pod: Arc<Pod>, faults: Vec<FieldFault>) -> Vec<Event> {
        self.own.insert(pod.key.clone(), (Arc::clone(&pod), faults.clone()));
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

#[cfg(test)]
mod tests {
    use super::super::tests::pod;
    use super::*;

    fn names(events: &[Event]) -> Vec<String> {
        let name = |event: &Event| match event {
            Event::Apply(Object::Pod(pod), _) => {
                format!("+{}@{}", pod.key.name, pod.node.as_ref().unwrap())
            }
            Event::Delete(reference) => format!("-{}", reference.name),
            Event::Resync(_, pods, _) => format!("={}", pods.len()),
            other => format!("{other:?}"),
        };
        events.iter().map(name).collect()
    }

    #[test]
    fn of_the_own_node_the_direct_watch_decides() {
        let mut merge = Merge::new("own");
        let at = |node: &str| Arc::new(pod(1, 0, 0, 1, node));
        let apply = |pod: Arc<Pod>| Event::Apply(Object::Pod(pod), Vec::new());
        let gone = || Event::Delete(Object::Pod(at("own")).reference());
        let key = at("own").key.clone();
        assert_eq!(names(&merge.here(apply(at("own")))), ["+pod-1@own"]);
        // The aggregate is behind, whatever it says.
        assert!(merge.elsewhere((key.clone(), Some(at("own")))).is_none());
        assert!(merge.elsewhere((key.clone(), None)).is_none());
        // The pod moves, and the aggregate says so first.
        assert!(merge.elsewhere((key.clone(), Some(at("other")))).is_none());
        assert_eq!(names(&merge.here(gone())), ["+pod-1@other"]);
        assert_eq!(names(&merge.here(gone())), [""; 0], "said again");
        // It comes back, and the aggregate says so first: it is not at the other node any more.
        let event = merge.elsewhere((key.clone(), Some(at("own"))));
        assert_eq!(names(event.as_slice()), ["-pod-1"]);
        assert_eq!(names(&merge.here(apply(at("own")))), ["+pod-1@own"]);
        assert_eq!(names(&merge.here(gone())), ["-pod-1"]);
        // A list of the own node says what went meanwhile, and one of the aggregate has no pods of the own node.
        merge.here(apply(at("own")));
        let event = merge.all(vec![
            at("own"),
            pod(2, 0, 0, 2, "own").into(),
            pod(3, 0, 0, 3, "other").into(),
        ]);
        assert_eq!(names(&[event]), ["=2"]);
        let listed = merge.here(Event::Resync(
            Kind::Pod,
            vec![Object::Pod(pod(4, 0, 0, 4, "own").into())],
            Vec::new(),
        ));
        assert_eq!(names(&listed), ["+pod-4@own", "-pod-1"]);
    }
}
