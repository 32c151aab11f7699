//! Durations of what the switch does, as histograms for `/metrics`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use telemetry::prometheus::{HistogramOpts, HistogramVec};

/// Histograms, in seconds. Cloning shares them.
#[derive(Clone, Debug)]
pub(crate) struct Durations {
    /// Attaching a pod, from the request to its answer; label `result`: `ok` or `error`.
    pub(crate) attach: HistogramVec,
    /// From taking a change to its snapshot in force on every worker.
    pub(crate) in_force: HistogramVec,
    /// From reading an answer of DNS to its release; label `opened`: whether it waited for addresses
    /// to be in force.
    pub(crate) answers: HistogramVec,
    /// From a request to the API server to the head of its response; label `kind`.
    pub(crate) api: HistogramVec,
}

impl Default for Durations {
    fn default() -> Self {
        let histogram = |name: &str, help: &str, buckets: &[f64], labels: &[&str]| {
            let options = HistogramOpts::new(name, help).namespace("podgate");
            let histogram = HistogramVec::new(options.buckets(buckets.to_vec()), labels);
            histogram.expect("names, labels and buckets are constants")
        };
        Self {
            attach: histogram(
                "attach_duration_seconds",
                "Time from a request to attach a pod to its answer.",
                &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0],
                &["result"],
            ),
            in_force: histogram(
                "change_in_force_duration_seconds",
                "Time from taking a change of the cluster or of the ports to its snapshot being \
                 in force on every worker.",
                &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0],
                &[],
            ),
            answers: histogram(
                "dns_answer_hold_duration_seconds",
                "Time that answers of DNS were held, by whether addresses had to be put in force.",
                &[0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0],
                &["opened"],
            ),
            api: histogram(
                "api_response_duration_seconds",
                "Time from a request to the API server to the head of its response.",
                &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0],
                &["kind"],
            ),
        }
    }
}

impl Durations {
    /// Observes how long an answer was held.
    pub(super) fn answers(&self, opened: bool, held: Duration) {
        let label = if opened { "yes" } else { "no" };
        self.answers.with_label_values(&[label]).observe(held.as_secs_f64());
    }
}

/// Snapshots that are published and not yet in force.
#[derive(Debug, Default)]
pub(super) struct Published(VecDeque<(u64, Instant)>);

impl Published {
    /// Notes the snapshot of `generation`, whose first change was taken at `since`.
    pub(super) fn add(&mut self, generation: u64, since: Instant) {
        self.0.push_back((generation, since));
    }

    /// Whether a snapshot is not in force yet.
    pub(super) fn is_waiting(&self) -> bool {
        !self.0.is_empty()
    }

    /// Removes the snapshots up to generation `in_force`; returns how long each took.
    pub(super) fn take(&mut self, in_force: u64) -> Vec<Duration> {
        let count = self.0.partition_point(|(generation, _)| *generation <= in_force);
        self.0.drain(..count).map(|(_, since)| since.elapsed()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_snapshot_is_measured_once() {
        let mut published = Published::default();
        let since = Instant::now() - Duration::from_millis(20);
        (3..6).for_each(|generation| published.add(generation, since));
        assert!(published.take(2).is_empty() && published.is_waiting());
        let taken = published.take(4);
        assert!(taken.len() == 2 && taken[0] >= Duration::from_millis(20), "{taken:?}");
        assert_eq!(published.take(9).len(), 1);
        assert!(!published.is_waiting() && published.take(9).is_empty());
    }
}
