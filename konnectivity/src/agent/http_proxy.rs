//! The HTTP proxy on the way to the servers: `HTTPS_PROXY` and `NO_PROXY`, as the original's agent
//! reads them.

use std::error::Error;
use std::io;
use std::net::IpAddr;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use tokio::net::TcpStream;
use tower_service::Service;

/// A proxy that the servers are reached through, by CONNECT.
#[derive(Clone, Debug)]
pub struct HttpProxy {
    proxy: Intercept,
    server: Uri,
}

impl HttpProxy {
    /// The proxy for servers at `host:port` that the environment names, if any.
    ///
    /// # Errors
    /// Names the variable that cannot be used.
    pub(crate) fn from_environment(host: &str, port: u16) -> Result<Option<Self>, String> {
        let value = |names: [&str; 2]| {
            names.iter().filter_map(|name| std::env::var(name).ok()).find(|it| !it.is_empty())
        };
        let https = value(["HTTPS_PROXY", "https_proxy"]).unwrap_or_default();
        let no = value(["NO_PROXY", "no_proxy"]).unwrap_or_default();
        Self::new(&https, &no, host, port)
    }

    /// The proxy for servers at `host:port`: `https` unless `no` exempts them. Loopback has none.
    ///
    /// # Errors
    /// Describes a proxy that cannot be used.
    pub fn new(https: &str, no: &str, host: &str, port: u16) -> Result<Option<Self>, String> {
        let host = host.trim_matches(['[', ']']);
        let address = host.parse::<IpAddr>().ok();
        if https.is_empty() || host == "localhost" || address.is_some_and(|it| it.is_loopback()) {
            return Ok(None);
        }
        let authority = match address {
            Some(IpAddr::V6(address)) => format!("[{address}]:{port}"),
            _ => format!("{host}:{port}"),
        };
        let server = Uri::builder().scheme("https").authority(authority).path_and_query("/");
        let server = server.build().map_err(|error| format!("{host}:{port}: {error}"))?;
        let is_http =
            |it: &Intercept| it.uri().scheme_str().is_some_and(|it| it.starts_with("http"));
        // The text may hold a password.
        let every = Matcher::builder().https(https).build().intercept(&server).filter(is_http);
        let proxy = every.ok_or("HTTPS_PROXY: this is not a URL of an HTTP proxy")?;
        let no: Vec<&str> = no.split(',').filter_map(|it| exempt(it.trim(), port)).collect();
        let matcher = Matcher::builder().https(https).no(no.join(",")).build();
        Ok(matcher.intercept(&server).map(|_| Self { proxy, server }))
    }

    /// A connection to a server.
    pub(super) async fn connect(&self) -> io::Result<TcpStream> {
        let mut connector = HttpConnector::new();
        // The original, too, speaks with a proxy without TLS, whatever its scheme.
        connector.enforce_http(false);
        let mut tunnel = Tunnel::new(self.proxy.uri().clone(), connector);
        if let Some(authorization) = self.proxy.basic_auth() {
            tunnel = tunnel.with_auth(authorization.clone());
        }
        let opened = tunnel.call(self.server.clone()).await.map_err(|error| {
            let cause = error.source().map(|it| format!(": {it}")).unwrap_or_default();
            io::Error::other(format!("proxy {}: {error}{cause}", self.proxy.uri()))
        })?;
        Ok(opened.into_inner())
    }
}

/// The host of an entry of `NO_PROXY`; `None` if the entry is for another port.
fn exempt(entry: &str, port: u16) -> Option<&str> {
    match entry.rsplit_once(':') {
        Some((host, of)) if !host.contains(':') || host.ends_with(']') => {
            (of.parse() == Ok(port)).then(|| host.trim_matches(['[', ']']))
        }
        _ => Some(entry),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_have_a_proxy() {
        let proxied = |no: &str, host: &str| {
            let found = HttpProxy::new("http://user:secret@proxy:3128", no, host, 8091).unwrap();
            assert!(!format!("{found:?}").contains("secret"));
            found.is_some()
        };
        for (no, host, wanted) in [
            ("", "server.example.com", true),
            ("", "2001:db8::1", true),
            ("", "localhost", false),
            ("", "127.0.0.2", false),
            ("", "[::1]", false),
            ("*", "server.example.com", false),
            ("other, example.com", "server.example.com", false),
            (".example.com", "server.example.com", false),
            ("ample.com", "server.example.com", true),
            ("10.0.0.0/8", "10.1.2.3", false),
            ("10.0.0.0/8", "11.1.2.3", true),
            ("2001:db8::/32", "2001:db8::1", false),
            ("example.com:8091", "server.example.com", false),
            ("example.com:443", "server.example.com", true),
            ("[2001:db8::1]:8091", "2001:db8::1", false),
        ] {
            assert_eq!(proxied(no, host), wanted, "NO_PROXY={no} {host}");
        }
        assert!(HttpProxy::new("", "", "server", 8091).unwrap().is_none());
        assert!(HttpProxy::new("proxy:3128", "", "server", 8091).unwrap().is_some());
        for fault in ["socks5://proxy:1080", "http://", "://"] {
            let error = HttpProxy::new(fault, "", "server", 8091).unwrap_err();
            assert!(error.starts_with("HTTPS_PROXY: "), "{error}");
        }
    }
}
