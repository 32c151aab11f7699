//! Reads and checks the runtime's variables, which become interface names, paths and parts of
//! requests.

use std::fmt;
use std::path::PathBuf;

use super::error::{CniError, Code};
use super::version::Version;
use linux_net::valid_name;
use local_api::Attachment;

/// The command (`CNI_COMMAND`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Add,
    Del,
    Check,
    Status,
    Gc,
    Version,
}

/// The checked `CNI_…` variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Environment {
    pub command: Command,
    /// The container and the name its interface has or gets
    /// (`CNI_CONTAINERID`, `CNI_IFNAME`); none for STATUS and GC.
    pub attachment: Option<Attachment>,
    /// The container's network namespace (`CNI_NETNS`); DEL may come without.
    pub netns: Option<PathBuf>,
    /// The pod (`CNI_ARGS`); present for ADD and CHECK.
    pub pod: Option<PodName>,
    /// Folders with other plugins (`CNI_PATH`).
    pub path: Vec<PathBuf>,
}

/// A pod as the runtime names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodName {
    pub namespace: String,
    pub name: String,
    pub uid: Option<String>,
}

/// The attachment becomes part of an interface's alias, at most 255 bytes together.
pub(super) const CONTAINER_ID_BYTES: usize = 128;

impl Command {
    /// The version of the specification that introduced it.
    pub(super) fn since(self) -> Version {
        match self {
            Self::Add | Self::Del | Self::Version => Version::V0_3_1,
            Self::Check => Version::V0_4_0,
            Self::Status | Self::Gc => Version::V1_1_0,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Status => "STATUS",
            Self::Gc => "GC",
            Self::Version => "VERSION",
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Reads `CNI_COMMAND`.
pub(super) fn command(variable: &impl Fn(&str) -> Option<String>) -> Result<Command, CniError> {
    let text = required(variable, "CNI_COMMAND")?;
    let all = [
        Command::Add,
        Command::Del,
        Command::Check,
        Command::Status,
        Command::Gc,
        Command::Version,
    ];
    all.into_iter().find(|command| command.as_str() == text).ok_or_else(|| {
        let names = all.map(Command::as_str).join(", ");
        refuse("CNI_COMMAND", &text, &format!("expected one of {names}"))
    })
}

impl Environment {
    /// Reads what `command` needs.
    pub(super) fn read(
        command: Command,
        variable: &impl Fn(&str) -> Option<String>,
    ) -> Result<Self, CniError> {
        let about_one = matches!(command, Command::Add | Command::Del | Command::Check);
        let about_a_pod = matches!(command, Command::Add | Command::Check);
        let path = variable("CNI_PATH").unwrap_or_default();
        Ok(Self {
            command,
            attachment: about_one.then(|| attachment(variable)).transpose()?,
            netns: if about_one { netns(variable, about_a_pod)? } else { None },
            pod: about_a_pod.then(|| pod(variable)).transpose()?,
            path: std::env::split_paths(&path).filter(|folder| folder.is_absolute()).collect(),
        })
    }

    /// Returns the attachment, for commands that need one.
    pub(super) fn attachment(&self) -> Result<&Attachment, CniError> {
        let missing = || CniError::new(Code::Environment, "CNI_CONTAINERID is not set");
        self.attachment.as_ref().ok_or_else(missing)
    }

    /// Returns the pod and its namespace's path, for commands that need them.
    pub(super) fn pod(&self) -> Result<(&PodName, &PathBuf), CniError> {
        let missing = || CniError::new(Code::Environment, "CNI_ARGS or CNI_NETNS is not set");
        self.pod.as_ref().zip(self.netns.as_ref()).ok_or_else(missing)
    }
}

fn attachment(variable: &impl Fn(&str) -> Option<String>) -> Result<Attachment, CniError> {
    let container_id = required(variable, "CNI_CONTAINERID")?;
    if container_id.len() > CONTAINER_ID_BYTES || !identifier(&container_id) {
        let why = format!(
            "expected at most {CONTAINER_ID_BYTES} letters, digits, '_', '.' and '-', \
             the first a letter or digit"
        );
        return Err(refuse("CNI_CONTAINERID", &container_id, &why));
    }
    let interface = required(variable, "CNI_IFNAME")?;
    if !valid_name(&interface) {
        return Err(refuse("CNI_IFNAME", &interface, "it is not a valid interface name"));
    }
    Ok(Attachment { container_id, interface })
}

fn netns(
    variable: &impl Fn(&str) -> Option<String>,
    needed: bool,
) -> Result<Option<PathBuf>, CniError> {
    let text = variable("CNI_NETNS").unwrap_or_default();
    if text.is_empty() {
        let missing = CniError::new(Code::Environment, "CNI_NETNS is not set");
        return if needed { Err(missing) } else { Ok(None) };
    }
    let path = PathBuf::from(&text);
    if !path.is_absolute() {
        return Err(refuse("CNI_NETNS", &text, "expected an absolute path"));
    }
    Ok(Some(path))
}

/// Reads the pod from `CNI_ARGS`: `KEY=VALUE;KEY=VALUE`, in which keys not
/// known here are refused unless `IgnoreUnknown` is set.
fn pod(variable: &impl Fn(&str) -> Option<String>) -> Result<PodName, CniError> {
    let text = variable("CNI_ARGS").unwrap_or_default();
    let (mut namespace, mut name, mut uid) = (None, None, None);
    let mut ignore_unknown = false;
    let mut unknown = None;
    for pair in text.split(';').filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(refuse("CNI_ARGS", pair, "expected KEY=VALUE"));
        };
        match key {
            "K8S_POD_NAMESPACE" => namespace = Some(value),
            "K8S_POD_NAME" => name = Some(value),
            "K8S_POD_UID" if !value.is_empty() => uid = Some(value),
            "K8S_POD_UID" | "K8S_POD_INFRA_CONTAINER_ID" => {}
            "IgnoreUnknown" => {
                ignore_unknown = matches!(value, "1" | "t" | "T" | "true" | "True" | "TRUE");
            }
            other => unknown = Some(other),
        }
    }
    if let Some(key) = unknown.filter(|_| !ignore_unknown) {
        return Err(refuse("CNI_ARGS", key, "no such key is known (and IgnoreUnknown is not set)"));
    }
    let given = |key: &str, value: Option<&str>, most: usize, dots: bool| match value {
        Some(value) if kubernetes_name(value, most, dots) => Ok(value.to_owned()),
        Some(value) => {
            Err(refuse(&format!("CNI_ARGS {key}"), value, "it is not a Kubernetes name"))
        }
        None => Err(CniError::new(Code::Environment, format!("CNI_ARGS has no {key}"))),
    };
    if let Some(uid) = uid.filter(|uid| uid.len() > 128 || !identifier(uid)) {
        return Err(refuse("CNI_ARGS K8S_POD_UID", uid, "it is not an identifier"));
    }
    Ok(PodName {
        namespace: given("K8S_POD_NAMESPACE", namespace, 63, false)?,
        name: given("K8S_POD_NAME", name, 253, true)?,
        uid: uid.map(str::to_owned),
    })
}

/// The specification's form of container ids and network names.
pub(super) fn identifier(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphanumeric())
        && bytes.all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'-'))
}

/// A label of RFC 1123, or labels joined by dots.
fn kubernetes_name(text: &str, most: usize, dots: bool) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
    };
    text.len() <= most && if dots { text.split('.').all(label) } else { label(text) }
}

fn required(variable: &impl Fn(&str) -> Option<String>, name: &str) -> Result<String, CniError> {
    variable(name)
        .filter(|text| !text.is_empty())
        .ok_or_else(|| CniError::new(Code::Environment, format!("{name} is not set")))
}

fn refuse(name: &str, value: &str, why: &str) -> CniError {
    let value: String = value.chars().take(80).collect();
    CniError::new(Code::Environment, format!("{name} '{}': {why}", value.escape_debug()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn read(command: Command, changes: &[(&str, &str)]) -> Result<Environment, CniError> {
        let mut variables = HashMap::from([
            ("CNI_CONTAINERID", "c1"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/run/netns/c1"),
            ("CNI_PATH", "/opt/cni/bin:relative:/usr/lib/cni"),
            ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=db-0.x;FOO=bar"),
        ]);
        variables.extend(changes.iter().copied());
        Environment::read(command, &|name: &str| variables.get(name).map(ToString::to_string))
    }

    #[test]
    fn what_a_runtime_says() {
        let read = read(Command::Add, &[]).unwrap();
        assert_eq!(read.pod.unwrap().to_string(), "default/db-0.x");
        assert_eq!(read.attachment.unwrap().interface, "eth0");
        let path: Vec<PathBuf> = vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()];
        assert_eq!(read.path, path);
    }

    #[test]
    fn deleting_needs_neither_namespace_nor_pod() {
        let read = read(Command::Del, &[("CNI_NETNS", ""), ("CNI_ARGS", "garbage")]).unwrap();
        assert_eq!((read.netns, read.pod), (None, None));
    }

    #[test]
    fn hostile_values_are_refused_by_name() {
        let long = "a".repeat(CONTAINER_ID_BYTES + 1);
        let cases = [
            ("CNI_CONTAINERID", ""),
            ("CNI_CONTAINERID", "../../x"),
            ("CNI_CONTAINERID", "-x"),
            ("CNI_CONTAINERID", long.as_str()),
            ("CNI_IFNAME", "0123456789abcdef"),
            ("CNI_IFNAME", "eth0/.."),
            ("CNI_IFNAME", "a b"),
            ("CNI_NETNS", ""),
            ("CNI_NETNS", "relative"),
            ("CNI_ARGS", ""),
            ("CNI_ARGS", "K8S_POD_NAMESPACE"),
            ("CNI_ARGS", "K8S_POD_NAMESPACE=default"),
            ("CNI_ARGS", "K8S_POD_NAME=db"),
            ("CNI_ARGS", "K8S_POD_NAMESPACE=a.b;K8S_POD_NAME=db"),
            ("CNI_ARGS", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=../db"),
            ("CNI_ARGS", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=d\nb"),
            ("CNI_ARGS", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=db;FOO=bar"),
            ("CNI_ARGS", "IgnoreUnknown=0;K8S_POD_NAMESPACE=a;K8S_POD_NAME=db;FOO=bar"),
            ("CNI_ARGS", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=db;K8S_POD_UID=/"),
        ];
        for (name, value) in cases {
            let error = read(Command::Add, &[(name, value)]).unwrap_err();
            assert_eq!(error.code, Code::Environment as u32, "{name}={value}");
            assert!(error.message.starts_with(name), "{name}={value}: {}", error.message);
            assert!(!error.message.contains('\n'), "{name}={value}: {}", error.message);
        }
    }

    #[test]
    fn commands() {
        let told = |text: &'static str| command(&move |_: &str| Some(text.to_owned()));
        assert_eq!(told("GC").unwrap(), Command::Gc);
        assert!(told("add").unwrap_err().message.contains("ADD, DEL"));
        assert!(command(&|_: &str| None).unwrap_err().message.contains("not set"));
    }
}
