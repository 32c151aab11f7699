//! Programs at the ingress of interfaces, in front of all others that are there. They stay when the
//! process ends: an interface is never without one.
//!
//! The one at an egress only saves packets of the node's kernel the way over the switch, so
//! others may stand in front of it.
//!
//! Two ways lead there. A filter of `clsact` is in place at once. A program of tcx runs before all
//! filters, and the kernel waits for a grace period of RCU at each change, with the lock of all
//! interfaces held. So it is tcx where another program is there by it, or where no filter can be the
//! first, and a filter otherwise.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::RawFd;
use std::sync::Mutex;

use dataplane::bpf::number_of;
use linux_net::{Direction, Netlink, ProgramFilter};

use crate::{Error, lock, tcx};

/// The programs of interfaces of one network namespace.
pub(crate) struct Ingress(Mutex<Netlink>);

impl Ingress {
    /// Opens that of the calling thread's network namespace.
    pub(crate) fn open() -> Result<Self, Error> {
        Ok(Self(Mutex::new(Netlink::open().map_err(failed)?)))
    }

    /// Puts a program first at an interface, in the place of one of an earlier process.
    pub(crate) fn attach(&self, program: RawFd, name: &str, ifindex: u32) -> Result<(), Error> {
        self.attach_one(program, name, ifindex, false)
    }

    /// The same at many interfaces; the result of each. Filters of an earlier process are replaced first, with few
    /// calls.
    pub(crate) fn attach_all(
        &self,
        program: RawFd,
        name: &str,
        interfaces: &[u32],
    ) -> Vec<Result<(), Error>> {
        if let [only] = interfaces {
            return vec![self.attach(program, name, *only)];
        }
        let is_free = |ifindex: &u32| tcx::attached(*ifindex).map_or(true, |it| it.is_empty());
        let free: Vec<u32> = interfaces.iter().copied().filter(is_free).collect();
        let put = lock(&self.0).put_programs_at_ingress(&free, program, name);
        let is_put = |(ifindex, result): (u32, Result<_, _>)| result.is_ok().then_some(ifindex);
        let put: BTreeSet<u32> = free.into_iter().zip(put).filter_map(is_put).collect();
        let attach = |it: &u32| self.attach_one(program, name, *it, put.contains(it));
        interfaces.iter().map(attach).collect()
    }

    /// Puts a program first; with `is_put` its filter is there already.
    fn attach_one(
        &self,
        program: RawFd,
        name: &str,
        ifindex: u32,
        is_put: bool,
    ) -> Result<(), Error> {
        let number = number_of(program).map_err(attach_failed(ifindex))?;
        let by_tcx = tcx::attached(ifindex);
        if by_tcx.as_ref().map_or(true, Vec::is_empty) {
            let put = match is_put {
                true => Ok(()),
                false => lock(&self.0).put_program(ifindex, Direction::Ingress, program, name),
            };
            let why = match put {
                Ok(()) if self.first_filter(ifindex) == Some(number) => return Ok(()),
                Ok(()) => io::Error::other("another filter is in front"),
                Err(error) => io::Error::other(error),
            };
            // The kernel has no tcx.
            if by_tcx.is_err() {
                return Err(attach_failed(ifindex)(why));
            }
        }
        tcx::attach(program, ifindex).map_err(attach_failed(ifindex))?;
        remove_filters(&mut lock(&self.0), ifindex, Direction::Ingress);
        Ok(())
    }

    /// Whether a program is the first at an interface.
    pub(crate) fn is_first(&self, program: RawFd, ifindex: u32) -> bool {
        let Ok(number) = number_of(program) else { return false };
        match tcx::attached(ifindex).unwrap_or_default().first() {
            Some(first) => *first == number,
            None => self.first_filter(ifindex) == Some(number),
        }
    }

    /// Puts a program at the egress of an interface, in the place of one of an earlier process; nothing
    /// happens if it is there.
    pub(crate) fn attach_to_egress(
        &self,
        program: RawFd,
        name: &str,
        ifindex: u32,
    ) -> Result<(), Error> {
        let number = number_of(program).map_err(attach_failed(ifindex))?;
        let mut netlink = lock(&self.0);
        let filters = netlink.filters(ifindex, Direction::Egress).unwrap_or_default();
        if filters.iter().any(|filter| filter.program == Some(number)) {
            return Ok(());
        }
        let put = netlink.put_program(ifindex, Direction::Egress, program, name);
        put.map_err(|error| attach_failed(ifindex)(io::Error::other(error)))
    }

    fn first_filter(&self, ifindex: u32) -> Option<u32> {
        self.filters(ifindex).first().and_then(|filter| filter.program)
    }

    /// An interface that is gone has none.
    fn filters(&self, ifindex: u32) -> Vec<ProgramFilter> {
        lock(&self.0).filters(ifindex, Direction::Ingress).unwrap_or_default()
    }
}

/// Takes programs of ours off an interface, this process's or an earlier one's.
pub(crate) fn detach(ifindex: u32) {
    tcx::detach(ifindex);
    match Netlink::open() {
        Ok(mut netlink) => remove_filters(&mut netlink, ifindex, Direction::Ingress),
        Err(error) => tracing::warn!("{error}"),
    }
}

/// Whether an interface has a program of ours of this name; if it is one of tcx, an earlier
/// process's.
pub(crate) fn has(name: &str, ifindex: u32) -> bool {
    let filters = Netlink::open().and_then(|mut it| it.filters(ifindex, Direction::Ingress));
    filters.is_ok_and(|filters| filters.iter().any(|it| it.is_own_of(name)))
        || tcx::was_left(name, ifindex)
}

/// Takes programs of ours off the egress of an interface.
pub(crate) fn detach_from_egress(ifindex: u32) {
    match Netlink::open() {
        Ok(mut netlink) => remove_filters(&mut netlink, ifindex, Direction::Egress),
        Err(error) => tracing::warn!("{error}"),
    }
}

fn remove_filters(netlink: &mut Netlink, ifindex: u32, direction: Direction) {
    match netlink.remove_programs(ifindex, direction) {
        Err(error) if !error.is_not_found() => tracing::warn!("{error}"),
        _ => {}
    }
}

fn attach_failed(ifindex: u32) -> impl Fn(io::Error) -> Error {
    move |cause| Error::new(format!("attach to interface {ifindex}"), cause)
}

fn failed(error: linux_net::Error) -> Error {
    Error::new("look at programs of interfaces", io::Error::other(error))
}
