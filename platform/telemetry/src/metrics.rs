//! Metrics as text.

use prometheus::core::Collector;
use prometheus::{Encoder, GaugeVec, IntCounterVec, Opts, Registry, TextEncoder};

/// A registry's metrics in the text format of Prometheus, version 0.0.4.
pub trait Text {
    /// The families that have a sample.
    fn text(&self) -> String;
}

impl Text for Registry {
    fn text(&self) -> String {
        let mut text = Vec::new();
        // Writing to memory does not fail, and every family that is gathered is well-formed.
        let _ = TextEncoder::new().encode(&self.gather(), &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// A page of metrics whose values are read elsewhere at each scrape.
#[derive(Debug)]
pub struct Scrape {
    registry: Registry,
    prefix: &'static str,
}

impl Scrape {
    /// An empty page; each name gets `prefix` and an underscore before it.
    pub fn new(prefix: &'static str) -> Self {
        Self { registry: Registry::new(), prefix }
    }

    /// A family of counters with these labels.
    pub fn counter(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        let family = IntCounterVec::new(self.options(name, help), labels);
        self.add(family.expect("a family's name and labels are constants"))
    }

    /// A family of gauges with these labels.
    pub fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        let family = GaugeVec::new(self.options(name, help), labels);
        self.add(family.expect("a family's name and labels are constants"))
    }

    /// A family that is kept elsewhere, under the whole name it has there.
    pub fn keep<C: Collector + Clone + 'static>(&self, family: &C) {
        self.add(family.clone());
    }

    fn options(&self, name: &str, help: &str) -> Opts {
        Opts::new(name, help).namespace(self.prefix)
    }

    fn add<C: Collector + Clone + 'static>(&self, family: C) -> C {
        let added = self.registry.register(Box::new(family.clone()));
        added.expect("a family's name is used once");
        family
    }

    /// The page.
    pub fn text(&self) -> String {
        self.registry.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format() {
        let scrape = Scrape::new("podgate");
        scrape.counter("a_total", "Things.", &[]).with_label_values::<&str>(&[]).inc_by(1);
        let family = scrape.gauge("b", "Other things", &["x", "y"]);
        family.with_label_values(&["a\"b\\c\nd", "2"]).set(3.5);
        scrape.gauge("unused", "Nothing has this.", &["x"]);
        let wanted = "# HELP podgate_a_total Things.\n# TYPE podgate_a_total counter\n\
                      podgate_a_total 1\n# HELP podgate_b Other things\n# TYPE podgate_b gauge\n\
                      podgate_b{x=\"a\\\"b\\\\c\\nd\",y=\"2\"} 3.5\n";
        assert_eq!(scrape.text(), wanted);
    }
}
