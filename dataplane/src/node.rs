//! The graph as a value: its nodes, and those that each may send packets to.

use std::fmt::Write;

macro_rules! nodes {
    ($($(#[doc = $doc:literal])* $node:ident $name:literal to [$($next:ident),*],)*) => {
        /// Number of nodes.
        pub const NODES: usize = [$($name,)*].len();

        /// A stage of the graph.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Node {
            $($(#[doc = $doc])* $node,)*
        }

        impl Node {
            /// All nodes, each before those it sends packets to.
            pub const ALL: [Self; NODES] = [$(Self::$node,)*];

            /// The name used in every output.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$node => $name,)* }
            }

            /// The nodes that it may send packets to.
            pub const fn next(self) -> &'static [Self] {
                match self { $(Self::$node => &[$(Self::$next,)*],)* }
            }
        }
    };
}

nodes! {
    /// Checks the headers.
    Parse "parse" to [Neighbour, AntiSpoofing, Decapsulate],
    /// Answers ARP and neighbour solicitations.
    Neighbour "neighbour" to [],
    /// Holds ports to their own addresses.
    AntiSpoofing "anti-spoofing" to [Session, Reassembly, IcmpError],
    /// Takes packets out of tunnels, and holds tunnels to the addresses behind them.
    Decapsulate "decapsulate" to [Session, Reassembly, IcmpError],
    /// Finds the connection a packet belongs to.
    Session "session" to [Service, Policy, Rewrite, IcmpError],
    /// Gives connections to services a backend.
    Service "service" to [Policy, IcmpError],
    /// Routes and classifies packets that open a connection.
    Policy "policy" to [Open, Rewrite, IcmpError],
    /// Makes sessions of connections that may be opened.
    Open "open" to [Rewrite],
    /// Finds the connection of later fragments through their first.
    Reassembly "reassembly" to [Rewrite, Hold],
    /// Prepares a packet for its way out.
    Rewrite "rewrite" to [IcmpError, Dns, Encapsulate],
    /// Generates ICMP errors and resets.
    IcmpError "icmp-error" to [Encapsulate],
    /// Copies the DNS of pods that follow domain names.
    Dns "dns" to [Encapsulate, Hold],
    /// Puts packets into tunnels.
    Encapsulate "encapsulate" to [],
    /// Holds later fragments until their first is known, and answers until their addresses are in
    /// force.
    Hold "hold" to [],
}

/// The graph in Graphviz' language.
pub fn draw() -> String {
    let mut text = String::from("digraph podgate {\n  rankdir=LR;\n");
    for node in Node::ALL {
        for next in node.next() {
            writeln!(text, "  {} -> {};", node.name(), next.name()).expect("a string grows");
        }
    }
    text + "}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_send_packets_forward_only() {
        for node in Node::ALL {
            assert!(node.next().iter().all(|next| *next as u8 > node as u8), "{}", node.name());
        }
    }

    #[test]
    fn the_graph_can_be_drawn() {
        assert!(draw().contains("session -> rewrite;"));
    }
}
