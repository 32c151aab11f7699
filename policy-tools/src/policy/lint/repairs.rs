//! Repairs of mistakes whose remedy the text itself shows.

use std::net::IpAddr;

use control::FieldFault;

use crate::input::located::{Located, Tree};

/// The remedy for a fault of a field, in words, if the value there shows it.
pub(super) fn of_fault(fault: &FieldFault, at: &Located) -> Option<String> {
    let FieldFault { field, problem } = fault;
    let last = field.rsplit('.').next().unwrap_or_default();
    let text = at.text().unwrap_or_default();
    let is_number = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
    match last {
        "port" if is_number(text) => Some(format!("write {text} without quotes")),
        "port" => {
            let (first, end) = text.split_once('-')?;
            (is_number(first) && is_number(end))
                .then(|| format!("write port: {first} and endPort: {end}"))
        }
        "cidr" => {
            let address: IpAddr = text.parse().ok()?;
            let length = if address.is_ipv4() { 32 } else { 128 };
            Some(format!("write {text}/{length} for this address alone"))
        }
        "protocol" => {
            let upper = text.to_uppercase();
            let is_known = ["TCP", "UDP", "SCTP"].contains(&upper.as_str());
            (is_known && upper != text).then(|| format!("write {upper}"))
        }
        "apiVersion" if text.starts_with("extensions/") => {
            Some("write networking.k8s.io/v1".to_owned())
        }
        _ if problem.contains("unknown field of a label selector") => {
            let value = match &at.tree {
                Tree::Scalar(value) => value.as_str().map(str::to_owned),
                _ => None,
            };
            Some(format!("labels stand below matchLabels: {{{last}: {}}}", value?))
        }
        _ => None,
    }
}

/// The remedy for text that is no YAML at a line, from 1.
pub(super) fn of_text(text: &str, line: u64) -> Option<String> {
    let at = usize::try_from(line).ok()?.checked_sub(1)?;
    let broken = text.lines().nth(at)?;
    let indent = &broken[..broken.len() - broken.trim_start().len()];
    indent.contains('\t').then(|| "the line is indented by a tab, and YAML wants spaces".to_owned())
}
