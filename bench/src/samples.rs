//! Samples with their spread, and the rounds in which they are taken.

use std::error::Error;
use std::fmt;

/// Repeated measurements of one figure, in the order of the rounds.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// None yet.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds one measurement; not a number, if this way has no such figure.
    pub fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The middle one; 0 if there is none.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The value below which this share of the measurements lies; 0 if there is none.
    pub fn quantile(&self, share: f64) -> f64 {
        let place = ((self.0.len() as f64 * share) as usize).min(self.0.len().saturating_sub(1));
        let mut values = self.0.clone();
        match values.is_empty() {
            true => 0.0,
            false => *values.select_nth_unstable_by(place, f64::total_cmp).1,
        }
    }

    /// The ratios to another way's figures in the same rounds.
    #[must_use]
    pub fn over(&self, other: &Self) -> Self {
        self.0.iter().zip(&other.0).map(|(own, other)| own / other).collect()
    }

    /// A line of a table: median, p99 and the most, with so many digits behind the point.
    pub fn tail(&self, what: impl Into<String>, digits: usize) -> Vec<String> {
        let figures = [0.5, 0.99, 1.0].map(|share| format!("{:.digits$}", self.quantile(share)));
        std::iter::once(what.into()).chain(figures).collect()
    }
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() || self.median().is_nan() {
            return f.write_str("–");
        }
        let [median, least, most] = [0.5, 0.0, 1.0].map(|share| self.quantile(share));
        write!(f, "{median:.2} ({least:.2}–{most:.2})")
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl Extend<f64> for Samples {
    fn extend<I: IntoIterator<Item = f64>>(&mut self, values: I) {
        self.0.extend(values);
    }
}

/// Measures every way once in each round; `measure` gets the place of a way among the names. Returns the
/// figures of each way.
///
/// # Errors
/// If the first way fails. Another one that fails loses its figures, and says why.
pub fn in_turns<const N: usize>(
    rounds: usize,
    names: &[impl AsRef<str>],
    mut measure: impl FnMut(usize) -> Result<[f64; N], Box<dyn Error>>,
) -> Result<Vec<[Samples; N]>, Box<dyn Error>> {
    let mut all = vec![Some([const { Samples::new() }; N]); names.len()];
    for round in 1..=rounds {
        for (way, (name, place)) in names.iter().zip(&mut all).enumerate() {
            let (name, Some(figures)) = (name.as_ref(), place.as_mut()) else { continue };
            eprintln!("round {round} of {rounds}: {name}");
            match measure(way) {
                Ok(values) => figures.iter_mut().zip(values).for_each(|(it, value)| it.add(value)),
                Err(error) if way == 0 => return Err(error),
                Err(error) => {
                    eprintln!("{name} is left out: {error}");
                    *place = None;
                }
            }
        }
    }
    Ok(all.into_iter().map(|it| it.unwrap_or([const { Samples::new() }; N])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_a_median_with_its_spread() {
        let samples: Samples = [3.0, 1.0, 2.0].into_iter().collect();
        assert_eq!(samples.to_string(), "2.00 (1.00–3.00)");
        let many: Samples = (0..1000).rev().map(f64::from).collect();
        let shares = [0.5, 0.99, 1.0].map(|share| many.quantile(share));
        assert_eq!(shares, [500.0, 990.0, 999.0]);
        assert_eq!(samples.over(&samples).to_string(), "1.00 (1.00–1.00)");
        assert_eq!(Samples::new().to_string(), "–");
    }

    #[test]
    fn a_way_that_fails_loses_its_figures() {
        let mut round = 0;
        let all = in_turns(2, &["one", "other"], |way| {
            round += usize::from(way == 0);
            match (way, round) {
                (1, 2) => Err("it fails in the second round".into()),
                _ => Ok([round as f64]),
            }
        });
        let all = all.unwrap();
        assert_eq!(
            (all[0][0].to_string().as_str(), all[1][0].to_string().as_str()),
            ("2.00 (1.00–2.00)", "–")
        );
    }
}
