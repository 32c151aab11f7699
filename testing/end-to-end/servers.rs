//! Servers that people run in pods: nginx and dnsmasq.

use std::net::{Ipv6Addr, SocketAddr, TcpStream};

use testkit::{Namespace, Process, TempDir};

use crate::cluster_node::PATIENCE;
use crate::pod::Pod;

/// The name that [`Names`] knows, and its addresses.
pub(crate) const NAME: &str = "www.podgate.test";
pub(crate) const NAME_V4: &str = "203.0.113.77";
pub(crate) const NAME_V6: &str = "2001:db8:77::1";
/// A name whose answer is larger than any MTU here.
pub(crate) const LONG_NAME: &str = "long.podgate.test";
/// Bytes of text in that answer.
pub(crate) const LONG_TEXT: usize = 3000;
/// Bytes of `/large`.
pub(crate) const LARGE: usize = 3_000_001;

/// nginx on port 80 in both families, with the pages `/` (the pod's name) and `/large`.
pub(crate) struct Web {
    _process: Process,
    _folder: TempDir,
}

impl Web {
    pub(crate) fn start(pod: &Pod<'_>) -> Self {
        let folder = TempDir::new("web");
        let path = folder.path().display();
        let write = |name: &str, content: &str| {
            std::fs::write(folder.path().join(name), content).unwrap();
        };
        write("index.html", &pod.name);
        write("large", &"x".repeat(LARGE));
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|what| format!("{what}_temp_path {path}/{what};\n"))
            .concat();
        write(
            "nginx.conf",
            &format!(
                "daemon off; master_process off; user root; pid {path}/pid;\nevents {{}}\n\
                 http {{ access_log off; {temporary}\n\
                 server {{ listen 80; listen [::]:80; root {path}; }} }}\n"
            ),
        );
        let config = format!("{path}/nginx.conf");
        let process = pod.namespace.spawn(["nginx", "-e", "stderr", "-c", config.as_str()]);
        let listens = || {
            let address = SocketAddr::from((Ipv6Addr::LOCALHOST, 80));
            TcpStream::connect_timeout(&address, PATIENCE).ok().map(drop)
        };
        pod.node().eventually("nginx to listen", || pod.namespace.enter(listens));
        Self { _process: process, _folder: folder }
    }
}

/// A DNS server on port 53 in both families, over UDP and TCP.
pub(crate) fn serve_names(namespace: &Namespace) -> Process {
    let text = "t".repeat(200);
    let long = format!("--txt-record={LONG_NAME}{}", format!(",{text}").repeat(LONG_TEXT / 200));
    let (v4, v6) = (format!("--address=/{NAME}/{NAME_V4}"), format!("--address=/{NAME}/{NAME_V6}"));
    dnsmasq(namespace, &["--edns-packet-max=4096", &v4, &v6, &long])
}

/// dnsmasq with these names alone.
pub(crate) fn dnsmasq(namespace: &Namespace, names: &[&str]) -> Process {
    let fixed = [
        "dnsmasq",
        "--no-daemon",
        "--conf-file=/dev/null",
        "--no-resolv",
        "--no-hosts",
        "--user=root",
        "--pid-file=",
    ];
    let server = namespace.spawn(fixed.iter().chain(names).copied());
    server.wait_for_line("started", PATIENCE);
    server
}
