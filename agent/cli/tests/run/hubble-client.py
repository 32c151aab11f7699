#!/usr/bin/python3
"""A client of the Hubble Observer API: grpcio, and messages by the numbers of the public proto files.

  hubble-client.py METHOD REQUEST TARGET [AUTHORITY [TOKEN | CERTIFICATE KEY]]

REQUEST is JSON with the names of the proto files. Each response is printed as one line of JSON. A call
that fails ends with 1 and its status on stderr.
"""

import json, struct, sys
import grpc

# A message is a table of its fields: number to name and type; a list is a repeated field.
TIME = {1: ("seconds", int), 2: ("nanos", int)}
BOOL = {1: ("value", bool)}
NUMBER = {1: ("value", int)}
FLAGS = dict(enumerate([(name, bool) for name in "FIN SYN RST PSH ACK URG ECE CWR NS".split()], 1))
PORTS = {1: ("source_port", int), 2: ("destination_port", int)}
ICMP = {1: ("type", int), 2: ("code", int)}
WORKLOAD = {1: ("name", str), 2: ("kind", str)}
ENDPOINT = {1: ("ID", int), 2: ("identity", int), 3: ("namespace", str), 4: ("labels", [str]), 5: ("pod_name", str),
            6: ("workloads", [WORKLOAD]), 7: ("cluster_name", str)}
SERVICE = {1: ("name", str), 2: ("namespace", str)}
POLICY = {1: ("name", str), 2: ("namespace", str), 3: ("labels", [str]), 4: ("revision", int), 5: ("kind", str)}
FLOW = {
    1: ("time", TIME), 2: ("verdict", int), 3: ("drop_reason", int),
    5: ("IP", {1: ("source", str), 2: ("destination", str), 3: ("ipVersion", int)}),
    6: ("l4", {1: ("TCP", {**PORTS, 3: ("flags", FLAGS)}), 2: ("UDP", PORTS), 3: ("ICMPv4", ICMP),
               4: ("ICMPv6", ICMP), 5: ("SCTP", PORTS)}),
    8: ("source", ENDPOINT), 9: ("destination", ENDPOINT), 10: ("Type", int), 11: ("node_name", str),
    13: ("source_names", [str]), 14: ("destination_names", [str]),
    19: ("event_type", {1: ("type", int), 2: ("sub_type", int)}),
    20: ("source_service", SERVICE), 21: ("destination_service", SERVICE), 22: ("traffic_direction", int),
    24: ("trace_observation_point", int), 25: ("drop_reason_desc", int), 26: ("is_reply", BOOL),
    36: ("trace_reason", int), 41: ("emitter", {1: ("name", str), 2: ("version", str)}),
    21001: ("egress_allowed_by", [POLICY]), 21002: ("ingress_allowed_by", [POLICY]),
    21004: ("egress_denied_by", [POLICY]), 21005: ("ingress_denied_by", [POLICY]), 100000: ("Summary", str),
}
FILTER = {
    1: ("source_ip", [str]), 2: ("source_pod", [str]), 3: ("destination_ip", [str]), 4: ("destination_pod", [str]),
    5: ("verdict", [int]), 10: ("source_label", [str]), 11: ("destination_label", [str]), 12: ("protocol", [str]),
    13: ("source_port", [str]), 14: ("destination_port", [str]), 22: ("http_path", [str]),
    26: ("source_workload", [WORKLOAD]), 27: ("destination_workload", [WORKLOAD]),
    30: ("traffic_direction", [int]), 33: ("drop_reason_desc", [int]),
}
METHODS = {
    "/observer.Observer/GetFlows": (
        {1: ("number", int), 3: ("follow", bool), 5: ("blacklist", [FILTER]), 6: ("whitelist", [FILTER]),
         7: ("since", TIME), 8: ("until", TIME), 9: ("first", bool), 10: ("field_mask", {1: ("paths", [str])})},
        {1: ("flow", FLOW), 3: ("lost_events", {1: ("source", int), 2: ("num_events_lost", int)}),
         1000: ("node_name", str), 1001: ("time", TIME)}),
    "/observer.Observer/ServerStatus": (
        {}, {1: ("num_flows", int), 2: ("max_flows", int), 3: ("seen_flows", int), 4: ("uptime_ns", int),
             5: ("num_connected_nodes", NUMBER), 6: ("num_unavailable_nodes", NUMBER), 8: ("version", str),
             9: ("flows_rate", float)}),
    "/observer.Observer/GetNodes": (
        {}, {1: ("nodes", [{1: ("name", str), 2: ("version", str), 3: ("address", str), 4: ("state", int),
                            5: ("tls", {1: ("enabled", bool)}), 6: ("uptime_ns", int), 7: ("num_flows", int),
                            8: ("max_flows", int), 9: ("seen_flows", int)}])}),
    "/observer.Observer/GetNamespaces": (
        {}, {1: ("namespaces", [{1: ("cluster", str), 2: ("namespace", str)}])}),
    "/observer.Observer/GetAgentEvents": ({}, {}),
    "/peer.Peer/Notify": (
        {}, {1: ("name", str), 2: ("address", str), 3: ("type", int), 4: ("tls", {1: ("server_name", str)})}),
    "/grpc.health.v1.Health/Check": ({1: ("service", str)}, {1: ("status", int)}),
}


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def encode(value, table):
    """A message; whole numbers of a list are packed, as proto3 has them."""
    names = {name: (number, kind) for number, (name, kind) in table.items()}
    out = b""
    for name, given in value.items():
        number, kind = names[name]
        if kind == [int]:
            packed = b"".join(map(varint, given))
            out += varint(number << 3 | 2) + varint(len(packed)) + packed
            continue
        for one in given if isinstance(kind, list) else [given]:
            if isinstance(one, (bool, int)):
                out += varint(number << 3) + varint(int(one))
                continue
            of_one = kind[0] if isinstance(kind, list) else kind
            data = one.encode() if of_one is str else encode(one, of_one)
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def decode(data, table):
    value, at = {}, 0

    def number():
        nonlocal at
        result, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            result |= (byte & 127) << shift
            if byte < 128:
                return result
            shift += 7

    while at < len(data):
        tag = number()
        name, kind = table[tag >> 3]
        of_one = kind[0] if isinstance(kind, list) else kind
        wire = tag & 7
        if wire == 0:
            found = of_one(number())
        elif wire == 1:
            found = struct.unpack("<d", data[at:at + 8])[0]
            at += 8
        else:
            length = number()
            part = data[at:at + length]
            at += length
            found = part.decode() if of_one is str else decode(part, of_one)
        if isinstance(kind, list):
            value.setdefault(name, []).append(found)
        else:
            value[name] = found
    return value


def main():
    method, request, target, *trust = sys.argv[1:]
    asked, answered = METHODS[method]
    read = lambda path: open(path, "rb").read()
    metadata = []
    if not trust:
        channel = grpc.insecure_channel(target)
    else:
        own = [None, None] if len(trust) < 3 else [read(trust[2]), read(trust[1])]
        credentials = grpc.ssl_channel_credentials(read(trust[0]), own[0], own[1])
        channel = grpc.secure_channel(target, credentials, [("grpc.ssl_target_name_override", "localhost")])
        if len(trust) == 2:
            metadata.append(("authorization", trust[1]))
    # With a stream of responses a method with one is called all the same.
    call = channel.unary_stream(method, request_serializer=lambda it: it, response_deserializer=lambda it: it)
    try:
        for response in call(encode(json.loads(request), asked), metadata=metadata, timeout=120):
            print(json.dumps(decode(response, answered)), flush=True)
    except grpc.RpcError as error:
        print(f"{error.code().name}: {error.details()}", file=sys.stderr)
        sys.exit(1)


main()
