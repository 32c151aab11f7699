//! The connections that each policy must allow or deny.

use super::Row;
use super::node::{NODE, Node, PORTS};
use super::probe::{Family, Live, connects_tcp, connects_udp};

const NONE: &str = "none";
const INGRESS: &str = "server takes client on TCP 8080";
const EGRESS: &str = "and client opens nothing";
const REMOVED: &str = "none again";

const INGRESS_POLICY: &str = "
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{protocol: TCP, port: 8080}]
";
const EGRESS_POLICY: &str = "
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress: []
";

pub(super) fn run(node: &mut Node) -> Result<Vec<Row>, String> {
    let mut rows = Rows { rows: Vec::new() };
    let server = node.address("server", Family::V4)?;
    let live = node.inside("other", || Live::open(server, PORTS[0]))?;
    let live = live.map_err(|error| format!("other to server:{}: {error}", PORTS[0]))?;
    for family in Family::ALL {
        rows.tcp(node, NONE, ("client", "server"), family, PORTS[0], true)?;
        rows.tcp(node, NONE, ("other", "server"), family, PORTS[1], true)?;
        rows.udp(node, NONE, ("client", "server"), family, true)?;
        rows.tcp(node, NONE, (NODE, "server"), family, PORTS[0], true)?;
    }
    node.apply("ingress", Some(INGRESS_POLICY))?;
    rows.live(INGRESS, live);
    for family in Family::ALL {
        rows.tcp(node, INGRESS, ("client", "server"), family, PORTS[0], true)?;
        rows.tcp(node, INGRESS, ("client", "server"), family, PORTS[1], false)?;
        rows.tcp(node, INGRESS, ("other", "server"), family, PORTS[0], false)?;
        rows.udp(node, INGRESS, ("client", "server"), family, false)?;
        rows.tcp(node, INGRESS, ("server", "other"), family, PORTS[0], true)?;
        // A cluster node reaches its own pods, whatever their policies say.
        rows.tcp(node, INGRESS, (NODE, "server"), family, PORTS[0], true)?;
    }
    node.apply("egress", Some(EGRESS_POLICY))?;
    for family in Family::ALL {
        rows.tcp(node, EGRESS, ("client", "server"), family, PORTS[0], false)?;
        rows.tcp(node, EGRESS, ("client", "other"), family, PORTS[0], false)?;
        rows.tcp(node, EGRESS, ("other", "client"), family, PORTS[0], true)?;
    }
    node.apply("ingress", None)?;
    node.apply("egress", None)?;
    for family in Family::ALL {
        rows.tcp(node, REMOVED, ("client", "server"), family, PORTS[0], true)?;
        rows.tcp(node, REMOVED, ("other", "server"), family, PORTS[0], true)?;
    }
    Ok(rows.rows)
}

struct Rows {
    rows: Vec<Row>,
}

type Ends = (&'static str, &'static str);

impl Rows {
    fn tcp(
        &mut self,
        node: &Node,
        policies: &'static str,
        ends: Ends,
        family: Family,
        port: u16,
        expected: bool,
    ) -> Result<(), String> {
        let address = node.address(ends.1, family)?;
        let began = std::time::Instant::now();
        let found = node.inside(ends.0, || connects_tcp(address, port))?;
        self.add(policies, ends, ("TCP", family, port), (expected, found), began);
        Ok(())
    }

    fn udp(
        &mut self,
        node: &Node,
        policies: &'static str,
        ends: Ends,
        family: Family,
        expected: bool,
    ) -> Result<(), String> {
        let address = node.address(ends.1, family)?;
        let began = std::time::Instant::now();
        let found = node.inside(ends.0, || connects_udp(address, PORTS[0]))?;
        self.add(policies, ends, ("UDP", family, PORTS[0]), (expected, found), began);
        Ok(())
    }

    /// A connection that was open before the policy which denies it.
    fn live(&mut self, policies: &'static str, live: Live) {
        let began = std::time::Instant::now();
        let found = live.answers();
        let what = ("TCP live", Family::V4, PORTS[0]);
        self.add(policies, ("other", "server"), what, (false, found), began);
    }

    fn add(
        &mut self,
        policies: &'static str,
        (from, to): Ends,
        (protocol, family, port): (&'static str, Family, u16),
        (expected, found): (bool, bool),
        began: std::time::Instant,
    ) {
        let word = |connects| if connects { "connects" } else { "blocked" };
        self.rows.push(Row {
            policies,
            from,
            to,
            protocol,
            family: family.name(),
            port,
            expected: word(expected),
            found: word(found),
            milliseconds: began.elapsed().as_millis(),
        });
    }
}
