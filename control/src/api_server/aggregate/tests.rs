//! Writer and reader without I/O, over a store with versions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::damage::Damage;
use super::objects::{Log, Metadata, Page, Spec, Stored, Written, read_lines};
use super::publisher::{About, Publisher};
use super::text::{Entry, Place};
use super::view::View;
use crate::PodKey;
use crate::model::Pod;

/// The API server's objects of the kind, with optimistic locking.
#[derive(Clone, Default)]
struct Store {
    objects: BTreeMap<String, (u64, Spec)>,
    version: u64,
}

impl Store {
    /// Writes over the version that the publisher knows; `false` on a conflict.
    fn write(&mut self, publisher: &mut Publisher, written: &Written) -> bool {
        let known = self.objects.get(&written.name).map(|(version, _)| version.to_string());
        if known.as_deref() != publisher.version_of(&written.name) {
            return false;
        }
        self.version += 1;
        // As it comes back from the API server.
        let spec = written.object(None)["spec"].clone();
        let spec = serde_json::from_value(spec).unwrap();
        self.objects.insert(written.name.clone(), (self.version, spec));
        publisher.stored(&written.name, Some(self.version.to_string()));
        true
    }

    fn all(&self) -> Vec<Stored> {
        let stored = |(name, (version, spec)): (&String, &(u64, Spec))| Stored {
            metadata: Metadata { name: name.clone(), resource_version: version.to_string() },
            spec: spec.clone(),
        };
        self.objects.iter().map(stored).collect()
    }

    fn log(&self) -> Vec<Log> {
        self.objects.values().filter_map(|(_, spec)| spec.log.clone()).collect()
    }

    fn pages(&self) -> Vec<Page> {
        self.objects.values().filter_map(|(_, spec)| spec.page.clone()).collect()
    }

    /// Writes all that is due, and a sign of life; each object of the log goes to `each`.
    fn publish(&mut self, publisher: &mut Publisher, mut each: impl FnMut(&Self, Log)) -> bool {
        loop {
            while let Some(plan) = publisher.next_pages() {
                if !plan.write.iter().all(|page| self.write(publisher, page)) {
                    return false;
                }
                for name in &plan.delete {
                    self.objects.remove(name);
                    publisher.stored(name, None);
                }
                publisher.paged(&plan);
            }
            let log = publisher.next_log(&About::default()).expect("no page is late");
            if !self.write(publisher, &log) {
                return false;
            }
            each(self, log.spec.log.unwrap());
            if !publisher.has_pending() {
                return true;
            }
        }
    }
}

pub(super) fn pod(n: usize, of: usize, app: usize, address: usize, node: &str) -> Pod {
    let labels = [("app".to_owned(), format!("app-{app}")), ("tier".to_owned(), "x".repeat(60))];
    Pod {
        key: PodKey { namespace: format!("ns-{of}").into(), name: format!("pod-{n}").into() },
        uid: Some(format!("00000000-0000-4000-8000-{:012x}", n * 1000 + app).into()),
        labels: Arc::new(labels.into_iter().collect()),
        node: Some(node.into()),
        addresses: vec![
            format!("10.{}.{}.{}", address >> 16, address >> 8 & 255, address & 255)
                .parse()
                .unwrap(),
        ]
        .into(),
        host_network: false,
        finished: false,
        is_static: false,
        is_terminating: false,
        created: 1_700_000_000 + n as u32,
        ports: Arc::default(),
        complete: true,
    }
}

/// The pods of a switch that follows.
type Pods = HashMap<PodKey, Arc<Pod>>;

fn take(pods: &mut Pods, view: &mut View, log: &Log) -> Result<(), Damage> {
    for (key, pod) in view.apply(log)? {
        match pod {
            Some(pod) => drop(pods.insert(key, pod)),
            None => drop(pods.remove(&key)),
        }
    }
    Ok(())
}

fn read(store: &Store) -> Result<(View, Pods), Damage> {
    let (view, pods) = View::new(&store.pages(), &store.log())?;
    Ok((view, pods.into_iter().map(|pod| (pod.key.clone(), pod)).collect()))
}

fn set(publisher: &mut Publisher, pod: &Pod) {
    publisher.set(Place::of(pod.key.clone()), Entry::of(pod));
}

fn whole(pods: &Pods) -> BTreeMap<Place, Entry> {
    let entries = pods.values().map(|pod| (Place::of(pod.key.clone()), Entry::of(pod).unwrap()));
    entries.collect()
}

#[derive(Clone, Debug)]
enum Edit {
    Set(usize, usize, usize),
    Delete(usize),
    /// Publishes the changes.
    Publish,
    /// The same, and so many signs of life: pages become late.
    Rest(u8),
    /// A new writer lists all pods, and continues.
    TakeOver,
    /// A switch starts.
    Start,
    /// An object of the aggregate is lost.
    Spoil(u8),
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = prop_oneof![
        12 => (0..40_usize, 0..3_usize, 0..8_usize).prop_map(|(n, app, at)| Edit::Set(n, app, at)),
        4 => (0..40_usize).prop_map(Edit::Delete),
        6 => Just(Edit::Publish),
        2 => select(&[1_u8, 40, 70, 140][..]).prop_map(Edit::Rest),
        1 => Just(Edit::TakeOver),
        2 => Just(Edit::Start),
        1 => any::<u8>().prop_map(Edit::Spoil),
    ];
    vec(edit, 1..60)
}

proptest! {
    /// Whatever the objects contain, it is read or refused.
    #[test]
    fn no_text_is_more_than_damaged(
        sets in vec(".{0,40}", 0..3),
        lines in vec("[0-9]? ?.{0,40}", 0..3),
        cut in 0..200_usize,
        by in any::<char>(),
    ) {
        let _ = read_lines(&sets, &lines);
        let entry = Entry::of(&pod(1, 2, 3, 4, "node-1")).unwrap();
        let spoiled = |text: &str| -> String {
            text.chars().enumerate().map(|(n, it)| if n == cut { by } else { it }).collect()
        };
        let line = format!("0 {}", entry.own);
        let _ = read_lines(&[spoiled(&entry.common)], &[spoiled(&line)]);
        let numbers = Page { depth: cut as u8, prefix: by.into(), ..Page::default() };
        let log = Log { sequence: u64::MAX, first: by.into(), ..Log::default() };
        prop_assert!(View::new(&[numbers], &[log]).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However changes, takeovers and starts follow each other, whoever reads has the pods that there are.
    #[test]
    fn readers_have_the_pods_that_the_writer_has(edits in edits()) {
        let (mut store, mut publisher) = (Store::default(), Publisher::default());
        publisher.adopt(store.all());
        let mut pods = Pods::new();
        let mut readers: Vec<(View, Pods)> = Vec::new();
        for edit in edits.into_iter().chain([Edit::Publish, Edit::Start]) {
            let mut signs = 0;
            match edit {
                Edit::Set(n, app, at) => {
                    let pod = pod(n, n % 5, app, at, "node-1");
                    set(&mut publisher, &pod);
                    pods.insert(pod.key.clone(), Arc::new(pod));
                    continue;
                }
                Edit::Delete(n) => {
                    let key = pod(n, n % 5, 0, 0, "").key;
                    publisher.set(Place::of(key.clone()), None);
                    pods.remove(&key);
                    continue;
                }
                Edit::Publish => {}
                Edit::Rest(count) => signs = count,
                Edit::TakeOver => {
                    publisher = Publisher::default();
                    publisher.reset(whole(&pods));
                    publisher.adopt(store.all());
                }
                Edit::Start => {
                    if let Ok(reader) = read(&store) {
                        readers.push(reader);
                    }
                    continue;
                }
                Edit::Spoil(which) => {
                    let names: Vec<_> = store.objects.keys().cloned().collect();
                    if let Some(name) = names.get(usize::from(which) % names.len().max(1)) {
                        store.objects.remove(name);
                    }
                    publisher.adopt(store.all());
                }
            }
            for _ in 0..=signs {
                let mut failed = Vec::new();
                let done = store.publish(&mut publisher, |_, log| {
                    for (n, (view, pods)) in readers.iter_mut().enumerate() {
                        if take(pods, view, &log).is_err() {
                            failed.push(n);
                        }
                    }
                });
                prop_assert!(done);
                // Objects that were made anew are read anew.
                failed.dedup();
                for n in failed {
                    readers[n] = read(&store).unwrap();
                }
            }
            for (_, read) in &readers {
                prop_assert_eq!(read, &pods);
            }
        }
        prop_assert_eq!(read(&store).unwrap().1, pods);
    }

    /// A switch that starts while pages are written reads what was said, or nothing.
    #[test]
    fn pages_that_are_newer_than_the_log_are_read(
        at in 0..400_usize,
        changes in vec((0..400_usize, 0..5_usize), 1..200),
    ) {
        let (mut store, mut publisher) = (Store::default(), Publisher::default());
        publisher.adopt(store.all());
        let mut pods = Pods::new();
        for n in 0..400 {
            let pod = pod(n, n % 7, n % 9, n, "node-1");
            set(&mut publisher, &pod);
            pods.insert(pod.key.clone(), Arc::new(pod));
        }
        assert!(store.publish(&mut publisher, |_, _| {}));
        let (mut early, mut later): (Option<Vec<Log>>, Vec<Log>) = (None, Vec::new());
        for (n, (which, app)) in changes.into_iter().enumerate() {
            let pod = pod(which, which % 7, app, which, "node-2");
            set(&mut publisher, &pod);
            pods.insert(pod.key.clone(), Arc::new(pod));
            assert!(store.publish(&mut publisher, |_, log| later.push(log)));
            if n == at % 100 {
                (early, later) = (Some(store.log()), Vec::new());
            }
        }
        // The log is listed before the pages.
        let early = early.unwrap_or_else(|| { later.clear(); store.log() });
        let (mut view, known) = View::new(&store.pages(), &early).unwrap();
        let mut known: Pods = known.into_iter().map(|pod| (pod.key.clone(), pod)).collect();
        for log in later {
            take(&mut known, &mut view, &log).unwrap();
        }
        prop_assert_eq!(known, pods);
    }
}

#[test]
fn pages_are_split_and_objects_stay_small() {
    let (mut store, mut publisher) = (Store::default(), Publisher::default());
    publisher.adopt(store.all());
    let mut pods = Pods::new();
    assert!(store.publish(&mut publisher, |_, _| {}));
    assert_eq!(store.pages().len(), 1);
    let mut largest = 0;
    for round in 0..30 {
        for n in 0..100 {
            // Most pods are in one namespace.
            let n = round * 100 + n;
            let pod = pod(n, n % 20 / 19, n % 50, n, "node-1");
            set(&mut publisher, &pod);
            pods.insert(pod.key.clone(), Arc::new(pod));
        }
        for _ in 0..20 {
            assert!(store.publish(&mut publisher, |store, _| {
                let bytes = |(_, spec): &(u64, Spec)| serde_json::to_string(spec).unwrap().len();
                largest = store.objects.values().map(bytes).max().unwrap().max(largest);
            }));
        }
    }
    assert!(store.pages().len() > 10, "{}", store.pages().len());
    assert!(largest < 64 << 10, "{largest}");
    assert_eq!(read(&store).unwrap().1, pods);
    let entries: usize = store.pages().iter().map(|page| page.pods.len()).sum();
    assert!(entries <= pods.len(), "no pod is on two pages");
}

#[test]
fn of_two_writers_the_slower_one_notices() {
    let mut store = Store::default();
    let (mut one, mut other) = (Publisher::default(), Publisher::default());
    one.adopt(store.all());
    assert!(store.publish(&mut one, |_, _| {}));
    other.adopt(store.all());
    set(&mut other, &pod(1, 0, 0, 1, "node-1"));
    assert!(store.publish(&mut other, |_, _| {}));
    set(&mut one, &pod(2, 0, 0, 2, "node-1"));
    assert!(!store.publish(&mut one, |_, _| {}), "the slot was taken");
    one.adopt(store.all());
    assert!(store.publish(&mut one, |_, _| {}));
    // It knows of one pod only, and that is what counts now.
    let names: Vec<_> = read(&store).unwrap().1.into_keys().map(|it| it.name).collect();
    assert_eq!(names, ["pod-2".into()]);
}

#[test]
fn what_does_not_add_up_is_refused() {
    let (mut store, mut publisher) = (Store::default(), Publisher::default());
    publisher.adopt(store.all());
    for n in 0..300 {
        set(&mut publisher, &pod(n, n % 7, n % 9, n, "node-1"));
    }
    assert!(store.publish(&mut publisher, |_, _| {}));
    set(&mut publisher, &pod(1, 1, 3, 9, "node-2"));
    assert!(store.publish(&mut publisher, |_, _| {}));
    set(&mut publisher, &pod(2, 2, 3, 8, "node-2"));
    let mut last = Log::default();
    assert!(store.publish(&mut publisher, |_, log| last = log));
    let refused = |spoil: &dyn Fn(&mut Vec<Page>, &mut Vec<Log>)| {
        let (mut pages, mut log) = (store.pages(), store.log());
        spoil(&mut pages, &mut log);
        View::new(&pages, &log).map(|_| ()).unwrap_err()
    };
    assert!(read(&store).is_ok());
    refused(&|pages, _| drop(pages.pop()));
    refused(&|pages, _| drop(pages[0].pods.pop()));
    refused(&|pages, _| pages[0].pods[0].push('x'));
    refused(&|pages, _| pages[0].sets[0].insert(0, 'x'));
    refused(&|pages, _| pages[0].sets.clear());
    refused(&|pages, _| pages.iter_mut().for_each(|page| page.prefix = u64::MAX));
    refused(&|pages, _| pages.iter_mut().for_each(|page| page.depth = 64));
    refused(&|_, log| log.clear());
    refused(&|_, log| log.retain(|it| it.sequence != last.first));
    refused(&|_, log| log.iter_mut().for_each(|it| it.pods += 1));
    refused(&|_, log| log.iter_mut().for_each(|it| it.first = 0));
    refused(&|_, log| log.iter_mut().for_each(|it| it.changes = vec!["7 x".into()]));
    refused(&|_, log| log.iter_mut().for_each(|it| it.gone = vec!["x".into()]));
    // While it is followed.
    let next = |log: &Log| Log {
        sequence: log.sequence + 1,
        sets: Vec::new(),
        changes: Vec::new(),
        ..log.clone()
    };
    let view = || read(&store).unwrap().0;
    assert_eq!(view().apply(&last), Ok(Vec::new()), "it is known");
    assert_eq!(view().apply(&next(&last)), Ok(Vec::new()));
    let gap = Damage::Gap(last.sequence, last.sequence + 2);
    assert_eq!(view().apply(&next(&next(&last))), Err(gap));
    let other = Log { pods: 7, ..next(&last) };
    assert!(matches!(view().apply(&other), Err(Damage::Sum(300, _, 7, _))));
    let lost = Log { gone: vec!["ns-0 pod-0".into()], ..next(&last) };
    assert!(matches!(view().apply(&lost), Err(Damage::Sum(299, ..))));
    let mut later = view();
    for _ in 0..200 {
        last = next(&last);
        later.apply(&last).unwrap();
    }
    let back = Damage::Back(last.sequence, 1);
    assert_eq!(later.apply(&Log { sequence: 1, ..last }), Err(back));
}
