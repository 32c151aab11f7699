//! `/healthz`, `/readyz` and `/metrics` of the switch, where it is wanted the page for browsers, and
//! pages for clients elsewhere.

mod metrics;
mod page;
mod remote;

use std::sync::Arc;
use std::sync::mpsc::Sender;

use telemetry::{Page, Pages};

use crate::run::events::Event;
use crate::run::shared_status::SharedStatus;
use crate::run::status::NotEnforced;
use page::LivePage;

pub use remote::{FOLDER, audience};
pub(in crate::run) use remote::{Remote, Reviews};

/// The pages about a switch.
pub(in crate::run) struct SwitchPages {
    shared: Arc<SharedStatus>,
    live: Option<LivePage>,
}

impl SwitchPages {
    /// Serves the switch whose control loop receives `events`.
    pub(in crate::run) fn new(shared: &Arc<SharedStatus>, events: &Sender<Event>) -> Self {
        let live = || LivePage::new(Arc::clone(shared), events.clone());
        Self { shared: Arc::clone(shared), live: shared.config.web_page.then(live) }
    }
}

impl Pages for SwitchPages {
    fn is_called(&self, name: &str, path: &str) -> bool {
        // A probe learns nothing that is worth a name.
        matches!(path, "/healthz" | "/readyz")
            || self.shared.config.listen_names.iter().any(|it| it.eq_ignore_ascii_case(name))
    }

    fn page(&self, path: &str, _query: &str) -> Option<Page> {
        let shared = &self.shared;
        let health = |unready: Option<&'static str>, is_readiness: bool| {
            let found = NotEnforced::all(shared);
            let of_rules = found.iter().filter(|it| is_readiness && it.is_failure());
            let mut faults: Vec<String> =
                shared.unhealthy_reasons().into_iter().map(str::to_owned).collect();
            faults.extend(unready.filter(|_| faults.is_empty()).map(str::to_owned));
            faults.extend(of_rules.map(ToString::to_string));
            if !faults.is_empty() {
                return Page::new(503, faults.join("\n") + "\n");
            }
            let notes = found.iter().map(|it| format!("not enforced: {it}\n"));
            Page::new(200, "ok\n".to_owned() + &notes.collect::<String>())
        };
        match path {
            "/healthz" => Some(health(None, false)),
            "/readyz" => Some(health(shared.unready(), true)),
            "/metrics" => Some(Page::new(200, metrics::text(shared))),
            "/" => {
                let page = if self.live.is_some() { "/page\n" } else { "" };
                Some(Page::new(200, format!("/healthz\n/readyz\n/metrics\n{page}")))
            }
            path => self.live.as_ref()?.page(path),
        }
    }
}
