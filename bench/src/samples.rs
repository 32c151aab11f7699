//! Samples with their spread.

use std::fmt;

/// Repeated measurements of one figure.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// None yet.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds one measurement.
    pub fn add(&mut self, value: f64) {
        let place = self.0.partition_point(|other| *other < value);
        self.0.insert(place, value);
    }

    /// Adds one measurement, out of order; [`Self::sorted`] follows before anything is read.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The same, in order.
    #[must_use]
    pub fn sorted(self) -> Self {
        self.0.into_iter().collect()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The middle one; 0 if there is none.
    pub fn median(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(0.0)
    }

    /// The value below which this share of the measurements lies; 0 if there is none.
    pub fn quantile(&self, share: f64) -> f64 {
        let place = (self.0.len() as f64 * share) as usize;
        self.0.get(place.min(self.0.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }

    /// The smallest.
    pub fn least(&self) -> f64 {
        self.0.first().copied().unwrap_or(0.0)
    }

    /// The largest.
    pub fn most(&self) -> f64 {
        self.0.last().copied().unwrap_or(0.0)
    }
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2}–{:.2})", self.median(), self.least(), self.most())
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_a_median_with_its_spread() {
        let mut samples = Samples::default();
        [3.0, 1.0, 2.0].into_iter().for_each(|value| samples.add(value));
        assert_eq!(samples.to_string(), "2.00 (1.00–3.00)");
        let many: Samples = (0..1000).rev().map(f64::from).collect();
        assert_eq!((many.quantile(0.5), many.quantile(0.99), many.most()), (500.0, 990.0, 999.0));
    }
}
