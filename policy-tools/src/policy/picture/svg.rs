//! Pictures as SVG.

use std::fmt::Write as _;

use super::layout::{Frame, HEAD, Item, Layout, MARGIN, ROW, short};
use super::route::Router;
use super::{NodeKind, Picture, xml};

/// Colours of namespaces, in turns; red is reserved for denied connections.
const COLOURS: [&str; 8] =
    ["#2563eb", "#059669", "#7c3aed", "#0891b2", "#a16207", "#db2777", "#4d7c0f", "#475569"];

/// In a drawing with more edges, those of a node stand out only under the pointer.
const MOST_EDGES: usize = 400;

const STYLE: &str = "\
text{font:12px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#1e293b}\
.bg{fill:#fff}.group{fill:#f8fafc;stroke:#cbd5e1}.title{font-weight:bold}\
.node{fill:#fff;stroke:#94a3b8}.reaching{stroke-width:4}.open{stroke:#d97706;stroke-width:2;stroke-dasharray:5 3}\
.whole{fill:#f1f5f9;stroke-dasharray:2 2}.possible{fill:#fff;stroke:#64748b;stroke-dasharray:6 3}.outside{fill:#fefce8}\
.pin{fill:#475569}.note{fill:#b45309;font-style:italic}.red{fill:#dc2626}\
.edge{fill:none;stroke-width:1.4;opacity:.75}.denied{stroke:#dc2626;stroke-dasharray:6 3;opacity:1}\
.busy .edge{opacity:.2}.dashed{stroke-dasharray:6 3}.hint{fill:#64748b}a text{fill:#2563eb}";

impl Picture {
    /// Renders SVG.
    pub fn svg(&self) -> String {
        self.drawn("p", &|_| None)
    }

    /// Renders SVG; `link` returns the target of a namespace's title. Names of markers begin with `prefix`.
    pub(super) fn drawn(&self, prefix: &str, link: &dyn Fn(&str) -> Option<String>) -> String {
        let layout = Layout::new(self);
        let Layout { width, height, .. } = layout;
        let busy = if layout.links.len() > MOST_EDGES { " class=\"busy\"" } else { "" };
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\"{busy} width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\">\n<style>{STYLE}</style>\n<defs>"
        );
        for (n, colour) in COLOURS.iter().chain(&["#dc2626"]).enumerate() {
            let _ = write!(
                text,
                "<marker id=\"{prefix}{n}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" \
                 markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
                 <path d=\"M0,0 L8,4 L0,8 z\" fill=\"{colour}\"/></marker>"
            );
        }
        let _ = writeln!(
            text,
            "</defs>\n<rect class=\"bg\" width=\"{width:.0}\" height=\"{height:.0}\"/>"
        );
        self.legend(&mut text, prefix);
        for (n, it) in layout.boxes.iter().enumerate() {
            let _ = writeln!(text, "{}", rect(it.frame, "group", 6));
            let (x, y) = (it.frame.x + MARGIN, it.frame.y + 18.0);
            let title = format!(
                "<text class=\"title\" x=\"{x:.0}\" y=\"{y:.0}\" style=\"fill:{}\">{}</text>",
                colour(n),
                xml(&it.title)
            );
            let _ = match link(&it.namespace) {
                Some(to) => writeln!(text, "<a href=\"{}\">{title}</a>", xml(&to)),
                None => writeln!(text, "{title}"),
            };
        }
        let mut router = Router::new(&layout);
        for link in &layout.links {
            let edge = &self.edges[link.edge];
            let group = layout.items[link.from].group;
            let is_possible =
                [edge.from, edge.to].iter().any(|it| self.nodes[*it].kind == NodeKind::Possible);
            let (class, stroke, marker) = match edge.denied {
                true => (" denied", String::new(), COLOURS.len()),
                false => (
                    if is_possible { " dashed" } else { "" },
                    format!(" stroke=\"{}\"", colour(group)),
                    group % COLOURS.len(),
                ),
            };
            let name = |node: usize| {
                let node = &self.nodes[node];
                format!("{}/{}", super::title(&node.group), node.label())
            };
            let verdict = if edge.denied { "denied" } else { "allowed" };
            let title = format!(
                "{} to {}: {}, {verdict}",
                name(edge.from),
                name(edge.to),
                edge.ports.text()
            );
            let _ = writeln!(
                text,
                "<path class=\"edge{class}\"{stroke} data-from=\"{}\" data-to=\"{}\" \
                 marker-end=\"url(#{prefix}{marker})\" d=\"{}\"><title>{}</title></path>",
                edge.from,
                edge.to,
                router.path(link),
                xml(&title)
            );
        }
        for item in &layout.items {
            self.draw_item(&mut text, item);
        }
        text + "</svg>\n"
    }

    fn draw_item(&self, text: &mut String, item: &Item) {
        let node = &self.nodes[item.node];
        let Frame { x, y, .. } = item.frame;
        let class = match node.kind {
            NodeKind::Workload { is_open: true, reaches_all: true, .. } => "node open reaching",
            NodeKind::Workload { is_open: true, .. } => "node open",
            NodeKind::Workload { reaches_all: true, .. } => "node reaching",
            NodeKind::WholeNamespace | NodeKind::WholeCluster => "node whole",
            NodeKind::Possible => "node possible",
            NodeKind::Outside => "node outside",
            _ => "node",
        };
        let label = node.label();
        let _ = writeln!(
            text,
            "<g data-node=\"{}\"{}><title>{}</title>{}",
            item.node,
            node.place().map_or_else(String::new, |it| format!(" data-name=\"{}\"", xml(&it))),
            xml(&format!("{}/{label}", super::title(&node.group))),
            rect(item.frame, class, 4)
        );
        let line = |text: &mut String, class: &str, x: f64, y: f64, words: &str| {
            let words = xml(&short(words));
            let _ =
                writeln!(text, "<text class=\"{class}\" x=\"{x:.0}\" y=\"{y:.0}\">{words}</text>");
        };
        line(text, "name", x + 10.0, y + 17.0, &label);
        let mut below = y + HEAD + 12.0;
        for pin in &item.pins {
            let class = if pin.denied { "pin red" } else { "pin" };
            line(text, class, x + 18.0, below, &pin.text);
            let colour = if pin.denied { "#dc2626" } else { "#94a3b8" };
            let (x, y) = (x + 10.0, below - 4.0);
            let _ =
                writeln!(text, "<circle cx=\"{x:.0}\" cy=\"{y:.0}\" r=\"3\" fill=\"{colour}\"/>");
            below += ROW;
        }
        if let Some(note) = node.openness() {
            line(text, "note", x + 10.0, below, &note);
        }
        *text += "</g>\n";
    }

    /// Draws the legend, of the marks that the picture has.
    fn legend(&self, text: &mut String, prefix: &str) {
        let has = |kind: fn(&NodeKind) -> bool| self.nodes.iter().any(|node| kind(&node.kind));
        let mut x = 30.0;
        let mut word = |text: &mut String, mark: &str, words: &str| {
            let _ = writeln!(
                text,
                "<g transform=\"translate({x:.0},14)\">{mark}<text x=\"44\" y=\"12\">{words}</text></g>"
            );
            x += 44.0 + 7.3 * words.chars().count() as f64 + 26.0;
        };
        let line = |class: &str, rest: &str| {
            format!("<path class=\"edge {class}\" {rest} d=\"M0,8 L34,8\"/>")
        };
        let allowed =
            line("", &format!("stroke=\"{}\" marker-end=\"url(#{prefix}0)\"", COLOURS[0]));
        word(text, &allowed, "allowed, to the ports where it ends");
        if has(|kind| matches!(kind, NodeKind::Workload { is_open: true, .. })) {
            let mark = "<rect class=\"node open\" y=\"1\" width=\"34\" height=\"14\" rx=\"3\"/>";
            word(text, mark, "open to every source");
        }
        if has(|kind| matches!(kind, NodeKind::Workload { reaches_all: true, .. })) {
            let mark =
                "<rect class=\"node reaching\" y=\"1\" width=\"34\" height=\"14\" rx=\"3\"/>";
            word(text, mark, "reaches every destination");
        }
        if has(|kind| *kind == NodeKind::Possible) {
            let mark =
                "<rect class=\"node possible\" y=\"1\" width=\"34\" height=\"14\" rx=\"3\"/>";
            word(text, mark, "could exist: in none of the files");
        }
        if self.edges.iter().any(|edge| edge.denied) {
            let denied = line("denied", &format!("marker-end=\"url(#{prefix}{})\"", COLOURS.len()));
            word(text, &denied, "observed and denied");
        }
        let _ = writeln!(
            text,
            "<text class=\"hint\" x=\"30\" y=\"46\">Between two ends that no policy selects \
             everything is allowed, and no edge is drawn.</text>"
        );
    }
}

fn colour(group: usize) -> &'static str {
    COLOURS[group % COLOURS.len()]
}

fn rect(frame: Frame, class: &str, round: u8) -> String {
    let Frame { x, y, width, height } = frame;
    format!(
        "<rect class=\"{class}\" x=\"{x:.0}\" y=\"{y:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" rx=\"{round}\"/>"
    )
}
