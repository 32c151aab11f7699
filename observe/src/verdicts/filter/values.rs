//! Values of filters: those of either end, pods, workloads, networks.

use std::fmt;
use std::net::IpAddr;

use acl::Direction;
use ipnet::IpNet;
use local_api::{AnyOf, ApiError, ErrorKind, ObserveFilters};

use crate::verdicts::workload::KINDS;
use crate::verdicts::{End, Event};

/// Values for either end, for the sending one and for the receiving one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ends<T>([AnyOf<T>; 3]);

impl<T> Ends<T> {
    /// Reads the values of three fields, with their names.
    pub(super) fn read<U>(
        fields: [(&str, &AnyOf<U>); 3],
        read: impl Fn(&str, &U) -> Result<T, ApiError>,
    ) -> Result<Self, ApiError> {
        let [either, from, to] =
            fields.map(|(field, values)| each(values, |value| read(field, value)));
        Ok(Self([either?, from?, to?]))
    }

    /// Returns whether the ends of an event match.
    pub(super) fn matches(&self, event: &Event, is: impl Fn(&T, &End) -> bool) -> bool {
        let Self([either, from, to]) = self;
        either.any(|it| is(it, &event.from) || is(it, &event.to))
            && from.any(|it| is(it, &event.from))
            && to.any(|it| is(it, &event.to))
    }

    /// All values, of either end.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flat_map(|it| &it.0)
    }
}

pub(super) fn each<T, U>(
    values: &AnyOf<U>,
    read: impl Fn(&U) -> Result<T, ApiError>,
) -> Result<AnyOf<T>, ApiError> {
    values.0.iter().map(read).collect::<Result<_, _>>().map(AnyOf)
}

/// A workload by name, of one kind or of any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OfWorkload {
    kind: Option<String>,
    name: String,
}

impl OfWorkload {
    pub(super) fn is_of(&self, end: &End) -> bool {
        end.workload().is_some_and(|own| {
            own.name == self.name
                && self.kind.as_ref().is_none_or(|kind| own.kind.eq_ignore_ascii_case(kind))
        })
    }
}

/// A pod by name, in some namespaces or in any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Empty: any namespace.
    namespaces: Vec<String>,
    name: String,
}

impl Pod {
    /// Returns whether a pod, as `ns/pod`, is this one.
    pub fn is(&self, pod: &str) -> bool {
        pod.split_once('/').is_some_and(|(namespace, name)| {
            name == self.name
                && (self.namespaces.is_empty() || self.namespaces.iter().any(|it| it == namespace))
        })
    }
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespaces[..] {
            [] => write!(f, "{} of any namespace", self.name),
            all => write!(f, "{}/{}", all.join(","), self.name),
        }
    }
}

/// An address, as a network of one, or a network.
pub fn network(text: &str) -> Option<IpNet> {
    text.parse().map(|one: IpAddr| one.into()).or_else(|_| text.parse()).ok()
}

pub(super) fn bad(field: &str, text: &str, problem: &str) -> ApiError {
    let text = text.escape_debug();
    ApiError::new(ErrorKind::BadRequest, format!("observe: {field}: '{text}' {problem}"))
}

/// The namespaces of pods that are named without one; `None` for any.
pub(super) struct Scope(Option<Vec<String>>);

impl Scope {
    pub(super) fn of(wanted: &ObserveFilters) -> Self {
        if wanted.all_namespaces {
            return Self(None);
        }
        // As kubectl does: without a namespace the default one is meant.
        let usual = || vec!["default".to_owned()];
        let named = &wanted.namespace.0;
        Self(Some(if named.is_empty() { usual() } else { named.clone() }))
    }
}

/// Reads a pod; one without a namespace is of those of `scope`.
pub(super) fn pod(field: &str, text: &str, scope: &Scope) -> Result<Pod, ApiError> {
    let (namespaces, name) = match text.split_once('/') {
        Some((namespace, name)) => (vec![namespace.to_owned()], name),
        None => (scope.0.clone().unwrap_or_default(), text),
    };
    let is_empty = name.is_empty() || namespaces.iter().any(String::is_empty);
    match is_empty || name.contains('/') {
        true => Err(bad(field, text, "is not ns/pod")),
        false => Ok(Pod { namespaces, name: name.to_owned() }),
    }
}

pub(super) fn of_workload(field: &str, text: &str) -> Result<OfWorkload, ApiError> {
    let (kind, name) = match text.split_once('/') {
        Some((kind, name)) => (Some(kind.to_owned()), name),
        None => (None, text),
    };
    match name.is_empty() || name.contains('/') || kind.as_ref().is_some_and(String::is_empty) {
        true => Err(bad(field, text, "is neither NAME nor KIND/NAME")),
        false if kind.as_ref().is_some_and(|kind| !is_workload(kind)) => {
            Err(bad(field, text, &format!("has a kind that is none of {}", KINDS.join(", "))))
        }
        false => Ok(OfWorkload { kind, name: name.to_owned() }),
    }
}

fn is_workload(kind: &str) -> bool {
    KINDS.iter().any(|it| it.eq_ignore_ascii_case(kind))
}

pub(super) fn service(field: &str, text: &str) -> Result<String, ApiError> {
    match text.split('/').filter(|part| !part.is_empty()).count() {
        2 => Ok(text.to_owned()),
        _ => Err(bad(field, text, "is not ns/name")),
    }
}

pub(super) fn direction(text: &str) -> Result<Direction, ApiError> {
    let found = Direction::BOTH.into_iter().find(|it| it.field() == text);
    found.ok_or_else(|| bad("direction", text, "is neither ingress nor egress"))
}
