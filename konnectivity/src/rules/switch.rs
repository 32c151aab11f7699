//! The switch's rules: its policies for connections of this node's pods.
//!
//! A thread receives them over the switch's unix socket. Until the first have arrived, every dial
//! is denied; while the switch does not answer, the last ones stay in force.

use std::collections::HashMap;
use std::error::Error;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use local_api::{Client, Request, SessionRuleStep};
use session_rules::{Change, Installed, Rule, Services, Table};

use super::Unknown;

/// Rules that the switch sends.
#[derive(Debug)]
pub(super) struct SwitchRules {
    socket: PathBuf,
    known: Mutex<Option<Arc<Known>>>,
    generation: AtomicU64,
}

/// Pods of this node by address.
type Pods = HashMap<IpAddr, Arc<str>>;

/// The rules of one moment.
#[derive(Debug)]
pub(super) struct Known {
    /// Tags name policies.
    pub(super) table: Table,
    /// Pods of this node by address.
    pub(super) pods: Pods,
    /// Translations of the node.
    pub(super) services: Services,
}

/// Timeout of connecting to the switch.
const CONNECT: Duration = Duration::from_secs(5);
/// Pause before reconnecting to the switch.
const RETRY: Duration = Duration::from_millis(500);

impl SwitchRules {
    /// Receives the rules of the switch that listens at `socket`, until the result is dropped.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub(super) fn follow(socket: &Path) -> std::io::Result<Arc<Self>> {
        let rules = Arc::new(Self {
            socket: socket.to_owned(),
            known: Mutex::default(),
            generation: AtomicU64::new(0),
        });
        let (weak, socket) = (Arc::downgrade(&rules), socket.to_owned());
        let thread = std::thread::Builder::new().name("session-rules".into());
        thread.spawn(move || run(&weak, &socket))?;
        Ok(rules)
    }

    /// The rules in force.
    ///
    /// # Errors
    /// Before the first have arrived.
    pub(super) fn known(&self) -> Result<Arc<Known>, Unknown> {
        self.lock().clone().ok_or_else(|| Unknown(self.socket.clone()))
    }

    /// Grows with each change.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Known>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, mirror: &Mirror, pods: Pods) {
        let rules = mirror.rules();
        tracing::info!("{} session rules of {} are in force", rules.len(), self.socket.display());
        let (table, services) = (Table::compile(rules), mirror.services.clone());
        *self.lock() = Some(Arc::new(Known { table, pods, services }));
        self.generation.fetch_add(1, Ordering::Relaxed);
    }
}

/// Receives rules until they are dropped.
fn run(rules: &Weak<SwitchRules>, socket: &Path) {
    let mut reported = String::new();
    while rules.strong_count() > 0 {
        let error = match follow(rules, socket) {
            Ok(()) => "the stream ended".to_owned(),
            Err(error) => error.to_string(),
        };
        if error != reported {
            tracing::warn!("session rules: {error}; those known stay in force");
            reported = error;
        }
        std::thread::sleep(RETRY);
    }
}

fn follow(rules: &Weak<SwitchRules>, socket: &Path) -> Result<(), Box<dyn Error>> {
    let client = Client::connect(socket, CONNECT)?;
    let mut mirror = Mirror::default();
    for step in client.stream(&Request::FollowSessionRules)? {
        let step: SessionRuleStep =
            serde_json::from_value(step?).map_err(|error| format!("step: {error}"))?;
        let pods = mirror.apply(step)?;
        let Some(rules) = rules.upgrade() else { return Ok(()) };
        if let Some(pods) = pods {
            rules.publish(&mirror, pods);
        }
    }
    Ok(())
}

/// The switch's rules received so far.
#[derive(Debug, Default)]
struct Mirror {
    installed: Installed,
    /// The policies behind each tag.
    by: HashMap<Arc<str>, Arc<str>>,
    services: Services,
}

impl Mirror {
    /// Applies one step; returns the pods by address, if it completes a change.
    fn apply(&mut self, step: SessionRuleStep) -> Result<Option<Pods>, Box<dyn Error>> {
        for tag in step.delete {
            let tag: Arc<str> = tag.into();
            self.by.remove(&tag);
            self.installed.apply(Change::Delete(tag))?;
        }
        for sent in step.add {
            let rule = sent.rule()?;
            self.by.insert(Arc::clone(&rule.tag), sent.by.into());
            self.installed.apply(Change::Add(rule))?;
        }
        for sent in step.services {
            let (at, transport) = (sent.at, sent.transport.into());
            self.services.set(at, transport, sent.service());
        }
        Ok(step.pods.map(|pods| {
            let of_pod = |(pod, addresses): (String, Vec<IpAddr>)| {
                let pod: Arc<str> = pod.into();
                addresses.into_iter().map(move |address| (address, Arc::clone(&pod)))
            };
            pods.into_iter().flat_map(of_pod).collect()
        }))
    }

    /// The rules, tagged with their policies.
    fn rules(&self) -> Vec<Rule> {
        let mut rules = self.installed.dump();
        for rule in &mut rules {
            if let Some(by) = self.by.get(&rule.tag) {
                rule.tag = Arc::clone(by);
            }
        }
        rules
    }
}
