//! The session rules of local pods, for `podgate show session-rules`.

use std::sync::mpsc::{Sender, channel};

use control::{PodKey, SessionRules};
use serde_json::Value;
use session_rules::{Action, End, Ports, Rule, Scope, Transport};

use super::Event;
use super::show::Table;
use local_api::{ApiError, ErrorKind};

/// Rules shown at most.
const MOST: usize = 100_000;

/// The rules of one pod (`ns/pod`, or `pod` in namespace `default`), or of all local ones.
///
/// # Errors
/// `not-found` for a pod that has no tables here, `bad-request` for too many rules.
pub(crate) fn table(events: &Sender<Event>, pod: Option<&str>) -> Result<Table, ApiError> {
    let key = pod.map(|text| {
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        PodKey { namespace: namespace.into(), name: name.into() }
    });
    let (reply, answer) = channel();
    let ending = || ApiError::new(ErrorKind::NotReady, "podgate is ending");
    events.send(Event::SessionRules(key.clone(), reply)).map_err(|_| ending())?;
    match (answer.recv().map_err(|_| ending())?, key) {
        (Some(rules), _) => in_table(&rules),
        (None, key) => {
            let key = key.map(|key| key.to_string()).unwrap_or_default();
            let text = format!(
                "pod {} has no tables here: it is not known, not on this cluster node, has no \
                 address, has finished or is on the host network",
                key.escape_debug()
            );
            Err(ApiError::new(ErrorKind::NotFound, text))
        }
    }
}

fn in_table(rules: &SessionRules) -> Result<Table, ApiError> {
    let mut table = Table::new(&[
        "pod",
        "scope",
        "transport",
        "local",
        "remote",
        "remote-port",
        "local-port",
        "action",
    ]);
    for (pod, rule) in rules.of_pods() {
        if table.rows.len() == MOST {
            let text = format!("there are more than {MOST} session rules: name a pod");
            return Err(ApiError::new(ErrorKind::BadRequest, text));
        }
        table.add(row(pod, &rule));
    }
    Ok(table)
}

fn row(pod: &PodKey, rule: &Rule) -> Vec<Value> {
    let net = |end: &End| end.net.map_or_else(|| "any".to_owned(), |net| net.to_string());
    let ports = |end: &End| match end.ports {
        Ports::ANY => "any".to_owned(),
        Ports { first, last } if first == last => first.to_string(),
        Ports { first, last } => format!("{first}-{last}"),
    };
    let scope = match rule.scope {
        Scope::Local(_) => "local",
        Scope::Global => "global",
    };
    let transport = match rule.transport {
        Transport::Tcp => "TCP",
        Transport::Udp => "UDP",
    };
    let action = match rule.action {
        Action::Allow => "allow".to_owned(),
        Action::Deny => "deny".to_owned(),
        Action::DoNothing => "do-nothing".to_owned(),
        Action::Redirect(index) => format!("redirect {index}"),
    };
    let (local, remote) = (&rule.local, &rule.remote);
    vec![
        pod.to_string().into(),
        scope.into(),
        transport.into(),
        net(local).into(),
        net(remote).into(),
        ports(remote).into(),
        ports(local).into(),
        action.into(),
    ]
}
