//! A server at which clients must prove who they are, and peers of its jobs.

#![allow(dead_code, reason = "each test file uses its part of it")]

use std::net::SocketAddr;

use gapless_auth::{Auth, AuthOptions, Command};
use gapless_broker::{Broker, BrokerOptions};
use gapless_core::Durability;
use gapless_jobs::{Leader, LeaderOptions};
use gapless_protocol::{FRAME_HEAD_BYTES, Hello, Kind, Verb};
use gapless_server::http::{HttpListener, HttpOptions};
use gapless_server::native::{NativeListener, NativeOptions};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::common::{Peer, Socket, hello};
use crate::http::{self, Request};

/// A broker with both APIs, at which clients must prove who they are.
pub(crate) struct Server {
    pub(crate) runtime: Runtime,
    pub(crate) auth: Auth,
    pub(crate) native: NativeListener,
    pub(crate) http: HttpListener,
    pub(crate) folder: TempDir,
}

impl Server {
    pub(crate) fn open() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut options = BrokerOptions::new(folder.path().join("data"));
        options.defaults.durability = Durability::Written;
        let broker = Broker::open(options).expect("a broker");
        let auth = AuthOptions { required: true, ..AuthOptions::default() };
        let auth = Auth::open(&broker, auth).expect("records");
        let runtime = gapless_server::runtime().expect("a runtime");
        let socket = folder.path().join("socket");
        let (native, http) = runtime.block_on(async {
            let options = NativeOptions::default();
            let any = Some("127.0.0.1:0");
            let limits = gapless_core::job::leader::Limits::default();
            let jobs = Leader::start(&broker, LeaderOptions { limits }).await.expect("a leader");
            let native = NativeListener::open_for(
                auth.clone(),
                Some(jobs.clone()),
                options,
                any,
                Some(&socket),
            )
            .await;
            let options = HttpOptions { long_poll: http::DEADLINE, ..HttpOptions::default() };
            let mut http = HttpListener::listen(options, "127.0.0.1:0").await.expect("a listener");
            http.leads(jobs);
            http.serve_for(auth.clone(), None);
            (native.expect("a listener"), http)
        });
        Self { runtime, auth, native, http, folder }
    }

    pub(crate) fn command(&self, json: &Value) -> Value {
        let command = Command::parse(json.to_string().as_bytes()).expect("a command");
        self.auth.server().command(command).expect("it is done")
    }

    /// A token of a new identity with a role of these rules.
    pub(crate) fn token(&self, name: &str, rules: &[&str]) -> String {
        self.command(&json!({ "do": "role_set", "role": name, "rules": rules }));
        let made = self.command(&json!({ "do": "token_create", "name": name, "roles": [name] }));
        made["token"].as_str().expect("a token").to_owned()
    }

    pub(crate) fn native_address(&self) -> SocketAddr {
        self.native.tcp_address().expect("it listens")
    }

    pub(crate) fn silent(&self) -> Peer {
        let stream = std::net::TcpStream::connect(self.native_address()).expect("a connection");
        Peer::new(Socket::Tcp(stream))
    }

    pub(crate) fn peer(&self, token: &str) -> Peer {
        let mut peer = self.silent();
        let greeted = peer.ask(Hello { token: Some(token.to_owned().into()), ..hello() });
        assert!(matches!(greeted, Verb::Welcome(_)), "{greeted:?}");
        peer
    }

    pub(crate) fn send(&self, token: &str, request: Request) -> http::Answer {
        let request = request.header("Authorization", &format!("Bearer {token}"));
        http::Client::connect(self.http.address()).send(&request)
    }

    pub(crate) fn get(&self, token: &str, path: &str) -> http::Answer {
        self.send(token, Request::new("GET", path))
    }
}

pub(crate) const EVERYTHING: &[&str] = &["allow * on >"];

/// The job of the requests below.
pub(crate) const JOB: &str = "11111111-2222-4333-8444-555555555555";

/// A frame of jobs in the layout of E2.
pub(crate) fn job_frame(kind: Kind, subject: &str, payload: &Value) -> Vec<u8> {
    let payload = payload.to_string();
    let bytes = FRAME_HEAD_BYTES - 4 + subject.len() + payload.len();
    let mut frame = (bytes as u32).to_le_bytes().to_vec();
    frame.push(kind.number());
    frame.extend([1; 16]);
    frame.extend([0; 16]);
    frame.extend((subject.len() as u16).to_le_bytes());
    frame.extend(subject.as_bytes());
    frame.extend((payload.len() as u32).to_le_bytes());
    frame.extend(payload.as_bytes());
    frame
}

/// A worker takes so many jobs.
pub(crate) fn job_credit(more: i32) -> Vec<u8> {
    let mut frame = job_frame(Kind::JobCredit, "", &json!("xx"));
    let at = frame.len() - 4;
    frame[at..].copy_from_slice(&more.to_le_bytes());
    frame
}

/// A connection of jobs, and the JSON that it is answered with.
pub(crate) struct JobPeer(pub(crate) Peer);

impl JobPeer {
    pub(crate) fn ask(&mut self, kind: Kind, subject: &str, payload: &Value) -> (Kind, Value) {
        self.0.send_bytes(&job_frame(kind, subject, payload));
        self.answer()
    }

    pub(crate) fn answer(&mut self) -> (Kind, Value) {
        let frame = self.0.frame_or_end().expect("an answer");
        let kind = Kind::from_number(frame.kind).expect("a kind");
        (kind, serde_json::from_slice(&frame.payload).expect("JSON"))
    }

    pub(crate) fn client(server: &Server, token: Option<&str>) -> (Self, Kind, Value) {
        let hello = json!({ "ClientId": "c", "DesiredParallelism": 1, "Token": token });
        let mut peer = Self(server.silent());
        let (kind, answer) = peer.ask(Kind::JobClientHello, "", &hello);
        (peer, kind, answer)
    }

    pub(crate) fn worker(
        server: &Server,
        token: Option<&str>,
        pattern: &str,
    ) -> (Self, Kind, Value) {
        let mut peer = Self(server.silent());
        let hello = json!({ "WorkerId": "w", "Token": token });
        let (kind, answer) = peer.ask(Kind::JobWorkerHello, pattern, &hello);
        (peer, kind, answer)
    }

    pub(crate) fn submit(&mut self, id: &str, exec: &str) -> Value {
        let job = json!({ "JobId": id, "ClientId": "c", "ExecName": exec, "Args": [] });
        self.ask(Kind::JobSubmit, &format!("job.submit.{exec}"), &job).1
    }
}

pub(crate) fn refused(answer: &Value, why: &str) {
    assert_eq!(answer["Accepted"], false, "{answer}");
    assert!(answer["Why"].as_str().is_some_and(|text| text.contains(why)), "{answer}");
}
