//! Addresses come from another plugin: the one `ipam.type` names, looked for in
//! `CNI_PATH` and called with our own configuration and variables (CNI
//! specification, section 4, "Delegated plugins").

use std::io::{Read, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::{Value, json};

use super::config::Config;
use super::environment::Environment;
use super::error::{CniError, Code};
use super::version::{self, Version};
use local_api::Attachment;

/// The IPAM plugin of a configuration.
#[derive(Debug)]
pub(super) struct Ipam<'a> {
    config: &'a Config,
    program: PathBuf,
    /// The version of its configuration.
    version: Version,
}

/// Its result.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Allocation {
    pub addresses: Vec<IpAddr>,
    /// Resolver settings, as they are passed on.
    pub dns: Value,
}

/// Maximum length of an answer.
const ANSWER_BYTES: u64 = 1024 * 1024;
/// Least timeout for all commands but ADD: a leaked address is worse than a late answer.
const SHORTEST: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
struct RawAllocation {
    #[serde(default)]
    ips: Vec<RawIp>,
    #[serde(default)]
    dns: Value,
}

#[derive(Deserialize)]
struct RawIp {
    address: IpNet,
}

#[derive(Deserialize)]
struct RawVersions {
    #[serde(default, rename = "supportedVersions")]
    supported: Vec<String>,
}

#[derive(Deserialize)]
struct RawError {
    #[serde(default)]
    code: u32,
    #[serde(default)]
    msg: String,
    #[serde(default)]
    details: String,
}

impl<'a> Ipam<'a> {
    /// Finds the plugin. If it does not support the configuration's version, the newest common one
    /// is used.
    pub(super) fn find(config: &'a Config, environment: &'a Environment) -> Result<Self, CniError> {
        let kind = &config.ipam_type;
        let program = environment.path.iter().map(|folder| folder.join(kind)).find(|p| p.is_file());
        let program = program.ok_or_else(|| {
            let folders: Vec<_> =
                environment.path.iter().map(|f| f.display().to_string()).collect();
            let folders = folders.join(":");
            CniError::new(
                Code::Config,
                format!("IPAM plugin {kind} is not in CNI_PATH '{folders}'"),
            )
        })?;
        let mut ipam = Self { config, program, version: config.version };
        // Plugins as distributions ship them often end at 1.0.0.
        if config.version > Version::V1_0_0 {
            ipam.version = ipam.common_version()?;
        }
        Ok(ipam)
    }

    /// ADD. If it fails, DEL is called, as the specification asks of the caller.
    pub(super) fn add(&self) -> Result<Allocation, CniError> {
        let added = self.call("ADD", None).and_then(|answer| self.allocation(&answer));
        added.map_err(|error| match self.del() {
            Ok(()) => error,
            Err(second) => {
                let message = format!("{}; undoing it failed: {}", error.message, second.message);
                CniError { message, ..error }
            }
        })
    }

    /// DEL; addresses that are not held are no error.
    pub(super) fn del(&self) -> Result<(), CniError> {
        self.call("DEL", None).map(drop)
    }

    /// DEL for an attachment that the runtime no longer lists.
    pub(super) fn del_forgotten(&self, attachment: &Attachment) -> Result<(), CniError> {
        self.call("DEL", Some(attachment)).map(drop)
    }

    /// CHECK.
    pub(super) fn check(&self) -> Result<(), CniError> {
        self.call("CHECK", None).map(drop)
    }

    /// STATUS, if the plugin is new enough to know it.
    pub(super) fn status(&self) -> Result<(), CniError> {
        if self.version < Version::V1_1_0 { Ok(()) } else { self.call("STATUS", None).map(drop) }
    }

    /// GC, if the plugin is new enough to know it.
    pub(super) fn collect(&self) -> Result<(), CniError> {
        if self.version < Version::V1_1_0 { Ok(()) } else { self.call("GC", None).map(drop) }
    }

    fn common_version(&self) -> Result<Version, CniError> {
        let answer = self.call("VERSION", None)?;
        let versions: RawVersions = self.read(&answer)?;
        version::common(self.config.version, &versions.supported).ok_or_else(|| {
            let known = versions.supported.join(", ");
            let message = format!("IPAM plugin {} speaks only {known}", self.config.ipam_type);
            CniError::new(Code::Version, message)
        })
    }

    fn call(&self, command: &str, other: Option<&Attachment>) -> Result<Vec<u8>, CniError> {
        let failed = |error: std::io::Error| {
            let late = error.kind() == std::io::ErrorKind::TimedOut;
            let code = if late { Code::TryLater } else { Code::Io };
            let program = self.program.display();
            CniError::new(code, format!("run IPAM plugin {program} {command}: {error}"))
        };
        let timeout = self.config.timeout;
        let patience = if command == "ADD" { timeout } else { timeout.max(SHORTEST) };
        let mut input = self.config.whole.clone();
        input.insert("cniVersion".to_owned(), json!(self.version.as_str()));
        let mut process = std::process::Command::new(&self.program);
        process.env("CNI_COMMAND", command);
        // An IPAM plugin that does not know the pod's name must ignore it.
        let arguments = std::env::var("CNI_ARGS").unwrap_or_default();
        process.env("CNI_ARGS", format!("IgnoreUnknown=1;{arguments}").trim_end_matches(';'));
        if let Some(Attachment { container_id, interface }) = other {
            process.env("CNI_CONTAINERID", container_id).env("CNI_IFNAME", interface);
            process.env_remove("CNI_NETNS");
        }
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = process.spawn().map_err(failed)?;
        let input = Value::Object(input).to_string();
        let answer = converse(&mut child, input.as_bytes(), patience);
        // Kills a plugin that has not ended by itself.
        let killed = child.kill();
        let status = killed.and_then(|()| child.wait()).map_err(failed)?;
        let answer = answer.map_err(failed)?;
        if status.success() {
            return Ok(answer);
        }
        let error: RawError = serde_json::from_slice(&answer).unwrap_or(RawError {
            code: Code::Io as u32,
            msg: format!("{status}, without an error object"),
            details: String::new(),
        });
        let details = if error.details.is_empty() { "" } else { "; " };
        let message = format!(
            "IPAM plugin {} {command}: {}{details}{}",
            self.config.ipam_type, error.msg, error.details
        );
        Err(CniError { code: error.code.max(1), message })
    }

    fn allocation(&self, answer: &[u8]) -> Result<Allocation, CniError> {
        let raw: RawAllocation = self.read(answer)?;
        let addresses: Vec<IpAddr> = raw.ips.iter().map(|ip| ip.address.addr()).collect();
        if addresses.is_empty() {
            let message = format!("IPAM plugin {} gave no address", self.config.ipam_type);
            return Err(CniError::new(Code::Config, message));
        }
        let empty = |dns: &Value| dns.as_object().is_none_or(serde_json::Map::is_empty);
        let dns = if empty(&raw.dns) { self.config.dns.clone() } else { raw.dns };
        Ok(Allocation { addresses, dns })
    }

    fn read<T: serde::de::DeserializeOwned>(&self, answer: &[u8]) -> Result<T, CniError> {
        serde_json::from_slice(answer).map_err(|error| {
            let message = format!("answer of IPAM plugin {}: {error}", self.config.ipam_type);
            CniError::new(Code::Decode, message)
        })
    }
}

/// Writes a program's input and reads its output to the end.
fn converse(child: &mut Child, input: &[u8], patience: Duration) -> std::io::Result<Vec<u8>> {
    let deadline = Instant::now() + patience;
    let (mut to, from) = (child.stdin.take(), child.stdout.take());
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut answer = Vec::new();
        let read = match from {
            Some(from) => from.take(ANSWER_BYTES).read_to_end(&mut answer),
            None => Ok(0),
        };
        // The receiver may have given up after the deadline.
        let _late = sender.send(read.map(|_| answer));
    });
    let input = input.to_owned();
    std::thread::spawn(move || {
        // A plugin that does not read its configuration to the end reports that itself.
        let _unread = to.as_mut().map(|to| to.write_all(&input));
    });
    let late =
        || std::io::Error::new(std::io::ErrorKind::TimedOut, format!("no end after {patience:?}"));
    let answer = receiver.recv_timeout(patience).map_err(|_| late())??;
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            return Err(late());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(answer)
}
