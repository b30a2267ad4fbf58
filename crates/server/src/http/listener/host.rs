//! Which host names the server answers to.
//!
//! A web page can point its own host name at this machine after it was loaded (DNS rebinding).
//! The browser then takes the server for a part of that page: `Origin` and `Sec-Fetch-Site` say
//! "same origin", and the page may read and change everything. Only `Host` still has the page's
//! name, so a name that is not known to be ours is refused, for every path. Addresses need no
//! list: a page that was loaded from an address already is where it came from.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::http::{HeaderMap, Request, StatusCode, Version, header};
use gapless_protocol::ErrorCode;

use crate::http::values::problem::Problem;

/// The host names the server answers to, beside IP addresses and `localhost`.
#[derive(Debug)]
pub(crate) struct Hosts {
    any: bool,
    names: Vec<String>,
}

impl Hosts {
    /// The name in the address that is listened on, and those of `http.hosts`.
    pub(crate) fn new(listen: &str, named: &[String]) -> Self {
        let names = named.iter().map(String::as_str).chain([listen, "localhost"]);
        let names = names.map(|name| plain(name).to_ascii_lowercase()).collect();
        Self { any: named.iter().any(|name| name == "*"), names }
    }

    /// Refuses a request that was sent to a name of another server.
    pub(crate) fn check<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        let named = host_of(request.headers())?;
        if named.is_none() && request.version() >= Version::HTTP_11 {
            return Err(Problem::bad_request("the Host header is missing"));
        }
        // An address with a host in it, as for a proxy, must agree.
        let in_line = request.uri().host();
        let wrong = [named, in_line].into_iter().flatten().find(|host| !self.has(host));
        let Some(host) = wrong else { return Ok(()) };
        let detail = format!(
            "{:?} is not a host name of this server: use its IP address or localhost, or add the \
             name to http.hosts",
            plain(host)
        );
        let problem = Problem::new(ErrorCode::NotAuthorised, detail);
        Err(problem.with_status(StatusCode::MISDIRECTED_REQUEST))
    }

    /// Whether this is a name or an address of the server; the port does not matter.
    fn has(&self, host: &str) -> bool {
        let host = plain(host);
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        self.any
            || bracketed.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
            || host.parse::<Ipv4Addr>().is_ok()
            || self.names.iter().any(|name| name.eq_ignore_ascii_case(host))
    }
}

/// A host without its port, and without the dot that ends a full name.
fn plain(host: &str) -> &str {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let host = match host.rsplit_once(':') {
        Some((host, port)) if is_port(port) => host,
        _ => host,
    };
    host.strip_suffix('.').unwrap_or(host)
}

fn host_of(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Err(Problem::bad_request("there is more than one Host header"));
    }
    let text = first.map(|host| host.to_str());
    text.transpose().map_err(|_| Problem::bad_request("the Host header is not ASCII"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_listed_names_are_ours_with_any_port() {
        let hosts = Hosts::new("broker.lan:4280", &["Queue.Example".into()]);
        for ours in [
            "127.0.0.1",
            "127.0.0.1:4280",
            "192.168.7.9:80",
            "[::1]",
            "[::1]:4280",
            "localhost",
            "LOCALHOST:1",
            "localhost.",
            "broker.lan:4280",
            "queue.example",
        ] {
            assert!(hosts.has(ours), "{ours}");
        }
        for other in [
            "",
            ":4280",
            "evil.example",
            "evil.example:4280",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "1.2.3",
            "0x7f000001",
            "::1",
            "[::1",
            "user@localhost",
            "queue.example:x",
        ] {
            assert!(!hosts.has(other), "{other}");
        }
    }

    #[test]
    fn a_star_answers_to_every_name() {
        assert!(Hosts::new("127.0.0.1:0", &["*".into()]).has("evil.example"));
    }
}
