//! The system calls that the switch makes, and `nft`, which it runs: a filter (seccomp(2)) lets
//! these through and answers all others as a kernel without them.
//!
//! The list was read off `strace -f podgate run` with an uplink, pods, policies and services, and
//! what the same libraries use on other kernels was added. Not in it, among others: entering or
//! making namespaces, mounting, `ptrace`, kernel modules and keys, changing users, `io_uring`.
//! `clone` makes threads and processes, and no namespaces; `clone3` is not there, since its flags
//! are in memory, which a filter cannot read, and libraries fall back to `clone`.

use std::collections::BTreeMap;
use std::io;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

/// Memory, the frames of packets included.
const MEMORY: [c_long; 10] = [
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_memfd_create,
    libc::SYS_mlock,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_msync,
    libc::SYS_munlock,
    libc::SYS_munmap,
];

/// Manifests, the state folder, `/proc` and `/sys`.
const FILES: [c_long; 42] = [
    libc::SYS_close,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pipe2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_umask,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close_range,
];

/// Threads, time, signals, and what a process asks about itself.
const PROCESS: [c_long; 41] = [
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_execve,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getcpu,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_kill,
    libc::SYS_membarrier,
    libc::SYS_nanosleep,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_prctl,
    libc::SYS_prlimit64,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_uname,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// Sockets (AF_XDP, netlink, the local API, HTTP, the API server), waiting for them, and BPF.
const NETWORK: [c_long; 27] = [
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_bpf,
    libc::SYS_connect,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_ioctl,
    libc::SYS_listen,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_sysinfo,
];

/// Older forms of the above, which only this architecture has.
#[cfg(target_arch = "x86_64")]
const OLDER: [c_long; 18] = [
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_dup2,
    libc::SYS_epoll_wait,
    libc::SYS_getrlimit,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_select,
    libc::SYS_stat,
    libc::SYS_unlink,
    libc::SYS_vfork,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: [c_long; 0] = [];

/// Flags of `clone` that make namespaces. (That of time namespaces is a signal's bit to `clone`.)
const NAMESPACES: u64 = (libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS) as u64;

/// Puts the filter in force for the calling thread, those it starts, and programs they run.
///
/// # Errors
/// Fails if the kernel has no filters, or refuses this one.
pub fn apply() -> io::Result<()> {
    let error = |error: &dyn std::fmt::Display| io::Error::other(format!("seccomp: {error}"));
    apply_filter(&program().map_err(|it| error(&it))?).map_err(|it| error(&it))
}

fn program() -> Result<BpfProgram, seccompiler::Error> {
    let calls = [&MEMORY[..], &FILES, &PROCESS, &NETWORK, &OLDER].concat();
    // Without a rule about a call's arguments, all of them are let through.
    let mut rules: BTreeMap<i64, Vec<_>> =
        calls.into_iter().map(|call| (call, Vec::new())).collect();
    let none = SeccompCmpOp::MaskedEq(NAMESPACES);
    let flags = SeccompCondition::new(0, SeccompCmpArgLen::Qword, none, 0)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![flags])?]);
    let refused = SeccompAction::Errno(libc::ENOSYS as u32);
    let arch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, refused, SeccompAction::Allow, arch)?.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_system_calls_are_not_there() {
        // In a thread of its own, which alone the filter is about.
        let thread = std::thread::spawn(|| {
            apply().unwrap();
            let error = std::os::unix::fs::chroot("/").unwrap_err();
            (error.raw_os_error(), std::fs::read_to_string("/proc/self/comm").is_ok())
        });
        assert_eq!(thread.join().unwrap(), (Some(libc::ENOSYS), true));
    }

    #[test]
    fn threads_and_programs_start_but_no_namespaces() {
        let thread = std::thread::spawn(|| {
            let without_filter = clone(libc::CLONE_NEWUSER as u64);
            apply().unwrap();
            let started = std::thread::spawn(|| 1).join().is_ok_and(|it| it == 1);
            let ran = std::process::Command::new("true").status().unwrap().success();
            let flags = (0..64).map(|bit| 1 << bit).filter(|flag| NAMESPACES & flag != 0);
            let refused = flags.map(clone).collect::<Vec<_>>();
            (without_filter, started && ran, refused)
        });
        let (without_filter, works, refused) = thread.join().unwrap();
        assert_eq!((without_filter, works), (libc::EINVAL, true));
        assert_eq!(refused, [libc::ENOSYS; 7]);
    }

    /// The error of a `clone` that no kernel carries out: `CLONE_SIGHAND` needs `CLONE_VM`.
    #[allow(unsafe_code, reason = "no library makes a call that fails")]
    fn clone(flags: u64) -> i32 {
        let flags = flags | libc::CLONE_SIGHAND as u64;
        // SAFETY: the call fails for its flags in any case; no other memory is passed.
        let result = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
        assert_eq!(result, -1);
        io::Error::last_os_error().raw_os_error().unwrap_or_default()
    }
}
