//! The plugin a container runtime calls for every pod (CNI specification, versions 0.3.1 to 1.1.0):
//! a network configuration on standard input, parameters in `CNI_…` variables, one JSON object as
//! the answer, and an exit code.
//!
//! ```text
//!   the pod's namespace                        the agent's namespace
//!   eth0  10.1.0.5/32  ─────────veth─────────  pg0123456789abc   down, deaf, no address
//!     169.254.1.1 dev eth0                          ▲
//!     default via 169.254.1.1                       │ XDP, then up: by the agent,
//!     (fe80::1 for IPv6)                            │ once the pod's tables are in force
//! ```
//!
//! The life of a pod's interface:
//!
//! 1. **The pair** is created, its far end in the pod's namespace (`interface`). The near end's
//!    name follows from container and interface, and is unique in the kernel: of two ADDs for one
//!    attachment, one fails here, before it changed anything of the other.
//! 2. **Addresses** come from the IPAM plugin of the configuration (`ipam`), while both ends are prepared: the near
//!    one closed to the kernel, both without offloads.
//! 3. **The pod's end** gets addresses and routes (`interface`).
//! 4. **The agent** gets a request over its local API, and answers when the pod's tables are in
//!    force on every worker (`add`). Until then the near end is down, so a pod is never open, not
//!    for one packet.
//! 5. If any step fails, or the agent does not answer within `timeout`, the steps before it are
//!    undone.
//!
//! DEL removes all of this in any state, as often as it is called. The agent need not be running:
//! interface and addresses are freed all the same. An agent that runs but cannot be reached notices
//! the deleted interface; one that starts later finds it missing. Either way it removes the port,
//! so nothing leaks. Calls for one container take turns (`turn`): of an ADD and a DEL that cross, all of
//! the attachment is there afterwards, or nothing.

mod add;
mod check;
mod config;
mod del;
mod environment;
mod error;
mod garbage;
mod interface;
mod ipam;
mod log;
mod reply;
mod status;
mod turn;
mod version;

use std::io::Read;

use serde_json::Value;

use config::Config;
use environment::{Command, Environment};
use error::{CniError, Code};
use turn::Turn;
use version::Version;

pub use config::{DEFAULT_MTU, DEFAULT_TIMEOUT};
use interface::OpenedContainer;
pub use interface::{GATEWAY_V4, GATEWAY_V6};

/// The result of a call: text for standard output, and an exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// A result, an error object, or nothing.
    pub output: String,
    /// 0, or 1 with an error object.
    pub code: u8,
}

/// A configuration longer than this is not read.
const CONFIGURATION_BYTES: u64 = 1024 * 1024;

/// Runs one call of the plugin. `variable` looks up an environment variable. `confine` gives up privileges; it is
/// called once the container's namespace is open, before any input is read: opening `/proc/PID/ns/net` of a
/// container, which some runtimes pass, takes CAP_SYS_PTRACE (proc(5)).
pub fn run(
    variable: impl Fn(&str) -> Option<String>,
    confine: impl FnOnce(),
    input: impl Read,
) -> Outcome {
    let container = interface::open_container(&variable);
    confine();
    let mut text = Vec::new();
    let read = input.take(CONFIGURATION_BYTES + 1).read_to_end(&mut text);
    // The version of an error object, even if the rest of the configuration is unreadable.
    let spoken = version::of(&text).unwrap_or(Version::LATEST);
    let result = match read {
        Ok(_) if text.len() as u64 > CONFIGURATION_BYTES => {
            let message = format!("the configuration is longer than {CONFIGURATION_BYTES} bytes");
            Err(CniError::new(Code::Decode, message))
        }
        Ok(_) => dispatch(&variable, container, &text),
        Err(error) => Err(CniError::new(Code::Io, format!("read standard input: {error}"))),
    };
    match result {
        Ok(None) => Outcome { output: String::new(), code: 0 },
        Ok(Some(value)) => Outcome { output: format!("{value:#}\n"), code: 0 },
        Err(error) => Outcome { output: format!("{:#}\n", error.to_json(spoken)), code: 1 },
    }
}

fn dispatch(
    variable: &impl Fn(&str) -> Option<String>,
    container: OpenedContainer,
    text: &[u8],
) -> Result<Option<Value>, CniError> {
    let command = environment::command(variable)?;
    if command == Command::Version {
        return Ok(Some(version::answer(version::of(text))));
    }
    let config = Config::parse(text)?;
    if config.version < command.since() {
        let message = format!(
            "{command} needs cniVersion {} or later, the configuration says {}",
            command.since(),
            config.version
        );
        return Err(CniError::new(Code::Version, message));
    }
    let environment = Environment::read(command, variable)?;
    let changes = matches!(command, Command::Add | Command::Del);
    let attachment = environment.attachment.as_ref().filter(|_| changes);
    let _turn = attachment.and_then(|attachment| Turn::wait(&config, attachment));
    let result = match command {
        Command::Version => Ok(None),
        Command::Add => add::add(&config, &environment, container).map(Some),
        Command::Del => del::del(&config, &environment).map(|()| None),
        Command::Check => check::check(&config, &environment, container).map(|()| None),
        Command::Status => status::status(&config, &environment).map(|()| None),
        Command::Gc => garbage::collect(&config, &environment).map(|()| None),
    };
    log::note(&config, &environment, result.as_ref().err());
    result
}
