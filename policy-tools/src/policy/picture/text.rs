//! Pictures in the languages of Graphviz and Mermaid.

use std::fmt::Write as _;

use super::{Edge, NodeKind, Picture, title};

impl Picture {
    /// Renders Graphviz's DOT.
    pub fn dot(&self) -> String {
        let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
        let mut text = String::from(
            "digraph policies {\n  rankdir=LR;\n  node [shape=box, fontname=\"sans-serif\"];\n  \
             edge [fontname=\"sans-serif\", fontsize=10];\n",
        );
        for (g, (group, nodes)) in self.groups().into_iter().enumerate() {
            let _ = writeln!(
                text,
                "  subgraph cluster_{g} {{\n    label=\"{}\";",
                quoted(title(group))
            );
            for n in nodes {
                let node = &self.nodes[n];
                let open = match node.kind {
                    NodeKind::Possible => ", style=dashed",
                    _ if node.openness().is_some() => ", style=dashed, color=orange",
                    _ => "",
                };
                let _ = writeln!(text, "    n{n} [label=\"{}\"{open}];", quoted(&node.label()));
            }
            text += "  }\n";
        }
        for edge in &self.edges {
            let red = if edge.denied { ", color=red, fontcolor=red, style=dashed" } else { "" };
            let Edge { from, to, .. } = edge;
            let label = quoted(&edge.ports.text());
            let _ = writeln!(text, "  n{from} -> n{to} [label=\"{label}\"{red}];");
        }
        text + "}\n"
    }

    /// Renders Mermaid.
    pub fn mermaid(&self) -> String {
        let quoted = |text: &str| text.replace('"', "#quot;");
        let mut text = String::from("flowchart LR\n");
        for (g, (group, nodes)) in self.groups().into_iter().enumerate() {
            let _ = writeln!(text, "  subgraph g{g}[\"{}\"]", quoted(title(group)));
            for n in nodes {
                let _ = writeln!(text, "    n{n}[\"{}\"]", quoted(&self.nodes[n].label()));
            }
            text += "  end\n";
        }
        let mut denied = Vec::new();
        for (n, edge) in self.edges.iter().enumerate() {
            let arrow = if edge.denied { "-.->" } else { "-->" };
            let ports = quoted(&edge.ports.text());
            let _ = writeln!(text, "  n{} {arrow}|\"{ports}\"| n{}", edge.from, edge.to);
            denied.extend(edge.denied.then(|| n.to_string()));
        }
        let mut class = |name: &str, style: &str, has: &dyn Fn(&NodeKind) -> bool| {
            let nodes = self.nodes.iter().enumerate().filter(|(_, node)| has(&node.kind));
            let nodes: Vec<String> = nodes.map(|(n, _)| format!("n{n}")).collect();
            if !nodes.is_empty() {
                let _ =
                    writeln!(text, "  classDef {name} {style}\n  class {} {name}", nodes.join(","));
            }
        };
        class("open", "stroke:#d97706,stroke-dasharray:4", &|kind| {
            matches!(kind, NodeKind::Workload { is_open: true, .. })
        });
        class("reachesAll", "stroke-width:4px", &|kind| {
            matches!(kind, NodeKind::Workload { reaches_all: true, .. })
        });
        class("possible", "stroke-dasharray:4", &|kind| *kind == NodeKind::Possible);
        if !denied.is_empty() {
            let _ = writeln!(text, "  linkStyle {} stroke:#dc2626", denied.join(","));
        }
        text
    }
}
