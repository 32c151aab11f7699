//! Pictures as a self-contained page.
//!
//! The page has several drawings, of which it shows one: all namespaces collapsed, each namespace
//! expanded with what it is connected with, and everything where that is not too much. The title of a
//! namespace leads to the drawing where it is expanded, or collapsed again. This works without scripts;
//! `page.js` adds the search, the filter, zoom, and marks the edges of the node under the pointer.
//!
//! The page of a running switch adds tables, and a script (`live.js`) that fetches the switch's
//! verdicts and draws them over the picture.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{Edge, Node, NodeKind, Picture, title, xml};

const STYLE: &str = "\
body{font:14px system-ui,sans-serif;margin:16px;color:#1e293b}\
nav{display:flex;flex-wrap:wrap;gap:4px 12px;max-height:5.5em;overflow:auto}\
.controls{display:flex;flex-wrap:wrap;gap:8px;margin:12px 0}\
section{display:none;overflow:auto;border:1px solid #cbd5e1;margin:12px 0}\
section:target{display:block;outline:none}body:not(:has(section:target)) section.first{display:block}\
.marked .edge{opacity:.08}.marked .edge.edge.on{opacity:1;stroke-width:2.4}.found .node{stroke:#2563eb;stroke-width:3}\
[data-verdict=allowed] :is(path.denied,.live.drop,tr.denied,tr.drop){display:none}\
[data-verdict=denied] :is(.edge:not(.denied),.live.forward,tr.allowed,tr.forward){display:none}\
table{border-collapse:collapse}td,th{padding:2px 10px;text-align:left;border-bottom:1px solid #e2e8f0}\
tr.denied td{color:#dc2626}summary{cursor:pointer}#missing:empty{display:none}\
@media (max-width:640px){body{margin:8px}table{display:block;overflow-x:auto}#find{width:100%}}\
@media (prefers-color-scheme:dark){body{background:#0f172a;color:#e2e8f0}section{background:#fff}a{color:#93c5fd}\
td,th{border-color:#334155}tr.denied td{color:#f87171}}";

const CONTROLS: &str = "\
<div class=\"controls\"><input id=\"find\" list=\"names\" size=\"32\" placeholder=\"Find a part of NAMESPACE/WORKLOAD\" \
aria-label=\"Find a workload\"><select id=\"verdict\" aria-label=\"Verdicts shown\"><option value=\"\">Allowed and denied</option><option value=\"allowed\">Allowed</option>\
<option value=\"denied\">Denied</option></select>\
<button type=\"button\" id=\"in\" aria-label=\"Zoom in\">+</button>\
<button type=\"button\" id=\"out\" aria-label=\"Zoom out\">\u{2212}</button>\
<button type=\"button\" id=\"fit\">Fit</button></div>\n<p id=\"missing\" role=\"status\"></p>\n";
const SCRIPT: &str = include_str!("page.js");

/// A picture of more nodes is shown collapsed at first.
const MOST: usize = 40;
/// One of more nodes is not drawn whole.
const MOST_WHOLE: usize = 300;

const LIVE_STYLE: &str = "\
.live{fill:none;pointer-events:stroke}.live.forward{stroke:#16a34a}.live.drop{stroke:#dc2626;stroke-dasharray:6 4}\
.live.traced{stroke:#2563eb;stroke-linecap:round;opacity:.3}\
tbody tr.drop td{color:#dc2626}tbody tr.chosen td{background:#dbeafe;color:#1e293b}tr[tabindex]{cursor:pointer}\
#banner:not(:empty){background:#fef3c7;color:#1e293b;border:1px solid #d97706;padding:8px 12px;margin:12px 0;white-space:pre-line}\
.columns{display:flex;gap:48px;flex-wrap:wrap;align-items:start}ol{flex:1 1 320px;margin:0}li.drop b{color:#dc2626}li.forward b{color:#16a34a}";
const LIVE_STATE: &str = include_str!("live.html");
const LIVE_TABLES: &str = include_str!("tables.html");
const LIVE_SCRIPT: &str = include_str!("live.js");

impl Picture {
    /// Renders a page.
    pub fn html(&self) -> String {
        self.page(None)
    }

    /// Renders the page of a running switch, which fetches its verdicts; by `drawing`, the picture's number, the page
    /// notices a newer one.
    pub(crate) fn live_html(&self, drawing: u64) -> String {
        self.page(Some(drawing))
    }

    fn page(&self, live: Option<u64>) -> String {
        let namespaces = self.namespaces();
        let is_whole = self.nodes.len() <= MOST_WHOLE;
        let (style, drawing) = match live {
            Some(drawing) => (LIVE_STYLE, format!(" data-drawing=\"{drawing}\"")),
            None => ("", String::new()),
        };
        let mut text = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
             <title>What policies allow</title>\n<style>{STYLE}{style}</style>\n</head>\n\
             <body{drawing}>\n<h1>What policies allow</h1>\n"
        );
        if live.is_some() {
            text += LIVE_STATE;
        }
        text += "<nav><a href=\"#overview\">Overview</a>";
        if is_whole {
            text += "<a href=\"#everything\">Everything</a>";
        }
        for space in &namespaces {
            let _ = write!(text, "<a href=\"#ns-{0}\">{0}</a>", xml(space));
        }
        text += "</nav>\n";
        text += CONTROLS;
        self.names(&mut text);
        let is_small = self.nodes.len() <= MOST;
        let mut section = |id: &str, prefix: &str, is_first: bool, expanded: &BTreeSet<String>| {
            let rest = namespaces.difference(expanded).cloned().collect();
            let link = |space: &str| match expanded.contains(space) {
                _ if !namespaces.contains(space) => None,
                true => Some("#overview".to_owned()),
                false => Some(format!("#ns-{space}")),
            };
            let mut drawing = self.collapsed(&rest);
            if let (Some(alone), 1) = (expanded.first(), expanded.len()) {
                drawing = drawing.around(alone);
            }
            let drawing = drawing.drawn(prefix, &link);
            let class = if is_first { " class=\"first\"" } else { "" };
            let _ = writeln!(text, "<section id=\"{}\"{class}>\n{drawing}</section>", xml(id));
        };
        if is_whole {
            section("everything", "e", is_small, &namespaces);
        }
        section("overview", "o", !is_small, &BTreeSet::new());
        for (n, space) in namespaces.iter().enumerate() {
            let alone = BTreeSet::from([space.clone()]);
            section(&format!("ns-{space}"), &format!("n{n}-"), false, &alone);
        }
        if live.is_some() {
            text += LIVE_TABLES;
        }
        self.tables(&mut text);
        let script = if live.is_some() { LIVE_SCRIPT } else { "" };
        let _ = writeln!(text, "<script>{SCRIPT}\n{script}</script>\n</body>\n</html>");
        text
    }

    /// The names that the search completes.
    fn names(&self, text: &mut String) {
        *text += "<datalist id=\"names\">";
        let workloads = self.nodes.iter().filter(|it| matches!(it.kind, NodeKind::Workload { .. }));
        for place in workloads.filter_map(Node::place) {
            let _ = write!(text, "<option value=\"{}\">", xml(&place));
        }
        *text += "</datalist>\n";
    }

    /// Renders lists: for each namespace the sources that reach its workloads.
    fn tables(&self, text: &mut String) {
        *text += "<h2>As a list</h2>\n";
        for (group, nodes) in self.groups() {
            let edges: Vec<&Edge> =
                self.edges.iter().filter(|edge| nodes.contains(&edge.to)).collect();
            let open: Vec<String> = nodes
                .iter()
                .filter_map(|n| {
                    let node = &self.nodes[*n];
                    node.openness().map(|note| format!("{}: {note}", node.label()))
                })
                .collect();
            if edges.is_empty() && open.is_empty() {
                continue;
            }
            let _ = writeln!(
                text,
                "<details><summary>{}</summary>\n<table>\n<tr><th>To</th><th>Ports</th>\
                 <th>From</th><th></th></tr>",
                xml(title(group))
            );
            for edge in edges {
                let (from, to) = (&self.nodes[edge.from], &self.nodes[edge.to]);
                let (class, verdict) = match edge.denied {
                    true => (" class=\"denied\"", "observed and denied"),
                    false => (" class=\"allowed\"", "allowed"),
                };
                let _ = writeln!(
                    text,
                    "<tr{class}><td>{}</td><td>{}</td><td>{}/{}</td><td>{verdict}</td></tr>",
                    xml(&to.label()),
                    xml(&edge.ports.text()),
                    xml(title(&from.group)),
                    xml(&from.label())
                );
            }
            *text += "</table>\n";
            for note in open {
                let _ = writeln!(text, "<p>{}</p>", xml(&note));
            }
            *text += "</details>\n";
        }
    }
}
