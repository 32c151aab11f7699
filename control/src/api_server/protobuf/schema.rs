//! The messages of the built-in kinds, as far as they are read: field numbers of the `generated.proto` files
//! of k8s.io/api (core/v1, discovery/v1, networking/v1) and k8s.io/apimachinery (meta/v1, runtime).

use crate::Kind;

/// A message and the fields of it that are read.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) fields: &'static [Field],
    /// Fields without an entry are faults of the object rather than passed over: a policy that has them
    /// means more than could be read.
    pub(super) strict: bool,
}

/// A field of a message.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) number: u32,
    /// Its name in JSON.
    pub(super) name: &'static str,
    pub(super) form: Form,
    /// It is a list.
    pub(super) repeated: bool,
}

/// The form of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Text,
    Number,
    Flag,
    /// `meta/v1 Time`.
    Time,
    /// `intstr.IntOrString`.
    IntOrString,
    /// A map from text to text.
    Map,
    /// The same, of which only the annotations that are read are kept.
    Annotations,
    Message(&'static Message),
}

use Form::{Annotations, Flag, IntOrString, Map, Number, Text, Time};

const fn one(number: u32, name: &'static str, form: Form) -> Field {
    Field { number, name, form, repeated: false }
}

const fn list(number: u32, name: &'static str, form: Form) -> Field {
    Field { number, name, form, repeated: true }
}

const fn message(fields: &'static [Field]) -> Message {
    Message { fields, strict: false }
}

const fn strict(fields: &'static [Field]) -> Message {
    Message { fields, strict: true }
}

/// The message of a kind; `None` for kinds that are served in JSON alone.
pub(super) const fn of(kind: Kind) -> Option<&'static Message> {
    match kind {
        Kind::Namespace => Some(&NAMESPACE),
        Kind::Pod => Some(&POD),
        Kind::Node => Some(&NODE),
        Kind::Service => Some(&SERVICE),
        Kind::EndpointSlice => Some(&ENDPOINT_SLICE),
        Kind::NetworkPolicy => Some(&NETWORK_POLICY),
        _ => None,
    }
}

/// The fields of every `…List`.
pub(super) const METADATA_OF_LIST: u32 = 1;
pub(super) const ITEMS_OF_LIST: u32 = 2;

pub(super) static LIST_META: Message =
    message(&[one(2, "resourceVersion", Text), one(3, "continue", Text)]);

pub(super) static STATUS: Message = message(&[
    one(2, "status", Text),
    one(3, "message", Text),
    one(4, "reason", Text),
    one(5, "details", Form::Message(&STATUS_DETAILS)),
    one(6, "code", Number),
]);
static STATUS_DETAILS: Message = message(&[one(5, "retryAfterSeconds", Number)]);

static METADATA: Message = message(&[
    one(1, "name", Text),
    one(3, "namespace", Text),
    one(5, "uid", Text),
    one(6, "resourceVersion", Text),
    one(7, "generation", Number),
    one(8, "creationTimestamp", Time),
    one(9, "deletionTimestamp", Time),
    one(11, "labels", Map),
    one(12, "annotations", Annotations),
]);

static NAMESPACE: Message = message(&[one(1, "metadata", Form::Message(&METADATA))]);

static POD: Message = message(&[
    one(1, "metadata", Form::Message(&METADATA)),
    one(2, "spec", Form::Message(&POD_SPEC)),
    one(3, "status", Form::Message(&POD_STATUS)),
]);
static POD_SPEC: Message = message(&[
    list(2, "containers", Form::Message(&CONTAINER)),
    one(8, "serviceAccountName", Text),
    one(10, "nodeName", Text),
    one(11, "hostNetwork", Flag),
    list(20, "initContainers", Form::Message(&CONTAINER)),
]);
static CONTAINER: Message =
    message(&[list(6, "ports", Form::Message(&CONTAINER_PORT)), one(24, "restartPolicy", Text)]);
static CONTAINER_PORT: Message = message(&[
    one(1, "name", Text),
    one(2, "hostPort", Number),
    one(3, "containerPort", Number),
    one(4, "protocol", Text),
    one(5, "hostIP", Text),
]);
static POD_STATUS: Message = message(&[
    one(1, "phase", Text),
    one(6, "podIP", Text),
    list(12, "podIPs", Form::Message(&POD_IP)),
]);
static POD_IP: Message = message(&[one(1, "ip", Text)]);

static NODE: Message = message(&[
    one(1, "metadata", Form::Message(&METADATA)),
    one(2, "spec", Form::Message(&NODE_SPEC)),
    one(3, "status", Form::Message(&NODE_STATUS)),
]);
static NODE_SPEC: Message = message(&[one(1, "podCIDR", Text), list(7, "podCIDRs", Text)]);
static NODE_STATUS: Message = message(&[
    list(4, "conditions", Form::Message(&NODE_CONDITION)),
    list(5, "addresses", Form::Message(&NODE_ADDRESS)),
]);
static NODE_CONDITION: Message = message(&[one(1, "type", Text), one(2, "status", Text)]);
static NODE_ADDRESS: Message = message(&[one(1, "type", Text), one(2, "address", Text)]);

static SERVICE: Message = message(&[
    one(1, "metadata", Form::Message(&METADATA)),
    one(2, "spec", Form::Message(&SERVICE_SPEC)),
    one(3, "status", Form::Message(&SERVICE_STATUS)),
]);
static SERVICE_SPEC: Message = message(&[
    list(1, "ports", Form::Message(&SERVICE_PORT)),
    one(3, "clusterIP", Text),
    one(4, "type", Text),
    list(5, "externalIPs", Text),
    one(7, "sessionAffinity", Text),
    list(9, "loadBalancerSourceRanges", Text),
    one(11, "externalTrafficPolicy", Text),
    one(12, "healthCheckNodePort", Number),
    one(14, "sessionAffinityConfig", Form::Message(&SESSION_AFFINITY)),
    list(18, "clusterIPs", Text),
    one(22, "internalTrafficPolicy", Text),
]);
static SERVICE_PORT: Message = message(&[
    one(1, "name", Text),
    one(2, "protocol", Text),
    one(3, "port", Number),
    one(4, "targetPort", IntOrString),
    one(5, "nodePort", Number),
]);
static SESSION_AFFINITY: Message = message(&[one(1, "clientIP", Form::Message(&CLIENT_IP))]);
static CLIENT_IP: Message = message(&[one(1, "timeoutSeconds", Number)]);
static SERVICE_STATUS: Message = message(&[one(1, "loadBalancer", Form::Message(&BALANCER))]);
static BALANCER: Message = message(&[list(1, "ingress", Form::Message(&INGRESS))]);
static INGRESS: Message = message(&[one(1, "ip", Text), one(3, "ipMode", Text)]);

static ENDPOINT_SLICE: Message = message(&[
    one(1, "metadata", Form::Message(&METADATA)),
    list(2, "endpoints", Form::Message(&ENDPOINT)),
    list(3, "ports", Form::Message(&ENDPOINT_PORT)),
    one(4, "addressType", Text),
]);
static ENDPOINT: Message = message(&[
    list(1, "addresses", Text),
    one(2, "conditions", Form::Message(&CONDITIONS)),
    one(6, "nodeName", Text),
    one(8, "hints", Form::Message(&HINTS)),
]);
static CONDITIONS: Message =
    message(&[one(1, "ready", Flag), one(2, "serving", Flag), one(3, "terminating", Flag)]);
static HINTS: Message = message(&[
    list(1, "forZones", Form::Message(&HINT)),
    list(2, "forNodes", Form::Message(&HINT)),
]);
static HINT: Message = message(&[one(1, "name", Text)]);
static ENDPOINT_PORT: Message =
    message(&[one(1, "name", Text), one(2, "protocol", Text), one(3, "port", Number)]);

static NETWORK_POLICY: Message = message(&[
    one(1, "metadata", Form::Message(&METADATA)),
    one(2, "spec", Form::Message(&POLICY_SPEC)),
]);
static POLICY_SPEC: Message = strict(&[
    one(1, "podSelector", Form::Message(&SELECTOR)),
    list(2, "ingress", Form::Message(&INGRESS_RULE)),
    list(3, "egress", Form::Message(&EGRESS_RULE)),
    list(4, "policyTypes", Text),
]);
static INGRESS_RULE: Message =
    strict(&[list(1, "ports", Form::Message(&POLICY_PORT)), list(2, "from", Form::Message(&PEER))]);
static EGRESS_RULE: Message =
    strict(&[list(1, "ports", Form::Message(&POLICY_PORT)), list(2, "to", Form::Message(&PEER))]);
static POLICY_PORT: Message =
    strict(&[one(1, "protocol", Text), one(2, "port", IntOrString), one(3, "endPort", Number)]);
static PEER: Message = strict(&[
    one(1, "podSelector", Form::Message(&SELECTOR)),
    one(2, "namespaceSelector", Form::Message(&SELECTOR)),
    one(3, "ipBlock", Form::Message(&IP_BLOCK)),
]);
static IP_BLOCK: Message = strict(&[one(1, "cidr", Text), list(2, "except", Text)]);
static SELECTOR: Message =
    strict(&[one(1, "matchLabels", Map), list(2, "matchExpressions", Form::Message(&EXPRESSION))]);
static EXPRESSION: Message =
    strict(&[one(1, "key", Text), one(2, "operator", Text), list(3, "values", Text)]);
