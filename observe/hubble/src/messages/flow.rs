//! `flow.Flow` and its parts.

use super::Timestamp;

/// `flow.Flow`: one verdict.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Flow {
    /// When it was taken.
    #[prost(message, optional, tag = "1")]
    pub time: Option<Timestamp>,
    /// See [`verdict`].
    #[prost(int32, tag = "2")]
    pub verdict: i32,
    /// The same number as `drop_reason_desc`, for older clients.
    #[prost(uint32, tag = "3")]
    pub drop_reason: u32,
    /// Addresses.
    #[prost(message, optional, tag = "5")]
    pub ip: Option<Ip>,
    /// Protocol and ports.
    #[prost(message, optional, tag = "6")]
    pub l4: Option<Layer4>,
    /// The sender.
    #[prost(message, optional, tag = "8")]
    pub source: Option<Endpoint>,
    /// The receiver.
    #[prost(message, optional, tag = "9")]
    pub destination: Option<Endpoint>,
    /// `flow.FlowType`: [`Flow::L3_L4`].
    #[prost(int32, tag = "10")]
    pub flow_type: i32,
    /// The node.
    #[prost(string, tag = "11")]
    pub node_name: String,
    /// Domain names of the sender.
    #[prost(string, repeated, tag = "13")]
    pub source_names: Vec<String>,
    /// Domain names of the receiver.
    #[prost(string, repeated, tag = "14")]
    pub destination_names: Vec<String>,
    /// The kind of event.
    #[prost(message, optional, tag = "19")]
    pub event_type: Option<EventType>,
    /// The service whose address the sender has.
    #[prost(message, optional, tag = "20")]
    pub source_service: Option<Service>,
    /// The service whose address the receiver has.
    #[prost(message, optional, tag = "21")]
    pub destination_service: Option<Service>,
    /// See [`direction`].
    #[prost(int32, tag = "22")]
    pub traffic_direction: i32,
    /// `flow.TraceObservationPoint`, of traced flows.
    #[prost(int32, tag = "24")]
    pub trace_observation_point: i32,
    /// `flow.DropReason`, see [`crate::reason`].
    #[prost(int32, tag = "25")]
    pub drop_reason_desc: i32,
    /// Whether it is a reply; absent where that is not known.
    #[prost(message, optional, tag = "26")]
    pub is_reply: Option<BoolValue>,
    /// `flow.TraceReason`, of traced flows.
    #[prost(int32, tag = "36")]
    pub trace_reason: i32,
    /// The program that took the verdict.
    #[prost(message, optional, tag = "41")]
    pub emitter: Option<Emitter>,
    /// Policies of the sender that allowed it.
    #[prost(message, repeated, tag = "21001")]
    pub egress_allowed_by: Vec<Policy>,
    /// Policies of the receiver that allowed it.
    #[prost(message, repeated, tag = "21002")]
    pub ingress_allowed_by: Vec<Policy>,
    /// Policies of the sender that denied it.
    #[prost(message, repeated, tag = "21004")]
    pub egress_denied_by: Vec<Policy>,
    /// Policies of the receiver that denied it.
    #[prost(message, repeated, tag = "21005")]
    pub ingress_denied_by: Vec<Policy>,
    /// The text that clients print behind the verdict.
    #[prost(string, tag = "100000")]
    pub summary: String,
}

impl Flow {
    /// A flow without a protocol above layer 4.
    pub const L3_L4: i32 = 1;
    /// Forwarded to a pod.
    pub const TO_ENDPOINT: i32 = 101;
    /// Forwarded to the node's kernel.
    pub const TO_HOST: i32 = 2;
    /// Forwarded to the network.
    pub const TO_NETWORK: i32 = 11;
    /// A new connection.
    pub const NEW: i32 = 1;
}

/// Numbers of `flow.Verdict`.
pub mod verdict {
    /// Forwarded.
    pub const FORWARDED: i32 = 1;
    /// Dropped.
    pub const DROPPED: i32 = 2;
    /// Staged policies decide otherwise.
    pub const AUDIT: i32 = 4;
}

/// Numbers of `flow.TrafficDirection`.
pub mod direction {
    /// Not known.
    pub const UNKNOWN: i32 = 0;
    /// To a pod of this node.
    pub const INGRESS: i32 = 1;
    /// From a pod of this node.
    pub const EGRESS: i32 = 2;
}

/// `flow.CiliumEventType`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct EventType {
    /// The kind.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// Depends on the kind.
    #[prost(int32, tag = "2")]
    pub sub_type: i32,
}

impl EventType {
    /// A dropped packet; the sub-type is the reason.
    pub const DROP: i32 = 1;
    /// A forwarded packet; the sub-type is where to.
    pub const TRACE: i32 = 4;
    /// A decision of policies.
    pub const POLICY_VERDICT: i32 = 5;
}

/// `google.protobuf.BoolValue`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct BoolValue {
    /// The value.
    #[prost(bool, tag = "1")]
    pub value: bool,
}

/// `flow.Emitter`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Emitter {
    /// Name of the program.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its version.
    #[prost(string, tag = "2")]
    pub version: String,
}

/// `flow.IP`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Ip {
    /// Source address.
    #[prost(string, tag = "1")]
    pub source: String,
    /// Destination address.
    #[prost(string, tag = "2")]
    pub destination: String,
    /// [`Ip::V4`] or [`Ip::V6`].
    #[prost(int32, tag = "3")]
    pub version: i32,
}

impl Ip {
    /// IPv4.
    pub const V4: i32 = 1;
    /// IPv6.
    pub const V6: i32 = 2;
}

/// `flow.Layer4`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Layer4 {
    /// The protocol's fields.
    #[prost(oneof = "Protocol", tags = "1, 2, 3, 4, 5")]
    pub protocol: Option<Protocol>,
}

/// The protocols of a [`Layer4`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
pub enum Protocol {
    /// TCP.
    #[prost(message, tag = "1")]
    Tcp(Tcp),
    /// UDP.
    #[prost(message, tag = "2")]
    Udp(Ports),
    /// ICMP.
    #[prost(message, tag = "3")]
    Icmpv4(Icmp),
    /// ICMPv6.
    #[prost(message, tag = "4")]
    Icmpv6(Icmp),
    /// SCTP.
    #[prost(message, tag = "5")]
    Sctp(Ports),
}

/// `flow.TCP`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Tcp {
    /// Source port.
    #[prost(uint32, tag = "1")]
    pub source_port: u32,
    /// Destination port.
    #[prost(uint32, tag = "2")]
    pub destination_port: u32,
    /// Flags.
    #[prost(message, optional, tag = "3")]
    pub flags: Option<TcpFlags>,
}

/// `flow.UDP` and `flow.SCTP`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Ports {
    /// Source port.
    #[prost(uint32, tag = "1")]
    pub source_port: u32,
    /// Destination port.
    #[prost(uint32, tag = "2")]
    pub destination_port: u32,
}

/// `flow.ICMPv4` and `flow.ICMPv6`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Icmp {
    /// The message's type.
    #[prost(uint32, tag = "1")]
    pub kind: u32,
}

/// `flow.TCPFlags` (RFC 9293, section 3.1).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct TcpFlags {
    /// FIN.
    #[prost(bool, tag = "1")]
    pub fin: bool,
    /// SYN.
    #[prost(bool, tag = "2")]
    pub syn: bool,
    /// RST.
    #[prost(bool, tag = "3")]
    pub rst: bool,
    /// PSH.
    #[prost(bool, tag = "4")]
    pub psh: bool,
    /// ACK.
    #[prost(bool, tag = "5")]
    pub ack: bool,
    /// URG.
    #[prost(bool, tag = "6")]
    pub urg: bool,
    /// ECE.
    #[prost(bool, tag = "7")]
    pub ece: bool,
    /// CWR.
    #[prost(bool, tag = "8")]
    pub cwr: bool,
    /// NS, which is historic.
    #[prost(bool, tag = "9")]
    pub ns: bool,
}

/// `flow.Endpoint`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Endpoint {
    /// See [`identity`].
    #[prost(uint32, tag = "2")]
    pub identity: u32,
    /// The pod's namespace.
    #[prost(string, tag = "3")]
    pub namespace: String,
    /// Labels, `SOURCE:KEY=VALUE`.
    #[prost(string, repeated, tag = "4")]
    pub labels: Vec<String>,
    /// The pod's name.
    #[prost(string, tag = "5")]
    pub pod_name: String,
    /// The workload of a pod.
    #[prost(message, repeated, tag = "6")]
    pub workloads: Vec<Workload>,
    /// The cluster of a pod.
    #[prost(string, tag = "7")]
    pub cluster_name: String,
}

/// `flow.Workload`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Workload {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its kind.
    #[prost(string, tag = "2")]
    pub kind: String,
}

/// Reserved identities.
pub mod identity {
    /// Not known.
    pub const UNKNOWN: u32 = 0;
    /// The node.
    pub const HOST: u32 = 1;
    /// Outside of the cluster, as far as is known.
    pub const WORLD: u32 = 2;
    /// The first number of a pod.
    pub const FIRST_POD: u32 = 256;
    /// The number behind the last one of a pod, as clients take those of a single cluster.
    pub const END_POD: u32 = 1 << 16;
}

/// `flow.Service`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Service {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
}

/// `flow.Policy`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Policy {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its namespace, if it has one.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Its kind.
    #[prost(string, tag = "5")]
    pub kind: String,
}
