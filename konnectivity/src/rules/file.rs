//! Rules that somebody wrote.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use ipnet::IpNet;
use serde::Deserialize;
use session_rules::{Action, End, Ports, Rule, Scope, Table, Transport};

/// Rules out of a file, read again when it changes.
#[derive(Debug)]
pub(super) struct FileRules {
    path: PathBuf,
    state: Mutex<State>,
    generation: AtomicU64,
}

#[derive(Debug)]
struct State {
    table: Arc<Table>,
    modified: Option<SystemTime>,
    looked: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    rules: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    tag: String,
    #[serde(default)]
    local: Option<String>,
    #[serde(default)]
    ports: Option<PortsText>,
    #[serde(default)]
    remote: Option<String>,
    action: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PortsText {
    One(u16),
    Range(String),
}

/// Between two looks at the file.
const LOOK_MILLIS: u64 = 1_000;

impl FileRules {
    /// Reads the file.
    ///
    /// # Errors
    /// Names file, rule and field.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let modified = modified(path);
        let table = Arc::new(read(path)?);
        let state = State { table, modified, looked: http2::millis() };
        Ok(Self { path: path.to_owned(), state: Mutex::new(state), generation: AtomicU64::new(0) })
    }

    /// Grows with each change that was read.
    pub(super) fn generation(&self) -> u64 {
        self.current();
        self.generation.load(Ordering::Relaxed)
    }

    /// The table, read anew if the file has changed. A file with a fault changes nothing.
    pub(super) fn current(&self) -> Arc<Table> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = http2::millis();
        if now.saturating_sub(state.looked) >= LOOK_MILLIS {
            state.looked = now;
            let modified = modified(&self.path);
            if modified != state.modified {
                state.modified = modified;
                match read(&self.path) {
                    Ok(table) => {
                        state.table = Arc::new(table);
                        self.generation.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => tracing::error!("{error}; the rules before stay in force"),
                }
            }
        }
        Arc::clone(&state.table)
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|it| it.modified()).ok()
}

fn read(path: &Path) -> Result<Table, String> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
    let document: Document = serde_saphyr::from_str(&text).map_err(|error| named(&error))?;
    let rules = document.rules.iter().enumerate().map(|(at, entry)| {
        entry.rule().map_err(|error| named(&format!("rules[{at}] ({}): {error}", entry.tag)))
    });
    Ok(Table::compile(rules.collect::<Result<_, _>>()?))
}

impl Entry {
    fn rule(&self) -> Result<Rule, String> {
        let action = match self.action.as_str() {
            "allow" => Action::Allow,
            "deny" => Action::Deny,
            "do-nothing" => Action::DoNothing,
            other => return Err(format!("action: '{other}' is not allow, deny or do-nothing")),
        };
        Ok(Rule {
            scope: Scope::Global,
            transport: Transport::Tcp,
            local: End { net: net("local", self.local.as_deref())?, ports: self.ports()? },
            remote: End { net: net("remote", self.remote.as_deref())?, ports: Ports::ANY },
            action,
            tag: self.tag.as_str().into(),
        })
    }

    fn ports(&self) -> Result<Ports, String> {
        let text = match &self.ports {
            None => return Ok(Ports::ANY),
            Some(PortsText::One(port)) => return Ok(Ports::one(*port)),
            Some(PortsText::Range(text)) => text,
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(Ports { first, last }),
            _ => Err(format!("ports: '{text}' is no port and no range like 1000-2000")),
        }
    }
}

fn net(field: &str, text: Option<&str>) -> Result<Option<IpNet>, String> {
    let Some(text) = text else { return Ok(None) };
    let address = text.parse::<IpAddr>().map(IpNet::from).ok();
    let net = text.parse::<IpNet>().ok().or(address);
    net.map(Some).ok_or_else(|| format!("{field}: '{text}' is no network and no address"))
}
