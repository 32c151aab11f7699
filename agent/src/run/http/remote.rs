//! The pages for clients elsewhere: metrics for a scraper, and what `kubectl podgate` shows. All of
//! them only read.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | as on the loopback address |
//! | `/podgate/v1/status` | [`Status`] |
//! | `/podgate/v1/tables?pod=NS/POD` | the rules in force for a pod |
//! | `/podgate/v1/staged` | connections that staged policies would deny or allow |
//! | `/podgate/v1/policies?policy=[NS/]NAME` | the policies, and what is in force of them |
//! | `/podgate/v1/observe?filters=JSON` | verdicts, one a line |
//! | `/podgate/v1/journal?since=TIME` | rows of the journal, one a line |
//!
//! A scraper's token comes as `Authorization: Bearer` and is one for the API server. The API
//! server's proxy takes that header for itself: `kubectl podgate` sends a token of audience
//! [`audience`] in [`telemetry::FORWARDED`], which no API server accepts.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::time::Duration;

use control::api_server::{Access as ApiAccess, Review, Reviewer, connect};
use local_api::ObserveFilters;
use observe::journal::{Row, files_since, is_since, read_file};
use observe::time::moment;
use observe::verdicts::{Filter, Observer};
use serde_json::{Value, json};
use telemetry::{Access, Answer, Authorize, Credential, Feed, Lines, Page, Pages};
use tokio::sync::OnceCell;

use super::SwitchPages;
use crate::run::events::{Event, keep_labels};
use crate::run::journal::Journal;
use crate::run::shared_status::SharedStatus;
use crate::run::show::{policies, staged, tables_of};
use crate::run::status::Status;

/// The audience of forwarded tokens for the switch of a node. What one switch is shown no other one
/// takes: a node that was taken over reads nothing elsewhere.
pub fn audience(node: &str) -> String {
    format!("podgate/{node}")
}
/// The folder of the pages.
pub const FOLDER: &str = "/podgate/v1/";

/// Interval at which a silent feed checks for the end of its client.
const IDLE: Duration = Duration::from_millis(500);

/// The pages about a switch.
pub(in crate::run) struct Remote {
    shared: Arc<SharedStatus>,
    events: Sender<Event>,
    own: SwitchPages,
}

impl Remote {
    /// Serves the switch whose control loop receives `events`.
    pub(in crate::run) fn new(shared: &Arc<SharedStatus>, events: &Sender<Event>) -> Self {
        let (own, events) = (SwitchPages::new(shared, events), events.clone());
        Self { shared: Arc::clone(shared), events, own }
    }
}

impl Pages for Remote {
    fn page(&self, path: &str, query: &str) -> Option<Page> {
        if matches!(path, "/metrics" | "/healthz" | "/readyz") {
            return self.own.page(path, query);
        }
        match path.strip_prefix(FOLDER)? {
            "status" => Some(as_json(&Status::of(&self.shared))),
            "tables" => {
                let pod = parameter(query, "pod");
                Some(as_json(&tables_of(&self.shared.state().rules, pod.as_deref())))
            }
            "policies" => {
                let mut table = policies(&self.shared);
                if let (Some(name), Some(column)) =
                    (parameter(query, "policy"), table.column("policy"))
                {
                    let is = |it: &str| {
                        it == name || it.split_once('/').is_some_and(|(_, it)| it == name)
                    };
                    let is_meant = |row: &Vec<Value>| row[column].as_str().is_some_and(is);
                    table.rows.retain(is_meant);
                }
                Some(as_json(&table))
            }
            "staged" => Some(match staged(&self.shared) {
                Ok(table) => as_json(&table),
                Err(refused) => Page::new(404, refused.message + "\n"),
            }),
            _ => None,
        }
    }

    fn feed(&self, path: &str, query: &str) -> Option<Result<Feed, Page>> {
        match path.strip_prefix(FOLDER)? {
            "observe" => {}
            "journal" => return Some(self.journal(query)),
            _ => return None,
        }
        let filters = parameter(query, "filters").unwrap_or_else(|| "{}".to_owned());
        let refused = |what: String| Page::new(400, what + "\n");
        let filter = serde_json::from_str::<ObserveFilters>(&filters)
            .map_err(|error| refused(format!("filters: {error}")))
            .and_then(|it| Filter::new(it).map_err(|error| refused(error.message)));
        let (shared, events) = (Arc::clone(&self.shared), self.events.clone());
        Some(filter.map(|filter| {
            Box::new(move |client: &Lines| {
                if filter.needs_labels() {
                    keep_labels(&events);
                }
                stream(&shared.broker.observe(filter), client);
            }) as Feed
        }))
    }
}

impl Remote {
    /// Rows of the journal.
    fn journal(&self, query: &str) -> Result<Feed, Page> {
        let refused = |code: u16, what: String| Page::new(code, what + "\n");
        let Some(journal) = Journal::of(&self.shared.config) else {
            return Err(refused(404, "podgate runs without --journal".to_owned()));
        };
        let since = parameter(query, "since").map(|text| moment(&text).ok_or(text)).transpose();
        let since = since.map_err(|text| refused(400, format!("since: {text}: is no time")))?;
        let files = files_since(&journal.folder, since);
        let files = files.map_err(|error| refused(500, format!("journal: {error}")))?;
        Ok(Box::new(move |client: &Lines| {
            for path in files {
                // The oldest hours may go meanwhile.
                let Ok(file) = read_file(&path) else { continue };
                let rows = file.rows.iter().filter(|row| is_since(row.last, since));
                let rows: Vec<&Row> = rows.collect();
                for rows in rows.chunks(256) {
                    let lines = rows.iter().filter_map(|row| serde_json::to_string(row).ok());
                    if !client.send(lines.map(|line| line + "\n").collect()) {
                        return;
                    }
                }
                if file.head.left_out > 0
                    && !client.send(format!("{}\n", json!({ "lost": file.head.left_out })))
                {
                    return;
                }
            }
        }))
    }
}

/// Sends verdicts until there are no more or the client is gone.
fn stream(observer: &Observer, client: &Lines) {
    loop {
        let event = match observer.events.recv_timeout(IDLE) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) if !client.is_closed() => continue,
            Err(_) => return,
        };
        let mut text = String::new();
        for event in std::iter::once(event).chain(observer.events.try_iter().take(255)) {
            if let Ok(line) = serde_json::to_string(&*event) {
                text += &line;
                text.push('\n');
            }
        }
        match observer.take_lost() {
            0 => {}
            lost => text += &format!("{}\n", json!({ "lost": lost })),
        }
        if !client.send(text) {
            return;
        }
    }
}

fn as_json(value: &impl serde::Serialize) -> Page {
    match serde_json::to_string(value) {
        Ok(text) => Page::json(text + "\n"),
        Err(error) => Page::new(500, format!("{error}\n")),
    }
}

/// A parameter of a query, decoded (RFC 3986, section 2.1).
fn parameter(query: &str, name: &str) -> Option<String> {
    let mut all = query.split('&').filter_map(|it| it.split_once('='));
    let (_, text) = all.find(|(key, _)| *key == name)?;
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Admits clients that the API server authenticates and authorizes.
pub(in crate::run) struct Reviews {
    access: ApiAccess,
    /// Of forwarded tokens.
    audience: String,
    reviewer: OnceCell<Reviewer>,
}

impl Reviews {
    pub(in crate::run) fn new(access: ApiAccess, node: &str) -> Self {
        Self { access, audience: audience(node), reviewer: OnceCell::new() }
    }
}

impl Authorize for Reviews {
    fn authorize(&self, credential: Credential, path: String) -> Answer<'_> {
        Box::pin(async move {
            // A client belongs to the runtime that makes it.
            let connect = async || connect(&self.access).await.map(|it| Reviewer::new(it.client));
            let reviewer = match self.reviewer.get_or_try_init(connect).await {
                Ok(reviewer) => reviewer,
                Err(error) => return Access::Unavailable(error.to_string()),
            };
            let (token, audience) = match &credential {
                Credential::Bearer(token) => (token, None),
                Credential::Forwarded(token) => (token, Some(&*self.audience)),
            };
            match reviewer.review(token, audience, &path).await {
                Review::Granted(user) => {
                    tracing::debug!("https: {user} reads {path}");
                    Access::Granted
                }
                Review::Unauthenticated(why) => Access::Unauthenticated(why),
                Review::Denied(why) => Access::Denied(why),
                Review::Unavailable(why) => Access::Unavailable(why),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let query = "a=1&pod=default%2Fdb&text=x+y%7B";
        assert_eq!(parameter(query, "pod").as_deref(), Some("default/db"));
        assert_eq!(parameter(query, "text").as_deref(), Some("x y{"));
        for (query, name) in [("", "a"), ("a=%4", "a"), ("a=%zz", "a"), ("a=%ff", "a")] {
            assert_eq!(parameter(query, name), None, "{query}");
        }
    }
}
