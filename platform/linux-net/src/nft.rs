//! Runs `nft`: a script is one atomic transaction.
//!
//! ```text
//!   Table::change ─ script ─▶ nft ─▶ kernel      remembers what the kernel lists afterwards
//!   Table::is_intact ─ generation of the ruleset, and if it moved, the listing ─▶ same as then?
//! ```

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustix::fs::{MemfdFlags, memfd_create};

use super::error::Error;
use super::ruleset::Ruleset;

/// `nft` is killed after this time.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The same for the first change of a table: it waits for the modules that the kernel loads for it,
/// within the system call. (33 s on Linux 6.12 in a guest on a busy machine, 0.7 s the second time.)
const FIRST_TIMEOUT: Duration = Duration::from_secs(60);
/// The same for tables with many sets and elements.
const LARGE_TIMEOUT: Duration = Duration::from_secs(120);
/// Poll interval for the end of `nft`.
const POLL: Duration = Duration::from_millis(2);

/// A table of family `inet` that belongs to Podgate alone.
#[derive(Debug)]
pub(crate) struct Table {
    name: &'static str,
    ruleset: Option<Ruleset>,
    /// The output of `nft list` after the last change, and the ruleset's generation then.
    known: Option<(String, u32)>,
    /// Whether a change succeeded: the kernel has what the table needs.
    has_changed: bool,
}

impl Table {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, ruleset: None, known: None, has_changed: false }
    }

    fn timeout(&self) -> Duration {
        if self.has_changed { TIMEOUT } else { FIRST_TIMEOUT }
    }

    /// Runs a script that changes the table, and records the table's content afterwards. Each
    /// transaction increments the generation: if another one came in between, the content is
    /// unknown and [`is_intact`](Self::is_intact) returns `false`.
    ///
    /// # Errors
    /// With the output of `nft`.
    pub(crate) fn change(&mut self, script: &str) -> Result<(), Error> {
        // Serialises the switch's own transactions.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        self.known = None;
        let ours = self.generation()?.wrapping_add(1);
        nft(&["-f", "-"], script, self.timeout())?;
        self.has_changed = true;
        let listing = self.list()?;
        if self.generation()? == ours {
            self.known = Some((listing, ours));
        }
        Ok(())
    }

    /// Returns whether the table is as [`change`](Self::change) left it. While the ruleset's
    /// generation is unchanged, this does not run `nft`.
    ///
    /// # Errors
    /// Fails if the kernel does not answer.
    pub(crate) fn is_intact(&mut self) -> Result<bool, Error> {
        let Some((listing, generation)) = self.known.take() else { return Ok(false) };
        let now = self.generation()?;
        let is_intact = now == generation || self.list().is_ok_and(|it| it == listing);
        if is_intact {
            self.known = Some((listing, now));
        }
        Ok(is_intact)
    }

    fn list(&self) -> Result<String, Error> {
        nft(&["list", "table", "inet", self.name], "", TIMEOUT)
    }

    fn generation(&mut self) -> Result<u32, Error> {
        generation(&mut self.ruleset)
    }
}

/// The rules of a table that is written as a whole.
pub trait WholeTable: Clone + PartialEq {
    /// Name of the table.
    const TABLE: &'static str;
    /// Its subject, for the log.
    const ABOUT: &'static str;

    /// The table as `nft` reads it.
    fn script(&self) -> String;

    /// Does what the rules need besides the table.
    ///
    /// # Errors
    /// Fails if the kernel refuses.
    fn prepare(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// The kernel's table, as written last.
#[derive(Debug)]
pub struct Written<R> {
    table: Table,
    rules: Option<R>,
}

impl<R: WholeTable> Default for Written<R> {
    fn default() -> Self {
        Self { table: Table::new(R::TABLE), rules: None }
    }
}

impl<R: WholeTable> Written<R> {
    /// Brings the kernel into this state. A call with the same rules writes the table only if
    /// another program changed it.
    ///
    /// # Errors
    /// With the output of `nft`.
    pub fn set(&mut self, rules: &R) -> Result<(), Error> {
        rules.prepare()?;
        if self.rules.as_ref() == Some(rules) && self.table.is_intact()? {
            return Ok(());
        }
        if self.rules.take().as_ref() == Some(rules) {
            let (about, table) = (R::ABOUT, R::TABLE);
            tracing::warn!("{about}: table {table} was changed by another program; it is restored");
        }
        self.table.change(&rules.script())?;
        self.rules = Some(rules.clone());
        Ok(())
    }
}

/// A script that puts a table with this content in the place of the present one.
pub(crate) fn replaced(table: &str, content: &str) -> String {
    format!(
        "add table inet {table}\ndelete table inet {table}\ntable inet {table} {{\n{content}}}\n"
    )
}

/// The networks of one family as elements of a set, joined where they touch; `None` if there is none.
pub(crate) fn networks(networks: &[IpNet], v6: bool) -> Option<String> {
    let of_family = networks.iter().filter(|network| network.addr().is_ipv6() == v6);
    let joined = IpNet::aggregate(&of_family.map(IpNet::trunc).collect());
    let texts: Vec<String> = joined.iter().map(IpNet::to_string).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// A large table of one's own whose content is not compared element by element.
#[derive(Debug, Default)]
pub struct LargeTable {
    ruleset: Option<Ruleset>,
    /// The ruleset's generation after the last change; `None` if another program changed it since
    /// the change began.
    known: Option<u32>,
}

impl LargeTable {
    /// Runs a script, as one transaction.
    ///
    /// # Errors
    /// With the output of `nft`.
    pub fn change(&mut self, script: &str) -> Result<(), Error> {
        let ours = generation(&mut self.ruleset)?.wrapping_add(1);
        self.known = None;
        nft(&["-f", "-"], script, LARGE_TIMEOUT)?;
        self.known = generation(&mut self.ruleset).ok().filter(|now| *now == ours);
        Ok(())
    }

    /// Returns whether the kernel's ruleset, in whatever table, is unchanged since the last
    /// [`change`](Self::change) or [`accept`](Self::accept).
    ///
    /// # Errors
    /// Fails if the kernel does not answer.
    pub fn is_untouched(&mut self) -> Result<bool, Error> {
        Ok(self.known == Some(generation(&mut self.ruleset)?))
    }

    /// Takes the ruleset as it is now for untouched.
    ///
    /// # Errors
    /// Fails if the kernel does not answer.
    pub fn accept(&mut self) -> Result<(), Error> {
        self.known = Some(generation(&mut self.ruleset)?);
        Ok(())
    }

    /// Returns the listing of a table, less the elements of its sets.
    ///
    /// # Errors
    /// With the output of `nft`; also if there is no such table.
    pub fn outline(family: &str, table: &str) -> Result<String, Error> {
        nft(&["-t", "list", "table", family, table], "", LARGE_TIMEOUT)
    }
}

pub(crate) fn generation(ruleset: &mut Option<Ruleset>) -> Result<u32, Error> {
    match ruleset {
        Some(ruleset) => ruleset,
        none => none.insert(Ruleset::open()?),
    }
    .generation()
}

/// Podgate's tables, of whatever version, as `FAMILY NAME`.
///
/// # Errors
/// With the output of `nft`; [`Error::is_not_found`] if there is no `nft`.
pub fn own_tables() -> Result<Vec<String>, Error> {
    let listed = nft(&["list", "tables"], "", TIMEOUT)?;
    let tables = listed.lines().filter_map(|line| line.trim().strip_prefix("table "));
    let is_own = |table: &&str| {
        let name = table.split_once(' ').map_or("", |(_, name)| name);
        name == OWN || name.strip_prefix(OWN).is_some_and(|rest| rest.starts_with('-'))
    };
    Ok(tables.filter(is_own).map(str::to_owned).collect())
}

/// Deletes a table, named as `FAMILY NAME`.
///
/// # Errors
/// With the output of `nft`.
pub fn delete_table(table: &str) -> Result<(), Error> {
    run(&format!("delete table {table}\n"))
}

/// Prefix of the names of Podgate's tables.
const OWN: &str = "podgate";

/// Runs a script.
///
/// # Errors
/// With the output of `nft`.
pub fn run(script: &str) -> Result<(), Error> {
    nft(&["-f", "-"], script, FIRST_TIMEOUT).map(drop)
}

/// The output of `nft list` about this.
pub(crate) fn listed(what: &[&str]) -> Result<String, Error> {
    nft(&[&["list"], what].concat(), "", TIMEOUT)
}

/// Runs `nft` with this input; returns its output.
fn nft(arguments: &[&str], input: &str, timeout: Duration) -> Result<String, Error> {
    run_within("nft", arguments, input, timeout).map_err(|cause| {
        let is_absent = cause.kind() == io::ErrorKind::NotFound;
        Error::new("nft", cause)
            .with_words(is_absent.then(|| "install Debian's package nftables".to_owned()))
    })
}

fn run_within(
    program: &str,
    arguments: &[&str],
    input: &str,
    timeout: Duration,
) -> io::Result<String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(whole(input)?)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        let said = scope.spawn(|| text(stdout));
        let complained = scope.spawn(|| text(stderr));
        // A killed process closes its ends of the pipes, which ends the threads.
        let status = wait_within(&mut child, timeout);
        let (said, complained) = (said.join(), complained.join());
        match status?.success() {
            true => Ok(said.unwrap_or_default()),
            false => Err(io::Error::other(complained.unwrap_or_default().trim().to_owned())),
        }
    })
}

/// A file in memory with this content, at its beginning. Of a pipe a program gets the first part alone
/// if this process is killed while it writes: a script that ends too early opens what its end closes.
fn whole(input: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"nft", MemfdFlags::CLOEXEC)?);
    file.write_all(input.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

fn text(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    // Output read before an error counts.
    let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn wait_within(child: &mut Child, timeout: Duration) -> io::Result<std::process::ExitStatus> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            let text = format!("no answer within {timeout:?}; killed");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_hangs_is_killed_in_time() {
        let wait = Duration::from_millis(50);
        let error = run_within("sleep", &["600"], "", wait).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("no answer within 50ms"), "{error}");
    }

    #[test]
    fn the_first_change_of_a_table_may_wait_for_modules() {
        let table = Table::new("test");
        assert_eq!(table.timeout(), FIRST_TIMEOUT);
        assert_eq!(Table { has_changed: true, ..table }.timeout(), TIMEOUT);
    }

    #[test]
    fn output_and_errors_come_back() {
        let wait = Duration::from_secs(60);
        assert_eq!(run_within("cat", &["-"], "a script", wait).unwrap(), "a script");
        let error = run_within("sh", &["-c", "echo no >&2; exit 1"], "", wait).unwrap_err();
        assert_eq!(error.to_string(), "no");
        let missing = run_within("/nowhere/nft", &[], "", wait).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound, "{missing}");
        // The whole input is there before the program runs.
        let length =
            run_within("sh", &["-c", "stat --dereference --format %s /dev/stdin"], "abc", wait);
        assert_eq!(length.unwrap(), "3\n");
        let large = "x".repeat(1 << 20);
        assert_eq!(run_within("cat", &["-"], &large, wait).unwrap().len(), large.len());
    }
}
