//! The sources of pods, begun, ended and passed on: the aggregate with the pods of the own node, or a watch of all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::super::driver::Driver;
use super::super::{Event, RequestError};
use super::candidate::{Candidate, Fed, Free, Seat};
use super::damage::Damage;
use super::fallback::half_more_or_less;
use super::merge::Merge;
use super::objects::Page;
use super::text::{Entry, Place};
use super::view::View;
use super::watches::{Full, Own, Pods};
use super::{Aggregator, Closed, follow};
use crate::{Kind, Object, PodKey};

impl Aggregator {
    /// Begins to read the aggregate, beside what is in force: the pods of the own node, then the pages.
    pub(super) fn load(&mut self) {
        let node = self.node.clone();
        if self.own.is_none() {
            let pods = self.pods(Some(&node));
            let merge = Merge::new(&node);
            self.own = Some(Own { pods, merge, is_listed: false, is_current: false });
        }
        let is_listed = self.own.as_ref().is_some_and(|own| own.is_listed);
        if is_listed && self.loading.is_none() {
            let (client, version) = (self.client.clone(), self.heard.version.clone());
            let load = async move { follow::pages(&client, &version).await };
            self.loading = Some(tokio::spawn(load));
        }
    }

    /// The pages are there: the aggregate comes into force.
    pub(super) async fn loaded(
        &mut self,
        pages: Result<Vec<Page>, RequestError>,
    ) -> Result<(), Closed> {
        self.loading = None;
        if self.full.as_ref().is_some_and(|full| *full.seat.borrow() != Seat::None) {
            return Ok(());
        }
        let log = self.heard.all();
        let (view, pods) =
            match pages.map_err(Damage::from).and_then(|pages| View::new(&pages, &log)) {
                Ok(read) => read,
                Err(why) => {
                    self.damaged(&why);
                    return Ok(());
                }
            };
        let Some(own) = &mut self.own else { return Ok(()) };
        let all = own.merge.all(pods);
        let is_current = own.is_current;
        (self.view, self.is_reading) = (Some(view), true);
        self.told.reason = None;
        (self.full, self.leaving) = (None, None);
        self.list(all).await?;
        if is_current {
            self.send(Event::Current(Kind::Pod)).await?;
        }
        Ok(())
    }

    /// Begins to watch all pods, as a candidate for the writer that has this seat.
    pub(super) fn begin_full(&mut self, seat: Seat) {
        if self.full.is_some() {
            return;
        }
        let pods = self.pods(None);
        let (fed, receiver) = mpsc::unbounded_channel();
        let (free, is_free) = watch::channel(Free::default());
        let (take, seat) = watch::channel(seat);
        let position = Arc::clone(&pods.position);
        let candidate = Candidate::new(
            self.client.clone(),
            &self.node,
            self.timing,
            receiver,
            position,
            is_free,
            take,
        );
        let task = tokio::spawn(candidate.run());
        self.full = Some(Full { pods, fed, free, seat, task, is_listed: false });
    }

    /// An event of the own watch of all pods.
    pub(super) async fn of_all(&mut self, event: Event) -> Result<(), Closed> {
        let Some(full) = &mut self.full else { return Ok(()) };
        let fed = match &event {
            Event::Resync(_, objects, _) => {
                let pods = objects.iter().filter_map(|object| match object {
                    Object::Pod(pod) => Some((Place::of(pod.key.clone()), Entry::of(pod)?)),
                    _ => None,
                });
                Some(Fed::Reset(pods.collect()))
            }
            Event::Apply(Object::Pod(pod), _) => {
                Some(Fed::Set(Place::of(pod.key.clone()), Entry::of(pod)))
            }
            Event::Delete(reference) => {
                let namespace = reference.namespace.clone().unwrap_or_else(|| "default".into());
                let key = PodKey { namespace, name: reference.name.clone() };
                Some(Fed::Set(Place::of(key), None))
            }
            Event::Current(_) => Some(Fed::Current(true)),
            Event::Answered(_) | Event::Trouble(..) | Event::Absent(_) => Some(Fed::Current(false)),
            _ => None,
        };
        if let Some(fed) = fed {
            // It ends with this.
            let _ = full.fed.send(fed);
        }
        match event {
            Event::Resync(..) => {
                full.is_listed = true;
                if let Some((_, why)) = self.leaving.take() {
                    self.told.reason = Some(why);
                    self.not_before = Instant::now() + half_more_or_less(self.timing.again);
                }
                (self.view, self.own, self.loading) = (None, None, None);
                self.is_reading = false;
                self.list(event).await
            }
            // Until then the aggregate is in force, or nothing is.
            event if full.is_listed || !self.is_reading => self.send(event).await,
            _ => Ok(()),
        }
    }

    /// An event of the watch of the own node's pods.
    pub(super) async fn of_own(&mut self, event: Event) -> Result<(), Closed> {
        let Some(own) = &mut self.own else { return Ok(()) };
        match &event {
            Event::Resync(..) => own.is_listed = true,
            Event::Current(_) => own.is_current = true,
            Event::Answered(_) | Event::Trouble(..) | Event::Absent(_) => own.is_current = false,
            _ => {}
        }
        let is_current = matches!(event, Event::Current(_));
        let events = own.merge.here(event);
        if !self.is_reading || is_current && self.heard.is_failing() {
            return Ok(());
        }
        for event in events {
            self.send(event).await?;
        }
        Ok(())
    }

    /// Watches all pods, or those of a node.
    fn pods(&self, node: Option<&str>) -> Pods {
        let (sender, events) = mpsc::channel(1);
        let position = Arc::<Mutex<String>>::default();
        // Whether every kind is listed is counted here.
        let unlisted = Arc::new(AtomicUsize::new(usize::MAX));
        let (client, outage) = (self.client.clone(), Arc::clone(&self.outage));
        let driver = Driver::new(Kind::Pod, client, self.pace, sender, outage, unlisted);
        let driver = driver.of_node(node).noting(&position);
        Pods { events, position, task: tokio::spawn(driver.run()) }
    }

    /// Passes a list of all pods on.
    async fn list(&mut self, event: Event) -> Result<(), Closed> {
        self.send(event).await?;
        let first = !std::mem::replace(&mut self.is_listed, true);
        if first && self.unlisted.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.send(Event::Synced).await?;
        }
        Ok(())
    }
}
