//! Tools for the authors of policies: test, compare, check.
//!
//! - [`suite`] and [`run`]: cases with selectors, and whether they hold; [`mixed`]: with statements among them,
//! - [`diff`]: the connections that differ between two versions,
//! - [`schema`]: JSON Schema of the files that are read,
//! - [`explain`] and `closest`: why a connection may be opened or not,
//! - [`lint`]: mistakes in manifests; `labels` holds selectors against pods,
//! - [`flows`]: connections that were observed; `hubble`: those of Hubble,
//! - [`list`]: every allowed connection,
//! - [`picture`]: what policies allow, drawn; [`live`]: the same of a running switch,
//! - [`suggest`]: policies out of observed connections,
//! - [`prove`]: statements about them, proved or refuted,
//! - [`representatives`]: pods that could exist, one a class; `possible`: names and the API server,
//! - [`matrix`]: decisions about pairs of addresses, many at a time.

mod changed;
mod closest;
pub mod diff;
pub mod explain;
pub mod flows;
pub(crate) mod hubble;
mod labels;
pub mod lint;
pub mod list;
pub mod live;
pub mod matrix;
pub mod mixed;
pub mod picture;
mod possible;
pub mod prove;
pub mod representatives;
pub mod run;
pub mod schema;
pub mod suggest;
pub mod suite;

/// Text between tags or quotes of XML, which knows no control characters.
pub(crate) fn xml(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\n' => safe += "&#10;",
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}
