//! Workloads of pods, known by the labels that their controllers set.

/// The kinds of workloads.
pub(super) const KINDS: [&str; 6] =
    ["CronJob", "DaemonSet", "Deployment", "Job", "Pod", "StatefulSet"];

/// Owner of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload<'a> {
    /// Its kind, such as `Deployment`.
    pub kind: &'static str,
    /// Its name.
    pub name: &'a str,
}

/// The workload of the pod with this name and these labels, by their keys; a pod whose labels tell none is its own.
pub fn workload<'a>(pod: &'a str, label: impl Fn(&str) -> Option<&'a str>) -> Workload<'a> {
    let of = |kind, name| Workload { kind, name };
    let alone = of("Pod", pod);
    if let Some(job) = label("batch.kubernetes.io/job-name").or_else(|| label("job-name")) {
        // A CronJob adds the minute of the start.
        let is_minute = |it: &str| it.len() >= 8 && it.bytes().all(|byte| byte.is_ascii_digit());
        return match job.rsplit_once('-') {
            Some((cron_job, minute)) if is_minute(minute) => of("CronJob", cron_job),
            _ => of("Job", job),
        };
    }
    // The last part of the name is made by the controller.
    let Some((owner, _)) = pod.rsplit_once('-') else { return alone };
    if let Some(hash) = label("pod-template-hash") {
        let deployment = owner.strip_suffix(hash).and_then(|it| it.strip_suffix('-'));
        return deployment.map_or(alone, |name| of("Deployment", name));
    }
    match (label("statefulset.kubernetes.io/pod-name"), label("controller-revision-hash")) {
        (Some(_), _) => of("StatefulSet", owner),
        (None, Some(_)) => of("DaemonSet", owner),
        (None, None) => alone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_known_by_their_labels() {
        let of = |pod: &'static str, labels: &[(&str, &'static str)]| {
            let label = |wanted: &str| {
                labels.iter().find(|(key, _)| *key == wanted).map(|(_, value)| *value)
            };
            let Workload { kind, name } = workload(pod, label);
            format!("{kind}/{name}")
        };
        assert_eq!(of("web-5d4f9-x7k2p", &[("pod-template-hash", "5d4f9")]), "Deployment/web");
        assert_eq!(of("agent-x7k2p", &[("controller-revision-hash", "77")]), "DaemonSet/agent");
        let of_set =
            [("statefulset.kubernetes.io/pod-name", "db-0"), ("controller-revision-hash", "db-7")];
        assert_eq!(of("db-0", &of_set), "StatefulSet/db");
        assert_eq!(of("migrate-x7k2p", &[("job-name", "migrate")]), "Job/migrate");
        let of_minute = [("batch.kubernetes.io/job-name", "report-29384756")];
        assert_eq!(of("report-29384756-x7k2p", &of_minute), "CronJob/report");
        assert_eq!(of("alone", &[("app", "alone")]), "Pod/alone");
        assert_eq!(of("odd", &[("pod-template-hash", "5d4f9")]), "Pod/odd");
        assert_eq!(of("web-x7k2p", &[("pod-template-hash", "5d4f9")]), "Pod/web-x7k2p");
    }
}
