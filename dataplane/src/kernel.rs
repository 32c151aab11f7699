//! The kernel below the switch: the oldest one that is supported, and known faults of others.
//!
//! A fault is recognised by the types that the kernel describes itself with: distributions backport
//! a fault and its mend, so a release says little. Releases decide where the kernel has no type
//! information. Nothing is tried: a trial would cost the node.

use std::ffi::CStr;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::OnceLock;

use crate::bpf::KernelTypes;

/// The oldest release that is supported. (5.18 is the first that takes XDP programs for packets of
/// several fragments.)
pub const OLDEST: Release = Release(6, 1, 0);

/// Numbers of a release; a distribution's own may follow them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u32, pub u32, pub u32);

impl Release {
    /// Reads the text of `uname -r`; `None` if it does not begin with two numbers.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|it| it.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(Self(next()?, next()?, next().unwrap_or(0)))
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(major, minor, patch) = self;
        write!(f, "{major}.{minor}")?;
        if *patch == 0 { Ok(()) } else { write!(f, ".{patch}") }
    }
}

/// Says which release is needed, where the running one is older than [`OLDEST`].
pub fn too_old() -> Option<String> {
    Kernel::running().too_old()
}

/// Treatment of a kernel that has a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// No AF_XDP socket is opened.
    NoAfXdp,
    /// The switch runs; `podgate check` notes the fault.
    Noted,
}

impl fmt::Display for Treatment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoAfXdp => "AF_XDP is refused",
            Self::Noted => "a note",
        })
    }
}

/// A fault of some kernels that this program can trigger.
#[derive(Debug)]
pub struct Fault {
    /// A few words for it.
    pub name: &'static str,
    /// Its consequence here.
    pub consequence: &'static str,
    /// What is refused or avoided.
    pub treatment: Treatment,
    /// Types by which it is recognised.
    pub sign: Sign,
    /// Releases that have it, where the kernel has no type information.
    pub releases: &'static [RangeInclusive<Release>],
    /// The commit that brought it, and the one that mended it.
    pub commits: [&'static str; 2],
    /// The remedy.
    pub remedy: &'static str,
}

/// Types that tell a kernel with a fault from others.
#[derive(Debug)]
pub struct Sign {
    /// A structure, and a member of it, that are there.
    pub has: (&'static CStr, Option<&'static CStr>),
    /// Structures that are not there.
    pub lacks: &'static [&'static CStr],
}

/// All that are known.
pub static FAULTS: [Fault; 2] = [
    Fault {
        name: "addresses of sent frames in the packet's control block",
        consequence: "the node panics (NULL pointer in xsk_destruct_skb) once the kernel receives a packet that an \
                      AF_XDP socket sent in copy mode",
        treatment: Treatment::NoAfXdp,
        sign: Sign { has: (c"xsk_addr_head", None), lacks: &[] },
        releases: &[Release(6, 16, 8)..=Release(6, 16, 12), Release(6, 17, 0)..=Release(6, 17, 10)],
        commits: ["30f241fcf52a", "0ebc27a4c67d"],
        remedy: "run another kernel (6.17.11, 6.18 or later), or --enforcer nftables, which opens no AF_XDP socket",
    },
    Fault {
        name: "frames come back before they are sent",
        consequence: "an uplink whose driver sends straight from the switch's memory in copy mode (virtio_net) may \
                      send the bytes of a later packet, after the kernel dropped one on the way",
        treatment: Treatment::Noted,
        sign: Sign { has: (c"xdp_sock", Some(c"skb")), lacks: &[c"xsk_addr_head", c"xsk_addrs"] },
        releases: &[Release(6, 6, 0)..=Release(6, 16, 7)],
        commits: ["b7f72a30e9ac", "30f241fcf52a"],
        remedy: "leave flow offload on: the uplink's packets then pass a veth pair, where the kernel copies them",
    },
];

impl Sign {
    fn is_on(&self, types: &KernelTypes) -> bool {
        let (name, member) = self.has;
        let has = match member {
            Some(member) => types.has_member(name, member),
            None => types.has_struct(name),
        };
        has && !self.lacks.iter().any(|it| types.has_struct(it))
    }
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |it: &CStr| it.to_string_lossy().into_owned();
        let (name, member) = self.has;
        match member {
            Some(member) => write!(f, "`{}` in `struct {}`", text(member), text(name))?,
            None => write!(f, "`struct {}`", text(name))?,
        }
        for lacking in self.lacks {
            write!(f, ", no `struct {}`", text(lacking))?;
        }
        Ok(())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [brought, mended] = self.commits;
        let Self { consequence, remedy, .. } = self;
        write!(
            f,
            "this kernel has a fault (commit {brought}, mended by {mended}): {consequence}; {remedy}"
        )
    }
}

/// A kernel, by what it says of itself.
pub struct Kernel {
    release: Option<Release>,
    types: Option<KernelTypes>,
}

impl Kernel {
    /// The running one.
    pub fn running() -> Self {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self::of(&release, Path::new(KernelTypes::RUNNING))
    }

    /// Its release; `None` if that has no numbers.
    pub fn release(&self) -> Option<Release> {
        self.release
    }

    /// A kernel with this release, as `uname -r` prints it, and its file with type information, if
    /// it has one.
    pub fn of(release: &str, types: &Path) -> Self {
        Self { release: Release::parse(release), types: KernelTypes::read(types).ok() }
    }

    /// Says which release is needed, if this one is older than [`OLDEST`].
    pub fn too_old(&self) -> Option<String> {
        let is_old = self.release.is_some_and(|release| release < OLDEST);
        is_old.then(|| format!("Linux {OLDEST} or later is needed"))
    }

    /// The faults that it has.
    pub fn faults(&self) -> impl Iterator<Item = &'static Fault> {
        FAULTS.iter().filter(|fault| match (&self.types, self.release) {
            (Some(types), _) => fault.sign.is_on(types),
            (None, Some(release)) => fault.releases.iter().any(|it| it.contains(&release)),
            (None, None) => false,
        })
    }

    /// The fault for which no AF_XDP socket may be opened.
    pub fn refuses_af_xdp(&self) -> Option<&'static Fault> {
        self.faults().find(|fault| fault.treatment == Treatment::NoAfXdp)
    }
}

/// The running kernel's fault for which no AF_XDP socket may be opened. It is looked for once.
pub fn refuses_af_xdp() -> Option<&'static Fault> {
    static FOUND: OnceLock<Option<&Fault>> = OnceLock::new();
    *FOUND.get_or_init(|| Kernel::running().refuses_af_xdp())
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;

    /// Commits that brought the faults of a kernel with these structures; without any, of one
    /// without type information.
    fn faults(release: &str, structs: &[(&str, &[&str])]) -> Vec<&'static str> {
        let folder = TempDir::new("btf");
        let path = folder.path().join("vmlinux");
        if !structs.is_empty() {
            std::fs::write(&path, testkit::btf(structs)).unwrap();
        }
        Kernel::of(release, &path).faults().map(|fault| fault.commits[0]).collect()
    }

    const PANICS: &str = "30f241fcf52a";
    const EARLY: &str = "b7f72a30e9ac";
    const SOCKET: (&str, &[&str]) = ("xdp_sock", &["sk", "rx", "skb"]);

    #[test]
    fn types_tell_kernels_that_have_a_fault() {
        let address = ("xsk_addr_head", &["num_descs", "addrs_list"][..]);
        let mended = ("xsk_addrs", &["num_descs", "addrs"][..]);
        assert_eq!(faults("6.17.8+deb13-amd64", &[SOCKET, address]), [PANICS]);
        assert_eq!(faults("6.18.44", &[SOCKET, mended]), Vec::<&str>::new());
        assert_eq!(faults("6.12.117", &[SOCKET]), [EARLY]);
        let single = ("xdp_sock", &["sk", "rx"][..]);
        assert_eq!(faults("6.1.0-50-amd64", &[single]), Vec::<&str>::new());
    }

    /// A distribution may have the fault in a release of before, and its mend in one that has it.
    #[test]
    fn a_release_decides_nothing_where_types_are() {
        let mended = ("xsk_addrs", &["num_descs"][..]);
        assert_eq!(faults("6.17.8", &[SOCKET, mended]), Vec::<&str>::new());
        assert_eq!(faults("6.12.50", &[("xsk_addr_head", &["num_descs"])]), [PANICS]);
    }

    #[test]
    fn without_types_the_release_decides() {
        for release in ["6.16.8", "6.16.12-amd64", "6.17.0-7-generic", "6.17", "6.17.10"] {
            assert_eq!(faults(release, &[]), [PANICS], "{release}");
        }
        for release in ["6.17.11", "6.18.0", "7.3.4+deb13", "6.1.0-50-amd64", "6.5.13", ""] {
            assert_eq!(faults(release, &[]), Vec::<&str>::new(), "{release}");
        }
        for release in ["6.6.0", "6.12.117+deb12-amd64", "6.16.7"] {
            assert_eq!(faults(release, &[]), [EARLY], "{release}");
        }
    }

    #[test]
    fn a_file_that_holds_no_types_is_none() {
        let folder = TempDir::new("btf");
        let path = folder.path().join("vmlinux");
        for bytes in [&b""[..], &testkit::btf(&[SOCKET])[..40]] {
            std::fs::write(&path, bytes).unwrap();
            assert!(
                Kernel::of("6.17.8", &path).refuses_af_xdp().is_some(),
                "{} bytes",
                bytes.len()
            );
        }
    }

    #[test]
    fn a_refusal_names_commits_and_the_remedy() {
        let text = FAULTS[0].to_string();
        for part in [PANICS, "0ebc27a4c67d", "--enforcer nftables", "panics"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
