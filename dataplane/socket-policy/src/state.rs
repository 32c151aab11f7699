//! The rules in force, and the cgroups that have the programs.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use crate::generation::Written;
use crate::layout::{POD_HOST, Pod, Settings};
use crate::link;
use crate::open::Known;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) settings: Settings,
    /// Keys of the generation in force.
    pub(crate) written: Written,
    /// Names of policies of the generation in force, and of the one before.
    pub(crate) names: [(u32, Vec<Arc<str>>); 2],
    pub(crate) attached: BTreeMap<Arc<str>, Attached>,
    /// The rules in force for pods on the host network.
    pub(crate) known: Option<Arc<Known>>,
    /// Numbers of pods, and the next one.
    pub(crate) numbers: (HashMap<Arc<str>, u32>, u32),
}

/// A cgroup with the programs.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) cgroup: u64,
    pub(crate) path: PathBuf,
    pub(crate) pod: Pod,
    pub(crate) links: Vec<OwnedFd>,
    /// Whether the links have their pins. Those of an earlier process stay until there are rules.
    pub(crate) is_pinned: bool,
}

impl Drop for Attached {
    /// Ends links that have no pins. Closing them would not do it while a process that was forked meanwhile has them open, until
    /// it executes another program.
    fn drop(&mut self) {
        if !self.is_pinned {
            self.links.iter().for_each(|link| drop(link::detach(link)));
        }
    }
}

impl State {
    /// The pods on the host network.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = (&Arc<str>, &Attached)> {
        self.attached.iter().filter(|(_, it)| it.pod.flags & POD_HOST != 0)
    }

    /// The number of a pod's table, which it keeps.
    pub(crate) fn number(&mut self, pod: &Arc<str>) -> u32 {
        let (numbers, next) = &mut self.numbers;
        *numbers.entry(Arc::clone(pod)).or_insert_with(|| {
            *next += 1;
            *next - 1
        })
    }
}
