//! Rules from a file.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use serde::Deserialize;
use session_rules::{Action, End, Ports, Rule, Scope, Table, Transport};

use telemetry::Reloaded;

/// Rules from a file, read again when it changes.
#[derive(Debug)]
pub(super) struct FileRules(Reloaded<Table>);

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

impl FileRules {
    /// Reads the file.
    ///
    /// # Errors
    /// Names file, rule and field.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let file = path.to_owned();
        Reloaded::new("session rules", [path.to_owned()], move || read(&file)).map(Self)
    }

    /// Grows with each change that was read.
    pub(super) fn generation(&self) -> u64 {
        self.0.generation()
    }

    /// The table as the file is now. A file with a fault changes nothing.
    pub(super) fn current(&self) -> Arc<Table> {
        self.0.current()
    }
}

fn read(path: &Path) -> Result<Table, String> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
    parse(&text).map(Table::compile).map_err(|error| named(&error))
}

/// Reads the text of a rule file.
///
/// # Errors
/// Names the rule and its field.
pub fn parse(text: &str) -> Result<Vec<Rule>, String> {
    let document: Document = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let rules = document.rules.iter().enumerate().map(|(at, entry)| {
        entry.rule().map_err(|error| format!("rules[{at}] ({}): {error}", entry.tag))
    });
    rules.collect()
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
            _ => Err(format!("ports: '{text}' is neither a port nor a range like 1000-2000")),
        }
    }
}

fn net(field: &str, text: Option<&str>) -> Result<Option<IpNet>, String> {
    let Some(text) = text else { return Ok(None) };
    let address = text.parse::<IpAddr>().map(IpNet::from).ok();
    let net = text.parse::<IpNet>().ok().or(address);
    net.map(Some).ok_or_else(|| format!("{field}: '{text}' is neither a network nor an address"))
}
