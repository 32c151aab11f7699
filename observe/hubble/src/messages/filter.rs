//! `flow.FlowFilter`.

use super::Empty;
use super::flow::{TcpFlags, Workload};

/// `flow.FlowFilter`: all fields that are set have to match; of a list, one entry.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FlowFilter {
    /// Addresses or networks of the source.
    #[prost(string, repeated, tag = "1")]
    pub source_ip: Vec<String>,
    /// `NAMESPACE/PREFIX` of the sending pod; either part may be empty.
    #[prost(string, repeated, tag = "2")]
    pub source_pod: Vec<String>,
    /// Addresses or networks of the destination.
    #[prost(string, repeated, tag = "3")]
    pub destination_ip: Vec<String>,
    /// `NAMESPACE/PREFIX` of the receiving pod.
    #[prost(string, repeated, tag = "4")]
    pub destination_pod: Vec<String>,
    /// Numbers of `flow.Verdict`.
    #[prost(int32, repeated, tag = "5")]
    pub verdict: Vec<i32>,
    /// Kinds of events.
    #[prost(message, repeated, tag = "6")]
    pub event_type: Vec<EventTypeFilter>,
    /// Patterns of the source's domain name.
    #[prost(string, repeated, tag = "7")]
    pub source_fqdn: Vec<String>,
    /// Patterns of the destination's domain name.
    #[prost(string, repeated, tag = "8")]
    pub destination_fqdn: Vec<String>,
    /// Label selectors of the sending pod.
    #[prost(string, repeated, tag = "10")]
    pub source_label: Vec<String>,
    /// Label selectors of the receiving pod.
    #[prost(string, repeated, tag = "11")]
    pub destination_label: Vec<String>,
    /// Names of protocols.
    #[prost(string, repeated, tag = "12")]
    pub protocol: Vec<String>,
    /// Source ports.
    #[prost(string, repeated, tag = "13")]
    pub source_port: Vec<String>,
    /// Destination ports.
    #[prost(string, repeated, tag = "14")]
    pub destination_port: Vec<String>,
    /// Whether it is a reply.
    #[prost(bool, repeated, tag = "15")]
    pub reply: Vec<bool>,
    /// `NAMESPACE/PREFIX` of the source's service.
    #[prost(string, repeated, tag = "16")]
    pub source_service: Vec<String>,
    /// `NAMESPACE/PREFIX` of the destination's service.
    #[prost(string, repeated, tag = "17")]
    pub destination_service: Vec<String>,
    /// Identities of the source.
    #[prost(uint32, repeated, tag = "19")]
    pub source_identity: Vec<u32>,
    /// Identities of the destination.
    #[prost(uint32, repeated, tag = "20")]
    pub destination_identity: Vec<u32>,
    /// Flags that are set, whatever the others are.
    #[prost(message, repeated, tag = "23")]
    pub tcp_flags: Vec<TcpFlags>,
    /// Patterns of the node's name.
    #[prost(string, repeated, tag = "24")]
    pub node_name: Vec<String>,
    /// Numbers of `flow.IPVersion`.
    #[prost(int32, repeated, tag = "25")]
    pub ip_version: Vec<i32>,
    /// Workloads of the sending pod, by name, by kind or by both.
    #[prost(message, repeated, tag = "26")]
    pub source_workload: Vec<Workload>,
    /// Workloads of the receiving pod.
    #[prost(message, repeated, tag = "27")]
    pub destination_workload: Vec<Workload>,
    /// Numbers of `flow.TrafficDirection`.
    #[prost(int32, repeated, tag = "30")]
    pub traffic_direction: Vec<i32>,
    /// Numbers of `flow.DropReason`.
    #[prost(int32, repeated, tag = "33")]
    pub drop_reason_desc: Vec<i32>,
    /// Clusters of the source.
    #[prost(string, repeated, tag = "37")]
    pub source_cluster_name: Vec<String>,
    /// Clusters of the destination.
    #[prost(string, repeated, tag = "38")]
    pub destination_cluster_name: Vec<String>,
    /// Whether the packet was encrypted.
    #[prost(bool, repeated, tag = "40")]
    pub encrypted: Vec<bool>,
    /// Not stable yet.
    #[prost(message, optional, tag = "999")]
    pub experimental: Option<Experimental>,

    // About what flows of the switch do not have: such a filter matches none.
    /// HTTP status codes.
    #[prost(string, repeated, tag = "9")]
    pub http_status_code: Vec<String>,
    /// Names in DNS queries.
    #[prost(string, repeated, tag = "18")]
    pub dns_query: Vec<String>,
    /// HTTP methods.
    #[prost(string, repeated, tag = "21")]
    pub http_method: Vec<String>,
    /// HTTP paths.
    #[prost(string, repeated, tag = "22")]
    pub http_path: Vec<String>,
    /// Trace identifiers.
    #[prost(string, repeated, tag = "28")]
    pub trace_id: Vec<String>,
    /// Identifiers of flows.
    #[prost(string, repeated, tag = "29")]
    pub uuid: Vec<String>,
    /// HTTP URLs.
    #[prost(string, repeated, tag = "31")]
    pub http_url: Vec<String>,
    /// HTTP headers.
    #[prost(message, repeated, tag = "32")]
    pub http_header: Vec<Empty>,
    /// Source addresses after translation.
    #[prost(string, repeated, tag = "34")]
    pub source_ip_xlated: Vec<String>,
    /// Interfaces of the kernel.
    #[prost(message, repeated, tag = "35")]
    pub interface: Vec<Empty>,
    /// Label selectors of the node.
    #[prost(string, repeated, tag = "36")]
    pub node_labels: Vec<String>,
    /// Trace identifiers in IP options.
    #[prost(uint64, repeated, tag = "39")]
    pub ip_trace_id: Vec<u64>,
}

impl FlowFilter {
    /// Whether it asks for what no flow of the switch has.
    pub fn matches_none(&self) -> bool {
        let texts = [
            &self.http_status_code,
            &self.dns_query,
            &self.http_method,
            &self.http_path,
            &self.trace_id,
            &self.uuid,
            &self.http_url,
            &self.source_ip_xlated,
            &self.node_labels,
        ];
        let messages = [&self.http_header, &self.interface];
        !texts.iter().all(|it| it.is_empty())
            || !messages.iter().all(|it| it.is_empty())
            || !self.ip_trace_id.is_empty()
    }
}

/// `flow.EventTypeFilter`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct EventTypeFilter {
    /// The kind; 0: any.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// Whether the sub-type counts.
    #[prost(bool, tag = "2")]
    pub match_sub_type: bool,
    /// The sub-type.
    #[prost(int32, tag = "3")]
    pub sub_type: i32,
}

/// `flow.FlowFilter.Experimental`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Experimental {
    /// Expressions of the Common Expression Language.
    #[prost(string, repeated, tag = "1")]
    pub cel_expression: Vec<String>,
}
