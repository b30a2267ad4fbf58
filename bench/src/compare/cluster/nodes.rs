//! Three nodes of a cluster in processes of their own, and how they stand.
//!
//! What a node knows of the others is asked over HTTP: `/v1/cluster` of gapless, `/routez` of
//! nats-server. Bytes between nodes are those that the kernel counts for their connections (`ss`), with
//! all that a protocol adds: both are measured by the same means.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::link::WAIT_MAX;
use super::super::server::{
    CONNECTIONS_MAX, Programs, Ready, Server, check_interrupt, free_address, gapless,
};
use super::super::systems::Who;
use crate::benches::store::{Folder, Result};

/// How many nodes a cluster has.
pub(super) const NODES: usize = 3;

/// How often something is looked at that cannot be waited for.
const LOOK: Duration = Duration::from_millis(2);

/// The account in which nats-server keeps to itself.
const SYSTEM_ACCOUNT: &str = "$SYS";

/// The nodes of one cluster, which all reach each other.
pub(super) struct Nodes {
    pub(super) who: Who,
    /// Before the folder, so that they end before their files go.
    servers: Vec<Server>,
    ports: Vec<u16>,
    _folder: Folder,
}

impl Nodes {
    /// Starts them, each knowing the addresses of all others, and waits until all are linked.
    pub(super) fn start(programs: &Programs, who: Who, dir: &Path) -> Result<Self> {
        let folder = Folder::fresh(dir, &format!("cluster-{}", who.name()))?;
        let addresses = (0..NODES).map(|_| free_address()).collect::<Result<Vec<_>>>()?;
        let secret = folder.path().join("secret");
        fs::write(&secret, "known to the nodes of this bench\n")?;
        let program = programs.of(who).ok_or("a program that is not there")?;
        let mut servers = Vec::new();
        for (at, listen) in addresses.iter().enumerate() {
            let home = folder.path().join(name(at));
            fs::create_dir_all(&home)?;
            let others: Vec<String> = addresses
                .iter()
                .filter(|other| *other != listen)
                .map(ToString::to_string)
                .collect();
            let (mut command, ready) = match who {
                Who::Gapless => {
                    let mut command = gapless(program, &home, false, None);
                    command.args(["--node", &name(at), "--cluster-listen", &listen.to_string()]);
                    command.arg("--cluster-secret-file").arg(&secret);
                    command.args(["--join".to_owned(), others.join(",")]);
                    (command, Ready::Line)
                }
                Who::Nats => (routed(program, &home, (at, listen), &others)?, Ready::PortsFile),
                Who::Redis => return Err("redis has no cluster of this kind".into()),
            };
            command.stdin(Stdio::null());
            servers.push(Server::launch(who, command, ready, &home)?);
        }
        let ports = addresses.iter().map(SocketAddr::port).collect();
        let nodes = Self { who, servers, ports, _folder: folder };
        for at in 0..NODES {
            nodes.until("all are linked", || Ok(nodes.reached(at)? == NODES - 1))?;
        }
        Ok(nodes)
    }

    pub(super) fn address(&self, at: usize) -> SocketAddr {
        self.servers[at].address()
    }

    pub(super) fn server(&self, at: usize) -> &Server {
        &self.servers[at]
    }

    /// CPU time of all nodes.
    pub(super) fn cpu_time(&self) -> Result<Duration> {
        self.servers.iter().map(Server::cpu_time).sum()
    }

    /// How many others a node reaches, as it sees it.
    pub(super) fn reached(&self, at: usize) -> Result<usize> {
        Ok(match self.who {
            Who::Gapless => {
                let is_active =
                    |node: &&Value| node["link"] == "up" && node["state"]["is"] == "active";
                list(&self.look_at(at, "/v1/cluster")?["nodes"]).iter().filter(is_active).count()
            }
            _ => {
                let routes = self.look_at(at, "/routez")?;
                let names =
                    list(&routes["routes"]).iter().map(|route| route["remote_name"].as_str());
                names.collect::<BTreeSet<_>>().len()
            }
        })
    }

    /// How many other nodes follow this topic, as a node knows it; no other topic is followed.
    pub(super) fn followed(&self, at: usize, topic: &str) -> Result<usize> {
        Ok(match self.who {
            Who::Gapless => {
                let has_patterns = |node: &&Value| node["patterns"].as_u64() > Some(0);
                list(&self.look_at(at, "/v1/cluster")?["nodes"]).iter().filter(has_patterns).count()
            }
            _ => {
                let routes = self.look_at(at, "/routez?subs=1")?;
                let follows = |route: &&Value| {
                    list(&route["subscriptions_list"]).iter().any(|subject| *subject == topic)
                };
                list(&routes["routes"]).iter().filter(follows).count()
            }
        })
    }

    /// How many subscriptions of all others a node knows; a bare link of nats-server has one too.
    pub(super) fn interest(&self, at: usize) -> Result<u64> {
        let (path, all, each) = match self.who {
            Who::Gapless => ("/v1/cluster", "nodes", "patterns"),
            _ => ("/routez", "routes", "subscriptions"),
        };
        let shown = self.look_at(at, path)?;
        let users = list(&shown[all]).iter().filter(|route| route["account"] != SYSTEM_ACCOUNT);
        Ok(users.filter_map(|one| one[each].as_u64()).sum())
    }

    /// Bytes that all nodes have sent each other since they started.
    pub(super) fn bytes_between(&self) -> Result<u64> {
        let ports: Vec<String> = self
            .ports
            .iter()
            .flat_map(|port| [format!("sport = :{port}"), format!("dport = :{port}")])
            .collect();
        let filter = ports.join(" or ");
        let shown =
            Command::new("ss").args(["-tinH", "state", "established"]).arg(filter).output()?;
        if !shown.status.success() {
            return Err(format!("ss: {}", String::from_utf8_lossy(&shown.stderr)).into());
        }
        Ok(sent_bytes(&String::from_utf8_lossy(&shown.stdout)))
    }

    /// Waits for something that can only be looked at.
    pub(super) fn until(&self, what: &str, is: impl Fn() -> Result<bool>) -> Result<()> {
        if within(WAIT_MAX, is)?.is_some() {
            return Ok(());
        }
        Err(format!("{}: {what}: not in time", self.who.name()).into())
    }

    fn look_at(&self, at: usize, path: &str) -> Result<Value> {
        let address = self.servers[at].http()?;
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("half an answer")?;
        if head.split(' ').nth(1) != Some("200") {
            return Err(format!("{path}: {answer}").into());
        }
        Ok(serde_json::from_str(body)?)
    }
}

/// Looks again and again; how long it took, if it came about in time.
pub(super) fn within(most: Duration, is: impl Fn() -> Result<bool>) -> Result<Option<Duration>> {
    let started = Instant::now();
    while !is()? {
        check_interrupt()?;
        if started.elapsed() > most {
            return Ok(None);
        }
        thread::park_timeout(LOOK);
    }
    Ok(Some(started.elapsed()))
}

fn name(at: usize) -> String {
    format!("node-{}", at + 1)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The sum of what the kernel says connections have sent.
fn sent_bytes(shown: &str) -> u64 {
    let counts = shown.split_ascii_whitespace().filter_map(|word| word.strip_prefix("bytes_sent:"));
    counts.filter_map(|count| count.parse::<u64>().ok()).sum()
}

/// nats-server with routes to the others, otherwise with its defaults.
fn routed(
    program: &Path,
    folder: &Path,
    (at, listen): (usize, &SocketAddr),
    others: &[String],
) -> Result<Command> {
    let routes: Vec<String> =
        others.iter().map(|other| format!("\"nats-route://{other}\"")).collect();
    // Pings of clients are put off, as the generators do not answer them.
    let config = format!(
        "server_name: {:?}\nlisten: \"127.0.0.1:-1\"\nhttp: \"127.0.0.1:-1\"\n\
         max_connections: {CONNECTIONS_MAX}\nping_interval: \"1h\"\n\
         cluster {{ name: \"bench\", listen: \"{listen}\", routes: [{}] }}\n",
        name(at),
        routes.join(", ")
    );
    let path = folder.join("nats.conf");
    fs::write(&path, config)?;
    let mut command = Command::new(program);
    command.arg("-c").arg(path).arg("--ports_file_dir").arg(folder);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_all_connections_are_added() {
        let shown = "ESTAB 0 0 127.0.0.1:1 127.0.0.1:2\n\t bbr bytes_sent:114 bytes_acked:114\n\
                     ESTAB 0 0 127.0.0.1:2 127.0.0.1:1\n\t bbr rto:204 bytes_sent:6 segs_out:3\n";
        assert_eq!(sent_bytes(shown), 120);
        assert_eq!(sent_bytes(""), 0);
    }
}
