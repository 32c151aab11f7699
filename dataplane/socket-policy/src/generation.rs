//! The maps that hold the rules of a generation.

use std::time::Duration;
use std::{io, thread};

use dataplane::bpf::{Map, Object, Plain};

use crate::Limits;
use crate::layout::{Endpoint, LocalKey, Piece, Range, RuleKey, ServiceKey};
use crate::render::Rendered;

/// Attempts to enter a value for which the kernel has no memory, and the time between two.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(2);

/// The maps; each has room for two generations.
#[derive(Debug)]
pub(crate) struct Tables {
    rules: Map<RuleKey, Piece>,
    ranges: Map<u32, Range>,
    locals: Map<LocalKey, u32>,
    services: Map<ServiceKey, Piece>,
    endpoints: Map<u32, Endpoint>,
    limits: Limits,
}

/// The keys of a generation.
#[derive(Debug, Default)]
pub(crate) struct Written {
    rules: Vec<RuleKey>,
    locals: Vec<LocalKey>,
    services: Vec<ServiceKey>,
}

impl Tables {
    pub(crate) fn of(object: &Object, limits: Limits) -> io::Result<Self> {
        Ok(Self {
            rules: object.map(c"rules")?,
            ranges: object.map(c"ranges")?,
            locals: object.map(c"locals")?,
            services: object.map(c"services")?,
            endpoints: object.map(c"endpoints")?,
            limits,
        })
    }

    /// Enters a generation; `done` has the keys of what got in, also after an error.
    pub(crate) fn write(
        &self,
        rendered: &Rendered,
        generation: u32,
        done: &mut Written,
    ) -> io::Result<()> {
        let half = generation & 1;
        let Limits { ranges, endpoints, .. } = self.limits;
        enter(&self.ranges, half * ranges, ranges, &rendered.ranges)?;
        enter(&self.endpoints, half * endpoints, endpoints, &rendered.endpoints)?;
        for (key, piece) in &rendered.rules {
            let key = RuleKey { generation, ..*key };
            put(&self.rules, &key, &Piece { first: half * ranges + piece.first, ..*piece })?;
            done.rules.push(key);
        }
        for (key, table) in &rendered.locals {
            let key = LocalKey { generation, ..*key };
            put(&self.locals, &key, table)?;
            done.locals.push(key);
        }
        for (key, piece) in &rendered.services {
            let key = ServiceKey { generation, ..*key };
            put(&self.services, &key, &Piece { first: half * endpoints + piece.first, ..*piece })?;
            done.services.push(key);
        }
        Ok(())
    }

    /// Removes entries; none can fail to go.
    pub(crate) fn remove(&self, written: &Written) {
        written.rules.iter().for_each(|key| drop(self.rules.remove(key)));
        written.locals.iter().for_each(|key| drop(self.locals.remove(key)));
        written.services.iter().for_each(|key| drop(self.services.remove(key)));
    }
}

/// Enters a value. These maps get the memory of an entry without waiting for it, so that the kernel may have none at
/// the moment.
///
/// # Errors
/// As the kernel says.
pub(crate) fn put<K: Plain, V: Plain>(map: &Map<K, V>, key: &K, value: &V) -> io::Result<()> {
    for _ in 0..TRIES {
        match map.put(key, value) {
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => thread::sleep(PAUSE),
            done => return done,
        }
    }
    map.put(key, value)
}

/// Enters values of an array from a place on, of which there is room for so many.
fn enter<V: Plain>(map: &Map<u32, V>, first: u32, room: u32, values: &[V]) -> io::Result<()> {
    let full = || io::Error::from(io::ErrorKind::StorageFull);
    let count = u32::try_from(values.len()).ok().filter(|it| *it <= room).ok_or_else(full)?;
    let keys: Vec<u32> = (first..first + count).collect();
    match map.put_all(&keys, values) == values.len() {
        true => Ok(()),
        false => Err(full()),
    }
}
