//! `/healthz`, `/readyz` and `/metrics` of the switch.

mod metrics;

use std::sync::Arc;

use telemetry::{Page, Pages};

use crate::run::SharedStatus;

/// The pages about a switch.
pub(crate) struct Health(pub(crate) Arc<SharedStatus>);

impl Pages for Health {
    fn page(&self, path: &str, _query: &str) -> Option<Page> {
        let shared = &self.0;
        let unhealthy =
            || Some(shared.unhealthy_reasons().join("\n")).filter(|text| !text.is_empty());
        let answer = |fault: Option<String>| match fault {
            None => Page::new(200, "ok\n"),
            Some(text) => Page::new(503, text + "\n"),
        };
        match path {
            "/healthz" => Some(answer(unhealthy())),
            "/readyz" => Some(answer(unhealthy().or_else(|| shared.unready().map(str::to_owned)))),
            "/metrics" => Some(Page::new(200, metrics::text(shared))),
            "/" => Some(Page::new(200, "/healthz\n/readyz\n/metrics\n")),
            _ => None,
        }
    }
}
