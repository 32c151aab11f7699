//! Messages of the Hubble Observer API, version 1.
//!
//! Field numbers are those of the public proto files `api/v1/{observer,flow,relay,peer}` of Cilium and of
//! `grpc.health.v1`. Fields that the switch neither fills nor reads are left out: a reader skips them.

pub mod filter;
pub mod flow;

use filter::FlowFilter;
use flow::Flow;

/// `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Timestamp {
    /// Since the epoch.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Within the second.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// `google.protobuf.FieldMask`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FieldMask {
    /// Paths of fields, such as `source.pod_name`.
    #[prost(string, repeated, tag = "1")]
    pub paths: Vec<String>,
}

/// `google.protobuf.UInt32Value`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct UInt32Value {
    /// The number.
    #[prost(uint32, tag = "1")]
    pub value: u32,
}

/// `observer.GetFlowsRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetFlowsRequest {
    /// Number of past flows; 0: all, or with `follow` none.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Whether new flows are wanted.
    #[prost(bool, tag = "3")]
    pub follow: bool,
    /// A flow that any of these matches is left out.
    #[prost(message, repeated, tag = "5")]
    pub blacklist: Vec<FlowFilter>,
    /// One of these has to match, if there are any.
    #[prost(message, repeated, tag = "6")]
    pub whitelist: Vec<FlowFilter>,
    /// Flows from this moment on.
    #[prost(message, optional, tag = "7")]
    pub since: Option<Timestamp>,
    /// Flows up to this moment.
    #[prost(message, optional, tag = "8")]
    pub until: Option<Timestamp>,
    /// Whether `number` counts from the oldest.
    #[prost(bool, tag = "9")]
    pub first: bool,
    /// Fields of the flow that are wanted; all where it is absent.
    #[prost(message, optional, tag = "10")]
    pub field_mask: Option<FieldMask>,
}

/// `observer.GetFlowsResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetFlowsResponse {
    /// A flow, or what became of flows.
    #[prost(oneof = "Content", tags = "1, 3")]
    pub content: Option<Content>,
    /// The node.
    #[prost(string, tag = "1000")]
    pub node_name: String,
    /// When it was observed.
    #[prost(message, optional, tag = "1001")]
    pub time: Option<Timestamp>,
}

/// Content of a [`GetFlowsResponse`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Content {
    /// A flow.
    #[prost(message, tag = "1")]
    Flow(Box<Flow>),
    /// Flows that the client was too slow for.
    #[prost(message, tag = "3")]
    LostEvents(LostEvent),
}

/// `flow.LostEvent`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct LostEvent {
    /// Where they were lost: [`LostEvent::RING_BUFFER`].
    #[prost(int32, tag = "1")]
    pub source: i32,
    /// Their number.
    #[prost(uint64, tag = "2")]
    pub num_events_lost: u64,
}

impl LostEvent {
    /// Lost because the reader was slower than the events.
    pub const RING_BUFFER: i32 = 3;
}

/// A request without fields.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Empty {}

/// `observer.ServerStatusResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ServerStatusResponse {
    /// Flows kept.
    #[prost(uint64, tag = "1")]
    pub num_flows: u64,
    /// Flows that can be kept.
    #[prost(uint64, tag = "2")]
    pub max_flows: u64,
    /// Flows since the start.
    #[prost(uint64, tag = "3")]
    pub seen_flows: u64,
    /// Nanoseconds since the start.
    #[prost(uint64, tag = "4")]
    pub uptime_ns: u64,
    /// Nodes that are answered for.
    #[prost(message, optional, tag = "5")]
    pub num_connected_nodes: Option<UInt32Value>,
    /// Nodes that do not answer.
    #[prost(message, optional, tag = "6")]
    pub num_unavailable_nodes: Option<UInt32Value>,
    /// The server's version.
    #[prost(string, tag = "8")]
    pub version: String,
    /// Flows a second, over the last minute.
    #[prost(double, tag = "9")]
    pub flows_rate: f64,
}

/// `observer.GetNodesResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetNodesResponse {
    /// The nodes.
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<Node>,
}

/// `observer.Node`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Node {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The server's version.
    #[prost(string, tag = "2")]
    pub version: String,
    /// Where it answers.
    #[prost(string, tag = "3")]
    pub address: String,
    /// `relay.NodeState`: [`Node::CONNECTED`].
    #[prost(int32, tag = "4")]
    pub state: i32,
    /// Whether it speaks TLS.
    #[prost(message, optional, tag = "5")]
    pub tls: Option<Tls>,
    /// Nanoseconds since the start.
    #[prost(uint64, tag = "6")]
    pub uptime_ns: u64,
    /// Flows kept.
    #[prost(uint64, tag = "7")]
    pub num_flows: u64,
    /// Flows that can be kept.
    #[prost(uint64, tag = "8")]
    pub max_flows: u64,
    /// Flows since the start.
    #[prost(uint64, tag = "9")]
    pub seen_flows: u64,
}

impl Node {
    /// It answers.
    pub const CONNECTED: i32 = 1;
}

/// `observer.TLS`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Tls {
    /// Whether it is on.
    #[prost(bool, tag = "1")]
    pub enabled: bool,
}

/// `observer.GetNamespacesResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetNamespacesResponse {
    /// Namespaces that flows were seen of.
    #[prost(message, repeated, tag = "1")]
    pub namespaces: Vec<Namespace>,
}

/// `observer.Namespace`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Namespace {
    /// The cluster.
    #[prost(string, tag = "1")]
    pub cluster: String,
    /// The namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct HealthCheckResponse {
    /// [`HealthCheckResponse::SERVING`].
    #[prost(int32, tag = "1")]
    pub status: i32,
}

impl HealthCheckResponse {
    /// The service answers.
    pub const SERVING: i32 = 1;
}

/// `peer.ChangeNotification`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ChangeNotification {
    /// The node.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Where it answers.
    #[prost(string, tag = "2")]
    pub address: String,
    /// `peer.ChangeNotificationType`, such as [`ChangeNotification::ADDED`].
    #[prost(int32, tag = "3")]
    pub kind: i32,
    /// How it is spoken to; without it: without TLS.
    #[prost(message, optional, tag = "4")]
    pub tls: Option<PeerTls>,
}

impl ChangeNotification {
    /// The node is new.
    pub const ADDED: i32 = 1;
    /// The node is gone.
    pub const DELETED: i32 = 2;
    /// Its address is another one.
    pub const UPDATED: i32 = 3;
}

/// `peer.TLS`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PeerTls {
    /// A name of its certificate.
    #[prost(string, tag = "1")]
    pub server_name: String,
}
