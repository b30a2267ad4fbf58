//! TLS from outside: by openssl, curl and our own client; what is refused, and what a new certificate
//! does to connections that are open.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use gapless_client::{Client, ClientLimits, ConnectOptions, From, State, TlsOptions};
use gapless_core::{Message, TopicName, TopicSettings};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    IsCa, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
};
use tempfile::TempDir;

use crate::support::{DEADLINE, Ran, Server, run};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// An authority with a folder for what it signs.
struct Authority {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// How a certificate is to be.
#[derive(Clone, Copy)]
struct Wish<'a> {
    common: &'a str,
    names: &'a [&'a str],
    serial: u64,
    /// From now; those that ended are below zero.
    days: i64,
}

const SERVER: Wish<'_> =
    Wish { common: "server", names: &["localhost", "127.0.0.1"], serial: 1, days: 365 };

fn at(days: i64) -> SystemTime {
    let now = SystemTime::now();
    let by = DAY * u32::try_from(days.unsigned_abs()).expect("few days");
    if days < 0 { now - by } else { now + by }
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority of the tests");
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).expect("written");
        Self { folder, issuer }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Writes NAME.pem and NAME.key.
    fn issue(&self, name: &str, wish: Wish<'_>) {
        let names: Vec<String> = wish.names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, wish.common);
        params.serial_number = Some(wish.serial.into());
        params.not_before = at(wish.days.min(0) - 1).into();
        params.not_after = at(wish.days).into();
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("signed");
        // The key first: until both are new, the former pair is used.
        for (end, text) in [("key", key.serialize_pem()), ("pem", signed.pem())] {
            let path = self.path(&format!("{name}.{end}"));
            let new = format!("{path}.new");
            std::fs::write(&new, text).expect("written");
            std::fs::rename(new, path).expect("moved");
        }
    }

    /// Writes crl.pem, in which a certificate is revoked.
    fn revoke(&self, serial: u64) {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: at(-1).into(),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: at(-1).into(),
            next_update: at(30).into(),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).expect("signed");
        std::fs::write(self.path("crl.pem"), list.pem().expect("text")).expect("written");
    }

    fn settings(&self) -> Vec<String> {
        vec![
            format!("tls.cert={}", self.path("server.pem")),
            format!("tls.key={}", self.path("server.key")),
        ]
    }

    /// A server with the certificate `server`, and more settings.
    fn server(&self, more: &[&str]) -> Server {
        let own = self.settings();
        let own: Vec<&str> = own.iter().map(String::as_str).chain(more.iter().copied()).collect();
        Server::with(&own)
    }

    /// Runs a command that trusts this authority.
    fn run(&self, server: &Server, words: &[&str]) -> Ran {
        server.run(&[&["--tls-ca", &self.path("ca.pem")], words].concat())
    }

    /// The same, by the certificate NAME.
    fn run_as(&self, server: &Server, name: &str, words: &[&str]) -> Ran {
        let (cert, key) = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        self.run(server, &[&["--tls-cert", &cert, "--tls-key", &key], words].concat())
    }
}

fn tool(program: &str, words: &[&str]) -> Ran {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    run(&mut command, None)
}

fn openssl(address: &str, ca: &str, more: &[&str]) -> Ran {
    let words = ["s_client", "-connect", address, "-CAfile", ca, "-verify_return_error"];
    tool("openssl", &[&words, more].concat())
}

#[test]
fn f3_openssl_curl_and_our_own_client_speak_tls_with_both_listeners() {
    let authority = Authority::new();
    authority.issue("server", SERVER);
    let mut server = authority.server(&[]);
    let ca = authority.path("ca.pem");
    for address in [server.address(), server.http()] {
        for version in ["-tls1_3", "-tls1_2"] {
            openssl(address, &ca, &["-verify_hostname", "localhost", version])
                .ok()
                .shows("Verify return code: 0 (ok)");
        }
        openssl(address, &ca, &["-tls1_1"]).exits(1);
    }
    authority.run(&server, &["pub", "orders", "first", "--create"]).ok();
    authority.run(&server, &["sub", "orders", "--no-follow"]).ok().shows("first");
    for (flag, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let url =
            format!("https://localhost:{}/v1/topics", server.http().rsplit(':').next().unwrap());
        let format = "%{http_version} %{http_code}";
        let words = ["-sS", "--cacert", &ca, flag, "-w", format, "-o", "/dev/null", &url];
        tool("curl", &words).ok().prints(&[&format!("{version} 200")]);
    }
    // A body of many frames in both directions, and a stream.
    let (big, base) = ("x".repeat(1_000_000), format!("https://{}", server.http()));
    std::fs::write(server.path("big"), &big).unwrap();
    for flag in ["--http1.1", "--http2"] {
        let curl =
            |words: &[&str]| tool("curl", &[&["-sS", "--cacert", &ca, flag], words].concat());
        let (body, to) =
            (format!("@{}", server.path("big")), format!("{base}/v1/topics/big/messages?create"));
        let posted = curl(&["-w", "%{http_code}", "-o", "/dev/null", "--data-binary", &body, &to]);
        assert!(["200", "201"].contains(&posted.out.join("").as_str()), "{posted:#?}");
    }
    server.run(&["topic", "ls"]).exits(4).says("the server speaks TLS").says("--tls-ca");
    server.logs("the client does not speak TLS");
    let plain = Server::start();
    authority.run(&plain, &["topic", "ls"]).exits(4).says("does not speak TLS");
    let metrics = tool("curl", &["-sS", "--cacert", &ca, &format!("{base}/metrics")]).ok();
    metrics.shows("gapless_tls_certificate_expires_timestamp_seconds 1");
}

#[test]
fn f3_certificates_of_servers_that_are_not_good_are_refused_with_a_reason_on_both_sides() {
    let authority = Authority::new();
    authority.issue("server", Wish { days: -2, ..SERVER });
    let mut server = authority.server(&[]);
    server.logs("expires soon");
    authority.run(&server, &["topic", "ls"]).exits(4).says("the server's certificate has expired");
    server.logs("this server's certificate has expired");
    openssl(server.address(), &authority.path("ca.pem"), &[])
        .exits(1)
        .says("certificate has expired");

    authority.issue("server", Wish { names: &["other.example"], ..SERVER });
    server.signal("HUP");
    server.logs("the certificates were read again");
    authority
        .run(&server, &["topic", "ls"])
        .exits(4)
        .says("is not for 127.0.0.1")
        .says("other.example");
    server.logs("not for the name it asked for");

    let stranger = Authority::new();
    stranger.run(&server, &["topic", "ls"]).exits(4).says("not signed by an authority");
    server.logs("not signed by an authority it trusts");

    // Of no use: the former stays.
    std::fs::write(authority.path("server.pem"), "no certificate").unwrap();
    server.logs("the former certificate stays in force");
    authority.run(&server, &["topic", "ls"]).exits(4).says("other.example");
}

#[test]
fn f3_a_certificate_proves_a_name_and_one_that_is_not_good_is_refused_with_a_reason() {
    let authority = Authority::new();
    authority.issue("server", SERVER);
    let client = |common, serial| Wish { common, names: &[], serial, days: 10 };
    authority.issue("shop", client("shop", 7));
    authority.issue("unknown", client("unknown", 8));
    authority.issue("revoked", client("shop", 9));
    authority.issue("expired", Wish { days: -3, ..client("shop", 10) });
    authority.revoke(9);
    let stranger = Authority::new();
    stranger.issue("shop", client("shop", 7));
    let ca = format!("tls.client_ca={}", authority.path("ca.pem"));
    let crl = format!("tls.client_crl={}", authority.path("crl.pem"));
    let mut server =
        authority.server(&[&ca, &crl, "tls.client_required=true", "auth.required=true"]);
    let owner = |words: &[&str]| server.begin(words).wait();
    assert_eq!(owner(&["auth", "role", "writer", "allow publish,create on orders.>"]), Some(0));
    assert_eq!(owner(&["auth", "grant", "shop", "writer"]), Some(0));

    authority.run_as(&server, "shop", &["auth", "whoami"]).ok().shows("shop");
    authority.run_as(&server, "shop", &["pub", "orders.eu", "x", "--create"]).ok();
    authority.run_as(&server, "shop", &["pub", "other", "x"]).exits(5);
    authority.run_as(&server, "unknown", &["topic", "ls"]).exits(5);
    let (cert, key) = (authority.path("shop.pem"), authority.path("shop.key"));
    let url = format!("https://{}/v1/auth", server.http());
    let own = ["-sS", "--cacert", &authority.path("ca.pem"), "--cert", &cert, "--key", &key];
    let json = ["-H", "content-type: application/json", "-d", r#"{"do":"who_am_i"}"#, &url];
    tool("curl", &[&own[..], &json[..]].concat()).ok().shows("shop");

    for (name, client_hears, server_logs) in [
        ("expired", "certificate has expired", "the client's certificate has expired"),
        ("revoked", "certificate was revoked", "the client's certificate was revoked"),
    ] {
        authority.run_as(&server, name, &["topic", "ls"]).exits(4).says(client_hears);
        server.logs(server_logs);
    }
    authority.run(&server, &["topic", "ls"]).exits(4).says("certificate is missing");
    server.logs("the client's certificate is missing");
    let (cert, key) = (stranger.path("shop.pem"), stranger.path("shop.key"));
    authority
        .run(&server, &["--tls-cert", &cert, "--tls-key", &key, "topic", "ls"])
        .exits(4)
        .says("not signed by an authority that it trusts");
    server.logs("is not signed by an authority of tls.client_ca");
}

#[test]
fn f3_certificates_are_renewed_under_load_without_a_dropped_connection() {
    const RENEWALS: u64 = 5;
    let authority = Authority::new();
    authority.issue("server", SERVER);
    let mut server = authority.server(&[]);
    let ca: PathBuf = authority.path("ca.pem").into();
    let tls = TlsOptions { ca: Some(ca), ..TlsOptions::default() };
    let limits = ClientLimits { connect_wait: DEADLINE, ..ClientLimits::default() };
    let options = ConnectOptions::new([server.address()]).tls(tls).limits(limits);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let topic = TopicName::parse("orders").expect("a name");
    let (client, other) = runtime.block_on(async {
        let client = Client::connect(options.clone()).await.expect("a client");
        let other = Client::connect(options).await.expect("a client");
        client.create_topic(&topic, TopicSettings::default()).await.expect("a topic");
        (client, other)
    });
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let states = [client.state(), other.state()];
    let load = std::thread::spawn(move || {
        runtime.block_on(async {
            let mut follow = other.subscribe("orders", From::Beginning).await.expect("follows");
            let mut count = 0_u64;
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                let message = Message::new(count.to_string().into_bytes());
                client.publish(&topic, message).await.expect("an ack");
                let came = tokio::time::timeout(DEADLINE, follow.next_messages()).await;
                let came = came.expect("in time").expect("no end").expect("no error");
                came.expect("no gap");
                count += 1;
            }
            count
        })
    });
    for serial in 2..2 + RENEWALS {
        authority.issue("server", Wish { serial, ..SERVER });
        server.logs("the certificates were read again");
        let shown = openssl(server.address(), &authority.path("ca.pem"), &["-showcerts"]).ok();
        let pem = shown.out.iter().skip_while(|line| !line.contains("BEGIN CERT"));
        let pem: Vec<&str> =
            pem.take_while(|line| !line.contains("END CERT")).map(String::as_str).collect();
        let own = std::fs::read_to_string(authority.path("server.pem")).unwrap();
        let own: Vec<&str> = own.lines().take_while(|line| !line.contains("END CERT")).collect();
        assert_eq!(pem, own, "new connections get the new certificate");
    }
    drop(stop);
    assert!(load.join().expect("no error") > 0);
    for mut state in states {
        assert!(!state.has_changed().unwrap_or(false), "{:?}", *state.borrow_and_update());
        assert!(matches!(*state.borrow(), State::Online | State::Closed(None)));
    }
}
