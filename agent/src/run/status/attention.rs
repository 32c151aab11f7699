//! Lists what needs attention, the most urgent first.

use cli_runtime::counted;

use super::Status;
use super::not_enforced::ENFORCING;

/// Reasons shown of the drops.
const MOST_REASONS: usize = 5;
/// Pods named in one line.
const MOST_PODS: usize = 5;

impl Status {
    /// One line each; empty if nothing needs attention.
    pub fn attention(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.contradictions.iter().map(ToString::to_string).collect();
        lines.extend(self.problems.iter().cloned());
        if !self.ready && self.healthy {
            lines.push("not ready: pods cannot be attached".to_owned());
        }
        let in_memory = self.in_memory.iter();
        lines.extend(in_memory.map(|(part, why)| format!("{part} in memory only: {why}")));
        lines.extend(self.source.troubles());
        let down = self.ports.iter().filter(|port| port.is_down());
        lines.extend(down.map(|port| format!("port {} is down: {}", port.name, port.mode)));
        let closed = self.ports.iter().filter(|port| port.id.is_some() && port.closed);
        let closed: Vec<&str> = closed.map(|port| port.name.as_str()).collect();
        if !closed.is_empty() {
            lines.push(format!("closed, since their objects are not known: {}", list(&closed)));
        }
        lines.extend(self.waiting.iter().map(|it| format!("{} waits for {}", it.pod, it.reason)));
        if !self.faults.is_empty() {
            let faults = counted(self.faults.len(), "fault");
            lines.push(format!("{faults} in objects, the first: {}", self.faults[0]));
        }
        let kernel = self.kernel.iter().filter(|it| !ENFORCING.contains(&it.part.as_str()));
        let failed = kernel.filter_map(|it| Some((&it.part, it.error.as_ref()?)));
        lines.extend(failed.map(|(part, error)| format!("kernel's {part}: {error}")));
        let not_ended = self.socket_policies.not_ended.iter();
        lines.extend(not_ended.map(|why| format!("socket policies: {why}")));
        let sessions = &self.sessions;
        // From here on a pod that has its share opens connections in the place of its own.
        if sessions.used >= sessions.capacity / 2 {
            let (used, capacity) = (sessions.used, sessions.capacity);
            let advice = "raise the option sessions: the next start makes the table larger and ends no connection";
            lines.push(format!("{used} of {capacity} sessions are in use ({advice})"));
        }
        let mut drops: Vec<(&String, &u64)> = self.drops_last_minute.iter().collect();
        drops.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        if !drops.is_empty() {
            let shown = drops.iter().take(MOST_REASONS).map(|(name, n)| format!("{name} {n}"));
            let shown: Vec<String> = shown.collect();
            let more = drops.len().saturating_sub(MOST_REASONS);
            let more = if more == 0 { String::new() } else { format!(", {more} more reasons") };
            lines.push(format!("drops of the last minute: {}{more}", shown.join(", ")));
        }
        lines
    }
}

fn list(names: &[&str]) -> String {
    let shown = names[..names.len().min(MOST_PODS)].join(", ");
    match names.len().saturating_sub(MOST_PODS) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::list;

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(list(&["a", "b"]), "a, b");
        assert_eq!(list(&["a", "b", "c", "d", "e", "f", "g"]), "a, b, c, d, e and 2 more");
    }
}
