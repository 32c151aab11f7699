//! Runs a program over bytes, for tests.

#![allow(unsafe_code, reason = "a system call with memory that the kernel fills")]

use libbpf_sys as sys;

use crate::{Error, Kernel};
use dataplane::bpf::result;

/// The hook at which a program is run; see [`Kernel::run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Hook a pod's interface.
    Pod,
    /// Hook the uplink.
    Uplink,
    /// Hook the kernel's end of the host port.
    Host,
}

/// A program's result for one packet; see [`Kernel::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was redirected, looking so.
    Redirected(Vec<u8>),
    /// It was dropped.
    Dropped,
    /// It is the next program's, or the kernel's.
    Passed,
    /// Something else: the program's own number.
    Other(u32),
}

impl Kernel {
    /// Runs the program of a place over one frame that enters by the interface `ifindex`, without
    /// sending anything; `segments` are the size and number of those the kernel would cut it into.
    ///
    /// # Errors
    /// If the kernel cannot run it.
    pub fn run(
        &self,
        at: Hook,
        ifindex: u32,
        frame: &[u8],
        segments: Option<(u32, u32)>,
    ) -> Result<Outcome, Error> {
        let mut context = [0_u32; CONTEXT];
        let (size, count) = segments.unwrap_or_default();
        (context[IFINDEX], context[GSO_SIZE], context[GSO_SEGS]) = (ifindex, size, count);
        let mut out = vec![0; frame.len() + 256];
        let mut options = sys::bpf_test_run_opts {
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            data_out: out.as_mut_ptr().cast(),
            data_size_out: out.len() as u32,
            ctx_in: (&raw const context).cast(),
            ctx_size_in: size_of_val(&context) as u32,
            repeat: 1,
            ..Default::default()
        };
        options.sz = size_of_val(&options) as _;
        let program = match at {
            Hook::Pod => self.from_pod,
            Hook::Uplink => self.from_uplink,
            Hook::Host => self.from_host,
        };
        // SAFETY: all that the options point to is as long as they say, and outlives the call.
        let error = unsafe { sys::bpf_prog_test_run_opts(program, &raw mut options) };
        result(error).map_err(|cause| Error::new("run a program", cause))?;
        out.truncate(options.data_size_out as usize);
        Ok(match options.retval {
            REDIRECT => Outcome::Redirected(out),
            SHOT => Outcome::Dropped,
            UNSPEC => Outcome::Passed,
            other => Outcome::Other(other),
        })
    }
}

/// Words of `struct __sk_buff` of linux/bpf.h, and places in it.
const CONTEXT: usize = 48;
const IFINDEX: usize = 10;
const GSO_SEGS: usize = 41;
const GSO_SIZE: usize = 44;
/// `TC_ACT_SHOT`, `TC_ACT_UNSPEC` and `TC_ACT_REDIRECT` of linux/pkt_cls.h.
const SHOT: u32 = 2;
const UNSPEC: u32 = u32::MAX;
const REDIRECT: u32 = 7;
